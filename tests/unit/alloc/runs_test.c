/* runs_test.c: runs with a plan in zrd's ledger, on a clock of the test's own: who is let in, whose turn it
 * is, what is kept for them; then members that come, rest and go at random beside what must always hold. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/service/server/runs.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { HOLDERS = 8, CAPACITY = 100 };
#define MS     UINT64_C(1000000)
#define WITHIN (1000 * MS)
#define TURN   (200 * MS)

static struct zr_client clients[HOLDERS];
static struct zr_ledger ledger;
/* What the ledger has said to each, and how often; and what came last. */
static struct {
    unsigned granted, refused, asked, yielded, answered;
    enum zr_service_kind last;
} said[HOLDERS];

static bool answer(struct zr_ledger *of, struct zr_client *client, zr_result result)
{
    (void)of;
    *(result == ZR_OK ? &said[client - clients].granted : &said[client - clients].refused) += 1;
    return true;
}

static void ask(struct zr_ledger *of, struct zr_client *client)
{
    (void)of;
    said[client - clients].asked++;
}

static void end(struct zr_ledger *of, struct zr_client *client, const char *words)
{
    (void)of, (void)client, (void)words;
}

static void reply(struct zr_ledger *of, struct zr_client *client, enum zr_service_kind kind,
                  const char *words)
{
    (void)of, (void)words;
    said[client - clients].last = kind;
    said[client - clients].answered++;
}

static void yield(struct zr_ledger *of, struct zr_client *client, uint64_t bytes)
{
    (void)of, (void)bytes;
    said[client - clients].yielded++;
}

static void start(void)
{
    static const struct zr_ledger_calls calls = {answer, ask, end, reply, yield};
    if (ledger.calls)
        zr_ledger_end(&ledger);
    ledger = (struct zr_ledger){
        .calls = &calls, .capacity_bytes = CAPACITY, .within_ns = WITHIN, .slice_ns = TURN};
    zr_ledger_start(&ledger);
    memset(said, 0, sizeof said);
}

static void add(unsigned which, uint64_t held_bytes)
{
    clients[which] = (struct zr_client){.pid = (int32_t)which + 1, .held_bytes = held_bytes, .listens = true};
    zr_assert(zr_ledger_add(&ledger, &clients[which], "a") == ZR_OK);
}

static uint64_t spills;  /* of the next plan's base */
static bool waits;       /* and whether it waits to be let in */
static unsigned threads; /* and those that compute beside another's */

/* The answer to what it asks for now; 0: none yet. */
static enum zr_service_kind plan(unsigned which, uint64_t base, uint64_t peak, uint32_t count, uint64_t now)
{
    said[which].last = 0;
    zr_result result = zr_run_join(&ledger, &clients[which],
                                   &(struct zr_run_plan){.base_bytes = base,
                                                         .peak_bytes = peak,
                                                         .spill_bytes = spills,
                                                         .waits = waits,
                                                         .threads = threads,
                                                         .key = 7,
                                                         .count = count},
                                   now);
    zr_ledger_serve(&ledger, now);
    return result == ZR_OK ? said[which].last : ZR_SERVICE_ENDED;
}

static enum zr_service_kind slice(unsigned which, uint64_t now)
{
    said[which].last = 0;
    zr_result result = zr_run_slice(&ledger, &clients[which], now);
    zr_ledger_serve(&ledger, now);
    return result == ZR_OK ? said[which].last : ZR_SERVICE_ENDED;
}

static void lease(unsigned which, uint64_t bytes, uint64_t now)
{
    zr_assert(zr_ledger_lease(&ledger, &clients[which], bytes, 1, now) == ZR_OK);
}

