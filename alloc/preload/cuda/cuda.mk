# libzr_cuda.so: the driver's calls of memory over the arena, preloaded or dlopened. It shows the functions that it takes
# the place of and PyTorch's entry points (cuda.map), needs libc alone, and stays loaded. zr's own calls of dlsym, and the
# backend's of the driver, are led to functions of driver.c and device.c.
cuda_preload_src := $(wildcard alloc/preload/cuda/*.c) alloc/preload/say.c alloc/preload/usage.c
cuda_preload_library := $(BUILD)/lib/libzr_cuda.so

$(cuda_preload_library): $(call obj,$(cuda_preload_src)) $(BUILD)/lib/libzr.a alloc/preload/cuda/cuda.map
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -shared -Wl,-soname,libzr_cuda.so -Wl,-z,defs -Wl,-z,now -Wl,-z,nodelete -Wl,-Bsymbolic-functions -Wl,--gc-sections \
		-Wl,--exclude-libs,ALL -Wl,--wrap=dlsym -Wl,--wrap=zr_cuda_driver_get -Wl,--version-script=alloc/preload/cuda/cuda.map \
		-o $@ $(call obj,$(cuda_preload_src)) $(BUILD)/lib/libzr.a $(ALL_LDFLAGS) $(unwind_libs)

# PyTorch's exceptions pass through these files' functions.
$(BUILD)/obj/alloc/preload/cuda/torch.o $(BUILD)/obj/alloc/preload/cuda/torch_throw.o: private ALL_CFLAGS += -fexceptions
