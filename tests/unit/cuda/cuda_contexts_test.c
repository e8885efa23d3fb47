/* cuda_contexts_test.c: the rules of the CUDA driver where a device has several contexts, where functions are
 * had by their names, and where each call fails. Sources and verdicts: tests/support/cuda/cuda_rules.h. */
#define _GNU_SOURCE
#include "tests/support/cuda/cuda_rules.h"

enum { LEGACY = 1, PER_THREAD = 2 };

/* ---- Contexts ------------------------------------------------------------------------------------------ */

/* Memory goes with its context; virtual memory is the device's, for all of its contexts. */
static zr_cu_result of_a_destroyed_context(const struct world *w)
{
    zr_cu_context second;
    zr_cu_address address;
    size_t before = free_bytes(w);
    MUST(w->all.context_new(&second, 0, 0));
    address = plain(w, w->g);
    MUST(w->all.context_end(second));
    if (free_bytes(w) != before)
        return VERDICT_BROKEN;
    return ALL_REFUSED(w->cu->fill(address, 1, 1, NULL), w->all.mem_free(address));
}

static zr_cu_result virtual_in_a_second_context(const struct world *w)
{
    zr_cu_context second;
    ONE_MAPPED;
    MUST(w->all.context_new(&second, 0, 0));
    MUST(fill_at(w, 0, 1));
    MUST(w->all.context_end(second));
    return fill_at(w, 0, 2);
}

static zr_cu_result destroyed_context(const struct world *w)
{
    zr_cu_context second;
    MUST(w->all.context_new(&second, 0, 0));
    MUST(w->all.context_end(second));
    return ALL_REFUSED(w->cu->context_push(second), w->all.context_set(second), w->all.context_end(second));
}

static zr_cu_result primary_destroyed(const struct world *w)
{
    return w->all.context_end(w->context);
}

static zr_cu_result freed_from_another_context(const struct world *w)
{
    zr_cu_address address = plain(w, w->g);
    zr_cu_context second;
    MUST(w->all.context_new(&second, 0, 0));
    return w->all.mem_free(address);
}

static zr_cu_result peer_of_plain(const struct world *w, bool access)
{
    zr_cu_address address = plain(w, w->g);
    zr_cu_context other;
    char got = 0;
    if (w->devices_count < 2)
        return VERDICT_SKIPPED;
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_push(other));
    if (access)
        MUST(w->all.context_peer(w->context, 0));
    MUST(w->all.copy_to_host(&got, address, 1));
    zr_cu_result code = w->cu->fill(address, 1, w->g, NULL);
    return code == ZR_CU_SUCCESS ? w->cu->context_synchronize() : code;
}

static zr_cu_result peer_enabled(const struct world *w)
{
    return peer_of_plain(w, true);
}

static zr_cu_result peer_not_enabled(const struct world *w)
{
    return peer_of_plain(w, false);
}

static zr_cu_result reset(const struct world *w)
{
    zr_cu_address address = plain(w, w->g);
    MUST(w->all.primary_reset(0));
    return w->cu->fill(address, 1, 1, NULL);
}

/* ---- Functions by name --------------------------------------------------------------------------------- */

static void *by_name(const struct world *w, const char *name, int version, unsigned long long flags)
{
    void *function = NULL;
    zr_cu_proc_status status;
    return w->all.proc_address_v2(name, &function, version, flags, &status) == ZR_CU_SUCCESS ? function
                                                                                             : NULL;
}