/* Who follows takes what is free, and gives way to 2, which has no plan and comes later. */
static void test_newcomer(void)
{
    start();
    ledger.processors = 2;
    for (unsigned i = 0; i < 3; i++)
        add(i, 0);
    plan(0, 10, 60, 1, 0);
    slice(0, 0);
    plan(1, 10, 60, 1, 0);
    slice(1, 0);
    lease(0, 60, 0);
    lease(1, 40, 0);
    lease(2, 41, 0);
    tap_ok(said[1].granted == 1 && said[2].refused == 1,
           "beyond what is there between steps a request is refused at once");
    lease(2, 30, 0);
    tap_ok(said[2].refused == 1 && said[2].granted == 0, "within that it waits");
    lease(1, 10, 0);
    zr_ledger_return(&ledger, &clients[0], 10, 0);
    zr_run_reserve(&clients[0], 50);
    zr_ledger_serve(&ledger, 0);
    tap_ok(said[2].granted == 0 && said[1].granted == 1, "who follows does not have what it waits for");
    zr_ledger_return(&ledger, &clients[0], 40, 0);
    zr_run_reserve(&clients[0], 10);
    zr_ledger_serve(&ledger, 0);
    tap_ok(said[2].granted == 1 && said[1].granted == 2,
           "has what comes back first, and who follows the rest");
    lease(2, 5, 0);
    zr_ledger_tick(&ledger, WITHIN);
    tap_is(said[2].refused, 2, "at the deadline it is refused all the same");
    for (unsigned i = 0; i < 3; i++)
        zr_ledger_remove(&ledger, &clients[i], WITHIN);
}

/* A lease beyond its plan gives who follows nothing of what another claims. */
static void test_beyond(void)
{
    start();
    ledger.processors = 2;
    threads = 1;
    for (unsigned i = 0; i < 2; i++) {
        add(i, 0);
        plan(i, 10, i == 0 ? 60 : 50, 1, 0);
        slice(i, 0);
        lease(i, 10, 0);
    }
    lease(1, 41, 0);
    tap_is(said[1].granted, 1, "what goes beyond a plan does not go beyond the first's claim");
    threads = 0;
}

/* Two whose peaks fit together keep their turns, and what both claim is nobody else's. */
static void test_fitting(void)
{
    for (threads = 0; threads < 2; threads++) {
        start();
        ledger.processors = 2;
        for (unsigned i = 0; i < 3; i++)
            add(i, 0);
        for (unsigned i = 0; i < 2; i++) {
            plan(i, 10, 45, 1, 0);
            tap_is(slice(i, 0), ZR_SERVICE_GRANTED, "%u threads: run %u has its turn", threads, i);
        }
        lease(2, 11, 0);
        lease(2, 10, 0);
        lease(0, 45, 0);
        lease(1, 45, 0);
        tap_ok(said[2].refused == 1 && said[2].granted == 1 && said[0].granted == 1 && said[1].granted == 1 &&
                   said[0].yielded == 0,
               "%u threads: each has its peak, and who has no plan the rest", threads);
    }
}

/* In their turns by a zrd that has ended, of which 1's began later, and 2's by none. */
static void test_back(void)
{
    start();
    ledger.processors = 3;
    ledger.settled_ns = 100 * MS;
    for (unsigned i = 0; i < 3; i++) {
        add(i, 20);
        zr_run_join(&ledger, &clients[i],
                    &(struct zr_run_plan){.base_bytes = 10,
                                          .peak_bytes = 50,
                                          .count = 1,
                                          .threads = 1,
                                          .admitted = true,
                                          .in_slice = true,
                                          .slice = i < 2 ? 5 + i : 0,
                                          .reservation_bytes = i < 2 ? 45 : 50},
                    0);
    }
    lease(0, 10, 0);
    lease(1, 20, 0);
    tap_is(said[0].granted + said[1].granted, 0, "until all may have come back nobody has more");
    zr_ledger_tick(&ledger, 100 * MS);
    tap_ok(said[0].granted == 1 && said[1].granted == 0, "then who came first, within its claim");
    tap_ok(said[0].yielded == 1 && said[1].yielded == 1, "both are to say what they need no more");
    lease(2, 20, 100 * MS);
    tap_ok(said[2].granted == 0 && clients[2].run->slice == 7,
           "a run with a time slice that no run had comes last");
    zr_ledger_return(&ledger, &clients[0], 20, 100 * MS);
    zr_run_reserve(&clients[0], 10);
    zr_ledger_serve(&ledger, 100 * MS);
    tap_ok(said[1].granted == 1 && said[2].granted == 1, "the others have what it claims no more");
    lease(2, 31, 100 * MS);
    tap_is(said[2].granted, 1, "but not beyond a plan what others claim");
    char words[ZR_SERVICE_WORDS_BYTES];
    struct zr_service_message limit = {.flags = ZR_SERVICE_SET_CAPACITY, .bytes = 94};
    tap_is(zr_ledger_limit(&ledger, &limit, words, sizeof words, 100 * MS), ZR_ERR_INVALID,
           "no capacity below what they hold and claim");
    limit.bytes = 95;
    tap_is(zr_ledger_limit(&ledger, &limit, words, sizeof words, 100 * MS), ZR_OK, "that much is enough");
    threads = 0;
}

