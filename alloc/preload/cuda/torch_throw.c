/* torch_throw.c: PyTorch's exceptions, thrown from C. See torch.h.
 *
 * PyTorch's allocator interface reports a failure by an exception only. Its class and constructor are
 * exported by libc10.so, and the functions that throw by libstdc++.so, both of which the process has loaded
 * if PyTorch calls. C++ passes a class that has a constructor by address and the source position, three
 * words, as C does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#include "alloc/preload/cuda/torch.h"

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

/* c10::SourceLocation */
struct position {
    const char *function, *file;
    uint32_t line;
};

/* More than any version's std::string and c10::Error have (32 and some 180 bytes). */
enum { STRING_BYTES = 64, ERROR_BYTES = 1024 };

typedef void end_function(void *object);

/* What libstdc++.so and libc10.so export. */
struct functions {
    void *(*exception_new)(size_t bytes);
    void (*exception_throw)(void *object, void *type, end_function *end) __attribute__((noreturn));
    void (*string_begin)(void *string, const char *text, const void *allocator);
    end_function *string_end;
    /* c10::OutOfMemoryError's own constructor, or NULL: it has its base's, with another table. */
    void (*error_begin)(void *error, struct position position, void *string);
    void (*base_begin)(void *error, struct position position, void *string);
    void **table; /* of c10::OutOfMemoryError: offset, type, destructor .. */
    void *type;
    void (*fail)(const char *function, const char *file, uint32_t line, const char *text);
};

/* A symbol of a library that the process has loaded; NULL: none. */
static void *find(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void *found = handle ? dlsym(handle, name) : NULL;
    if (handle)
        dlclose(handle);
    return found;
}

/* False: an exception of c10::OutOfMemoryError cannot be made. */
static bool find_functions(struct functions *out)
{
    const char *own = "libc10.so", *cxx = "libstdc++.so.6";
    *(void **)&out->exception_new = find(cxx, "__cxa_allocate_exception");
    *(void **)&out->exception_throw = find(cxx, "__cxa_throw");
    *(void **)&out->string_begin =
        find(cxx, "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_");
    *(void **)&out->string_end = find(cxx, "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev");
    *(void **)&out->error_begin = find(own, "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationE" STRING);
    *(void **)&out->base_begin = find(own, "_ZN3c105ErrorC1ENS_14SourceLocationE" STRING);
    out->table = find(own, "_ZTVN3c1016OutOfMemoryErrorE");
    out->type = find(own, "_ZTIN3c1016OutOfMemoryErrorE");
    *(void **)&out->fail = find(own, "_ZN3c106detail14torchCheckFailEPKcS2_jS2_");
    return out->exception_new && out->exception_throw && out->string_begin && out->string_end &&
           (out->error_begin || out->base_begin) && out->table && out->type;
}

static void throw_out_of_memory(const struct functions *with, const char *text)
{
    _Alignas(16) char string[STRING_BYTES], allocator = 0;
    struct position position = {"zr_torch_alloc", "libzr_cuda.so", 0};
    void *error = with->exception_new(ERROR_BYTES);
    with->string_begin(string, text, &allocator);
    if (with->error_begin) {
        with->error_begin(error, position, string);
    } else {
        with->base_begin(error, position, string);
        *(void ***)error = with->table + 2;
    }
    with->string_end(string);
    with->exception_throw(error, with->type, (end_function *)with->table[2]);
}

void zr_torch_throw(zr_cu_result code)
{
    struct functions with;
    char text[1200];
    bool can_throw = find_functions(&with);
    snprintf(text, sizeof text, "%szr: %s", code == ZR_CU_OUT_OF_MEMORY ? "CUDA out of memory. " : "",
             zr_last_error());
    if (code == ZR_CU_OUT_OF_MEMORY && can_throw)
        throw_out_of_memory(&with, text);
    if (with.fail)
        with.fail("zr_torch_alloc", "libzr_cuda.so", 0, text);
    if (with.base_begin || with.table)
        zr_say("this version of PyTorch has no exception that zr can throw: %s", text);
}

/* PyTorch registers one callback for memory that is exhausted, with a registry of C++ templates: it frees
 * blocks whose last user in another process has ended. This is the function that the callback calls. */
bool zr_torch_collect(void)
{
    bool (*collect)(void);
    *(void **)&collect = find("libtorch_cuda.so", "_ZN5torch14CudaIPCCollectEv");
    return collect && collect();
}
