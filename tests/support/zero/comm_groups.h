/* comm_groups.h: the ranks of a communicator as a mesh of two columns: tensor groups of two neighbours, data
 * groups of every second rank. All three run operations at the same time, each in its own order. Collective:
 * all ranks call it with the same seed. */
#ifndef ZR_TEST_COMM_GROUPS_H
#define ZR_TEST_COMM_GROUPS_H

#include "tests/support/zero/comm_operations.h"

enum { MESH_GROUPS = 3, MESH_OPERATIONS = 40, MESH_SHARD = 700, MESH_ROUNDS = 6 };

struct mesh_group {
    zr_comm *comm;
    unsigned ranks[64], count; /* in the mesh */
    float *buffers;            /* [MESH_OPERATIONS][count * MESH_SHARD] */
    zr_ticket last;
};

struct mesh {
    struct mesh_group groups[MESH_GROUPS]; /* all; tensor; data */
    unsigned rank, failures;
};

#define mesh_check(m, condition, format, ...)                                                                \
    do {                                                                                                     \
        if (!(condition) && (m)->failures++ < 5)                                                             \
            fprintf(stderr, "# mesh rank %u, line %d: " format "\n", (m)->rank, __LINE__, ##__VA_ARGS__);    \
    } while (0)

static inline zr_result mesh_open(struct mesh *m, zr_comm *all)
{
    unsigned world = zr_comm_world(all);
    m->rank = zr_comm_rank(all);
    m->groups[0].comm = all;
    for (unsigned p = 0; p < world; p++) {
        m->groups[0].ranks[m->groups[0].count++] = p;
        if (p / 2 == m->rank / 2)
            m->groups[1].ranks[m->groups[1].count++] = p;
        if (p % 2 == m->rank % 2)
            m->groups[2].ranks[m->groups[2].count++] = p;
    }
    zr_result result = ZR_OK;
    for (unsigned g = 1; g < MESH_GROUPS && result == ZR_OK; g++)
        result = zr_comm_group(&m->groups[g].comm, all, m->groups[g].ranks, m->groups[g].count, 0);
    return result;
}

/* Whole numbers, so that sums are exact. */
static inline float mesh_value(unsigned group, unsigned n, unsigned rank, size_t i)
{
    return (float)((i * 7 + n * 13 + rank * 101 + group * 31) % 1000);
}

static inline zr_result mesh_submit(struct mesh *m, unsigned g, unsigned n)
{
    struct mesh_group *group = &m->groups[g];
    size_t whole = (size_t)group->count * MESH_SHARD;
    float *at = group->buffers + n * whole;
    unsigned own = zr_comm_rank(group->comm);
    for (size_t i = 0; i < whole; i++)
        at[i] = mesh_value(g, n, m->rank, i);
    if ((n + g) % 3 == 0)
        return zr_comm_all_reduce(
            group->comm, &(struct zr_all_reduce){.buffer = at, .shard_elements = MESH_SHARD, .scale = 1},
            &group->last);
    if ((n + g) % 3 == 1)
        return zr_comm_all_gather(group->comm,
                                  &(struct zr_all_gather){.source = at + own * MESH_SHARD,
                                                          .destination = at,
                                                          .shard_bytes = MESH_SHARD * sizeof(float)},
                                  &group->last);
    return zr_comm_broadcast(
        group->comm,
        &(struct zr_broadcast){.buffer = at, .bytes = whole * sizeof(float), .root = n % group->count},
        &group->last);
}

static inline void mesh_look(struct mesh *m, unsigned g, unsigned n)
{
    struct mesh_group *group = &m->groups[g];
    size_t whole = (size_t)group->count * MESH_SHARD, wrong = 0;
    const float *at = group->buffers + n * whole;
    for (size_t i = 0; i < whole; i++) {
        float want = 0;
        for (unsigned p = 0; p < group->count && (n + g) % 3 == 0; p++)
            want += mesh_value(g, n, group->ranks[p], i);
        if ((n + g) % 3 == 1)
            want = mesh_value(g, n, group->ranks[i / MESH_SHARD], i);
        if ((n + g) % 3 == 2)
            want = mesh_value(g, n, group->ranks[n % group->count], i);
        wrong += at[i] != want;
    }
    mesh_check(m, wrong == 0, "group %u, operation %u: %zu elements are wrong", g, n, wrong);
}

/* Hands in all operations of a round, from group to group as it comes: in another order on each rank, unless
 * `one_order`. Host messages go by while they are under way. */
static inline void mesh_round(struct mesh *m, uint64_t seed, bool one_order)
{
    unsigned done[MESH_GROUPS] = {0}, left = MESH_GROUPS * MESH_OPERATIONS;
    uint64_t own = trial_mix(seed + (one_order ? 0 : 977 * (m->rank + 1)));
    while (left > 0) {
        unsigned g = (unsigned)((own = trial_mix(own)) >> 20) % MESH_GROUPS;
        if (done[g] == MESH_OPERATIONS)
            continue;
        mesh_check(m, mesh_submit(m, g, done[g]) == ZR_OK, "group %u: %s", g, zr_last_error());
        done[g]++;
        left--;
    }
    for (unsigned g = 0; g < MESH_GROUPS; g++) {
        uint32_t mine = (uint32_t)seed + 1000 * g + m->rank, all[64];
        mesh_check(m, zr_comm_host_all_gather(m->groups[g].comm, &mine, sizeof(mine), all) == ZR_OK,
                   "group %u: %s", g, zr_last_error());
        for (unsigned p = 0; p < m->groups[g].count; p++)
            mesh_check(m, all[p] == (uint32_t)seed + 1000 * g + m->groups[g].ranks[p],
                       "group %u: rank %u has said %u", g, p, all[p]);
    }
    for (unsigned g = MESH_GROUPS; g-- > 0;) {
        mesh_check(m, zr_comm_wait(m->groups[g].comm, m->groups[g].last) == ZR_OK, "group %u: %s", g,
                   zr_last_error());
        for (unsigned n = 0; n < MESH_OPERATIONS; n++)
            mesh_look(m, g, n);
    }
}

/* The failures, after words on stderr. `arena` as in struct trial_options; `large` is a shard's size. */
static inline unsigned mesh_operations(zr_comm *all, uint64_t seed, bool one_order)
{
    struct mesh m = {0};
    zr_result result = mesh_open(&m, all);
    mesh_check(&m, result == ZR_OK, "%s", zr_last_error());
    for (unsigned g = 1; g < MESH_GROUPS && result == ZR_OK; g++)
        m.failures += trial_operations(
            m.groups[g].comm, &(struct trial_options){.seed = seed + 5 * (m.groups[g].ranks[0] + g)});
    for (unsigned g = 0; g < MESH_GROUPS; g++)
        m.groups[g].buffers = malloc(sizeof(float) * MESH_OPERATIONS * m.groups[g].count * MESH_SHARD);
    for (unsigned round = 0; round < MESH_ROUNDS && result == ZR_OK && m.failures == 0; round++)
        mesh_round(&m, seed + 10000 * round, one_order);
    for (unsigned g = 0; g < MESH_GROUPS; g++) {
        if (g > 0)
            mesh_check(&m, zr_comm_destroy(m.groups[g].comm) == ZR_OK, "its end: %s", zr_last_error());
        free(m.groups[g].buffers);
    }
    return m.failures;
}

#endif