/* Ranks of one run come back with its turn's number, or with that of an earlier turn: it was away when this
 * one came. */
static void test_ranks_back(void)
{
    static const uint64_t slices[][2] = {{5, 5}, {3, 5}, {5, 3}, {0, 5}};
    for (size_t at = 0; at < sizeof slices / sizeof *slices; at++) {
        start();
        for (unsigned i = 0; i < 2; i++) {
            add(i, 10);
            zr_run_join(&ledger, &clients[i],
                        &(struct zr_run_plan){.base_bytes = 10,
                                              .peak_bytes = 30,
                                              .key = 8,
                                              .count = 2,
                                              .admitted = true,
                                              .in_slice = slices[at][i] == 5,
                                              .slice = slices[at][i]},
                        0);
        }
        tap_ok(clients[0].run == clients[1].run && clients[0].run->in_slice && clients[0].run->slice == 5,
               "ranks of one run that come back with turns %llu and %llu keep the latest",
               (unsigned long long)slices[at][0], (unsigned long long)slices[at][1]);
    }
}

/* 0, 1 and 2 compute at once, where the peaks of no two fit; 3 has no plan. */
static void test_beside(void)
{
    start();
    ledger.processors = 2;
    threads = 1;
    for (unsigned i = 0; i < 4; i++)
        add(i, 0);
    plan(0, 10, 70, 1, 0);
    slice(0, 0);
    plan(1, 20, 80, 1, 0);
    plan(2, 5, 15, 1, 0);
    lease(0, 40, 0);
    tap_is(slice(1, 0), ZR_SERVICE_GRANTED,
           "where there are processors for both, the second's turn begins at once");
    tap_ok(said[0].yielded == 1 && said[1].yielded == 1, "both are to end it with their steps");
    tap_is(slice(2, 0), 0, "there are none for the third");
    lease(1, 25, 0);
    tap_is(said[1].granted, 1, "who follows has what is beyond the first's claim");
    lease(1, 20, 0);
    tap_is(said[1].granted, 1, "and waits for the rest");
    lease(3, 6, 0);
    tap_is(said[3].refused, 1, "nobody else has it");
    lease(0, 30, 0);
    tap_is(said[0].granted, 2, "the first has all of its claim, although the other asked before it");
    tap_ok(zr_ledger_tick(&ledger, WITHIN) > WITHIN && said[1].refused == 0 &&
               said[1].last == ZR_SERVICE_LATER,
           "who follows is not refused at the deadline, but to ask again");
    lease(1, 20, WITHIN);
    slice(2, WITHIN);
    tap_is(zr_run_reserve(&clients[2], 5), ZR_ERR_INVALID, "no claim without a turn");
    zr_ledger_return(&ledger, &clients[0], 20, WITHIN);
    tap_is(said[1].granted, 1, "what comes back is still the first's");
    zr_run_reserve(&clients[0], 50);
    zr_ledger_serve(&ledger, WITHIN);
    tap_is(said[1].granted, 2, "until it claims it no more");
    zr_run_reserve(&clients[0], 90);
    lease(0, 6, WITHIN);
    tap_ok(said[0].granted == 2 && said[0].refused == 1,
           "a claim never grows: beyond it a run is one of many");
    zr_ledger_return(&ledger, &clients[0], 40, WITHIN);
    lease(1, 35, WITHIN);
    tap_is(said[1].granted, 2, "its next claim is not beyond what the first keeps");
    tap_is(slice(0, WITHIN), 0, "the first rests: the third has waited for longer");
    tap_ok(said[2].last == ZR_SERVICE_GRANTED && said[1].granted == 3,
           "and follows the second, which has all now");
    lease(2, 15, WITHIN);
    tap_is(said[2].granted, 0, "again beyond its claim");
    zr_ledger_remove(&ledger, &clients[1], WITHIN);
    tap_ok(said[2].granted == 1 && said[0].last == ZR_SERVICE_GRANTED, "whose death lets both go on");
    for (unsigned i = 0; i < 4; i++)
        if (i != 1)
            zr_ledger_remove(&ledger, &clients[i], WITHIN);
    test_newcomer();
    threads = 0;
}

