# The host heap: Debian's static jemalloc with every symbol it defines under the prefix zr_je_, malloc and operator
# new included, so that it stands beside the program's own malloc. Its look at MALLOC_CONF and /etc/malloc.conf, and
# its handlers around fork, are led to functions of heap.c. Executables and libzr_malloc.so only: its thread-local
# data keeps a library from being dlopened.
jemalloc_archive := $(shell $(CC) -print-file-name=libjemalloc_pic.a)
heap_library := $(BUILD)/obj/libzr_jemalloc.a
heap_ldflags := -Wl,--exclude-libs,ALL -ldl -lm

libjemalloc_pic.a:
	@echo "zr: libjemalloc_pic.a is missing; type: apt-get install libjemalloc-dev" >&2; exit 1

$(heap_library): $(jemalloc_archive) alloc/heap/heap.mk
	@mkdir -p $(@D)
	set -o pipefail; nm -A --extern-only --defined-only --format=posix $< | \
		awk '{ print $$2, "zr_je_" $$2 }' | sort -u > $@.names
	for name in secure_getenv readlink pthread_atfork; do echo "$$name zr_je_$$name" >> $@.names; done
	objcopy --redefine-syms=$@.names $< $@.new && mv $@.new $@
