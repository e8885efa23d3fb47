/* result.c: the names of results and categories. The bottom of alloc/: uses nothing. */
#include "alloc/zr.h"

static const char *const result_names[ZR_RESULT_COUNT] = {
    [ZR_OK] = "ok",
    [ZR_ERR_INVALID] = "invalid",
    [ZR_ERR_MEMORY] = "memory",
    [ZR_ERR_HOST_MEMORY] = "host_memory",
    [ZR_ERR_ADDRESSES] = "addresses",
    [ZR_ERR_UNAVAILABLE] = "unavailable",
    [ZR_ERR_FOREIGN] = "foreign",
    [ZR_ERR_DOUBLE_FREE] = "double_free",
    [ZR_ERR_CORRUPT] = "corrupt",
    [ZR_ERR_IO] = "io",
    [ZR_ERR_FORMAT] = "format",
    [ZR_ERR_PEER] = "peer",
    [ZR_ERR_TIMEOUT] = "timeout",
    [ZR_ERR_INTERRUPTED] = "interrupted",
    [ZR_ERR_TAG_LIMIT] = "tag limit",
};

static const char *const tag_names[ZR_TAG_COUNT] = {
    [ZR_TAG_PARAM] = "param",           [ZR_TAG_GRAD] = "grad",         [ZR_TAG_OPTIMIZER] = "optimizer",
    [ZR_TAG_MASTER] = "master",         [ZR_TAG_GATHERED] = "gathered", [ZR_TAG_CHECKPOINT] = "checkpoint",
    [ZR_TAG_ACTIVATION] = "activation", [ZR_TAG_COMM] = "comm",         [ZR_TAG_WORKSPACE] = "workspace",
    [ZR_TAG_OFFLOAD] = "offload",       [ZR_TAG_OTHER] = "other",
};

const char *zr_result_name(zr_result result)
{
    return (unsigned)result < ZR_RESULT_COUNT ? result_names[result] : "unknown";
}

const char *zr_tag_name(zr_tag tag)
{
    return (unsigned)tag < ZR_TAG_COUNT ? tag_names[tag] : NULL;
}
