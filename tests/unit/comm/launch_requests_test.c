/* launch_requests_test.c: runs that are asked to save or to end, as a terminal, a batch system or a user
 * asks: once, twice, in a long step, during a save, and where nobody listens. */
#define _GNU_SOURCE
#include "tests/support/zero/launch_runs.h"

/* ---- Scenes -------------------------------------------------------------------------------------------- */

/* Steps longer than the deadline: rank 1 computes for so many times so long, and says nothing while it does.
 * A step ends early when the test says so. */
static int train_slowly(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    for (uint32_t step = 1;; step++) {
        enum zr_request_kind request;
        char note[32];
        snprintf(note, sizeof(note), "step %u", step);
        zr_local_set_status(local, rank, note);
        for (long layer = 0; layer < scene->layers && !atomic_load(&board->saved); layer++) {
            if (rank == 1)
                nap_ms(scene->layer_ms);
            if (rank == 0 && step == scene->watched_step)
                atomic_store(&board->steps, 5);
            if (zr_comm_wait(comm, 0) != ZR_OK)
                return fail_with_words(rank);
        }
        if (zr_comm_barrier(comm) != ZR_OK || zr_local_request(comm, &request) != ZR_OK)
            return fail_with_words(rank);
        if (request == ZR_REQUEST_SAVE_AND_END) {
            atomic_fetch_add(&board->saves, 1);
            return 0;
        }
    }
}