/* 0 and 1 alternate, 2 does not fit beside them, 3 has no plan. */
static void test_two(void)
{
    start();
    for (unsigned i = 0; i < 4; i++)
        add(i, 0);
    clients[3].listens = false;
    tap_is(plan(0, 20, 60, 1, 0), ZR_SERVICE_GRANTED, "a run is let in");
    tap_is(slice(0, 0), ZR_SERVICE_GRANTED, "and has its turn");
    tap_is(plan(1, 30, 70, 1, 0), ZR_SERVICE_GRANTED, "another, whose steps fit by turns alone");
    tap_is(slice(1, 0), 0, "it waits for its turn");
    tap_ok(plan(2, 15, 16, 1, 0) == ZR_SERVICE_REFUSED && !clients[2].run &&
               strstr(zr_last_error(), "keep 50 B "),
           "a third does not fit: %s", zr_last_error());
    tap_is(plan(2, 5, 5, 1, 0), ZR_SERVICE_GRANTED, "unless it is small");
    lease(0, 60, 0);
    tap_is(said[0].granted, 1, "the first has what its step takes");
    lease(3, 6, 0);
    tap_ok(said[3].refused == 1 && strstr(zr_last_error(), "beside what runs have planned"),
           "what plans keep is not lent to others: %s", zr_last_error());
    lease(3, 5, 0);
    tap_is(said[3].granted, 1, "the rest is");
    tap_ok(zr_ledger_tick(&ledger, TURN - 1) == TURN && said[0].yielded == 0, "a turn lasts a while");
    zr_ledger_tick(&ledger, TURN);
    zr_ledger_tick(&ledger, TURN + 1);
    tap_ok(said[0].yielded == 1 && said[1].yielded == 0, "then its run is asked for it, once");
    said[1].last = 0;
    tap_is(slice(0, TURN + 10), 0, "at its next rest");
    tap_is(said[1].last, ZR_SERVICE_GRANTED, "the other has its turn");
    zr_ledger_tick(&ledger, TURN + 10 + 500 * MS);
    tap_ok(said[0].last == ZR_SERVICE_LATER && said[1].yielded == 1, "who waits hears so now and then");
    lease(1, 30, 1999 * MS);
    lease(1, 40, 2000 * MS);
    tap_ok(said[0].asked == 1 && clients[0].reclaim_bytes == 35, "what the step lacks is asked of the first");
    zr_ledger_given(&ledger, &clients[0], clients[0].reclaim_serial, 2001 * MS);
    tap_ok(said[1].refused == 0 && zr_ledger_tick(&ledger, 2001 * MS) == 2021 * MS,
           "it had none: nobody is refused");
    zr_ledger_tick(&ledger, 2021 * MS);
    tap_is(said[0].asked, 2, "it is asked again");
    zr_ledger_return(&ledger, &clients[0], 40, 2022 * MS);
    tap_is(said[1].granted, 2, "and its memory goes to the step");
    zr_ledger_remove(&ledger, &clients[1], 2023 * MS);
    tap_is(slice(0, 2023 * MS), ZR_SERVICE_GRANTED, "a run that has ended delays no other run");
    zr_ledger_given(&ledger, &clients[0], clients[0].reclaim_serial, 2023 * MS);
    lease(0, 41, 2024 * MS);
    tap_is(said[0].refused, 0, "beyond its plan a run is one of many");
    for (unsigned i = 0; i < 3; i++)
        if (i != 1)
            zr_ledger_remove(&ledger, &clients[i], 0);
    tap_ok(!ledger.runs, "no run is left");
}

/* A run that keeps all it has gives nothing back at the end of its turn. */
static void test_kept(void)
{
    start();
    for (unsigned i = 0; i < 3; i++)
        add(i, 0);
    tap_ok(plan(0, 10, 10, 1, 0) == ZR_SERVICE_GRANTED && slice(0, 0) == ZR_SERVICE_GRANTED,
           "a run that keeps all");
    tap_ok(plan(1, 20, 60, 1, 0) == ZR_SERVICE_GRANTED && slice(1, 0) == ZR_SERVICE_GRANTED,
           "one that does not");
    tap_ok(plan(2, 20, 60, 1, 0) == ZR_SERVICE_GRANTED && slice(2, 0) == 0, "a third waits for its turn");
    zr_ledger_tick(&ledger, TURN);
    tap_ok(said[0].yielded == 0 && said[1].yielded == 1, "for which the second is asked alone");
}

