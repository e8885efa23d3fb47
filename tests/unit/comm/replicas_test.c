/* replicas_test.c: launchers that meet at a rendezvous: which replicas leave, and notices that arrive while
 * the ranks agree. train_elastic.t and train_tcp.t have whole runs. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/tap.h"
#include "zero/launch/replicas.h"

enum { WORLD = 4, OWN = 2 };

static const struct zr_launch_replicas options = {
    .least = 2, .most = WORLD, .inner = 1, .outer = 1, .by_events = true};

/* A launcher of rank OWN, whose rank is this process. */
struct fixture {
    struct zr_local_control control;
    struct zr_local_world *local;
    struct zr_replicas replicas;
};

static void begin(struct fixture *out, unsigned world)
{
    *out = (struct fixture){.local = NULL};
    const zr_result result = zr_local_control_make(&out->control, world);
    tap_is(result, ZR_OK, "a control block of %u ranks", world);
    if (result != ZR_OK)
        exit(tap_done());
    out->local = out->control.local;
    out->local->apart = true;
    atomic_store(&out->local->ranks[OWN].pid, (int32_t)getpid());
    zr_replicas_init(&out->replicas, &options, out->local);
}

/* SIGTERM to the rank, as its launcher reads it. */
static void notify(struct fixture *fixture)
{
    atomic_store(&fixture->local->notices[0], (int32_t)getpid());
    zr_replicas_serve(&fixture->replicas, false);
}

static bool wants(const struct fixture *fixture)
{
    return zr_local_wants_resize(fixture->local);
}

static unsigned agree(struct fixture *fixture, unsigned other)
{
    uint8_t all[WORLD] = {[OWN] = zr_local_gather_leave(fixture->local)};
    all[1] = (uint8_t)other;
    return zr_local_agree_to_leave(fixture->local, &options, all);
}

static void test_notice_meanwhile(void)
{
    bool running[ZR_MAX_WORLD] = {[OWN] = true};
    struct fixture fixture;
    begin(&fixture, WORLD);
    uint8_t none[WORLD] = {zr_local_gather_leave(fixture.local)};
    notify(&fixture);
    tap_ok(zr_local_agree_to_leave(fixture.local, &options, none) == 0 && wants(&fixture),
           "a notice after the ranks have gathered theirs survives that none leaves");
    tap_ok(agree(&fixture, 0) == 1 && atomic_load(&fixture.local->leaving[OWN]),
           "and counts when they agree next");
    zr_local_control_end(&fixture.control);

    begin(&fixture, WORLD);
    tap_ok(agree(&fixture, ZR_LOCAL_HAS_NOTICE) == 1, "another replica leaves");
    notify(&fixture);
    zr_replicas_change(&fixture.replicas, running);
    tap_ok(fixture.local->world == WORLD - 1 && fixture.local->next[OWN] == OWN - 1 && wants(&fixture),
           "a notice before the change survives it");
    zr_local_control_end(&fixture.control);

    begin(&fixture, WORLD);
    notify(&fixture);
    tap_ok(agree(&fixture, 0) == 1, "the replica itself leaves");
    zr_replicas_change(&fixture.replicas, running);
    tap_ok(fixture.local->next[OWN] == ZR_LOCAL_LEAVES && !wants(&fixture),
           "and its notice has had its effect");
    zr_local_control_end(&fixture.control);
}

/* A change that another rank does not follow. */
static void test_undone(void)
{
    struct fixture fixture;
    begin(&fixture, WORLD);
    zr_local_move(fixture.local, 0);
    atomic_store(&fixture.local->resizing, false);
    zr_local_move(fixture.local, 2);
    zr_local_undo_move(fixture.local);
    tap_ok(atomic_load(&fixture.local->moved) == 1 && !atomic_load(&fixture.local->resizing),
           "a change that is undone leaves the state of the change before");
    zr_local_control_end(&fixture.control);
}

static void test_stand_in_first(void)
{
    struct fixture fixture;
    begin(&fixture, WORLD - 1);
    fixture.local->leaves = ZR_LOCAL_STANDS_IN;
    notify(&fixture);
    tap_ok(agree(&fixture, ZR_LOCAL_HAS_NOTICE) == 1 && atomic_load(&fixture.local->leaving[OWN]) &&
               !atomic_load(&fixture.local->leaving[1]),
           "where one replica can leave, a stand-in leaves before a rank with a notice");
    fixture.local->leaves = ZR_LOCAL_REMAINS;
    tap_ok(agree(&fixture, ZR_LOCAL_HAS_NOTICE) == 1 && atomic_load(&fixture.local->leaving[1]),
           "without a stand-in the rank with the notice leaves");
    zr_local_control_end(&fixture.control);
}

int main(void)
{
    test_notice_meanwhile();
    test_stand_in_first();
    test_undone();
    return tap_done();
}
