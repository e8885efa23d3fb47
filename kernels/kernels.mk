# How the kernels are compiled: the loops and the panels once per instruction set, by the file's name; all the
# rest portable. Vectors and two-byte numbers share memory in the loops, hence -fno-strict-aliasing.
# libgomp comes with oneDNN; we only tell it, thread by thread, to start no threads of its own.
kernels_libs := -ldnnl -lgomp

# The kernels of a card, where there is an nvcc and a C++ compiler beside it: a fat binary per source and precision, put
# into the library by images.c. NVCC= leaves them out; sanitizers have no use for them.
NVCC ?= $(if $(shell command -v g++),$(firstword $(wildcard $(addsuffix /bin/nvcc,$(CUDA_HOME) /usr/local/cuda)) \
	$(shell command -v nvcc)))
nvcc := $(if $(filter 0,$(CUDA))$(SANITIZE),,$(NVCC))
# fp8.cu, optimizers.cu, pack.cu and state.cu are compiled once; attention_mma.cu for two-byte elements.
kernels_cu_once := $(patsubst %,kernels/cuda/%.cu,fp8 optimizers pack state)
kernels_cu_1 := $(filter-out $(kernels_cu_once),$(wildcard kernels/cuda/*.cu))
kernels_cu_2 := $(kernels_cu_1)
kernels_cu_0 := $(filter-out kernels/cuda/attention_mma.cu,$(kernels_cu_1))
ifneq ($(nvcc),)
kernels_fat := $(patsubst %.cu,$(BUILD)/device/%.fatbin,$(kernels_cu_once)) \
	$(foreach p,0 1 2,$(patsubst %.cu,$(BUILD)/device/%.$(p).fatbin,$(kernels_cu_$(p))))
# Cards of the named kinds, and what the driver compiles for later ones. Before CUDA 12.8 nvcc knew no sm_100.
nvcc_newest = $(if $(filter sm_100,$(shell $(nvcc) --list-gpu-code)),100,90)
nvcc_flags = -fatbin -I. -fmad=false -ftz=true -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
	-gencode arch=compute_$(nvcc_newest),code=[$(addprefix sm_,$(filter 100,$(nvcc_newest)))$(if \
	$(filter 100,$(nvcc_newest)),$(comma))compute_$(nvcc_newest)]
define nvcc_rule
$(BUILD)/device/%$(1).fatbin: %.cu $(wildcard kernels/cuda/*.h kernels/*.h)
	@mkdir -p $$(@D)
	@echo "  nvcc  $$<"
	@$$(nvcc) $$(nvcc_flags) $(2) $$< -o $$@ $$(NVCC_LOG)
endef
$(foreach p,0 1 2,$(eval $(call nvcc_rule,.$(p),-DZR_PRECISION=$(p))))
$(eval $(call nvcc_rule,,))
# Of each the name and the place.
$(BUILD)/device/images.h: $(kernels_fat)
	@printf 'ZR_IMAGE(%s, "%s")\n' $(foreach fat,$^,$(subst .,_,$(basename $(notdir $(fat)))) $(abspath $(fat))) > $@
$(BUILD)/obj/kernels/cuda/images.o: OBJ_CFLAGS := -DZR_CUDA_IMAGES='"$(abspath $(BUILD))/device/images.h"'
$(BUILD)/obj/kernels/cuda/images.o: $(BUILD)/device/images.h
endif

kernels_avx2 := -mavx2 -mfma -mf16c
kernels_avx512 := $(kernels_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
kernels_flags = $(patsubst %,$(BUILD)/obj/kernels/cpu/%,$(1)): OBJ_CFLAGS := -O3 -fno-strict-aliasing $(2)
$(eval $(call kernels_flags,loops/loops_plain_%.o products/panels_plain.o,))
$(eval $(call kernels_flags,loops/loops_avx2_%.o products/panels_avx2.o,$(kernels_avx2)))
$(eval $(call kernels_flags,loops/loops_avx512_%.o products/panels_avx512.o,$(kernels_avx512)))
$(eval $(call kernels_flags,products/panels_avx512_bf16.o,$(kernels_avx512) -mavx512bf16))
$(eval $(call kernels_flags,products/panels_amx.o,$(kernels_avx512) -mavx512bf16 -mamx-tile -mamx-bf16))