/* What a step lacks and nobody gives is refused at the deadline, not before. */
static void test_deadline(void)
{
    start();
    add(0, 0), add(1, 60);
    clients[1].listens = false;
    plan(0, 10, 40, 1, 0);
    slice(0, 0);
    clients[1].held_bytes += 5; /* as a child of fork() may */
    ledger.held_bytes += 5, clients[1].group->held_bytes += 5;
    lease(0, 40, 0);
    for (uint64_t now = 0; now < WITHIN; now += 25 * MS)
        zr_ledger_tick(&ledger, now);
    tap_is(said[0].refused, 0, "a planned lease waits to its deadline");
    zr_ledger_tick(&ledger, WITHIN);
    tap_is(said[0].refused, 1, "and is refused then");
}

/* 0 and 1 compute together; 2 waits; 3 has memory idle and no plan. */
static void test_members(void)
{
    start();
    for (unsigned i = 0; i < 4; i++)
        add(i, i == 3 ? 50 : 0);
    tap_is(plan(0, 10, 30, 2, 0), 0, "a run's first rank waits for the second");
    zr_ledger_tick(&ledger, 500 * MS);
    tap_is(said[0].last, ZR_SERVICE_LATER, "and hears so");
    tap_is(plan(0, 10, 30, 2, 501 * MS), 0, "it asks again");
    plan(1, 10, 30, 2, 502 * MS);
    tap_ok(said[3].asked == 1 && clients[3].reclaim_bytes == 10 && said[1].answered == 0,
           "what others have idle is asked for first");
    zr_ledger_return(&ledger, &clients[3], 10, 503 * MS);
    zr_ledger_given(&ledger, &clients[3], clients[3].reclaim_serial, 503 * MS);
    tap_ok(said[0].last == ZR_SERVICE_GRANTED && said[1].last == ZR_SERVICE_GRANTED, "then both are let in");
    tap_is(slice(0, 504 * MS), 0, "one rests");
    tap_is(slice(1, 504 * MS), ZR_SERVICE_GRANTED, "both do");
    tap_is(said[0].last, ZR_SERVICE_GRANTED, "and have their turn");
    tap_is(plan(2, 0, 35, 1, 504 * MS), ZR_SERVICE_GRANTED, "another run");
    slice(2, 504 * MS);
    zr_ledger_tick(&ledger, 504 * MS + TURN);
    tap_is(said[0].yielded + said[1].yielded, 2, "both are asked for their turn");
    tap_is(slice(0, 800 * MS) + (int)said[2].last, 0, "one rank's rest ends nothing");
    zr_ledger_tick(&ledger, 1300 * MS);
    tap_is(said[0].last, ZR_SERVICE_LATER, "it is to ask again");
    slice(1, 1301 * MS);
    tap_is(slice(2, 1301 * MS), ZR_SERVICE_GRANTED, "both ranks' does");
    zr_ledger_remove(&ledger, &clients[2], 1302 * MS);
    tap_ok(said[1].last == ZR_SERVICE_GRANTED && said[0].last == ZR_SERVICE_LATER,
           "their turn comes while one was away");
    tap_is(slice(0, 1303 * MS), ZR_SERVICE_GRANTED, "who hears of it when it asks");
    tap_ok(clients[0].run->in_slice && !clients[0].paused, "and rests no more");
    tap_is(slice(0, 1304 * MS), 0, "the next one has not come yet");
    zr_ledger_leave(&ledger, &clients[1], 1305 * MS);
    tap_ok(clients[0].run->members_count == 1 && said[0].last == ZR_SERVICE_GRANTED,
           "a rank that is gone is not waited for");
    start();
    for (unsigned i = 0; i < 3; i++)
        add(i, 0), plan(i, 5, 20, 3, 0);
    for (unsigned i = 0; i < 3; i++)
        slice(i, 0);
    tap_is(slice(0, 1), 0, "of three ranks one rests");
    zr_ledger_leave(&ledger, &clients[0], 2);
    tap_is(slice(1, 3), 0, "and goes, so that of two one rests");
    tap_is(slice(2, 3), ZR_SERVICE_GRANTED, "and both do");
}

