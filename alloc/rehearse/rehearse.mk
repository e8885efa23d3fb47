# The simulated device of `zr rehearse`: stand-ins for the libraries of CUDA that programs link, in $(BUILD)/lib/zr-rehearse.
# libcuda.so.1 is the emulated driver, which tests link with kernels that run instead (tests/tests.mk). libzr_rehearse.so has
# the functions of all other libraries; it is preloaded, and beside it each library of functions.txt is a file of that
# soname and those versions without a function, so that none of NVIDIA's is loaded.
rehearse_driver_src := $(wildcard alloc/rehearse/*.c alloc/rehearse/driver/*.c)
rehearse_runtime_src := $(filter-out %/stand_ins.c %/launches.c %/trace.c,$(wildcard alloc/rehearse/runtime/*.c))
rehearse_folder := $(BUILD)/lib/zr-rehearse
rehearse_python := $(notdir $(wildcard alloc/rehearse/*.py))
rehearse_names := $(shell awk '/\.so/ { print $$1 }' alloc/rehearse/functions.txt)
rehearse_libraries := $(addprefix $(rehearse_folder)/,libcuda.so.1 libzr_rehearse.so $(rehearse_python) $(rehearse_names))
# All of them need libzr_rehearse.so, which needs them: what a program looks up in libcudart.so.13 or libcuda.so.1 alone is there.
rehearse_core = $(CC) -shared -Wl,-soname,libzr_rehearse.so -o $@.core -x c /dev/null
rehearse_link = mkdir -p $(@D) && $(CC) -shared -Wl,-soname,$(@F) -Wl,-z,now -Wl,-Bsymbolic -Wl,-rpath,'$$ORIGIN' -o $@

$(rehearse_folder)/libcuda.so.1: $(call obj,$(rehearse_driver_src) alloc/rehearse/runtime/launches.c alloc/rehearse/runtime/trace.c) $(BUILD)/lib/libzr.a alloc/rehearse/rehearse.mk
	@echo "  link  $@"
	@mkdir -p $(@D)
	@echo '{ global: cu*; zr_emulator; local: *; };' > $(BUILD)/rehearse.map
	@$(rehearse_core)
	@$(rehearse_link) -Wl,-z,defs -Wl,--version-script=$(BUILD)/rehearse.map $(filter %.o %.a,$^) -Wl,--no-as-needed $@.core $(ALL_LDFLAGS) && rm $@.core

# What has an answer, or another form with one in the driver, is no stand-in.
$(BUILD)/rehearse/stand_ins.h: alloc/rehearse/functions.txt $(call obj,$(rehearse_runtime_src)) $(rehearse_folder)/libcuda.so.1
	@mkdir -p $(@D)
	@nm --defined-only --extern-only --format=posix $(call obj,$(rehearse_runtime_src)) > $@.there
	@nm --dynamic --defined-only --format=posix $(rehearse_folder)/libcuda.so.1 >> $@.there
	@awk 'NR == FNR { there[$$1] = 1; sub(/_v[0-9]$$/, "", $$1); there[$$1] = 1; next } \
		!/\.so|^#/ && !($$1 in there) { print "STAND_IN(" $$1 ")" }' $@.there $< > $@
$(BUILD)/obj/alloc/rehearse/runtime/stand_ins.o: OBJ_CFLAGS := -I$(BUILD) -fno-builtin
$(BUILD)/obj/alloc/rehearse/runtime/stand_ins.o: $(BUILD)/rehearse/stand_ins.h

$(addprefix $(rehearse_folder)/,$(rehearse_names)): alloc/rehearse/functions.txt alloc/rehearse/rehearse.mk
	@mkdir -p $(@D)
	@$(rehearse_core)
	@awk '$$1 == "$(@F)" { for (i = 2; i <= NF; i++) print $$i " { };" }' $< > $@.map
	@$(rehearse_link) $$(if [ -s $@.map ]; then echo -Wl,--version-script=$@.map; fi) -Wl,--no-as-needed $@.core && rm $@.core $@.map
$(rehearse_folder)/libzr_rehearse.so: $(call obj,$(rehearse_runtime_src) alloc/rehearse/runtime/stand_ins.c) \
		$(addprefix $(rehearse_folder)/,libcuda.so.1 $(rehearse_names))
	@echo "  link  $@"
	@$(rehearse_link) -Wl,-z,defs -Wl,--no-as-needed $^ $(ALL_LDFLAGS)
$(addprefix $(rehearse_folder)/,$(rehearse_python)): $(rehearse_folder)/%.py: alloc/rehearse/%.py
	@mkdir -p $(@D)
	@cp $< $@
