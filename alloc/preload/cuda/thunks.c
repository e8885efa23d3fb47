/* thunks.c: detects whether the program uses per-thread default streams. See cuda.h.
 *
 * A program that is linked with per-thread forms names them in its imports. All other programs look them up.
 *
 * NVIDIA's runtime looks up the per-thread form of each function in every process, so a lookup does not show
 * that the program uses the form. The lookup returns a thunk: code that detects the first use and then jumps
 * to the driver's function with unchanged arguments. Functions in the legacy form get a thunk, too, because a
 * program may pass CU_STREAM_PER_THREAD as the stream. After the first use a thunk is a comparison and a
 * jump. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <link.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc/base/system/lock.h"

#ifdef __x86_64__

/* The part of a call that shows the use of a per-thread default stream. */
enum watched {
    WATCHED_ANY = 0, /* any argument with the value CU_STREAM_PER_THREAD */
    /* 1 to 9: the argument of that number has the value. */
    WATCHED_CONFIG = 100, /* the stream in the first argument's structure: cuLaunchKernelEx */
    WATCHED_CALL          /* every call: the per-thread form */
};

/* The number of thunks in the assembly below. The driver has about 130 functions that take a stream. */
enum { THUNKS_COUNT = 512 };

/* The first fields of CUlaunchConfig. */
struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    zr_cu_stream stream;
};

/* lock: thunks_count and the unused thunks */
static struct zr_lock lock;
static unsigned thunks_count;
static enum watched watched[THUNKS_COUNT];
static void (*used_callback)(void); /* set before the first thunk is returned */
/* Read by the assembly. */
__attribute__((visibility("hidden"), used)) void *zr_thunk_targets[THUNKS_COUNT];
__attribute__((visibility("hidden"), used)) _Atomic unsigned char zr_thunks_done;

/* words: the thunk's number, the six register arguments, the return address, the stack arguments. */
__attribute__((visibility("hidden"), used)) void zr_thunk_called(const uintptr_t *words);
void zr_thunk_called(const uintptr_t *words)
{
    enum { REGISTERS = 6, ON_STACK = 8, LOOKED_AT = 4 };
    enum watched what = watched[words[0]];
    const uintptr_t *arguments = &words[1], *more = &words[ON_STACK];
    const struct launch_config *config = (const struct launch_config *)arguments[0];
    bool per_thread = what == WATCHED_CALL;
    if (what == WATCHED_CONFIG)
        per_thread = config && (uintptr_t)config->stream == ZR_CU_STREAM_PER_THREAD;
    for (unsigned i = 1; what < WATCHED_CONFIG && i <= REGISTERS + LOOKED_AT; i++)
        if (what == WATCHED_ANY || what == i)
            per_thread |=
                (i <= REGISTERS ? arguments[i - 1] : more[i - 1 - REGISTERS]) == ZR_CU_STREAM_PER_THREAD;
    if (per_thread)
        used_callback();
}

void zr_cuda_thunks_done(void)
{
    atomic_store_explicit(&zr_thunks_done, 1, memory_order_release);
}

/* Each thunk puts its number into a register that holds no argument. Floating-point registers are not saved:
 * no driver function with a stream has floating-point arguments. */
__asm__(".text\n"
        ".p2align 4\n"
        ".type zr_thunk_first, @function\n"
        ".local zr_thunk_first\n"
        "zr_thunk_first:\n"
        ".set number, 0\n"
        ".rept 512\n"
        "  .p2align 4\n"
        "  endbr64\n"
        "  movl $number, %r11d\n"
        "  jmp zr_thunk_rest\n"
        "  .set number, number + 1\n"
        ".endr\n"
        ".size zr_thunk_first, .-zr_thunk_first\n"
        ".p2align 4\n"
        ".type zr_thunk_rest, @function\n"
        ".local zr_thunk_rest\n"
        "zr_thunk_rest:\n"
        "  .cfi_startproc\n"
        "  cmpb $0, zr_thunks_done(%rip)\n"
        "  jne 1f\n"
        "  pushq %r9\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %r8\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rcx\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rdx\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rsi\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rdi\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %r11\n  .cfi_adjust_cfa_offset 8\n"
        "  movq %rsp, %rdi\n"
        "  call zr_thunk_called\n"
        "  popq %r11\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %rdi\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %rsi\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %rdx\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %rcx\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %r8\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %r9\n  .cfi_adjust_cfa_offset -8\n"
        "1:\n"
        "  leaq zr_thunk_targets(%rip), %r10\n"
        "  jmp *(%r10,%r11,8)\n"
        "  .cfi_endproc\n"
        ".size zr_thunk_rest, .-zr_thunk_rest\n");
extern const char zr_thunk_first[THUNKS_COUNT][16] __attribute__((visibility("hidden")));

/* Functions with other arguments that may equal CU_STREAM_PER_THREAD: the position of their stream. */
static const struct {
    const char *name;
    unsigned argument;
} streams_of[] = {
    {"cuLaunchKernel", 9},     {"cuLaunchCooperativeKernel", 9}, {"cuLaunchKernelEx", WATCHED_CONFIG},
    {"cuMemcpyAsync", 4},      {"cuMemcpyHtoDAsync", 4},         {"cuMemcpyDtoHAsync", 4},
    {"cuMemcpyDtoDAsync", 4},  {"cuMemcpyPeerAsync", 6},         {"cuMemsetD8Async", 4},
    {"cuMemsetD16Async", 4},   {"cuMemsetD32Async", 4},          {"cuMemsetD2D8Async", 6},
    {"cuMemsetD2D16Async", 6}, {"cuMemsetD2D32Async", 6}};