/* 0 rests, 1 has its turn, 2 has to wait for the bases of both. */
static void test_three(void)
{
    const struct zr_run_plan before = {.base_bytes = 20, .peak_bytes = 60, .count = 1, .admitted = true};
    start();
    for (unsigned i = 0; i < 3; i++)
        add(i, 0);
    zr_run_join(&ledger, &clients[0], &before, 0);
    for (unsigned i = 1; i < 3; i++)
        tap_is(plan(i, 20, 50, 1, 0), ZR_SERVICE_GRANTED, "run %u is let in", i);
    tap_is(slice(1, 0), ZR_SERVICE_GRANTED, "one has its turn");
    tap_is(slice(2, 0), 0, "another does not fit beside it and what stays of a third");
    zr_ledger_remove(&ledger, &clients[0], 1);
    tap_is(said[2].last, ZR_SERVICE_GRANTED, "when that is gone it does");
}

static void give(unsigned which, uint64_t bytes, uint64_t now)
{
    if (bytes > 0)
        zr_ledger_return(&ledger, &clients[which], bytes, now);
    zr_ledger_given(&ledger, &clients[which], clients[which].reclaim_serial, now);
}

/* The bases of 0 and 1 do not fit beside the other's step, unless both can spill. */
static void test_spill(void)
{
    start();
    for (unsigned i = 0; i < 3; i++)
        add(i, 0);
    tap_is(plan(0, 50, 70, 1, 0) + plan(1, 50, 70, 1, 0), ZR_SERVICE_GRANTED + ZR_SERVICE_REFUSED,
           "two do not fit");
    zr_ledger_remove(&ledger, &clients[0], 0);
    add(0, 0);
    spills = 51;
    tap_is(plan(0, 50, 70, 1, 0), ZR_SERVICE_ENDED, "who spills more than it has makes no sense");
    spills = 30;
    tap_is(plan(0, 50, 70, 1, 0) + plan(1, 50, 70, 1, 0), 2 * ZR_SERVICE_GRANTED,
           "where they can spill they do");
    slice(0, 0);
    lease(0, 70, 0);
    tap_is(slice(1, 0), 0, "one waits for the other's turn");
    zr_ledger_return(&ledger, &clients[0], 22, TURN); /* it keeps 48 */
    tap_ok(slice(0, TURN) == 0 && said[1].last == 0 && clients[0].reclaim_spills &&
               clients[0].reclaim_bytes == 18,
           "and for what the other has in use");
    give(0, 10, TURN + 1);
    tap_ok(said[1].last == 0 && said[0].asked == 2 && clients[0].reclaim_bytes == 8,
           "it is asked for the rest");
    give(0, 8, TURN + 2);
    tap_is(said[1].last, ZR_SERVICE_GRANTED, "then its turn comes");
    lease(1, 70, TURN + 2);
    lease(2, 1, TURN + 2);
    tap_ok(said[1].granted == 1 && said[2].granted == 0, "with its peak, which nobody else gets");
    zr_ledger_return(&ledger, &clients[1], 20, TURN + 3);
    slice(1, TURN + 3);
    tap_ok(said[0].last == 0 && clients[1].reclaim_spills && clients[1].reclaim_bytes == 20,
           "the other's part comes next");
    give(1, 0, TURN + 4);
    tap_ok(said[1].last == ZR_SERVICE_GRANTED && said[0].last == 0,
           "whose disk has failed goes on, and the first waits for its end");
    zr_ledger_remove(&ledger, &clients[1], TURN + 5);
    tap_is(said[0].last, ZR_SERVICE_GRANTED, "which it does");
    spills = 0;
}

/* A run that waits to be let in, and limits below what runs have planned. */
static void test_waits(void)
{
    char words[256];
    struct zr_service_message limit = {.flags = ZR_SERVICE_SET_CAPACITY, .bytes = 59};
    start();
    for (unsigned i = 0; i < 3; i++)
        add(i, 0);
    plan(0, 50, 60, 1, 0);
    slice(0, 0);
    waits = true;
    tap_is(plan(1, 50, 60, 1, 0), ZR_SERVICE_LATER, "a run that does not fit now waits to be let in");
    tap_is(plan(1, 50, 60, 1, 0), 0, "it asks again, and hears for some time nothing");
    tap_is(plan(2, 50, CAPACITY + 1, 1, 0), ZR_SERVICE_REFUSED, "one that never would is refused");
    zr_ledger_tick(&ledger, 500000000);
    tap_is(said[1].last, ZR_SERVICE_LATER, "then it hears of it");
    tap_is(plan(1, 50, 60, 1, 500000001), 0, "and asks again");
    tap_is(zr_ledger_limit(&ledger, &limit, words, sizeof words, 500000002), ZR_ERR_INVALID,
           "no capacity is below what runs have planned");
    limit = (struct zr_service_message){.flags = ZR_SERVICE_SET_HARD, .pid = 1, .hard_bytes = 10};
    tap_is(zr_ledger_limit(&ledger, &limit, words, sizeof words, 500000002), ZR_OK, "a quota may be");
    lease(0, 60, 500000002);
    lease(0, 1, 500000002);
    tap_is(said[0].granted, 1, "whose plan was let in before has its peak, and no more");
    zr_ledger_remove(&ledger, &clients[0], 500000003);
    tap_is(said[1].last, ZR_SERVICE_GRANTED, "when the other ends it is let in");
    waits = false;
}

