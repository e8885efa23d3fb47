/* ledger_test.c: zrd's account of memory, on a clock of the test's own: who gets, who waits, who is asked,
 * who is ended; then many steps at random beside what must always hold. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/service/server/ledger.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { HOLDERS = 6, WITHIN = 1000 };

/* What the ledger has said to each holder, and how often. */
static struct {
    unsigned granted, refused, asked, ended;
} said[HOLDERS], none[HOLDERS];
static struct zr_client clients[HOLDERS];
static struct zr_ledger ledger;

static bool unmet; /* there is room, and no memory */

static bool answer(struct zr_ledger *of, struct zr_client *client, zr_result result)
{
    (void)of;
    if (result == ZR_OK && unmet) {
        zr_fail(ZR_ERR_MEMORY, "a full device");
        return false;
    }
    if (result == ZR_OK)
        said[client - clients].granted++;
    else
        said[client - clients].refused++;
    return true;
}

static void ask(struct zr_ledger *of, struct zr_client *client)
{
    (void)of;
    said[client - clients].asked++;
}

static void end(struct zr_ledger *of, struct zr_client *client, const char *words)
{
    (void)of, (void)words;
    said[client - clients].ended++;
}

static void start(uint64_t capacity_bytes)
{
    static const struct zr_ledger_calls calls = {.answer = answer, .ask = ask, .end = end};
    if (ledger.calls)
        zr_ledger_end(&ledger);
    ledger = (struct zr_ledger){.calls = &calls, .capacity_bytes = capacity_bytes, .within_ns = WITHIN};
    zr_ledger_start(&ledger);
    memcpy(said, none, sizeof said);
}

static struct zr_client *add(unsigned which, const char *group, uint64_t held_bytes)
{
    struct zr_client *client = &clients[which];
    *client = (struct zr_client){.pid = (int32_t)which + 1, .held_bytes = held_bytes, .listens = true};
    tap_result(zr_ledger_add(&ledger, client, group), ZR_OK, "holder %u has %llu", which,
               (unsigned long long)held_bytes);
    return client;
}

static zr_result limit(const char *group, int32_t pid, unsigned flags, uint64_t bytes, char words[344])
{
    struct zr_service_message message = {
        .pid = pid, .flags = flags, .bytes = bytes, .shares = (uint32_t)bytes};
    message.hard_bytes = flags & ZR_SERVICE_SET_HARD ? bytes : 0;
    message.soft_bytes = flags & ZR_SERVICE_SET_SOFT ? bytes : 0;
    strcpy(message.group, group);
    return zr_ledger_limit(&ledger, &message, words, 344, 0);
}

/* 0 wants more than is free; 1 and 2 are of its group, 3 of another that is beyond its share. */
static void test_asking(void)
{
    char words[344];
    start(950);
    for (unsigned i = 0; i < 3; i++)
        add(i, "a", 100 + 50 * i);
    add(3, "b", 400);
    add(4, "b", 100)->listens = false;
    tap_result(limit("a", 0, ZR_SERVICE_SET_SHARES, 3, words), ZR_OK, "three shares to one");
    tap_is(zr_ledger_soft_bytes(&ledger, clients[0].group), 712, "of the capacity");
    zr_ledger_lease(&ledger, &clients[0], 20, 1, 0);
    tap_ok(said[3].asked == 1 && clients[3].reclaim_bytes == 50,
           "who is beyond its share is asked first, for an eighth");
    tap_is(zr_ledger_given(&ledger, &clients[3], clients[3].reclaim_serial + 1, 10), ZR_ERR_INVALID,
           "an answer to another question");
    zr_ledger_given(&ledger, &clients[3], clients[3].reclaim_serial, 10);
    tap_ok(said[2].asked == 1 && said[1].asked == 0, "it has nothing: whoever holds most is asked");
    tap_is(zr_ledger_return(&ledger, &clients[2], 201, 20), ZR_ERR_INVALID, "more than is held");
    zr_ledger_return(&ledger, &clients[2], 30, 20);
    tap_ok(said[0].granted == 1 && clients[0].held_bytes == 120, "what comes back is granted");
    zr_ledger_given(&ledger, &clients[2], clients[2].reclaim_serial, 30);
    zr_ledger_lease(&ledger, &clients[0], 100, 2, 40);
    for (unsigned i = 3; i > 0; i--)
        if (clients[i].reclaim_bytes > 0)
            zr_ledger_given(&ledger, &clients[i], clients[i].reclaim_serial, 50);
    tap_ok(said[0].refused == 1 && strstr(zr_last_error(), "pid 4"), "nobody has any: %s", zr_last_error());
    tap_ok(said[4].asked == 0 && said[0].asked == 0, "who does not listen is not asked, nor who wants it");
}