static zr_cu_result as_asked(const struct world *w)
{
    static const struct {
        const char *name, *form;
        int version;
        unsigned flags;
    } rows[] = {
        {"cuMemAlloc", "cuMemAlloc_v2", 3020, 0},
        {"cuMemAlloc", "cuMemAlloc_v2", 12000, LEGACY},
        {"cuCtxCreate", "cuCtxCreate_v2", 11030, 0},
        {"cuCtxCreate", "cuCtxCreate_v3", 11040, 0},
        {"cuCtxSynchronize", "cuCtxSynchronize", 12000, 0},
        {"cuCtxSynchronize", "cuCtxSynchronize_v2", 13000, 0}, /* with another parameter: not here */
        {"cuGetProcAddress", "cuGetProcAddress", 11030, 0},
        {"cuGetProcAddress", "cuGetProcAddress_v2", 12000, 0},
        {"cuMemAllocAsync", "cuMemAllocAsync", 12000, LEGACY},
        {"cuMemAllocAsync", "cuMemAllocAsync_ptsz", 12000, PER_THREAD},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", 12000, PER_THREAD},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020, PER_THREAD},
        {"cuMemFree", "cuMemFree_v2", 12000, PER_THREAD},
    };
    int version;
    MUST(w->cu->driver_version(&version));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].version <= version &&
            by_name(w, rows[i].name, rows[i].version, rows[i].flags) != dlsym(w->library, rows[i].form)) {
            tap_note("%s of %d is not %s", rows[i].name, rows[i].version, rows[i].form);
            return VERDICT_BROKEN;
        }
    return ZR_CU_SUCCESS;
}

static zr_cu_result too_old(const struct world *w)
{
    void *function = w->library;
    zr_cu_proc_status status;
    MUST(w->all.proc_address_v2("cuMemAllocAsync", &function, 10000, 0, &status));
    return good(!function && status == ZR_CU_PROC_VERSION_TOO_OLD);
}

static zr_cu_result unknown_name(const struct world *w)
{
    void *function = w->library;
    zr_cu_proc_status status;
    MUST(w->all.proc_address_v2("cuNoSuchCall", &function, 12000, 0, &status));
    return good(!function && status == ZR_CU_PROC_NOT_FOUND);
}

static zr_cu_result unknown_to_the_older(const struct world *w)
{
    void *function;
    return w->all.proc_address("cuNoSuchCall", &function, 11030, 0);
}

static zr_cu_result newer_than_the_driver(const struct world *w)
{
    void *function;
    zr_cu_proc_status status;
    return w->all.proc_address_v2("cuMemAlloc", &function, 999000, 0, &status);
}

static zr_cu_result private_table(const struct world *w)
{
    unsigned char seen[1][16], identifier[16] = "a private table";
    const void *table;
    zr_cu_result code = w->all.export_table(&table, identifier);
    bool same = w->emulator->tables_asked(seen, 1) == 1 && memcmp(seen, identifier, 16) == 0;
    return same ? code : VERDICT_BROKEN;
}

/* ---- All calls ----------------------------------------------------------------------------------------- */

