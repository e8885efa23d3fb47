/* fuzz_targets.h: what is done with each hostile file: it is read, and what was read must hold together, all
 * the way through the packer and a replay. Any answer is right but a crash, a leak or a contradiction.
 * fuzz_test.c mutates by itself; fuzz_entry.c hands the same targets to libFuzzer. */
#ifndef ZR_FUZZ_TARGETS_H
#define ZR_FUZZ_TARGETS_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/option.h"
#include "alloc/os.h"
#include "defrag/zr_defrag.h"
#include "defrag/zrt.h"
#include "zero/train/data.h"

enum { FUZZ_REPLAY_MOST = 400 };

static zr_backend *fuzz_backend;
static zr_arena *fuzz_arena;
static int fuzz_fd = -1;
static char fuzz_path[64];

/* Time runs by what is read of it, at a pace that the file decides: whoever keeps to a budget of time breaks
 * off at every place there is, and does so again from the same file. */
static _Atomic uint64_t fuzz_now_ns = 1, fuzz_pace_ns = 1;

static inline uint64_t fuzz_clock(void)
{
    return atomic_fetch_add(&fuzz_now_ns, fuzz_pace_ns);
}

static inline void fuzz_set_pace(const unsigned char *data, size_t bytes)
{
    uint64_t hash = bytes;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ data[i]) * 1099511628211u;
    fuzz_pace_ns = UINT64_C(1) << (hash >> 40) % 32;
}

static inline bool fuzz_start(void)
{
    if (zr_backend_host_create(&fuzz_backend, &(struct zr_host_options){.granule_bytes = 65536}) != ZR_OK ||
        zr_arena_create(&fuzz_arena, &(struct zr_arena_options){.backend = fuzz_backend,
                                                                .limit_bytes = (size_t)256 << 20}) != ZR_OK)
        return false;
    zr_os_clock_set(fuzz_clock);
    fuzz_fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(fuzz_path, sizeof fuzz_path, "/proc/self/fd/%d", fuzz_fd);
    return fuzz_fd >= 0;
}

static inline void fuzz_end(void)
{
    close(fuzz_fd);
    zr_os_clock_set(NULL);
    zr_arena_destroy(fuzz_arena, NULL);
    zr_backend_destroy(fuzz_backend);
}

static inline size_t fuzz_live_bytes(void)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(fuzz_arena, &stats);
    return stats.live_bytes;
}

static inline bool fuzz_write(const unsigned char *data, size_t bytes)
{
    fuzz_set_pace(data, bytes);
    return ftruncate(fuzz_fd, 0) == 0 && pwrite(fuzz_fd, data, bytes, 0) == (ssize_t)bytes;
}

/* Results that a hostile file may lead to. */
static inline bool fuzz_answer(zr_result result)
{
    return result == ZR_OK || result == ZR_ERR_FORMAT || result == ZR_ERR_CORRUPT || result == ZR_ERR_MEMORY;
}

/* ---- Traces -------------------------------------------------------------------------------------------- */

/* The sequence says of itself what is true. */
static inline bool fuzz_consistent(const struct zr_sequence *sequence)
{
    uint64_t live = 0, most = 0;
    uint32_t blocks = 0;
    for (size_t i = 0; i < sequence->events_count; i++) {
        const struct zr_event *event = &sequence->events[i];
        if (event->kind == ZR_EVENT_MARK)
            continue;
        if (event->kind > ZR_EVENT_MARK || event->tag >= ZR_TAG_COUNT || event->bytes == 0 ||
            event->block >= sequence->blocks_count)
            return false;
        if (event->kind == ZR_EVENT_ALLOC && event->block != blocks++)
            return false;
        live = event->kind == ZR_EVENT_ALLOC ? live + event->bytes : live - event->bytes;
        most = live > most ? live : most;
    }
    return most == sequence->lower_bound_bytes && blocks == sequence->blocks_count &&
           sequence->preface_count <= sequence->events_count;
}

/* Lifetimes, a placement that the checker confirms, and a replay under every policy. */
static inline bool fuzz_use(const struct zr_sequence *sequence)
{
    struct zr_lifetimes lifetimes;
    struct zr_pack_report packed;
    struct zr_replay_report replayed;
    bool good = true;
    if (zr_lifetimes_of(&lifetimes, sequence, fuzz_arena) == ZR_OK) {
        zr_result result = zr_pack(&lifetimes, &(struct zr_pack_options){.time_ns = 2000000}, &packed);
        if (result == ZR_OK)
            good = packed.height_bytes >= packed.lower_bound_bytes &&
                   packed.lower_bound_bytes == lifetimes.lower_bound_bytes &&
                   zr_pack_check(&lifetimes, packed.height_bytes) == ZR_OK;
        zr_lifetimes_end(&lifetimes);
    }
    for (unsigned i = 0; i < ZR_POLICY_COUNT && good; i++)
        if (zr_replay(sequence,
                      &(struct zr_replay_options){
                          .policy = (enum zr_policy)i, .capacity_bytes = UINT64_C(1) << 40, .repeat = 2},
                      &replayed) == ZR_OK &&
            replayed.failed_at == UINT64_MAX)
            good = replayed.peak_reserved_bytes >= sequence->lower_bound_bytes;
    return good;
}

