/* tokenizer_folder.c: what the files beside a tokenizer.json say of it. See tokenizer.h. */
#include <jansson.h>
#include <stdio.h>

#include "alloc/base/system/file.h"
#include "zero/checkpoint/model_file.h"
#include "zero/text/tokenizer.h"

zr_result zr_tokenizer_path(char out[ZR_TOKENIZER_PATH_ROOM], const char *path)
{
    enum zr_path_kind kind = ZR_PATH_NONE;
    zr_result result = zr_path_kind_get(path, &kind);
    if (result)
        return result;
    return zr_path_join(out, ZR_TOKENIZER_PATH_ROOM,
                        &(struct zr_path_parts){kind == ZR_PATH_FOLDER ? path : "",
                                                kind == ZR_PATH_FOLDER ? "tokenizer.json" : path});
}

/* Reads NAME in the folder of tokenizer.json; *out is NULL if there is none. */
static zr_result read_beside(const char *path, const char *name, json_t **out)
{
    char beside[ZR_TOKENIZER_PATH_ROOM];
    enum zr_path_kind kind = ZR_PATH_NONE;
    const char *slash = strrchr(path, '/');
    int length = snprintf(beside, sizeof beside, "%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, name);
    *out = NULL;
    if (length >= ZR_TOKENIZER_PATH_ROOM || zr_path_kind_get(beside, &kind) != ZR_OK || kind != ZR_PATH_FILE)
        return ZR_OK;
    return zr_model_json_read(beside, out);
}

zr_result zr_tokenizer_eos(const zr_tokenizer *tokenizer, const char *path, int32_t *out)
{
    json_t *settings = NULL, *model = NULL;
    zr_result result = read_beside(path, "tokenizer_config.json", &settings);
    if (!result)
        result = read_beside(path, "config.json", &model);
    json_t *name = json_object_get(settings, "eos_token"), *number = json_object_get(model, "eos_token_id");
    const char *text = json_string_value(json_is_object(name) ? json_object_get(name, "content") : name);
    number = json_is_array(number) ? json_array_get(number, 0) : number;
    *out = text ? zr_tokenizer_find(tokenizer, text) : ZR_NO_TOKEN;
    if (*out == ZR_NO_TOKEN && json_is_integer(number) && json_integer_value(number) >= 0 &&
        (size_t)json_integer_value(number) < zr_tokenizer_size(tokenizer))
        *out = (int32_t)json_integer_value(number);
    json_decref(settings);
    json_decref(model);
    return result;
}
