/* fuzz_targets.h: what is done with each hostile file: it is read, and what was read must hold together, a
 * trace all the way through the packer and a replay. Any answer is right but a crash, a leak or a
 * contradiction. fuzz_test.c mutates by itself; fuzz_entry.c hands the same targets to libFuzzer. */
#ifndef ZR_FUZZ_TARGETS_H
#define ZR_FUZZ_TARGETS_H

#include "defrag/report/export.h"
#include "defrag/report/remedies.h"
#include "defrag/tool/compressed.h"
#include "defrag/zr_defrag.h"
#include "defrag/trace/formats/zrt.h"
#include "tests/support/fuzz/fuzz_ps.h"
#include "tests/support/fuzz/fuzz_ground.h"
#include "tests/support/fuzz/fuzz_model.h"
#include "tests/support/fuzz/fuzz_service.h"
#include "tests/support/fuzz/fuzz_settings.h"
#include "tests/support/fuzz/fuzz_tcp.h"
#include "tests/support/fuzz/fuzz_tokenizer.h"
#include "tests/support/fuzz/fuzz_words.h"

enum { FUZZ_REPLAY_MAX = 400 };

static inline size_t fuzz_live_bytes(void)
{
    return fuzz_arena_bytes(fuzz_arena);
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
        if (good && sequence.events_count <= FUZZ_REPLAY_MAX)
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
    if (*result == ZR_OK && lifetimes.count <= FUZZ_REPLAY_MAX) {
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

/* ---- Recordings: measured, walked through, asked and written ------------------------------------------- */

/* Figures add up, and the walk names no place twice. */
static inline bool fuzz_memory(const struct zr_memory *memory)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    struct zr_memory_figures figures;
    uint64_t end = 0, live = 0, blocks = 0;
    zr_memory_get_figures(memory, &figures);
    while (zr_memory_next(&walk, &piece)) {
        if (piece.bytes == 0 || piece.address < end)
            return false;
        end = piece.address + piece.bytes;
        blocks += piece.block != NULL;
        live += piece.block ? piece.bytes : 0;
    }
    return blocks == figures.blocks_count && live == figures.live_bytes + figures.pending_bytes &&
           figures.requested_bytes <= figures.live_bytes &&
           figures.releasable_bytes <= figures.reserved_bytes;
}

static inline zr_result fuzz_request(void *state, const struct zr_record *record, bool *stop)
{
    (void)stop;
    return zr_requests_take(state, record);
}

static inline bool fuzz_why(struct zr_recording *recording, const struct zr_moments *moments,
                            struct zr_memory *memory)
{
    struct zr_question question = {.size_bytes = moments->has_failure ? moments->refused.bytes : 1 << 20,
                                   .capacity_bytes = moments->peak_reserved_bytes};
    struct zr_answer answer;
    struct zr_remedies remedies;
    struct zr_vector pins;
    bool proved;
    zr_why_answer(&answer, memory, &question);
    zr_vector_init(&pins, fuzz_arena, sizeof(struct zr_pin));
    zr_result result = zr_why_pins(&pins, memory, &question, answer.verdict, &proved);
    zr_vector_end(&pins);
    if (result == ZR_OK && moments->now.records_count <= FUZZ_REPLAY_MAX &&
        question.size_bytes < UINT64_C(1) << 40) {
        struct zr_memory again;
        struct zr_requests requests;
        zr_requests_init(&requests, fuzz_path, fuzz_arena);
        if (zr_moment_reach(&again, recording, moments->now.records_count,
                            &(struct zr_recording_sink){fuzz_request, &requests}) == ZR_OK)
            zr_remedies_find(&remedies, &requests, &again, &question, 0, NULL);
        zr_requests_end(&requests);
        zr_memory_end(&again);
    }
    return result == ZR_OK && (answer.verdict != ZR_VERDICT_PENDING || answer.pending_bytes > 0);
}

static inline bool fuzz_exports(struct zr_recording *recording, const struct zr_moments *moments)
{
    struct zr_export own = {.recording = recording,
                            .moments = moments,
                            .arena = fuzz_arena,
                            .records_count = moments->peak.records_count};
    struct zr_file file;
    char buffer[4096];
    bool good = true;
    for (const struct zr_export_format *format = zr_export_formats; format->name && good; format++) {
        struct zr_text text;
        if ((format->needs_maps && !recording->has_maps) ||
            (format->needs_addresses && !recording->has_addresses))
            continue;
        if (zr_file_create(&file, "/dev/null", ZR_CREATE_NOT) != ZR_OK)
            return false;
        zr_text_start(&text, &file, buffer, sizeof buffer);
        good = format->write(&own, &text) == ZR_OK;
        zr_file_close(&file);
    }
    return good;
}

static inline bool fuzz_recording(const unsigned char *data, size_t bytes, zr_result *result)
{
    struct zr_recording recording;
    struct zr_moments moments;
    struct zr_memory memory = {0};
    size_t before = fuzz_live_bytes();
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_recording_open(&recording,
                                &(struct zr_read_options){.path = fuzz_path, .unit_bytes = 3, .device = -1},
                                bytes & 1, fuzz_arena);
    if (*result == ZR_OK)
        *result = zr_moments_measure(&moments, &memory, &recording, fuzz_arena);
    bool good = fuzz_answer(*result);
    if (*result == ZR_OK && recording.has_addresses)
        good = fuzz_memory(&memory);
    if (*result == ZR_OK && good)
        good = fuzz_exports(&recording, &moments);
    if (*result == ZR_OK && good && recording.has_maps)
        good = fuzz_why(&recording, &moments, &memory);
    zr_memory_end(&memory);
    zr_recording_close(&recording);
    return good && fuzz_live_bytes() == before;
}

/* ---- Compressed files ---------------------------------------------------------------------------------- */

/* A file that is not compressed comes out as it is. */
static inline bool fuzz_compressed(const unsigned char *data, size_t bytes, zr_result *result)
{
    unsigned char copied[FUZZ_MAX];
    struct zr_file from, to = zr_file_borrow(fuzz_places[1].fd, "the content");
    bool cut_short = false;
    if (!fuzz_write(data, bytes) || !fuzz_write_place(1, "", 0) || lseek(to.fd, 0, SEEK_SET) != 0 ||
        zr_file_open(&from, fuzz_path) != ZR_OK)
        return false;
    *result = zr_compressed_copy(&from, &to, &cut_short);
    zr_file_close(&from);
    if (zr_compressed_is(data, bytes) || *result != ZR_OK)
        return fuzz_answer(*result);
    return !cut_short && lseek(to.fd, 0, SEEK_CUR) == (off_t)bytes &&
           pread(to.fd, copied, bytes, 0) == (ssize_t)bytes && memcmp(copied, data, bytes) == 0;
}

/* ---- All of them --------------------------------------------------------------------------------------- */

struct fuzz_target {
    const char *name;
    /* False: a contradiction or a leak. *result says how far the file came. */
    bool (*run)(const unsigned char *data, size_t bytes, zr_result *result);
    const char *const *words; /* of the format, NULL-ended */
};

/* Who reads: all there is but a process's own numbers in /proc (alloc/base/system/process.c, backend_host.c).
 */
static const struct fuzz_target fuzz_targets[] = {
    {"trace", fuzz_trace, fuzz_trace_words}, /* defrag/trace/sequence.c, pickle.c, rmm.c, minimalloc.c */
    {"lifetimes", fuzz_lifetimes_file, fuzz_trace_words}, /* defrag/trace/lifetimes.c, csv.c */
    {"zrt", fuzz_zrt, fuzz_trace_words},                  /* defrag/trace/formats/zrt.c */
    {"recording", fuzz_recording, fuzz_trace_words},      /* defrag/trace/recording.c, defrag/report/ */
    {"compressed", fuzz_compressed, fuzz_trace_words},    /* defrag/tool/compressed.c */
    {"tokens", fuzz_tokens, fuzz_setting_words},          /* zero/train/token_files.c: --vocab V */
    {"index", fuzz_index, fuzz_setting_words},            /* and Megatron's index */
    {"text", fuzz_text_file, fuzz_setting_words},         /* and --vocab byte */
    {"settings", fuzz_setting, fuzz_setting_words},       /* alloc/base/option.c: ZR_CONF; zr_ctl_get() */
    {"config", fuzz_config, fuzz_config_words},           /* zero/train/settings/config.c: --config */
    {"options", fuzz_options, fuzz_option_words},         /* zero/train/settings/args.c */
    {"environment", fuzz_environment, fuzz_environment_words}, /* zero/launch/start.c */
    {"log", fuzz_log, fuzz_log_words},                         /* zero/train/report/log.c: --log, resumed */
    {"machine", fuzz_machine, fuzz_machine_words},        /* alloc/base/system/machine.c: /proc and cgroups */
    {"safetensors", fuzz_safetensors, fuzz_tensor_words}, /* zero/checkpoint/safetensors_read.c */
    {"torch", fuzz_torch, fuzz_torch_words},              /* zero/checkpoint/torch_file.c */
    {"gpt", fuzz_gpt, fuzz_tensor_words},                 /* zero/checkpoint/model_import.c */
    {"checkpoint", fuzz_checkpoint, fuzz_manifest_words}, /* zero/checkpoint/checkpoint_load.c */
    {"state", fuzz_state, fuzz_manifest_words},           /* zero/checkpoint/state.c: zr_engine_load() */
    {"tokenizer", fuzz_tokenizer, fuzz_tokenizer_words},  /* zero/text/ */
    {"service", fuzz_service, fuzz_service_words},        /* alloc/service/: what zrd hears */
    {"device", fuzz_service_device,
     fuzz_service_words},                          /* and a device's: alloc/service/server/device_pool.c */
    {"tcp", fuzz_tcp, fuzz_tcp_words},             /* zero/comm/message/tcp/: frames of other ranks */
    {"handshake", fuzz_handshake, fuzz_tcp_words}, /* and what a stranger says */
    {"ps", fuzz_ps, fuzz_ps_words},                /* zero/ps/: requests of clients */
};
enum { FUZZ_TARGETS = sizeof fuzz_targets / sizeof *fuzz_targets };

static inline bool fuzz_start(void)
{
    return fuzz_ground_start() && fuzz_settings_start() && fuzz_model_start();
}

static inline void fuzz_end(void)
{
    fuzz_model_end();
    fuzz_settings_end();
    fuzz_ground_end();
}

#endif