static inline bool fuzz_trace(const unsigned char *data, size_t bytes, zr_result *result)
{
    struct zr_sequence sequence;
    size_t before = fuzz_live_bytes();
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_sequence_read(
        &sequence, &(struct zr_read_options){.path = fuzz_path, .unit_bytes = 3, .device = -1}, fuzz_arena);
    bool good = fuzz_answer(*result);
    if (*result == ZR_OK) {
        good = fuzz_consistent(&sequence);
        if (good && sequence.events_count <= FUZZ_REPLAY_MOST)
            good = fuzz_use(&sequence);
    }
    zr_sequence_end(&sequence);
    return good && fuzz_live_bytes() == before;
}

static inline bool fuzz_lifetimes_file(const unsigned char *data, size_t bytes, zr_result *result)
{
    struct zr_lifetimes lifetimes;
    struct zr_pack_report report;
    size_t before = fuzz_live_bytes();
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_lifetimes_read(&lifetimes, fuzz_path, fuzz_arena);
    bool good = fuzz_answer(*result);
    for (size_t i = 0; *result == ZR_OK && i < lifetimes.count; i++)
        good &= lifetimes.buffers[i].lower <= lifetimes.buffers[i].upper;
    if (*result == ZR_OK && lifetimes.count <= FUZZ_REPLAY_MOST) {
        zr_result packed = zr_pack(&lifetimes, &(struct zr_pack_options){.time_ns = 2000000}, &report);
        good &= packed != ZR_OK || zr_pack_check(&lifetimes, report.height_bytes) == ZR_OK;
    }
    zr_lifetimes_end(&lifetimes);
    return good && fuzz_live_bytes() == before;
}

/* Events as they are written, one by one. */
static inline bool fuzz_zrt(const unsigned char *data, size_t bytes, zr_result *result)
{
    static struct zrt_reader reader;
    struct zrt_event event;
    bool more = true, good = true;
    *result = zrt_open_memory(&reader, data, bytes);
    if (*result != ZR_OK)
        return fuzz_answer(*result);
    while (good && (*result = zrt_next(&reader, &event, &more)) == ZR_OK && more)
        good = event.tag < ZR_TAG_COUNT && memchr(event.label, 0, sizeof event.label) != NULL &&
               reader.events_count <= bytes;
    zrt_close(&reader);
    return good && fuzz_answer(*result);
}

/* ---- Training data and settings ------------------------------------------------------------------------ */

static inline bool fuzz_tokens(const unsigned char *data, size_t bytes, zr_result *result)
{
    enum { LENGTH = 8, BATCH = 2, VOCABULARY = 50257 };
    int32_t tokens[LENGTH * BATCH], targets[LENGTH * BATCH];
    struct zr_data file;
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_data_open(&file, &(struct zr_data_options){.path = fuzz_path,
                                                            .vocabulary = VOCABULARY,
                                                            .sequence = LENGTH,
                                                            .batch = BATCH,
                                                            .world = 1,
                                                            .seed = 3});
    if (*result != ZR_OK)
        return fuzz_answer(*result) && file.file.fd == -1;
    bool good = file.lead_bytes + file.tokens_count * file.token_bytes <= bytes;
    *result = zr_data_scan(&file);
    good &= fuzz_answer(*result);
    for (uint64_t step = 1; step < 4 && good; step++) {
        zr_result got = zr_data_train(&file, &(struct zr_data_place){step, 0}, tokens, targets);
        good = fuzz_answer(got) && (*result != ZR_OK || got == ZR_OK);
        for (unsigned i = 0; got == ZR_OK && i < LENGTH * BATCH; i++)
            good &= tokens[i] >= 0 && tokens[i] < VOCABULARY && targets[i] >= 0 && targets[i] < VOCABULARY;
    }
    zr_data_close(&file);
    return good;
}

/* A text as ZR_CONF, and as the name of a statistic. */
static inline bool fuzz_setting(const unsigned char *data, size_t bytes, zr_result *result)
{
    char text[300];
    uint64_t value;
    bytes = bytes < sizeof text - 1 ? bytes : sizeof text - 1;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    *result = zr_option_set(text);
    bool good = *result == ZR_OK || *result == ZR_ERR_INVALID;
    good &= zr_option_get(ZR_OPTION_CHECK) <= ZR_CHECK_BYTES;
    zr_option_set(NULL);
    zr_result named = zr_ctl_get(text, &value);
    return good && (named == ZR_OK || named == ZR_ERR_INVALID);
}

/* ---- All of them --------------------------------------------------------------------------------------- */

struct fuzz_target {
    const char *name;
    /* False: a contradiction or a leak. *result says how far the file came. */
    bool (*run)(const unsigned char *data, size_t bytes, zr_result *result);
};

static const struct fuzz_target fuzz_targets[] = {
    {"trace", fuzz_trace},   {"lifetimes", fuzz_lifetimes_file}, {"zrt", fuzz_zrt},
    {"tokens", fuzz_tokens}, {"settings", fuzz_setting},
};
enum { FUZZ_TARGETS = sizeof fuzz_targets / sizeof *fuzz_targets };

#endif
