/* texts.c: see texts.h. */
#include "zero/train/texts.h"

#include "alloc/base/error.h"

static zr_result open_here(zr_tokenizer **out, int32_t *end, char path[ZR_TOKENIZER_PATH_ROOM],
                           const struct zr_train_config *config)
{
    zr_result result = zr_tokenizer_path(path, config->tokenizer);
    if (result == ZR_OK)
        result = zr_tokenizer_open(out, path);
    return result == ZR_OK ? zr_tokenizer_eos(*out, path, end) : result;
}

zr_result zr_texts_open(zr_tokenizer **out, int32_t *end, const struct zr_train_config *config, zr_comm *comm)
{
    char path[ZR_TOKENIZER_PATH_ROOM] = "";
    *out = NULL;
    *end = ZR_NO_TOKEN;
    if (!config->tokenizer[0])
        return ZR_OK;
    zr_result mine = open_here(out, end, path, config), all[ZR_MAX_WORLD], first = ZR_OK,
              told = zr_comm_host_all_gather(comm, &mine, sizeof mine, all);
    for (unsigned r = 0; r < config->world && told == ZR_OK && first == ZR_OK; r++)
        first = all[r];
    if (told == ZR_OK && first == ZR_OK)
        return ZR_OK;
    zr_tokenizer_close(*out);
    *out = NULL;
    return told != ZR_OK   ? told
           : mine != ZR_OK ? mine
                           : zr_fail(first, "another rank cannot read the tokenizer %s", path);
}

zr_result zr_text_tokens(const struct zr_text_request *request, struct zr_growing *out, size_t *before)
{
    struct zr_encoder *encoder = NULL;
    size_t first = out->used_bytes / sizeof(int32_t), count;
    zr_result result = zr_encoder_open(&encoder, request->tokenizer);
    if (result == ZR_OK)
        result = zr_encode(encoder, "", 0, ZR_ENCODE_BEGIN, out);
    *before = out->used_bytes / sizeof(int32_t) - first;
    if (result == ZR_OK)
        result = zr_encode(encoder, request->text, request->bytes, ZR_ENCODE_PLAIN, out);
    count = out->used_bytes / sizeof(int32_t);
    for (size_t i = first; i < count && result == ZR_OK; i++) {
        int32_t token = ((const int32_t *)(const void *)out->data)[i];
        if ((size_t)token >= request->vocabulary)
            result =
                zr_fail(ZR_ERR_FORMAT, "the tokenizer's token %d is beyond the model's vocabulary of %zu",
                        (int)token, request->vocabulary);
    }
    zr_encoder_close(encoder);
    return result;
}
