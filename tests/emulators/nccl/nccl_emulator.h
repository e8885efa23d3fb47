/* nccl_emulator.h: what tests set in the emulated libnccl.so.2 and read from it. */
#ifndef ZR_NCCL_EMULATOR_H
#define ZR_NCCL_EMULATOR_H

/* What a communicator is at between a call and the end of what the call began. */
enum zr_nccl_doing {
    ZR_NCCL_DOING_NOTHING = 0,
    ZR_NCCL_STARTING,
    ZR_NCCL_SPLITTING,
    ZR_NCCL_LAUNCHING,
    ZR_NCCL_FINALIZING
};

/* The one symbol besides the library's. */
struct zr_nccl_emulator {
    int version; /* that ncclGetVersion() says */
    /* registrations: calls of ncclCommRegister(), ever, which maps the first handle of its memory only */
    unsigned collectives, transfers, registrations, communicators, splits;
    int silence_s;              /* after which a silent rank is one that is gone */
    enum zr_nccl_doing dies_at; /* this process ends when it begins that; 0: never */
    char report[256];           /* the last one */
};
extern struct zr_nccl_emulator zr_nccl_emulator;

#endif
