/* recording.h: a file of memory events as records, in order, starting with empty memory. Private to defrag/.
 *
 * A recording contains more than a sequence: addresses of blocks, mapped ranges, times, refusals, stacks.
 * Blocks from before the window come first, as records with `before` set. A recording can be played any
 * number of times. Each time reads the file again and holds only live blocks (for a snapshot also the data
 * named in pickle.h). A held recording keeps its records, up to two million, and reads its file once; that of
 * a MiniMalloc CSV, which is unordered, is always held, and that of a .zrt, which is small, never is. */
#ifndef ZR_RECORDING_H
#define ZR_RECORDING_H

#include "alloc/base/system/file.h"
#include "defrag/trace/held_records.h"
#include "defrag/trace/number_map.h"
#include "defrag/trace/formats/pickle.h"
#include "defrag/zr_defrag.h"

struct zrt_refusal;
struct zrt_event;

enum zr_record_kind {
    ZR_RECORD_ALLOC = 0,
    ZR_RECORD_FREE_ASKED, /* freed by the program; a stream may still use the block */
    ZR_RECORD_FREE,       /* the memory is reusable */
    ZR_RECORD_MAP,        /* memory is mapped at these addresses; a segment */
    ZR_RECORD_UNMAP,
    ZR_RECORD_REFUSED, /* a failed allocation */
    ZR_RECORD_MARK,
};

struct zr_record {
    uint8_t kind; /* enum zr_record_kind */
    uint8_t tag;
    bool before;             /* recreates a block from before the window */
    uint32_t thread, stack;  /* stack: for zr_recording_frames(); 0: none */
    uint32_t pool;           /* of a map: a segment serves only requests of its pool */
    uint64_t time_ns;        /* since the window's start; does not decrease */
    uint64_t address, bytes; /* bytes: requested; in a free 0 if the file has no size */
    uint64_t reserved_bytes; /* alloc: with rounding */
    uint64_t sample_bytes;   /* alloc: a sample, drawn one in so many bytes; 0: all are recorded */
    uint64_t free_bytes;     /* refused: of the device at that time; UINT64_MAX: unknown */
    uint64_t total_bytes;    /* refused: of the device; 0: unknown */
    uint64_t unit_bytes;     /* map: the unit that can be unmapped; 0: only the whole */
    uint64_t stream;
    const char *label;                 /* mark: valid during the call; else NULL */
    const struct zrt_refusal *refusal; /* refused: details; NULL if the file has no cause */
};

/* The allocator whose memory was recorded; for an imported .zrt, that of the original file. In enum
 * zrt_origin's order. */
enum zr_recording_kind {
    ZR_RECORDING_ZRT = 0,
    ZR_RECORDING_TORCH,
    ZR_RECORDING_RMM,
    ZR_RECORDING_MINIMALLOC,
    ZR_RECORDING_CSV
};

/* The settings of PyTorch's allocator (PYTORCH_CUDA_ALLOC_CONF) that a snapshot contains, and what of it the
 * models lack. 0: not set. */
enum { ZR_TORCH_DIVISIONS = 16 };
struct zr_torch_settings {
    uint64_t max_split_bytes;               /* larger blocks are not split */
    uint32_t divisions[ZR_TORCH_DIVISIONS]; /* of a power of two, for sizes from 1, 2, 4, .. MiB on */
    double garbage_collection_threshold;
    uint64_t private_bytes; /* in segments of private pools (CUDA graphs, MemPool), at the end */
};
/* Reads the settings that a text in the form of PYTORCH_CUDA_ALLOC_CONF has; others keep their values. */
void zr_torch_settings_read(const char *words, struct zr_torch_settings *settings);

/* The location of a code address of a .zrt's stack. */
struct zr_frame_place {
    uint64_t address;     /* in the process */
    uint64_t file_offset; /* in the module's file */
    const char *path;     /* of the module; "": unknown, or code without a file */
    const unsigned char *build_id;
    unsigned build_id_bytes; /* 0: unknown */
};