/* A device may have less than its zrd may lend. */
static void test_unmet(void)
{
    start(1000);
    add(0, "a", 0), add(1, "a", 300);
    unmet = true;
    zr_ledger_lease(&ledger, &clients[0], 100, 1, 0);
    tap_ok(said[1].asked == 1 && ledger.held_bytes == 300, "what is free and not there is asked for");
    zr_ledger_given(&ledger, &clients[1], clients[1].reclaim_serial, 10);
    tap_is(said[0].refused, 0, "and waited for");
    unmet = false;
    zr_ledger_return(&ledger, &clients[1], 50, 20);
    tap_ok(said[0].granted == 1 && ledger.held_bytes == 350, "until it is there");
    unmet = true;
    zr_ledger_lease(&ledger, &clients[0], 100, 2, 30);
    zr_ledger_given(&ledger, &clients[1], clients[1].reclaim_serial, 40);
    zr_ledger_tick(&ledger, 30 + WITHIN);
    tap_ok(said[0].refused == 1 && strstr(zr_last_error(), "a full device"), "or refused in time: %s",
           zr_last_error());
    unmet = false;
}

static void test_deadline(void)
{
    start(1000);
    add(0, "a", 0), add(1, "a", 900), add(2, "a", 100);
    zr_ledger_lease(&ledger, &clients[0], 500, 1, 100);
    zr_ledger_lease(&ledger, &clients[2], 5, 1, 300);
    tap_is(zr_ledger_tick(&ledger, 1099), 1100, "nothing is late before its time");
    tap_is(said[1].ended + said[0].refused, 0, "and nobody is ended");
    zr_ledger_tick(&ledger, 1100);
    tap_ok(said[1].ended == 1 && said[0].refused == 0,
           "who has not answered is ended, before others are refused");
    zr_ledger_remove(&ledger, &clients[1], 1100);
    tap_ok(said[0].granted == 1 && said[2].granted == 1, "its memory goes to those who wait");
    zr_ledger_lease(&ledger, &clients[0], 600, 2, 2000);
    zr_ledger_tick(&ledger, 2999);
    tap_is(said[0].refused, 0, "another request waits");
    zr_ledger_leave(&ledger, &clients[2], 2999);
    zr_ledger_tick(&ledger, 3000);
    tap_ok(said[0].refused == 1 && said[2].ended == 0, "as long as others may take, and no longer");
    tap_is(ledger.held_bytes, 605, "what a process left counts");
}

static void test_quotas(void)
{
    char words[344];
    start(1000);
    add(0, "a", 0), add(1, "b", 600);
    limit("", 1, ZR_SERVICE_SET_HARD, 100, words);
    zr_ledger_lease(&ledger, &clients[0], 101, 1, 0);
    tap_is(said[0].refused, 1, "beyond a hard quota");
    zr_ledger_lease(&ledger, &clients[0], 100, 2, 0);
    tap_is(said[0].granted, 1, "up to it");
    tap_is(limit("", 1, ZR_SERVICE_SET_SOFT, 101, words), ZR_ERR_INVALID, "a soft one above it");
    tap_ok(limit("b", 0, ZR_SERVICE_SET_HARD, 500, words) == ZR_OK && strstr(words, "more than"),
           "a quota below what is held: %s", words);
    tap_is(clients[1].reclaim_bytes, 100, "which is asked back");
    limit("b", 0, ZR_SERVICE_SET_HARD, 0, words);
    zr_ledger_given(&ledger, &clients[1], clients[1].reclaim_serial, 5);
    add(2, "b", 250);
    limit("", 1, ZR_SERVICE_SET_HARD, 0, words);
    zr_ledger_lease(&ledger, &clients[1], 60, 3, 10);
    zr_ledger_lease(&ledger, &clients[0], 60, 3, 20);
    zr_ledger_return(&ledger, &clients[2], 20, 30);
    tap_ok(said[0].granted == 2 && said[1].granted == 0,
           "who stays within its share comes before who waited longer");
    for (unsigned i = 0; i < 3; i++)
        clients[i].reclaim_bytes = 0;
    memcpy(said, none, sizeof said);
    zr_ledger_drain(&ledger, true, 40);
    tap_is(said[1].refused, 1, "draining, nobody waits");
    zr_ledger_lease(&ledger, &clients[0], 1, 4, 50);
    tap_is(said[0].refused, 1, "nor gets any");
    tap_ok(said[0].asked && said[1].asked && said[2].asked, "and all are asked");
    clients[3] = (struct zr_client){.pid = 9};
    tap_is(zr_ledger_add(&ledger, &clients[3], "c"), ZR_ERR_UNAVAILABLE, "who comes new is sent away");
}

/* What a group holds may reach its quota, and no more. A request that leaves lets those behind it have
 * memory. */
