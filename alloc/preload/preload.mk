# libzr_malloc.so: the preloaded malloc. jemalloc under the prefix zr_je_ as in the host heap; besides, its mmap and
# munmap are led to the arena, its clock to the record, its locks to control.c, and it has no constructor: start.c decides when it starts. Only the names of the malloc family, setrlimit's and dlopen are exported, and nothing but libc is needed.
preload_src := $(wildcard alloc/preload/*.c)
preload_jemalloc := $(BUILD)/obj/libzr_jemalloc_preload.a
preload_library := $(BUILD)/lib/libzr_malloc.so

$(preload_jemalloc): $(heap_library) alloc/preload/preload.mk
	objcopy --redefine-sym mmap=zr_je_mmap --redefine-sym munmap=zr_je_munmap --redefine-sym madvise=zr_je_madvise \
		--redefine-sym clock_gettime=zr_je_clock_gettime \
		$(foreach call,lock trylock unlock,--redefine-sym pthread_mutex_$(call)=zr_je_pthread_mutex_$(call)) \
		--remove-section .init_array --remove-section .rela.init_array $< $@.new && mv $@.new $@

# The compiler may not make calloc out of malloc and memset inside calloc itself.
$(BUILD)/obj/alloc/preload/%.o: OBJ_CFLAGS := -fno-builtin -fno-semantic-interposition -fno-tree-slp-vectorize
$(preload_library): $(call obj,$(preload_src)) $(BUILD)/lib/libzr.a $(preload_jemalloc)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -shared -Wl,-soname,libzr_malloc.so -Wl,-z,defs -Wl,-z,now -Wl,-Bsymbolic-functions -Wl,--gc-sections $(foreach part,_ _enabled_,-Wl$(comma)--wrap=zr_je_je_tsd_tcache$(part)data_init) -o $@ $(call obj,$(preload_src)) \
		$(BUILD)/lib/libzr.a $(preload_jemalloc) $(heap_ldflags) $(ALL_LDFLAGS) $(unwind_libs)