static enum watched watched_of(const char *name, bool per_thread_form)
{
    for (size_t i = 0; !per_thread_form && i < sizeof streams_of / sizeof *streams_of; i++)
        if (strcmp(streams_of[i].name, name) == 0)
            return (enum watched)streams_of[i].argument;
    return per_thread_form ? WATCHED_CALL : WATCHED_ANY;
}

/* Whether the function copies or fills in the default stream, which only its form selects. */
static bool has_no_stream(const char *name)
{
    return (strncmp(name, "cuMemcpy", 8) == 0 || strncmp(name, "cuMemset", 8) == 0) && !strstr(name, "Async");
}

void *zr_cuda_thunk(const char *name, void *function, bool per_thread_form, void (*used)(void))
{
    if (atomic_load_explicit(&zr_thunks_done, memory_order_acquire) ||
        (!per_thread_form && has_no_stream(name)))
        return function;
    enum watched wanted = watched_of(name, per_thread_form);
    zr_lock_acquire(&lock);
    used_callback = used;
    unsigned i = 0;
    while (i < thunks_count && (zr_thunk_targets[i] != function || watched[i] != wanted))
        i++;
    bool available = i < THUNKS_COUNT;
    if (available && i == thunks_count) {
        zr_thunk_targets[i] = function;
        watched[i] = wanted;
        thunks_count++;
    }
    zr_lock_release(&lock);
    if (!available)
        used();
    return available ? (void *)(uintptr_t)zr_thunk_first[i] : function;
}

void zr_cuda_thunks_forked(void)
{
    memset(&lock, 0, sizeof lock);
}

#else

/* No thunks exist for this processor: a lookup of the per-thread form counts as its use. */
void *zr_cuda_thunk(const char *name, void *function, bool per_thread_form, void (*used)(void))
{
    (void)name;
    if (per_thread_form)
        used();
    return function;
}

void zr_cuda_thunks_done(void)
{
}

void zr_cuda_thunks_forked(void)
{
}

#endif

/* ---- Imports that the dynamic linker binds ------------------------------------------------------------- */

#define NAME(member, name, suffix, parameters) #name #suffix,
static const char *const replaced[] = {ZR_CUDA_REPLACED(NAME)};
#undef NAME

/* The parts of a loaded library's dynamic section that name its imports. */
struct imports {
    const ElfW(Sym) * symbols;
    const char *strings;
    size_t count; /* of `symbols`, the imports among them */
};

static struct imports imports_of(const struct dl_phdr_info *library)
{
    struct imports found = {0};
    const ElfW(Dyn) *entry = NULL;
    for (size_t i = 0; i < library->dlpi_phnum; i++)
        if (library->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        /* The dynamic linker has relocated the addresses, except in objects that it may not write to. */
        uintptr_t value =
            entry->d_un.d_ptr + (entry->d_un.d_ptr < library->dlpi_addr ? library->dlpi_addr : 0);
        if (entry->d_tag == DT_SYMTAB)
            found.symbols = (const ElfW(Sym) *)value;
        else if (entry->d_tag == DT_STRTAB)
            found.strings = (const char *)value;
        else if (entry->d_tag == DT_GNU_HASH) /* imports precede the first hashed symbol */
            found.count = ((const uint32_t *)value)[1];
        else if (entry->d_tag == DT_HASH && found.count == 0)
            found.count = ((const uint32_t *)value)[1]; /* all symbols */
    }
    return found;
}

static bool is_per_thread_form(const char *name)
{
    size_t length = strlen(name);
    return length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0);
}

/* Whether this library replaces the function, so that it sees each call. */
static bool is_replaced(const char *name)
{
    bool is = false;
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
        is |= strcmp(replaced[i], name) == 0;
    return is;
}

/* Whether the library imports a per-thread form that this library does not replace. */
static int imports_per_thread_form(struct dl_phdr_info *library, size_t bytes, void *argument)
{
    (void)bytes;
    (void)argument;
    struct imports imports = imports_of(library);
    for (size_t i = 0; imports.symbols && imports.strings && i < imports.count; i++) {
        const char *name = imports.strings + imports.symbols[i].st_name;
        if (imports.symbols[i].st_shndx == SHN_UNDEF && strncmp(name, "cu", 2) == 0 &&
            is_per_thread_form(name) && !is_replaced(name))
            return 1;
    }
    return 0;
}

static int count_loads(struct dl_phdr_info *library, size_t bytes, void *argument)
{
    (void)bytes;
    *(unsigned long long *)argument = library->dlpi_adds;
    return 1;
}

bool zr_cuda_imports_per_thread_forms(void)
{
    static _Atomic unsigned long long seen;
    unsigned long long loads = 0;
    dl_iterate_phdr(count_loads, &loads);
    if (atomic_load(&seen) == loads)
        return false;
    bool imports = dl_iterate_phdr(imports_per_thread_form, NULL);
    atomic_store(&seen, loads);
    return imports;
}