/* What a member that goes had claimed is another run's; who queued last swaps out first; what others of a
 * group hold without a plan counts against its quota; a drained zrd puts nobody off. */
static void test_rest(void)
{
    const struct zr_run_plan before = {
        .base_bytes = 30, .peak_bytes = 60, .spill_bytes = 30, .count = 1, .admitted = true};
    start();
    for (unsigned i = 0; i < 3; i++)
        add(i, 0);
    plan(0, 10, 30, 2, 0), plan(1, 10, 30, 2, 0);
    slice(0, 0), slice(1, 0);
    plan(2, 0, 65, 1, 0);
    tap_is(slice(2, 0), 0, "a run that does not fit beside two ranks");
    zr_ledger_remove(&ledger, &clients[1], 0);
    tap_is(said[2].last, ZR_SERVICE_GRANTED, "fits beside the one that is left");
    start();
    for (unsigned i = 0; i < 3; i++)
        add(i, i < 2 ? 30 : 0);
    zr_run_join(&ledger, &clients[0], &before, 0), zr_run_join(&ledger, &clients[1], &before, 0);
    spills = 30;
    plan(2, 30, 60, 1, 0);
    slice(2, 0);
    lease(2, 40, 0);
    slice(0, 1), slice(1, 2);
    zr_ledger_return(&ledger, &clients[2], 10, 3);
    slice(2, 3);
    tap_ok(said[1].asked == 0 && said[2].asked == 1 && clients[2].reclaim_spills,
           "of two that can swap out the last in the queue is asked");
    spills = 0;
    start();
    add(0, 60), add(1, 0);
    clients[0].group->hard_bytes = 90;
    tap_is(plan(1, 10, 31, 1, 0), ZR_SERVICE_REFUSED, "beyond a group's quota, with what others of it hold");
    tap_is(plan(1, 10, 30, 1, 0), ZR_SERVICE_GRANTED, "up to it");
    start();
    ledger.processors = 2;
    threads = 1;
    add(0, 0), add(1, 0);
    plan(0, 10, 60, 1, 0), slice(0, 0);
    plan(1, 10, 60, 1, 0), slice(1, 0);
    lease(0, 60, 0), lease(1, 50, 0);
    said[1].last = 0;
    zr_ledger_drain(&ledger, true, 0);
    tap_ok(said[1].refused == 1 && said[1].last == 0,
           "a drained zrd refuses what another's step keeps waiting");
    threads = 0;
}

static void test_mistakes(void)
{
    struct zr_run_plan before = {.base_bytes = 20, .peak_bytes = 60, .count = 1, .admitted = true};
    start();
    for (unsigned i = 0; i < 3; i++)
        add(i, 0);
    tap_is(slice(0, 0), ZR_SERVICE_ENDED, "a turn without a plan");
    clients[0].hard_bytes = 59;
    tap_ok(plan(0, 20, 60, 1, 0) == ZR_SERVICE_REFUSED && strstr(zr_last_error(), "--pid 1"),
           "a process's quota");
    clients[0].hard_bytes = 60;
    clients[0].group->hard_bytes = 99;
    plan(0, 20, 60, 1, 0);
    tap_ok(plan(1, 0, 40, 1, 0) == ZR_SERVICE_REFUSED && strstr(zr_last_error(), "--group a"), "a group's");
    start();
    add(0, 20), add(1, 60);
    ledger.settled_ns = 100;
    zr_run_join(&ledger, &clients[0], &before, 0);
    before.in_slice = true;
    tap_is(slice(0, 50), 0, "clients of a zrd that has ended come back one by one");
    zr_run_join(&ledger, &clients[1], &before, 60);
    zr_ledger_tick(&ledger, 100);
    tap_ok(said[0].last == 0 && clients[1].run->in_slice, "and one of them may be in its turn");
}

