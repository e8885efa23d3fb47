# The tests: one TAP program per noun, run under the harness of perl's prove. `make check` is the whole,
# `make check-NAME` one program (make check-arena runs tests/unit/alloc/arena_test.c, make check-tool
# tests/system/tool.t), and `make check-long` what takes longer: tests/long/long_*.t. A NAME_test.c sees every room; what
# it may not see is a main().
test_src     := $(wildcard tests/unit/*/*_test.c)
test_names   := $(patsubst %_test.c,%,$(notdir $(test_src)))
test_scripts := $(wildcard tests/system/*.t)
soak_scripts := $(wildcard tests/long/soak_*.t)
test_bin     := $(patsubst %,$(BUILD)/tests/%_test,$(test_names))
long_scripts := $(wildcard tests/long/long_*.t)

# What a test program links: all but zr-train's main. Rooms that a test does not use are dropped by the linker.
test_support_obj = $(call obj,$(filter-out zero/train/main.c,$(train_src)) $(zero_src) $(comm_src) $(kernels_src) \
	$(filter-out alloc/service/server/main.c,$(service_src)) defrag/tool/compressed.c $(page_src) $(defrag_src) $(heap_src) $(alloc_src))
test_libs = $(heap_library) $(heap_ldflags) $(ALL_LDFLAGS) $(zero_libs) $(train_libs) -lz -lzstd -ldl -lm

$(BUILD)/tests/libzr_test.a: $(test_support_obj)
	@mkdir -p $(@D)
	@rm -f $@ && ar rcs $@ $^

# A test compiles in half the time without optimization, unless it computes much beside the code that it tests. Sanitizers
# keep their level.
computing := tests/unit/kernels/% $(patsubst %,tests/unit/%_test.c,alloc/contiguous alloc/damage alloc/fork_soak \
	alloc/host_moves comm/comm_group comm/window cuda/cuda_contiguous defrag/colouring defrag/defrag_limits defrag/fuzz \
	defrag/pack defrag/rehearsal zero/comm zero/engine zero/gpt zero/gradients zero/offload)
test_opt = $(if $(SANITIZE)$(filter $(computing),$<),,-O0)
vpath %_test.c $(sort $(dir $(test_src)))
$(BUILD)/tests/%_test: %_test.c $(BUILD)/tests/libzr_test.a $(heap_library)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) $(test_opt) $(OBJ_CFLAGS) -o $@ $< $(BUILD)/tests/libzr_test.a $(test_libs)

# The emulated CUDA driver with kernels that run, on which every line of the CUDA backend runs where there is no GPU.
emulator := $(BUILD)/tests/emulator/libcuda.so.1
$(emulator): $(call obj,$(wildcard tests/emulators/cuda/*.c) $(rehearse_driver_src))
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -shared -Wl,-soname,libcuda.so.1,-Bsymbolic -o $@ $^ $(ALL_LDFLAGS)
# It runs kernels on stacks of its own, of which no sanitizer knows.
$(patsubst %,$(BUILD)/obj/tests/emulators/cuda/%.o,threads races matrices copies): OBJ_CFLAGS := -O2 -fno-sanitize=all

# Images of kernels for it: .cu sources by the processor's compiler, as for a race detector, whose entries the image itself
# has: it asks the emulator before each access to memory. $(call image,name,sources)
# fmaf is an instruction where the processor has one, else a call.
device_flags = -std=gnu11 $(or $(device_opt),-O2) -g -fPIC -fvisibility=hidden -fno-math-errno -ffp-contract=off -I. $(WARN) -MMD -MP \
	$(device_fma) $(if $(findstring clang,$(CC)),,--param tsan-instrument-func-entry-exit=0)
device_fma := $(shell grep -qsw fma /proc/cpuinfo && echo -mfma)
# Most of what small models compute in fp32.
$(BUILD)/device/kernels/cuda/attention.0.cu.o: private device_opt := -O3
$(BUILD)/device/%.cu.o: %.cu $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  cc    $<"
	@$(CC) -x c $(device_flags) -fsanitize=thread -c $< -o $@
$(BUILD)/device/tests/emulators/image/%.o: tests/emulators/image/%.c $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  cc    $<"
	@$(CC) $(device_flags) -c $< -o $@
.SECONDARY: $(BUILD)/device/tests/emulators/image/image.o
$(BUILD)/tests/emulator/%.image: $(BUILD)/device/tests/emulators/image/image.o
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -shared -Wl,-z,defs -o $@ $^ -lm
$(BUILD)/tests/emulator/rules.image: $(BUILD)/device/tests/support/cuda/cuda_kernel_rules.cu.o
# The kernels of kernels/cuda/: those of fp8.cu, optimizers.cu, pack.cu and state.cu once, the others per precision.
kernels_cu_obj := $(patsubst %.cu,$(BUILD)/device/%.cu.o,$(kernels_cu_once)) \
	$(foreach p,0 1 2,$(patsubst %.cu,$(BUILD)/device/%.$(p).cu.o,$(kernels_cu_$(p))))
define device_precision
$(BUILD)/device/%.$(1).cu.o: %.cu $(BUILD)/config
	@mkdir -p $$(@D)
	@echo "  cc    $$<"
	@$$(CC) -x c $$(device_flags) -fsanitize=thread -DZR_PRECISION=$(1) -c $$< -o $$@
endef
$(foreach p,0 1 2,$(eval $(call device_precision,$(p))))
$(BUILD)/tests/emulator/kernels.image: $(kernels_cu_obj)
# An emulated cuBLASLt, which multiplies by kernels of its own on the emulated driver.
cublaslt := $(BUILD)/tests/emulator/libcublasLt.so.13
$(BUILD)/tests/emulator/cublaslt.image: $(BUILD)/device/tests/emulators/cublaslt/multiply.cu.o
$(cublaslt): $(call obj,$(wildcard tests/emulators/cublaslt/*.c)) $(emulator) | $(BUILD)/tests/emulator/cublaslt.image
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -shared -Wl,-soname,libcublasLt.so.13,-Bsymbolic -o $@ $(filter %.o,$^) -L$(dir $(emulator)) -l:libcuda.so.1 $(ALL_LDFLAGS)
$(patsubst %,$(BUILD)/tests/cuda_%_test,fp32 narrow llama optimizers packing table matrix fp8): | $(BUILD)/tests/emulator/kernels.image $(cublaslt)
$(BUILD)/tests/cuda_kernels_test: | $(BUILD)/tests/emulator/rules.image

cuda_tests := $(BUILD)/tests/backend_test $(filter $(BUILD)/tests/cuda%,$(test_bin))
$(BUILD)/tests/calls_test: private OBJ_CFLAGS = $(addprefix -Wl$(comma)--wrap=zr_,backend_sim_create arena_reset_peaks learner_destroy)
$(cuda_tests) $(BUILD)/tests/calls_test $(BUILD)/tests/shadow_test $(BUILD)/tests/map_callbacks_test $(BUILD)/tests/colour_test $(BUILD)/tests/failures_test $(BUILD)/tests/zrd_test $(BUILD)/tests/fuzz_test $(BUILD)/tests/fuzz_entry: | $(emulator)
# The toolkit's header comes last of all: nothing but cuda.h is taken from there.
ifneq ($(cuda_header),)
$(BUILD)/tests/cuda_declarations_test: private OBJ_CFLAGS := -idirafter $(dir $(cuda_header)) -DZR_TEST_CUDA_HEADER='"$(cuda_header)"'
endif

$(BUILD)/tests/bench_%: tests/bench/bench_%.c $(BUILD)/tests/libzr_test.a $(heap_library)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) -o $@ $< $(BUILD)/tests/libzr_test.a $(test_libs) $(bench_libs)

# Workloads for any allocator that is preloaded, with nothing of zr's. The compiler takes malloc for a function like others,
# or it leaves out what it can do without.
workloads := $(BUILD)/tests/malloc_workloads
$(BUILD)/obj/tests/bench/malloc/%.o: OBJ_CFLAGS := $(addprefix -fno-builtin-,malloc calloc realloc free)
$(workloads): $(call obj,$(wildcard tests/bench/malloc/*.c))
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -o $@ $^ $(ALL_LDFLAGS)

# Tables of panels for processors with AVX-512, one instruction of each done by hand.
$(addprefix $(BUILD)/tests/,kernel_pairs_test kernel_tiles_test): private OBJ_CFLAGS := $(kernels_avx512)

# And an emulated NCCL; its header serves the comparison of declarations alone.
nccl_emulator := $(BUILD)/tests/emulator/libnccl.so.2
$(nccl_emulator): $(call obj,$(wildcard tests/emulators/nccl/*.c))
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -shared -Wl,-soname,libnccl.so.2 -o $@ $^ $(ALL_LDFLAGS)
$(BUILD)/tests/nccl_test $(BUILD)/tests/cuda_nccl_test: | $(nccl_emulator)
nccl_header := $(and $(cuda_header),$(wildcard $(dir $(cuda_header))cuda_runtime.h),$(wildcard $(dir $(cuda_header))nccl.h))
ifneq ($(nccl_header),)
$(BUILD)/tests/nccl_test: private OBJ_CFLAGS := -idirafter $(dir $(nccl_header)) -DZR_TEST_NCCL_HEADER='"$(nccl_header)"'
endif

# What runs under mpirun, with the module beside it.
mpi_tests := $(if $(mpicc),$(BUILD)/tests/mpi_ranks $(BUILD)/tests/libzr_comm_mpi.so)
$(BUILD)/tests/mpi_ranks: tests/support/zero/mpi_ranks.c $(BUILD)/tests/libzr_test.a $(heap_library)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) $(OBJ_CFLAGS) -o $@ $< $(BUILD)/tests/libzr_test.a $(test_libs)
$(BUILD)/tests/libzr_comm_mpi.so: $(BUILD)/bin/libzr_comm_mpi.so
	@mkdir -p $(@D)
	@cp $< $@
$(BUILD)/tests/mpi_stock: tests/bench/mpi_stock.c $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  mpicc $@"
	@$(mpicc) -std=gnu11 -O2 $(WARN) -o $@ $<

# The trainer as it is, and a rank of it that asks for more than its byte plan has: tests/system/over_plan.t.
leaky := $(BUILD)/tests/zr-train-leaky
$(leaky): tests/support/zero/leaky.c $(call obj,zero/train/main.c) $(BUILD)/tests/libzr_test.a $(heap_library)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) $(foreach name,arena_alloc arena_free arena_get_stats gemm_open trace_mark train_rank,-Wl$(comma)--wrap=zr_$(name)) \
		-o $@ $< $(call obj,zero/train/main.c) $(BUILD)/tests/libzr_test.a $(test_libs)

# The trainer with the time of each kernel on the card: tests/gpu_shot.
kernel_times := $(BUILD)/tests/zr-train-times
$(kernel_times): tests/support/zero/kernel_times.c $(call obj,zero/train/main.c) $(BUILD)/tests/libzr_test.a $(heap_library)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) $(foreach name,cuda_driver_find cuda_matrix_multiply train_rank,-Wl$(comma)--wrap=zr_$(name)) \
		-o $@ $< $(call obj,zero/train/main.c) $(BUILD)/tests/libzr_test.a $(test_libs)

# A program that knows nothing of zr, for a malloc to be preloaded: tests/system/preload.t.
preload_calls := $(BUILD)/tests/preload_calls
$(preload_calls): tests/support/preload_calls.c $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -std=gnu11 -O1 -g $(WARN) -fno-builtin -pthread -o $@ $<

# Runs a program for which the kernel refuses some calls: tests/system/run.t.
forbid := $(BUILD)/tests/forbid
$(forbid): tests/support/forbid.c $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -std=gnu11 -O1 -g $(WARN) -o $@ $<
# Its library and its program are made before it, and a mutant's with it.
$(BUILD)/tests/preloaded_test: private OBJ_CFLAGS := $(if $(SANITIZE),-DZR_TEST_SANITIZED)
$(BUILD)/tests/preloaded_test: $(preload_library) $(preload_calls) $(forbid)

# A client of zrd: tests/system/service.t.
service_client := $(BUILD)/tests/service_client
$(service_client): tests/support/service_client.c $(BUILD)/lib/libzr.a
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) -o $@ $^ $(ALL_LDFLAGS)

# Programs that run out of memory, each for another reason: tests/system/why_failures.t.
failing := $(BUILD)/tests/failing
$(failing): tests/support/failing.c $(BUILD)/lib/libzr.a
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) -o $@ $^ $(ALL_LDFLAGS) -ldl
$(failing): | $(emulator)

# A program that uses CUDA and knows nothing of zr, bare and linked with the (emulated) driver: tests/system/preload_cuda.t.
cuda_programs := $(BUILD)/tests/cuda_program $(BUILD)/tests/cuda_program_linked
$(BUILD)/tests/cuda_program_linked: private cuda_linked := -DLINKED -L$(dir $(emulator)) -l:libcuda.so.1
$(cuda_programs): tests/support/cuda/cuda_program.c alloc/preload/cuda/driver_api.h $(emulator) $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -std=gnu11 -O1 -g $(WARN) -I. -pthread -o $@ $< $(cuda_linked)
own_stream := $(BUILD)/tests/own_stream.so
$(own_stream): tests/support/cuda/own_stream.c alloc/preload/cuda/driver_api.h $(emulator) $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -std=gnu11 -O1 -g $(WARN) -I. -fPIC -shared -o $@ $< -L$(dir $(emulator)) -l:libcuda.so.1
# Of the CUDA runtime and NCCL, for zr rehearse.
rehearse_linked := $(BUILD)/tests/rehearse_program $(BUILD)/tests/rehearse_ranks
rehearse_static := $(BUILD)/tests/rehearse_static $(BUILD)/tests/rehearse_static.so
rehearse_programs := $(rehearse_linked) $(rehearse_static)
# -O0: its functions are called, as those of a library.
$(rehearse_static): tests/support/cuda/rehearse_static.c $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -std=gnu11 -O0 -g $(WARN) -fPIC $(if $(filter %.so,$@),-shared) -o $@ $< -ldl
$(rehearse_linked): $(BUILD)/tests/%: tests/support/cuda/%.c $(rehearse_libraries) $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -std=gnu11 -O1 -g $(WARN) -o $@ $< -L$(rehearse_folder) -l:libzr_rehearse.so -l:libcuda.so.1 -ldl
# One that allocates as PyTorch does.
cuda_caching := $(BUILD)/tests/cuda_caching
$(cuda_caching): tests/support/cuda/cuda_caching.c tests/support/cuda/cudart_calls.h alloc/rehearse/driver/emulator.h alloc/preload/cuda/driver_api.h $(emulator) $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -std=gnu11 -O1 -g $(WARN) -I. -o $@ $< -ldl

# The longest first, or the last of all would be waited for alone.
longest := mpi.t launch_requests_test started.t train_plan.t train_bits.t train_cuda.t train_limit.t train_faults.t \
	cuda_contiguous_test kernels_narrow_test long_bits.t long_sanitizers.t long_shadow.t long_traces.t
# Programs that mostly sleep; one of them runs beside those that compute.
waits := mpi.t,launch_requests_test,started.t,service.t,launch_test,launch_turns_test,comm_failures_test,hostile_live.t,top.t,rehearse_device.t,mpi_hosts.t,serve.t,service_keep.t
longest_first = $(foreach name,$(longest),$(filter %/$(name),$(1))) $(filter-out $(addprefix %/,$(longest)),$(1))

# What scripts run is built before they start: they build nothing, since others run it beside them. Those of
# check-long share one build with both sanitizers, and one with ThreadSanitizer.
.PHONY: built-scripts built-check built-long built-soak
built-scripts: $(programs) $(libraries) $(gdb_script) $(manuals) $(completions) $(mpi_tests) $(leaky) $(preload_calls) $(forbid) $(failing) $(service_client) $(cuda_programs) $(own_stream) $(cuda_caching) $(rehearse_programs) $(workloads) $(emulator) $(nccl_emulator) $(BUILD)/tests/emulator/kernels.image
built-check: built-scripts built-gpu $(test_bin)
# Without nvcc, whose kernels the emulated driver does not run: they are compiled apart, with what ptxas says of each in a
# file beside it.
built-long:
	@$(again) $(without_nvcc) built-check $(BUILD)/tests/bench_pipeline
	@$(again) BUILD=$(BUILD)/nvcc NVCC_LOG='$(nvcc_log)' $(BUILD)/nvcc/obj/kernels/cuda/images.o
	@$(again) BUILD=$(BUILD)/both-sanitizers SANITIZE=address,undefined built-check
	@$(again) BUILD=$(BUILD)/thread SANITIZE=thread $(addprefix $(BUILD)/thread/,tests/shadow_test bin/zr-train)
	@$(again) $(fuzz_build) $(fuzz_folder)/tests/api_entry
nvcc_log = -Werror all-warnings -Xptxas -v 2> $$@.log || { cat $$@.log >&2; exit 1; }
built-soak: built-check $(BUILD)/tests/click_wide $(BUILD)/tests/bench_moves $(BUILD)/tests/bench_comm $(if $(mpicc),$(BUILD)/tests/mpi_stock)
	@$(again) $(fuzz_build) $(fuzz_folder)/tests/api_entry

all_scripts := $(test_scripts) $(long_scripts) $(soak_scripts)
.PHONY: check check-long check-asan check-ubsan check-tsan $(patsubst %,check-%,$(test_names)) \
	$(patsubst %.t,check-%,$(notdir $(all_scripts)))
check: packages-check
	@$(again) $(without_nvcc) built-check
	@tests/run --jobs $$(($(JOBS) + 1)) --waits $(waits) $(call longest_first,$(test_scripts) $(test_bin)) # some wait, for a deadline or a disk
check-long: packages-check
	@$(again) packages-long
	@$(again) packages-libfuzzer
	@$(again) built-long
	@tests/run --jobs $(JOBS) $(call longest_first,$(long_scripts))
# Shards beyond 2 GiB, every stage on more ranks under mpirun, and what goes by the clock: communication hidden behind
# computing, times as fast as Open MPI or a copy; and the largest of the programs that zr run is tried on. For a quiet machine with memory and an hour to spare.
.PHONY: soak
soak: packages-check
	@$(again) packages-soak
	@$(again) packages-libfuzzer
	@$(again) built-soak
	@tests/run $(soak_scripts)
$(patsubst %,check-%,$(test_names)): check-%: packages-check
	@$(again) $(without_nvcc) $(BUILD)/tests/$*_test
	tests/run --verbose $(BUILD)/tests/$*_test
$(patsubst %.t,check-%,$(notdir $(all_scripts))): check-%: packages-check
	@$(again) $(if $(filter long_%,$*),built-long,$(without_nvcc) $(if $(filter soak_%,$*),built-soak,built-scripts))
	tests/run --verbose $(filter %/$*.t,$(all_scripts))

# What a card says: tests/gpu_shot has the steps, and in a tree that is built needs Python alone. GPU_STEPS="train vmm" runs these,
# GPU_EMULATED=1 all on the emulated driver. 77 is its word for that there is no card. gpu-archive packs what the steps need on a
# machine with a card that has neither this tree nor its packages.
.PHONY: gpu-check gpu-archive built-gpu
built-gpu: $(cuda_tests) $(programs) $(libraries) $(kernel_times) $(BUILD)/tests/bench_pack $(nccl_emulator) $(cublaslt) $(addprefix $(BUILD)/tests/emulator/,kernels.image rules.image)
gpu-check: packages-check
	@echo "$(cuda_words)"
	@$(again) built-gpu
	@tests/gpu_shot $(if $(GPU_EMULATED),--emulated) $(GPU_STEPS) > /dev/null || [ $$? = 77 ]
gpu-archive: packages-check
	@echo "$(cuda_words)"
	@$(again) built-gpu
	@tests/gpu_shot --pack $(BUILD)/gpu-shot.tar.xz

# Models that transformers 4 and 5 save, and their losses: tests/support/hf_check.py has the table. Not in CI: it fetches
# transformers and torch from PyPI once, 6 GB in $(BUILD)/hf.
.PHONY: check-hf
check-hf: packages-check
	@$(again) $(BUILD)/bin/zr-train
	@tests/run --verbose tests/support/hf_check.py

# zr-train tokenize beside the tokenizers package: equal tokens, and both speeds. Not in CI, for the same reason.
.PHONY: check-tokenizers
check-tokenizers: packages-check
	@$(again) $(BUILD)/bin/zr-train
	@tests/run --verbose tests/support/tokenizers_check.py

# PyTorch's CUDA wheel from PyPI on the simulated device, with libzr_cuda.so below it and by zr's package, and its
# allocator beside the models of zr replay: 1.5 GB in $(BUILD)/pytorch.
# check-pytorch-asan: libzr_cuda.so with both sanitizers, ten runs of each way.
.PHONY: check-pytorch check-pytorch-asan
check-pytorch: packages-check
	@$(again) $(rehearse_libraries) $(programs) $(libraries) $(BUILD)/tests/policies_test
	@tests/run --verbose tests/support/pytorch_check.py tests/support/allocator_check.py
check-pytorch-asan: packages-check
	@$(again) $(rehearse_libraries) $(programs) $(libraries)
	@$(again) BUILD=$(BUILD)/both-sanitizers SANITIZE=address,undefined $(BUILD)/both-sanitizers/lib/libzr_cuda.so
	@tests/support/pytorch_check.py threads streams graphs --times 10 --library $(BUILD)/both-sanitizers/lib/libzr_cuda.so

# zr rehearse beside steps that were recorded on a GPU, and with models of transformers and torchvision on that wheel.
.PHONY: check-rehearse
check-rehearse: packages-check
	@$(again) $(BUILD)/bin/zr $(rehearse_libraries)
	@tests/run --verbose tests/support/rehearse_truth.py tests/support/rehearse_check.py

# The figures. Benchmarks are no tests: they print medians, ratios and the machine, and never fail on time.
bench_programs := $(patsubst tests/bench/%.c,$(BUILD)/tests/%,$(wildcard tests/bench/bench_*.c))
.PHONY: bench built-bench bench-store
built-bench: $(programs) $(libraries) $(bench_programs) $(workloads) $(if $(mpicc),$(BUILD)/tests/mpi_stock)
bench: packages-bench
	@$(again) built-bench
	@for program in tests/bench/bench_operations.py $(filter-out %/bench_operations,$(bench_programs)) tests/bench/bench_train.py \
		tests/bench/bench_parallel.py tests/bench/bench_largest.py tests/bench/bench_holes.py tests/bench/bench_malloc.py tests/bench/bench_recording.py \
		tests/bench/bench_attach.py; do \
		echo "== $$program"; $$program || exit 1; done
# Minutes to hours, so not in `make bench`: compression over a slow link, parameter servers, losses after long runs, copies of the state and
# ranks that are threads.
.PHONY: bench-links bench-ps bench-requests bench-click bench-schedules bench-outer bench-copies bench-threads
bench-links bench-ps bench-requests bench-click bench-schedules bench-outer bench-copies bench-threads: packages-bench packages-demo
	@$(again) $(without_nvcc) built-demo
	@tests/bench/bench_$(@:bench-%=%).py $(BENCH_FLAGS)
# The same, and the speeds become those that later ones are compared with, on processors of this model: when nothing
# else runs here.
bench-store: export ZR_BENCH_STORE := 1
bench-store: bench

# The readers of every file format under libFuzzer, for FUZZ_SECONDS, and as long the calls of alloc/zr.h and the live socket;
# or each of FUZZ_TARGET for as long: "trace recording lifetimes zrt api socket". What it finds stays in the folder.
FUZZ_SECONDS ?= 120
fuzz_folder := $(BUILD)/fuzz
fuzz_both := $(BUILD)/both-sanitizers
fuzz_build := BUILD=$(fuzz_folder) CC=clang SANITIZE=address,undefined,fuzzer-no-link CFLAGS=-Wno-missing-field-initializers
$(BUILD)/tests/fuzz_entry: tests/support/fuzz/fuzz_entry.c $(BUILD)/tests/libzr_test.a $(heap_library)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer -o $@ $< $(BUILD)/tests/libzr_test.a $(test_libs)
# Calls of alloc/zr.h alone: what they need is in libzr.a.
$(BUILD)/tests/api_entry: tests/support/fuzz/api_entry.c $(BUILD)/lib/libzr.a
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer -o $@ $(filter %.c %.a,$^) $(ALL_LDFLAGS) -ldl
.PHONY: fuzz
fuzz: packages-fuzz
	@$(again) packages-libfuzzer
	@$(again) $(BUILD)/tests/fuzz_test
	@$(again) $(fuzz_build) $(fuzz_folder)/tests/fuzz_entry $(fuzz_folder)/tests/api_entry
	@$(again) BUILD=$(fuzz_both) SANITIZE=address,undefined $(addprefix $(fuzz_both)/bin/,zr zr-train)
	@mkdir -p $(fuzz_folder)/corpus $(fuzz_folder)/found
	@$(BUILD)/tests/fuzz_test --corpus $(fuzz_folder)/corpus
	@for target in $(or $(FUZZ_TARGET),all api socket); do echo "== $$target"; \
		if [ $$target = api ]; then BUILD=$(BUILD) python3 tests/support/fuzz/fuzz_api.py $(FUZZ_SECONDS); \
		elif [ $$target = socket ]; then BUILD=$(fuzz_both) python3 tests/support/fuzz/fuzz_socket.py $(FUZZ_SECONDS) $$RANDOM; else \
		$$([ $$target = all ] || echo env ZR_FUZZ_TARGET=$$target) $(fuzz_folder)/tests/fuzz_entry -max_total_time=$(FUZZ_SECONDS) \
		-timeout=20 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 -dict=$(fuzz_folder)/corpus.words \
		-artifact_prefix=$(fuzz_folder)/found/ $(fuzz_folder)/corpus; fi || exit 1; done

# The same sources under sanitizers, each in a build folder of its own.
check-asan check-ubsan check-tsan: packages-check
check-asan: sanitizer := address
check-ubsan: sanitizer := undefined
check-tsan: sanitizer := thread
check-asan check-ubsan check-tsan:
	@$(again) BUILD=$(BUILD)/$(sanitizer) SANITIZE=$(sanitizer) check-programs
.PHONY: check-programs
raced := $(if $(filter thread,$(SANITIZE)),tests/system/train_threads.t)
check-programs: export TSAN_OPTIONS := suppressions=$(CURDIR)/tests/support/races.txt
check-programs: $(test_bin) $(if $(raced),$(BUILD)/bin/zr-train)
	@tests/run --jobs $(JOBS) $(call longest_first,$(test_bin)) $(raced)

# Lines that tests run, by module: of the unit tests, or of those that COVERAGE names, scripts too. What is built for it lies
# in a folder of its own; gcov comes with the compiler.
.PHONY: coverage coverage-built
coverage_folder := $(BUILD)/coverage
coverage_names = $(or $(COVERAGE),$(test_names))
coverage_tests = $(patsubst %,$(BUILD)/tests/%_test,$(filter $(test_names),$(coverage_names))) \
	$(foreach name,$(coverage_names),$(filter %/$(name).t,$(all_scripts)))
coverage: packages-check
	@find $(coverage_folder) -name '*.gcda' -delete 2>/dev/null || true
	@$(again) BUILD=$(coverage_folder) OPT=-O1 CFLAGS="--coverage -fprofile-update=atomic" LDFLAGS=--coverage coverage-built
coverage-built: $(filter $(BUILD)/%,$(coverage_tests)) $(if $(filter %.t,$(coverage_tests)),built-scripts)
	@tests/run --jobs $(JOBS) $(call longest_first,$(coverage_tests)); code=$$?; python3 tests/support/coverage.py && exit $$code

# Small defects, each of which a test must catch; MUTANT=name tries that one alone.
.PHONY: check-mutants built-mutants
built-mutants: $(test_support_obj) $(emulator) $(nccl_emulator)
check-mutants: packages-check
	@$(again) built-mutants
	@tests/mutants/run --jobs $(JOBS) $(MUTANT)