/* Writes the name of a location: "name (file:line)", zero-terminated. False: unknown. */
struct zr_frame_namer {
    bool (*name)(void *state, const struct zr_frame_place *place, char *out, size_t room_bytes);
    void *state;
};

/* The stacks of a .zrt, up to the position played so far. */
struct zr_recording_stacks {
    struct zr_vector modules, module_texts; /* recording_stacks.c; texts: char */
    struct zr_vector stacks, addresses;     /* by number; uint64_t */
    struct zr_vector frames;                /* by number: offsets of texts of interpreters' frames; 0: none */
    uint64_t events_seen;                   /* events up to here are included */
};

struct zr_recording {
    enum zr_recording_kind kind;
    const char *format; /* of the file: "zrt", "torch", "rmm", "minimalloc", "csv" */
    const char *path;   /* borrowed */
    bool has_addresses; /* addresses are positions; otherwise they only distinguish live blocks */
    bool has_maps;      /* the file contains maps */
    bool has_pending;   /* the file contains which frees wait for streams */
    bool has_times;     /* the times come from a clock */
    bool cut_short;     /* the file is truncated */
    bool expandable;    /* PyTorch: the allocator used expandable segments */
    struct zr_torch_settings settings; /* PyTorch */
    int device, devices_count;         /* PyTorch: shown, in the file */
    uint64_t unknown_count;            /* events of unknown kinds, which are not records .. */
    char unknown[32];                  /* .. the first one's kind */
    uint64_t granule_bytes;            /* .zrt; 0: unknown */
    uint64_t rounds_bytes;             /* requests are rounded up to multiples of this */
    /* For a .zrt's stacks; set by the caller after opening. NULL: frames are module and offset. */
    struct zr_frame_namer namer;

    /* private */
    zr_arena *arena;
    struct zr_pickle pickle;
    bool has_pickle, has_events; /* PyTorch */
    bool is_held;
    struct zr_held_records held; /* all but the preface */
    struct zr_vector preface;    /* struct zr_record: RMM, torch: blocks from before the window */
    struct zr_vector maps;       /* struct zr_record: torch: maps and unmaps */
    struct zr_vector sizes; /* struct zr_true_size: torch: of blocks that are live at the end, in order */
    struct zr_vector annotations; /* struct zr_annotation: torch: of the profiler, in order of time */
    struct zrt_reader *reader;    /* 64 KiB; NULL for other formats than .zrt */
    struct zrt_event *event;      /* of the reader */
    uint64_t before_count;        /* .zrt: events that recreate blocks from before the window */
    struct zr_recording_stacks stacks;
};

/* The options' path is borrowed. The caller owns *out until zr_recording_close(), also after an error.
 * ZR_ERR_IO, ZR_ERR_FORMAT as zr_sequence_read(). */
zr_result zr_recording_open(struct zr_recording *out, const struct zr_read_options *options, bool held,
                            zr_arena *arena);
void zr_recording_close(struct zr_recording *recording);

/* Passes each record to take(), until take() fails or sets *stop. ZR_ERR_FORMAT: the file is damaged. */
struct zr_recording_sink {
    zr_result (*take)(void *state, const struct zr_record *record, bool *stop);
    void *state;
};
zr_result zr_recording_play(struct zr_recording *recording, const struct zr_recording_sink *sink);

/* Makes a replay of `caching` apply the settings. */
static inline void zr_torch_settings_apply(const struct zr_torch_settings *settings,
                                           struct zr_replay_options *options)
{
    options->max_split_bytes = settings->max_split_bytes;
    options->garbage_collection_threshold = settings->garbage_collection_threshold;
    for (unsigned i = 0; i < ZR_TORCH_DIVISIONS; i++)
        options->roundup_divisions[i] = settings->divisions[i];
}

/* Whether a setting of PyTorch's allocator makes blocks larger than their requests, or keeps large ones
 * whole. */
static inline bool zr_recording_has_options(const struct zr_recording *recording)
{
    bool divides = false;
    for (unsigned i = 0; i < ZR_TORCH_DIVISIONS; i++)
        divides |= recording->settings.divisions[i] > 1;
    return divides || recording->settings.max_split_bytes > 0;
}

