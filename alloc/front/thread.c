/* thread.c: threads with stacks from an arena. Uses os.c. */
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"

#if defined(__SANITIZE_THREAD__)
#define STACK_DEFAULT_BYTES ((size_t)2 << 20) /* the sanitizer keeps 0.9 MB of its own on every stack */
#else
#define STACK_DEFAULT_BYTES ((size_t)256 << 10)
#endif

zr_result zr_thread_start(struct zr_thread *out, zr_arena *arena, size_t stack_bytes, void *(*run)(void *),
                          void *argument)
{
    long page_bytes = sysconf(_SC_PAGESIZE), least_bytes = sysconf(_SC_THREAD_STACK_MIN);
    struct zr_request request = {.bytes = stack_bytes ? stack_bytes : STACK_DEFAULT_BYTES,
                                 .tag = ZR_TAG_OTHER};
    void *stack;

    *out = (struct zr_thread){0};
    if (!arena || !run)
        return zr_fail(ZR_ERR_INVALID, "starting a thread: arena or function is NULL");
    request.alignment = (size_t)page_bytes;
    request.bytes &= ~(size_t)15;
    if (least_bytes > 0 && request.bytes < (size_t)least_bytes)
        return zr_fail(ZR_ERR_INVALID, "a thread's stack of %zu bytes is below the system's minimum, %ld",
                       request.bytes, least_bytes);
    zr_result result = zr_arena_alloc(arena, &request, &stack);
    if (result != ZR_OK)
        return result;
    result = zr_thread_start_on(out, (struct zr_stack){stack, request.bytes}, run, argument);
    if (result == ZR_OK)
        out->arena = arena;
    else
        zr_arena_free(arena, stack);
    return result;
}

void zr_thread_join(struct zr_thread *thread)
{
    if (!thread->stack)
        return;
    zr_thread_join_on(thread);
    if (thread->arena)
        zr_arena_free(thread->arena, thread->stack);
    *thread = (struct zr_thread){0};
}
