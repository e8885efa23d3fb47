/* capture.c: what a capture forbids. See emulator.h. */
#include "tests/emulators/cuda/inside.h"

zr_cu_result emu_capture_check(enum emu_call call)
{
    (void)call;
    return ZR_CU_SUCCESS;
}
bool emu_captured(struct zr_cu_context_st *c, struct zr_cu_stream_st *s, const struct emu_work *w,
                  zr_cu_result *code)
{
    (void)c, (void)s, (void)w, (void)code;
    return false;
}
bool emu_captured_allocation(zr_cu_address *out, size_t bytes, zr_cu_pool pool, struct zr_cu_context_st *c,
                             struct zr_cu_stream_st *s, zr_cu_result *code)
{
    (void)out, (void)bytes, (void)pool, (void)c, (void)s, (void)code;
    return false;
}
bool emu_captured_free(zr_cu_address address, struct zr_cu_context_st *c, struct zr_cu_stream_st *s,
                       zr_cu_result *code)
{
    (void)address, (void)c, (void)s, (void)code;
    return false;
}
zr_cu_result emu_capture_asked(struct zr_cu_context_st *c, struct zr_cu_stream_st *s)
{
    (void)c, (void)s;
    return 0;
}
zr_cu_result emu_capture_event_asked(struct zr_cu_event_st *e)
{
    (void)e;
    return 0;
}
bool emu_captured_record(struct zr_cu_event_st *e, struct zr_cu_context_st *c, struct zr_cu_stream_st *s,
                         zr_cu_result *code)
{
    (void)e, (void)c, (void)s, (void)code;
    return false;
}
bool emu_captured_wait(struct zr_cu_event_st *e, struct zr_cu_context_st *c, struct zr_cu_stream_st *s,
                       zr_cu_result *code)
{
    (void)e, (void)c, (void)s, (void)code;
    return false;
}
void emu_capture_forget(struct zr_cu_stream_st *s)
{
    (void)s;
}
void emu_graph_memory_give(struct emu_allocation *a)
{
    (void)a;
}
#define NONE(name, parameters)                                                                               \
    PUBLIC zr_cu_result name parameters                                                                      \
    {                                                                                                        \
        return ZR_CU_NOT_SUPPORTED;                                                                          \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter"
NONE(cuStreamIsCapturing, (zr_cu_stream s, zr_cu_capture_status *o))
NONE(cuStreamBeginCapture_v2, (zr_cu_stream s, zr_cu_capture_mode m))
NONE(cuStreamEndCapture, (zr_cu_stream s, zr_cu_graph *o))
NONE(cuGraphLaunch, (zr_cu_graph_exec g, zr_cu_stream s))
