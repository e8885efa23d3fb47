/* learner_helper.c: the learner's thread. Uses only os.h.
 *
 * A caller with work sets `requested`, then `go`, on which the thread sleeps. The two differ only while the
 * learner is held. Until the thread takes the work, `requested` stays set, and other callers do nothing more.
 * The thread blocks all signals. Its stack belongs to the learner and is made of private pages, mostly
 * untouched, so that a child after fork() can start a thread on its copy. */
#include "defrag/learn/learner_state.h"

#include "alloc/base/error.h"
#include "alloc/base/slab.h"

/* The packer's search needs a deep stack: up to 14 MB (zr_search_stack_bytes()). */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STACK_BYTES ((size_t)64 << 20)
#else
#define STACK_BYTES ((size_t)32 << 20)
#endif
#define LINGER_NS UINT64_C(1000000000) /* idle time after which the thread exits */
#define LOOK_NS   UINT64_C(1000000)    /* polling interval of a thread that waits for another to start */

zr_result zr_helper_begin(struct zr_learner_helper *helper)
{
    helper->stack = (struct zr_stack){zr_pages_take(STACK_BYTES), STACK_BYTES};
    return helper->stack.pages ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

size_t zr_helper_stack_bytes(const struct zr_learner_helper *helper)
{
    return helper->stack.bytes - ((size_t)1 << 20);
}

static bool change(_Atomic uint32_t *state, uint32_t from, uint32_t to)
{
    return atomic_compare_exchange_strong(state, &from, to);
}

static void *run(void *argument)
{
    struct zr_learner *learner = argument;
    struct zr_learner_helper *helper = &learner->helper;
    atomic_store(&helper->state, HELPER_WORKING);
    for (;;) {
        while (atomic_exchange(&helper->go, 0) && !zr_learner_cancelled(learner))
            zr_learner_work(learner);
        atomic_store(&helper->state, HELPER_IDLE);
        zr_word_wake_all(&helper->state);
        if (!zr_learner_cancelled(learner) && zr_word_wait(&helper->go, 0, LINGER_NS)) {
            atomic_store(&helper->state, HELPER_WORKING);
            continue;
        }
        atomic_store(&helper->state, HELPER_ENDED);
        /* A caller that sets `go` after this store starts another thread. An earlier caller may rely on this
         * one. */
        if (zr_learner_cancelled(learner) || !atomic_load(&helper->go) ||
            !change(&helper->state, HELPER_ENDED, HELPER_WORKING))
            return NULL;
    }
}

/* Records that the system refused a thread; learning stops. */
static void note_refused(struct zr_learner *learner)
{
    atomic_store(&learner->helper.state, HELPER_REFUSED);
    zr_word_wake_all(&learner->helper.state);
    zr_arena_hold(learner->arena);
    learner->stats.no_thread = true;
    zr_arena_observe_awake(learner->arena, false);
    zr_arena_unhold(learner->arena);
}

static void begin_thread(struct zr_learner *learner)
{
    struct zr_learner_helper *helper = &learner->helper;
    zr_thread_join(&helper->thread); /* the previous thread, if any, is exiting */
    if (zr_thread_start_on(&helper->thread, helper->stack, run, learner) != ZR_OK)
        note_refused(learner);
}

static void set_going(struct zr_learner *learner)
{
    struct zr_learner_helper *helper = &learner->helper;
    atomic_store(&helper->go, 1);
    switch (atomic_load(&helper->state)) {
    case HELPER_IDLE:
        zr_word_wake_all(&helper->go);
        return;
    case HELPER_NONE:
        if (change(&helper->state, HELPER_NONE, HELPER_STARTING))
            begin_thread(learner);
        return;
    case HELPER_ENDED:
        if (change(&helper->state, HELPER_ENDED, HELPER_STARTING))
            begin_thread(learner);
        return;
    default: /* the thread will see `go` */
        return;
    }
}

void zr_helper_wake(struct zr_learner *learner)
{
    struct zr_learner_helper *helper = &learner->helper;
    if (!atomic_exchange(&helper->requested, 1) && !atomic_load(&helper->held))
        set_going(learner);
}

void zr_helper_wait(struct zr_learner *learner)
{
    struct zr_learner_helper *helper = &learner->helper;
    if (atomic_load(&helper->held) && atomic_load(&helper->requested))
        set_going(learner);
    for (;;) {
        uint32_t state = atomic_load(&helper->state);
        bool busy = state == HELPER_STARTING || state == HELPER_WORKING;
        if (state == HELPER_REFUSED || (!busy && !atomic_load(&helper->go)))
            return;
        zr_word_wait(&helper->state, state, busy ? LINGER_NS : LOOK_NS);
    }
}

void zr_helper_end(struct zr_learner *learner)
{
    struct zr_learner_helper *helper = &learner->helper;
    atomic_store(&helper->cancelled, true);
    atomic_store(&helper->go, 1);
    zr_word_wake_all(&helper->go);
    zr_thread_join(&helper->thread);
    zr_pages_give(helper->stack.pages, helper->stack.bytes);
}

void zr_helper_forked(struct zr_learner_helper *helper)
{
    helper->thread = (struct zr_thread){0};
    atomic_store(&helper->state, HELPER_NONE);
    atomic_store(&helper->requested, 0);
    atomic_store(&helper->go, 0);
}