/* A save that takes as long as the test wants. */
static int save_for_long(const struct scene *scene, struct zr_local_world *local, unsigned rank,
                         zr_comm *comm)
{
    (void)scene;
    enum zr_request_kind request = ZR_REQUEST_NONE;
    while (request == ZR_REQUEST_NONE) {
        atomic_store(&board->steps, 5);
        if (zr_local_request(comm, &request) != ZR_OK)
            return fail_with_words(rank);
    }
    zr_local_busy(local, rank, true);
    atomic_fetch_add(&board->saving, 1);
    while (!atomic_load(&board->saved))
        nap_ms(1);
    atomic_fetch_add(&board->saves, 1);
    zr_local_busy(local, rank, false);
    return request == ZR_REQUEST_SAVE_AND_END ? 0 : 9;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Ranks with nowhere to save have 1.2 s and no more: a run of which one was held up for longer shows nothing.
 */
static void check_interrupt(const char *name, bool whole_group)
{
    const struct scene training = {.name = "training", .act = train};
    struct run run;
    bool late;
    unsigned tries = 0;
    do {
        run = start(&training);
        kill(whole_group ? -run.launcher : run.launcher, SIGINT);
        finish(&run);
        late =
            strstr(run.words,
                   "SIGINT: the ranks did not exit in time; the run is cut short, and nothing was saved") !=
            NULL;
    } while (late && ++tries < 5);
    check_finished(&run, name, 130, NULL);
    tap_is(board->saves, WORLD, "%s: every rank is asked to save", name);
}

static void test_requests(void)
{
    const struct scene training = {.name = "training", .act = train, .save_within_ms = 60000};
    struct run run = start(&training);
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM", 143, NULL);
    tap_is(board->saves, WORLD, "SIGTERM: every rank saved once");
    check_interrupt("SIGINT", false);
    check_interrupt("Ctrl-C", true);
    run = start(&training);
    kill(-run.launcher, SIGTERM); /* as timeout(1) does it, which sends it to the launcher before, too */
    check_end(&run, "SIGTERM to the whole group", 143, NULL);
    tap_is(board->saves, WORLD, "and every rank saved once");
    run = start(&training);
    kill(board->pids[1], SIGTERM);
    check_end(&run, "SIGTERM to one rank", 143, NULL);
    tap_is(board->saves, WORLD, "means the run: every rank saved");
    run = start(&training);
    kill(-run.launcher, SIGHUP);
    check_end(&run, "the terminal goes away", 129, NULL);
    tap_is(board->saves, WORLD, "and every rank saved");
}

static void test_save_on_request(void)
{
    const struct scene training = {.name = "training", .act = train, .save_within_ms = 60000};
    struct run run = start(&training);
    for (unsigned i = 1; i <= 3; i++) {
        kill(run.launcher, SIGUSR1);
        wait_for(&board->saves, i * WORLD);
        tap_is(board->saves, i * WORLD, "SIGUSR1 number %u: every rank saved once and went on", i);
    }
    kill(-run.launcher, SIGUSR1); /* to everybody at once: one request, unless some hear of it late */
    wait_for(&board->saves, 4 * WORLD);
    run.asked_ns = zr_os_now_ns();
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM after saves", 143, NULL);
    tap_ok(board->saves >= 5 * WORLD && board->saves <= (5 + WORLD) * WORLD && board->saves % WORLD == 0,
           "SIGUSR1 to the group: all ranks agreed (%u saves)", board->saves);
}

static void test_deadlines(void)
{
    const struct scene stuck = {.name = "stuck", .act = stick};
    const struct scene saving = {.name = "saving", .act = save_for_long};
    struct run run = start(&stuck);
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM, and nobody listens", 143, "SIGTERM: the ranks did not exit in time");
    tap_ok(ms_since(run.asked_ns) > 1000, "the ranks had time to");
    run = start(&stuck);
    kill(-run.launcher, SIGINT);
    check_end(&run, "Ctrl-C, and nobody listens", 130, "SIGINT: the ranks did not exit in time");
    run = start(&stuck);
    uint64_t first_ns = zr_os_now_ns();
    kill(-run.launcher, SIGINT);
    nap_ms(500);
    run.asked_ns = zr_os_now_ns();
    kill(-run.launcher, SIGINT);
    check_end(&run, "Ctrl-C twice", 130, "SIGINT: ");
    /* Where the launcher is held up, the first one's deadline may come before the second. */
    bool held_up = zr_os_now_ns() - first_ns > 1000000000;
    if (!tap_ok(held_up || strstr(run.words, "second request to end"), "the reason is the second one"))
        tell(&run);
    run = start(&stuck);
    kill(-run.launcher, SIGQUIT);
    check_end(&run, "Ctrl-\\", 131, "SIGQUIT: request to end immediately");
    run = start(&saving);
    kill(run.launcher, SIGTERM);
    wait_for(&board->saving, WORLD);
    nap_ms(2000); /* beyond the deadline */
    tap_is(ranks_alive(), WORLD, "a save that takes longer than the deadline is not cut short");
    atomic_store(&board->saved, true);
    run.asked_ns = zr_os_now_ns();
    check_end(&run, "SIGTERM during a long save", 0, NULL);
    tap_is(board->saves, WORLD, "it was completed");
    run = start(&saving);
    kill(run.launcher, SIGTERM);
    wait_for(&board->saving, WORLD);
    nap_ms(1800);
    run.asked_ns = zr_os_now_ns();
    kill(run.launcher, SIGTERM);
    check_end(&run, "a second SIGTERM during a long save", 143, "SIGTERM: second request to end");
}

/* What is computed when SIGTERM comes is not lost, if there is somewhere to save it and the ranks get on. */
static void test_long_steps(void)
{
    const struct scene layers = {.name = "layers",
                                 .act = train_slowly,
                                 .save_within_ms = 600000,
                                 .watched_step = 1,
                                 .layers = 100000, /* for ever: the test ends the step */
                                 .layer_ms = 60};
    const struct scene silent = {.name = "silent",
                                 .act = train_slowly,
                                 .save_within_ms = 60000,
                                 .watched_step = 4, /* of the three before one may go badly */
                                 .layers = 1,
                                 .layer_ms = 2000};
    struct scene unsaved = layers, limited = layers, held = silent;
    const struct scene stuck = {.name = "stuck", .act = train_and_stick, .save_within_ms = 60000};
    struct run run = start(&layers);
    kill(run.launcher, SIGTERM);
    listen_for(&run, "finished and saved first");
    atomic_store(&board->saved, true);
    wait_for(&board->saves, WORLD);
    run.asked_ns = zr_os_now_ns();
    check_end(&run, "SIGTERM in a long step", 0, "the current step is finished and saved first");
    tap_is(board->saves, WORLD, "every rank saved");

    run = start(&silent);
    kill(run.launcher, SIGTERM);
    wait_for(&board->saves, WORLD);
    run.asked_ns = zr_os_now_ns();
    check_end(&run, "SIGTERM in a long step whose ranks say nothing, as in those before", 0, NULL);
    tap_is(board->saves, WORLD, "every rank saved");

    held.watched_step = 1; /* there were none before */
    run = start(&held);
    kill(run.launcher, SIGTERM);
    wait_for(&board->saves, WORLD);
    run.asked_ns = zr_os_now_ns();
    check_end(&run, "SIGTERM in a first step whose ranks say nothing for a moment", 0, NULL);

    run = start(&layers);
    kill(run.launcher, SIGTERM);
    listen_for(&run, "finished and saved first"); /* so the first one has been taken */
    run.asked_ns = zr_os_now_ns();
    kill(run.launcher, SIGTERM);
    check_end(&run, "a second SIGTERM in a long step", 143, "SIGTERM: second request to end");

    run = start(&layers);
    kill(run.launcher, SIGINT);
    listen_for(&run, "finished and saved first");
    run.asked_ns = zr_os_now_ns();
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGINT in a long step, and another signal", 130, "SIGINT: second request to end");

    unsaved.save_within_ms = 0;
    run = start(&unsaved);
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM in a long step with nowhere to save", 143,
              "the ranks did not exit in time; the run is cut short, and nothing was saved");

    limited.save_within_ms = 2500;
    run = start(&limited);
    uint64_t asked_ns = zr_os_now_ns();
    kill(run.launcher, SIGTERM);
    listen_for(&run, "SIGTERM");
    unsigned long long cut_ms = (zr_os_now_ns() - asked_ns) / 1000000;
    tap_ok(cut_ms >= 2200, "a step that gets on outlives the deadline (%llu ms)", cut_ms);
    run.asked_ns = zr_os_now_ns();
    check_end(&run, "and no limit", 143, "SIGTERM: the current step did not finish within 2.5 s");

    run = start(&stuck);
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM, and a rank hangs", 143, "SIGTERM: the ranks did not exit in time");
}

int main(void)
{
    if (!prepare_runs())
        return tap_done();
    test_requests();
    test_save_on_request();
    test_deadlines();
    test_long_steps();
    return tap_done();
}