static void test_edges(void)
{
    char words[344];
    start(1000);
    add(0, "a", 300), add(1, "a", 100), add(2, "b", 400);
    limit("a", 0, ZR_SERVICE_SET_HARD, 500, words);
    zr_ledger_lease(&ledger, &clients[0], 101, 1, 0);
    tap_is(said[0].refused, 1, "a byte beyond a group's hard quota");
    zr_ledger_lease(&ledger, &clients[0], 100, 2, 0);
    tap_is(said[0].granted, 1, "up to the quota");
    limit("a", 0, ZR_SERVICE_SET_HARD, 0, words);
    zr_ledger_lease(&ledger, &clients[0], 200, 3, 0);
    zr_ledger_lease(&ledger, &clients[1], 50, 3, 0);
    tap_is(said[1].granted, 0, "a request behind one that is too large for what is free");
    zr_ledger_leave(&ledger, &clients[0], 0);
    tap_is(said[1].granted, 1, "has memory as soon as that one has left");
    limit("", 2, ZR_SERVICE_SET_HARD, 100, words);
    tap_is(limit("", 2, ZR_SERVICE_SET_SOFT, 100, words), ZR_OK, "a soft quota is as large as a hard one");
    start(1000);
    add(0, "a", 0), add(1, "b", 900), add(2, "b", 0);
    zr_ledger_lease(&ledger, &clients[2], 150, 1, 0);
    zr_ledger_lease(&ledger, &clients[0], 150, 1, 0);
    zr_ledger_return(&ledger, &clients[1], 60, 0);
    tap_ok(said[0].granted == 1 && said[2].granted == 0,
           "who holds nothing waits behind others where its group is beyond its share");
    limit("", 0, ZR_SERVICE_SET_CAPACITY, 800, words);
    zr_ledger_return(&ledger, &clients[1], 150, 0);
    tap_is(said[2].granted, 0, "a capacity below what is held lends nothing");
    zr_ledger_return(&ledger, &clients[1], 190, 0);
    tap_is(said[2].granted, 1, "until there is room in it");
}

/* Each request has one answer, in time; no grant passes the capacity; sums are sums. */
static void test_random(void)
{
    enum { STEPS = 200000 };
    uint64_t state = run_seed(), now = 0, wanted_at[HOLDERS] = {0};
    unsigned wrong = 0, granted = 0, refused = 0, ended = 0;
    start(1000);
    ledger.process_hard_bytes = 700;
    for (unsigned i = 0; i < HOLDERS; i++)
        add(i, i % 2 ? "odd" : "even", 0);
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned i = (unsigned)(xorshift64(&state) % HOLDERS), kind = (unsigned)(xorshift64(&state) % 8);
        struct zr_client *client = &clients[i];
        uint64_t bytes = xorshift64(&state) % 300 + 1;
        now += xorshift64(&state) % 50;
        memcpy(said, none, sizeof said);
        if (kind < 3 && client->wanted_bytes == 0) {
            wanted_at[i] = now;
            zr_ledger_lease(&ledger, client, bytes, step, now);
            wrong += said[i].granted + said[i].refused + (client->wanted_bytes > 0) != 1;
        } else if (kind < 6 && client->held_bytes > 0) {
            zr_ledger_return(&ledger, client, bytes < client->held_bytes ? bytes : client->held_bytes, now);
        } else if (kind == 6 && client->reclaim_bytes > 0 && xorshift64(&state) % 4) {
            zr_ledger_given(&ledger, client, client->reclaim_serial, now);
        }
        zr_ledger_tick(&ledger, now);
        wrong += zr_ledger_tick(&ledger, now) <= now; /* zrd would not sleep */
        for (unsigned k = 0; k < HOLDERS; k++) {
            granted += said[k].granted, refused += said[k].refused, ended += said[k].ended;
            wrong += clients[k].wanted_bytes > 0 && now - wanted_at[k] >= WITHIN;
            wrong += clients[k].reclaim_bytes > 0 && now >= clients[k].reclaim_until_ns;
            wrong += clients[k].held_bytes > 700;
            if (said[k].ended) {
                zr_ledger_remove(&ledger, &clients[k], now);
                clients[k] = (struct zr_client){.pid = (int32_t)k + 1, .listens = true};
                wrong += zr_ledger_add(&ledger, &clients[k], k % 2 ? "odd" : "even") != ZR_OK;
            }
        }
        uint64_t held[2] = {0};
        for (unsigned k = 0; k < HOLDERS; k++)
            held[k % 2] += clients[k].held_bytes;
        wrong += held[0] + held[1] != ledger.held_bytes || ledger.held_bytes > 1000;
        wrong += clients[0].group->held_bytes != held[0] || clients[1].group->held_bytes != held[1];
    }
    tap_ok(wrong == 0 && granted > STEPS / 10 && refused > 100 && ended > 100,
           "%d steps: %u granted, %u refused, %u ended, %u against the contract", STEPS, granted, refused,
           ended, wrong);
    for (unsigned i = 0; i < HOLDERS; i++)
        zr_ledger_remove(&ledger, &clients[i], now);
    tap_ok(ledger.held_bytes == 0 && !ledger.clients && ledger.groups_count == 0, "nothing is left");
    zr_ledger_end(&ledger);
}

int main(void)
{
    test_asking();
    test_deadline();
    test_unmet();
    test_quotas();
    test_edges();
    test_random();
    return tap_done();
}
