/* events.c: see log.h. */
#define _GNU_SOURCE
#include "zero/train/report/log.h"

#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"

/* ---- Protobuf ------------------------------------------------------------------------------------------ */

enum { MESSAGE_ROOM = 512 };

/* A message that is being written. Every event of this file is shorter than the room. */
struct message {
    unsigned char bytes[MESSAGE_ROOM];
    size_t count;
};

/* Fields of Event, SessionLog, Summary and Summary.Value: the number of the field, and its wire type in the
 * lowest three bits. */
enum {
    WIRE_VARINT = 0,
    WIRE_8_BYTES = 1,
    WIRE_BYTES = 2,
    WIRE_4_BYTES = 5,
    EVENT_WALL_TIME = 1 << 3 | WIRE_8_BYTES,
    EVENT_STEP = 2 << 3 | WIRE_VARINT,
    EVENT_FILE_VERSION = 3 << 3 | WIRE_BYTES,
    EVENT_SUMMARY = 5 << 3 | WIRE_BYTES,
    EVENT_SESSION_LOG = 7 << 3 | WIRE_BYTES,
    SESSION_STATUS = 1 << 3 | WIRE_VARINT,
    SESSION_START = 1,
    SUMMARY_VALUE = 1 << 3 | WIRE_BYTES,
    VALUE_TAG = 1 << 3 | WIRE_BYTES,
    VALUE_SIMPLE = 2 << 3 | WIRE_4_BYTES
};

static void put(struct message *message, const void *bytes, size_t count)
{
    zr_assert(count <= sizeof message->bytes - message->count);
    memcpy(message->bytes + message->count, bytes, count);
    message->count += count;
}

static void put_varint(struct message *message, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put(message, &(unsigned char){(unsigned char)(value | 0x80)}, 1);
    put(message, &(unsigned char){(unsigned char)value}, 1);
}

static void put_bytes(struct message *message, unsigned field, const void *bytes, size_t count)
{
    put_varint(message, field);
    put_varint(message, count);
    put(message, bytes, count);
}

static void put_value(struct message *summary, const char *tag, double value)
{
    float simple = (float)value;
    uint32_t bits;
    struct message out = {.count = 0};
    memcpy(&bits, &simple, sizeof bits);
    bits = htole32(bits);
    put_bytes(&out, VALUE_TAG, tag, strlen(tag));
    put_varint(&out, VALUE_SIMPLE);
    put(&out, &bits, sizeof bits);
    put_bytes(summary, SUMMARY_VALUE, out.bytes, out.count);
}

/* ---- Records ------------------------------------------------------------------------------------------- */

static uint32_t masked_crc(const void *data, size_t count)
{
    const uint32_t polynomial = UINT32_C(0x82f63b78); /* Castagnoli's, reversed */
    const unsigned char *bytes = data;
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    }
    crc = ~crc;
    return htole32((crc >> 15 | crc << 17) + UINT32_C(0xa282ead8));
}

/* Writes an event with the present time, and with the fields of `rest` behind time and step. */
static zr_result write_event(struct zr_events *events, uint64_t step, const struct message *rest)
{
    struct timespec now;
    struct message event = {.count = 0};
    unsigned char record[8 + 4 + MESSAGE_ROOM + 4];
    uint64_t bits, length;
    uint32_t crc;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    memcpy(&bits, &seconds, sizeof bits);
    bits = htole64(bits);
    put_varint(&event, EVENT_WALL_TIME);
    put(&event, &bits, sizeof bits);
    put_varint(&event, EVENT_STEP);
    put_varint(&event, step);
    put(&event, rest->bytes, rest->count);

    length = htole64(event.count);
    memcpy(record, &length, 8);
    crc = masked_crc(record, 8);
    memcpy(record + 8, &crc, 4);
    memcpy(record + 12, event.bytes, event.count);
    crc = masked_crc(event.bytes, event.count);
    memcpy(record + 12 + event.count, &crc, 4);
    return zr_file_write(&events->file, record, 12 + event.count + 4);
}

/* ---- The file ------------------------------------------------------------------------------------------ */

zr_result zr_events_open(struct zr_events *out, const char *folder, uint64_t resumed_step)
{
    static const char version[] = "brain.Event:2";
    const unsigned char start[] = {SESSION_STATUS, SESSION_START};
    char name[128], path[4096 + sizeof name], host[48] = "host";
    struct message rest = {.count = 0};
    struct timespec now;
    *out = (struct zr_events){.file = {.fd = -1}};
    if (!folder[0])
        return ZR_OK;
    clock_gettime(CLOCK_REALTIME, &now);
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "events.out.tfevents.%010" PRId64 ".%s.%d", (int64_t)now.tv_sec, host,
             (int)getpid());
    zr_result result = zr_path_make_folder(folder, true);
    if (result == ZR_OK)
        result = zr_path_join(path, sizeof path, &(struct zr_path_parts){folder, name});
    if (result == ZR_OK)
        result = zr_file_create(&out->file, path, ZR_CREATE_APPEND);
    put_bytes(&rest, EVENT_FILE_VERSION, version, sizeof version - 1);
    if (result == ZR_OK)
        result = write_event(out, 0, &rest);
    rest.count = 0;
    put_bytes(&rest, EVENT_SESSION_LOG, start, sizeof start);
    if (result == ZR_OK && resumed_step > 0)
        result = write_event(out, resumed_step + 1, &rest);
    if (result != ZR_OK)
        zr_events_close(out);
    return result;
}

zr_result zr_events_step(struct zr_events *events, const struct zr_step_line *line)
{
    const double *errors = line->compression.error;
    const struct {
        const char *tag;
        double value;
        bool has;
    } values[] = {
        {"train/loss", line->loss, true},
        {"train/grad_norm", line->gradient_norm, !line->skipped},
        {"train/learning_rate", line->rate, true},
        {"train/tokens_per_second", line->tokens_per_second, true},
        {"train/loss_scale", line->loss_scale, line->loss_scale > 0},
        {"train/noise_scale", line->noise_scale, line->measures_noise && isfinite(line->noise_scale)},
        {"compression/error_parameters", errors[ZR_COMPRESSED_PARAMETERS],
         line->checks_compression && isfinite(errors[ZR_COMPRESSED_PARAMETERS])},
        {"compression/error_gradients", errors[ZR_COMPRESSED_GRADIENTS],
         line->checks_compression && isfinite(errors[ZR_COMPRESSED_GRADIENTS])},
        {"eval/loss", line->validation_loss, line->validated}};
    struct message summary = {.count = 0}, rest = {.count = 0};
    if (events->file.fd < 0)
        return ZR_OK;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i].has)
            put_value(&summary, values[i].tag, values[i].value);
    put_bytes(&rest, EVENT_SUMMARY, summary.bytes, summary.count);
    return write_event(events, line->step, &rest);
}

zr_result zr_events_close(struct zr_events *events)
{
    zr_result result = zr_file_close(&events->file);
    events->file.fd = -1;
    return result;
}