enum { ZR_FRAME_BYTES = 512 };
/* Iterates over a stack's frames, innermost first: "name (file:line)", zero-terminated, truncated if longer.
 * After a number of frames in proportion to the file, stacks are empty. */
struct zr_frames {
    struct zr_pickle_cursor cursor;
    bool any;
    uint32_t stack, next; /* for a .zrt */
};
struct zr_frames zr_recording_frames(const struct zr_recording *recording, uint32_t stack);
bool zr_frames_next(struct zr_frames *frames, struct zr_recording *recording, char out[ZR_FRAME_BYTES]);

/* recording.c; private to defrag/trace/. Holds a record while the file is opened. Beyond a number of records
 * the recording gives up holding: it frees them, and is read again. */
zr_result zr_recording_hold(struct zr_recording *recording, const struct zr_record *record);
/* recording_torch.c; private to recording*.c. Opening fills `pickle`, `preface`, `maps` and `sizes`; playing
 * reads the events again. */
struct zr_annotation {
    uint64_t time_ns;
    const char *label; /* of the pickle */
};
struct zr_true_size {
    uint64_t event, bytes; /* the event's number among the window's records */
};
zr_result zr_recording_read_torch(struct zr_recording *recording, const struct zr_read_options *options);
bool zr_torch_frames_next(struct zr_frames *frames, struct zr_recording *recording, char out[ZR_FRAME_BYTES]);
/* recording_stacks.c; private to recording*.c. */
void zr_recording_stacks_init(struct zr_recording_stacks *out, zr_arena *arena);
void zr_recording_stacks_end(struct zr_recording_stacks *stacks);
/* Processes an extension event of a .zrt, with its number. */
zr_result zr_recording_stacks_take(struct zr_recording *recording, const struct zrt_event *event,
                                   uint64_t number);
zr_result zr_recording_play_torch(struct zr_recording *recording, const struct zr_recording_sink *sink);

/* As zr_sequence_read(), also with the settings of the file's allocator. The options are complete. */
zr_result zr_sequence_read_settings(struct zr_sequence *out, const struct zr_read_options *options,
                                    zr_arena *host_arena, struct zr_torch_settings *settings);

/* ---- Import -------------------------------------------------------------------------------------------- */

/* Writes any recording as a .zrt trace, which every program of zr reads. Figures, maps, pools, streams,
 * pending frees and refusals are kept; stacks are not. The recording is played three times (for the
 * addresses, the length, and the trace), so that the output can be a pipe; nothing is held in between. */

/* The text keeps the first error of writing. ZR_ERR_FORMAT: as zr_recording_play(), or addresses are 2^62
 * bytes or more apart. */
zr_result zr_recording_import(struct zr_recording *recording, struct zr_text *text);

/* ---- Numbering (numbering.c) --------------------------------------------------------------------------- */

/* Numbers the blocks and threads of records, and so makes a sequence of a recording. */

struct zr_numbering {
    struct zr_vector events; /* struct zr_event */
    size_t preface_count;
    uint32_t blocks_count;
    uint64_t live_bytes, peak_bytes; /* requested */

    /* private */
    const char *path;             /* borrowed; for messages */
    struct zr_number_map blocks;  /* by address: the index of the allocation among the events, or FREED */
    struct zr_number_map threads; /* by the file's number */
};

/* Allocates nothing, so it cannot fail. */
void zr_numbering_init(struct zr_numbering *out, const char *path, zr_arena *arena);
void zr_numbering_end(struct zr_numbering *numbering);
/* Adds the event of an allocation, a free or a mark; other records are no events. ZR_ERR_FORMAT: an address
 * is allocated while live or freed while not live; sums beyond 64 bits; too many threads. */
zr_result zr_numbering_take(struct zr_numbering *numbering, const struct zr_record *record);
/* The events so far, borrowed until the next take or the end. */
struct zr_sequence zr_numbering_sequence(const struct zr_numbering *numbering);

#endif