/* A fault comes before a call looks at its arguments, so that any will do. */
static zr_cu_result faulty(const struct world *w)
{
    static const struct {
        const char *name, *form;
    } rows[] = {
#define ROW(member, name, suffix, parameters) {#name, #name #suffix},
        ZR_CUDA_REPLACED(ROW) ZR_CUDA_USED(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        zr_cu_result (*call)(long, long, long, long, long);
        *(void **)&call = dlsym(w->library, rows[i].form);
        w->emulator->fail(
            &(struct zr_emulator_fault){.call = rows[i].name, .nth = 1, .code = ZR_CU_NOT_PERMITTED});
        if (!call || call(0, 0, 0, 0, 0) != ZR_CU_NOT_PERMITTED) {
            tap_note("%s is not there or does not fail", rows[i].form);
            return VERDICT_BROKEN;
        }
    }
    return ZR_CU_SUCCESS;
}

static zr_cu_result without_a_context(const struct world *w)
{
    zr_cu_context popped;
    zr_cu_address address = plain(w, 4096), other;
    void *host;
    MUST(w->cu->context_pop(&popped));
    return ALL_REFUSED(w->all.mem_alloc(&other, 4096), w->all.mem_free(address),
                       w->all.alloc_async(&other, 4096, NULL), w->all.alloc_managed(&other, 4096, 1),
                       w->all.host_alloc(&host, 4096, 0), w->all.address_range(NULL, NULL, address),
                       w->all.fill_now(address, 1, 1), w->all.stream_query(NULL),
                       w->all.mem_info(NULL, NULL));
}

/* Calls that are of no context, or name theirs. */
static bool needs_no_context(const char *name)
{
    static const char *const prefixes[] = {
        "cuInit",          "cuDriver",       "cuGet",          "cuDevice",           "cuMemPool",
        "cuCtxCreate",     "cuCtxDestroy",   "cuCtxPush",      "cuCtxPop",           "cuCtxSetCurrent",
        "cuCtxGetCurrent", "cuPointer",      "cuThread",       "cuGraphExecDestroy", "cuGraphDestroy",
        "cuLibrary",       "cuMemAddress",   "cuMemCreate",    "cuMemRelease",       "cuMemMap",
        "cuMemUnmap",      "cuMemSetAccess", "cuMemGetAccess", "cuMemGetAllocation", "cuMemExport",
        "cuMemImport",     "cuMemRetain"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* As of a thread whose allocation failed for want of a context, and which uses the NULL that it got. */
static zr_cu_result nothing_without_a_context(const struct world *w)
{
    static const char *const forms[] = {
#define ROW(member, name, suffix, parameters) #name #suffix,
        ZR_CUDA_FUNCTIONS(ROW) ZR_CUDA_REPLACED(ROW) ZR_CUDA_USED(ROW) ZR_CUDA_LAUNCHING(ROW)
#undef ROW
    };
    zr_cu_context popped;
    MUST(w->cu->context_pop(&popped));
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        zr_cu_result (*call)(long, long, long, long, long, long, long, long, long, long, long);
        *(void **)&call = dlsym(w->library, forms[i]);
        zr_cu_result code = needs_no_context(forms[i]) ? (zr_cu_result)ZR_CU_INVALID_CONTEXT
                                                       : call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        if (code != ZR_CU_INVALID_CONTEXT) {
            tap_note("%s says %u", forms[i], code);
            return VERDICT_BROKEN;
        }
    }
    return ZR_CU_SUCCESS;
}

/* ---- The table -------------------------------------------------------------------------------------------
 */

static const struct rule rules[] = {
    {"memory goes with its context", "CTX cuCtxDestroy", of_a_destroyed_context, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
    {"virtual memory does not", "guide, Virtual Memory Management", virtual_in_a_second_context,
     ZR_CU_SUCCESS, 0},
    {"a destroyed context has no use", "CTX cuCtxDestroy", destroyed_context, ZR_CU_INVALID_CONTEXT,
     EMULATOR_ONLY},
    {"a primary one is not destroyed", "PRIMARY__CTX cuDevicePrimaryCtxRetain", primary_destroyed,
     ZR_CU_INVALID_CONTEXT, 0},
    {"any context frees", "UNIFIED overview: one address space", freed_from_another_context, ZR_CU_SUCCESS,
     0},
    {"a peer's kernels need peer access", "PEER__ACCESS cuCtxEnablePeerAccess", peer_not_enabled,
     ZR_CU_INVALID_VALUE, 0},
    {"and have it then", "PEER__ACCESS cuCtxEnablePeerAccess", peer_enabled, ZR_CU_SUCCESS, 0},
    {"a reset takes all", "PRIMARY__CTX cuDevicePrimaryCtxReset", reset, ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"a function is had in the form of the version that is named", "DRIVER__ENTRY__POINT cuGetProcAddress",
     as_asked, ZR_CU_SUCCESS, 0},
    {"before its first version it is too old", "DRIVER__ENTRY__POINT cuGetProcAddress", too_old,
     ZR_CU_SUCCESS, 0},
    {"an unknown one is NULL", "DRIVER__ENTRY__POINT cuGetProcAddress", unknown_name, ZR_CU_SUCCESS, 0},
    {"and was an error in 11.3", "the same of CUDA 11.7", unknown_to_the_older, ZR_CU_NOT_FOUND, 0},
    {"no version above the driver's", "DRIVER__ENTRY__POINT cuGetProcAddress of 13", newer_than_the_driver,
     ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"allocating, freeing and asking for memory need a context", "CTX overview", without_a_context,
     ZR_CU_INVALID_CONTEXT, 0},
    {"nor does any other call take NULL in its place", "CTX overview", nothing_without_a_context,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"each call fails when it is told to", "emulator.h", faulty, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"private tables are refused, and remembered", "none: not documented", private_table, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
};

int main(void)
{
    return rules_run(rules, sizeof rules / sizeof *rules);
}