/* What plans come to at most while the run with this turn ends its step, by the rules of runs.h; what is held
 * beyond a plan is asked back. */
static uint64_t most_in(const struct zr_run *slice)
{
    uint64_t bytes = 0;
    for (const struct zr_run *run = ledger.runs; run; run = run->next) {
        uint64_t floor = run->base_bytes - run->spill_bytes;
        bool spilled = run->spill_bytes > 0 && !run->in_slice;
        uint64_t paused = !run->begun                          ? 0
                          : spilled && run->held_bytes < floor ? run->held_bytes
                          : spilled                            ? floor
                                                               : run->base_bytes;
        uint64_t has = run->held_bytes < run->reservation_bytes ? run->held_bytes : run->reservation_bytes;
        bool ends = run->in_slice && run->threads > 0 && run->yields; /* with its step */
        if (!run->admitted)
            continue;
        if (run == slice || (run->in_slice && !ends))
            bytes += run->reservation_bytes;
        else
            bytes += ends && run->slice > slice->slice && has > paused ? has : paused;
    }
    return bytes;
}

/* Nobody's plan is passed by what all hold, whatever comes. */
static void test_random(void)
{
    uint64_t now = 0, state = run_seed(), wrong = 0, slices = 0, reservations = 0, beside = 0;
    start();
    ledger.processors = 4;
    for (unsigned i = 0; i < HOLDERS; i++)
        add(i, 0);
    for (unsigned step = 0; step < 20000; step++, now += (state >> 20) % (30 * MS)) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned i = (state >> 33) % HOLDERS, what = (state >> 40) % 8, number = (state >> 50) % 24;
        struct zr_client *client = &clients[i];
        if (what == 0 && number < 4) {
            zr_ledger_remove(&ledger, client, now);
            add(i, 0);
        } else if (what == 1 && !client->run) {
            threads = i >= 4 ? (state >> 59) % 3 : 0;
            spills = threads || (state >> 58) % 2 ? 0 : number / 3;
            plan(i, number / 2, number + 1, i < 4 ? 2 : 1, now);
        } else if (what == 2 && client->run && client->run->admitted && !client->awaits &&
                   !client->wanted_bytes) {
            slices += slice(i, now) == ZR_SERVICE_GRANTED;
        } else if (what == 2 && client->run && client->run->in_slice && client->run->threads) {
            reservations += zr_run_reserve(client, client->held_bytes + number / 2) == ZR_OK;
            zr_ledger_serve(&ledger, now);
        } else if (what == 3 && client->reclaim_bytes) {
            zr_ledger_given(&ledger, client, client->reclaim_serial, now);
        } else if (what < 6 && !client->wanted_bytes && !client->awaits) {
            lease(i, number + 1, now);
        } else if (client->held_bytes) {
            zr_ledger_return(&ledger, client, client->held_bytes < number ? client->held_bytes : number, now);
        }
        zr_ledger_tick(&ledger, now);
        wrong += zr_ledger_tick(&ledger, now) <= now; /* zrd would not sleep */
        uint64_t held = 0;
        unsigned in_slice = 0;
        for (const struct zr_run *run = ledger.runs; run; run = run->next) {
            in_slice += run->in_slice && run->threads > 0;
            wrong += run->in_slice && most_in(run) > CAPACITY;
            wrong += run->paused_count > run->members_count || run->members_count == 0;
        }
        for (unsigned h = 0; h < HOLDERS; h++)
            held += clients[h].held_bytes;
        wrong += held != ledger.held_bytes || held > CAPACITY;
        beside += in_slice > 1;
    }
    tap_is(wrong, 0, "20,000 steps at random: plans and what is held stay within the capacity");
    tap_ok(slices > 100 && reservations > 100 && beside > 100,
           "%llu turns, %llu claims, %llu times several at once", (unsigned long long)slices,
           (unsigned long long)reservations, (unsigned long long)beside);
    threads = 0;
}

int main(void)
{
    test_two();
    test_beside();
    test_beyond();
    test_fitting();
    test_back();
    test_ranks_back();
    test_kept();
    test_deadline();
    test_members();
    test_three();
    test_spill();
    test_waits();
    test_rest();
    test_mistakes();
    test_random();
    return tap_done();
}
