/* recording.h: a file of memory events as records, in order, from empty memory on. Private to defrag/.
 *
 * A recording says more than a sequence: where blocks lie, what is mapped, when, what was refused, with which
 * stack. What was there before the window comes first, as records of its own (`before`). It can be played any
 * number of times. The file is read anew each time, with memory for what is live (a snapshot: and for what
 * pickle.h says); of a MiniMalloc CSV, which is in no order, the records are held. */
#ifndef ZR_RECORDING_H
#define ZR_RECORDING_H

#include "defrag/trace/number_map.h"
#include "defrag/trace/formats/pickle.h"
#include "defrag/zr_defrag.h"

struct zrt_refusal;
struct zrt_event;

enum zr_record_kind {
    ZR_RECORD_ALLOC = 0,
    ZR_RECORD_FREE_ASKED, /* by the program; streams may still use the block */
    ZR_RECORD_FREE,       /* the memory can be used again */
    ZR_RECORD_MAP,        /* memory beneath these addresses; a segment */
    ZR_RECORD_UNMAP,
    ZR_RECORD_REFUSED, /* an allocation that failed */
    ZR_RECORD_MARK,
};

struct zr_record {
    uint8_t kind; /* enum zr_record_kind */
    uint8_t tag;
    bool before;             /* makes what was there before the window */
    uint32_t thread, stack;  /* stack: for zr_recording_frames(); 0: none */
    uint32_t pool;           /* of a map: segments of other pools serve other requests */
    uint64_t time_ns;        /* since the window's start; never falls */
    uint64_t address, bytes; /* bytes: as requested; of a free 0 where the file says nothing */
    uint64_t reserved_bytes; /* alloc: with rounding */
    uint64_t free_bytes;     /* refused: of the device at that moment; UINT64_MAX: not known */
    uint64_t unit_bytes;     /* map: what can be unmapped; 0: the whole of it or nothing */
    uint64_t stream;
    const char *label;                 /* mark: valid during the call; else NULL */
    const struct zrt_refusal *refusal; /* refused: the same; NULL where the file says no cause */
};

/* Whose memory it is: of a .zrt that was imported, that of the file it was made of. In enum zrt_origin's
 * order.
 */
enum zr_recording_kind {
    ZR_RECORDING_ZRT = 0,
    ZR_RECORDING_TORCH,
    ZR_RECORDING_RMM,
    ZR_RECORDING_MINIMALLOC,
    ZR_RECORDING_CSV
};

/* Where an address of a .zrt's stack lies. */
struct zr_frame_place {
    uint64_t address;     /* in the process */
    uint64_t file_offset; /* in the module's file */
    const char *path;     /* of the module; "": none is known, or code of no file */
    const unsigned char *build_id;
    unsigned build_id_bytes; /* 0: not known */
};

/* Says what stands there: "name (file:line)", ended by a zero. False: it does not know. */
struct zr_frame_namer {
    bool (*name)(void *state, const struct zr_frame_place *place, char *out, size_t room_bytes);
    void *state;
};

/* The stacks of a .zrt, as far as it has been played. */
struct zr_recording_stacks {
    struct zr_vector modules, module_texts; /* recording_stacks.c; texts: char */
    struct zr_vector stacks, addresses;     /* by number; uint64_t */
    uint64_t events_seen;                   /* those up to here are in it */
};

struct zr_recording {
    enum zr_recording_kind kind;
    const char *format;     /* of the file: "zrt", "torch", "rmm", "minimalloc", "csv" */
    const char *path;       /* borrowed */
    bool has_addresses;     /* blocks lie somewhere; else an address only tells live ones apart */
    bool has_maps;          /* the file says what is mapped */
    bool has_pending;       /* and which frees wait for streams */
    bool has_times;         /* the records' times are of a clock */
    bool cut_short;         /* the end of the file is missing */
    bool expandable;        /* PyTorch: the program's allocator had expandable segments */
    uint64_t granule_bytes; /* .zrt; 0: not known */
    uint64_t rounds_bytes;  /* requests are rounded up to multiples of it */
    struct zr_frame_namer
        namer; /* of a .zrt's stacks; the user's to set, after the opening. NULL: modules and offsets */

    /* private */
    zr_arena *arena;
    struct zr_pickle pickle;
    bool has_pickle;
    struct zr_vector records;  /* struct zr_record: MiniMalloc: all */
    struct zr_vector preface;  /* struct zr_record: RMM, torch: what was there before */
    struct zr_vector maps;     /* struct zr_record: torch: maps and unmaps */
    struct zr_vector sizes;    /* struct zr_true_size: torch: of what lives at the end, in order */
    int device;                /* torch */
    struct zrt_reader *reader; /* 64 KiB; of a .zrt, else NULL */
    struct zrt_event *event;   /* of the reader */
    struct zr_recording_stacks stacks;
};

/* The options' path is borrowed. The caller owns *out until zr_recording_close(), also after a failure.
 * ZR_ERR_IO, ZR_ERR_FORMAT as zr_sequence_read(). */
zr_result zr_recording_open(struct zr_recording *out, const struct zr_read_options *options, zr_arena *arena);
void zr_recording_close(struct zr_recording *recording);

/* Hands each record to take(), until that fails or sets *stop. ZR_ERR_FORMAT: the file is damaged. */
struct zr_recording_sink {
    zr_result (*take)(void *state, const struct zr_record *record, bool *stop);
    void *state;
};
zr_result zr_recording_play(struct zr_recording *recording, const struct zr_recording_sink *sink);

enum { ZR_FRAME_BYTES = 512 };
/* Goes through a stack's frames, the innermost first: "name (file:line)", ended by a zero, cut where it is
 * longer. After a number of frames in proportion to the file, stacks are empty. */
struct zr_frames {
    struct zr_pickle_cursor cursor;
    bool any;
    uint32_t stack, next; /* of a .zrt */
};
struct zr_frames zr_recording_frames(const struct zr_recording *recording, uint32_t stack);
bool zr_frames_next(struct zr_frames *frames, struct zr_recording *recording, char out[ZR_FRAME_BYTES]);

/* recording_torch.c; private to this noun. Opening fills `pickle`, `preface`, `maps` and `sizes`; playing
 * reads the events anew. */
struct zr_true_size {
    uint64_t event, bytes; /* the event's number among the records of the window */
};
zr_result zr_recording_read_torch(struct zr_recording *recording, const struct zr_read_options *options);
bool zr_torch_frames_next(struct zr_frames *frames, struct zr_recording *recording, char out[ZR_FRAME_BYTES]);
/* recording_stacks.c: the same. */
void zr_recording_stacks_init(struct zr_recording_stacks *out, zr_arena *arena);
void zr_recording_stacks_end(struct zr_recording_stacks *stacks);
/* An extension of a .zrt, event `number` of it. */
zr_result zr_recording_stacks_take(struct zr_recording *recording, const struct zrt_event *event,
                                   uint64_t number);
zr_result zr_recording_play_torch(struct zr_recording *recording, const struct zr_recording_sink *sink);

#endif
