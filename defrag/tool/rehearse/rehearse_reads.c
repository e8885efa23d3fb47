/* rehearse_reads.c: the lines of a program that read what kernels would have made: sizes may follow from
 * them. See rehearse.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"

static bool comes_before(const struct zr_rehearse_read *one, const struct zr_rehearse_read *other)
{
    return one->sizes != other->sizes ? one->sizes > other->sizes : one->count > other->count;
}

/* Several processes may have the same line. Of more lines than there is room for the last ones are left out.
 */
static void add(struct zr_rehearse_figures *out, struct zr_rehearse_read one)
{
    unsigned at = 0;
    while (at < out->reads_count && (strcmp(out->reads[at].place, one.place) != 0 ||
                                     strcmp(out->reads[at].operator_name, one.operator_name) != 0))
        at++;
    if (at < out->reads_count) {
        one.count += out->reads[at].count;
        one.bytes += out->reads[at].bytes;
    } else if (out->reads_count < ZR_REHEARSE_READS) {
        out->reads_count++;
    } else if (comes_before(&one, &out->reads[at - 1])) {
        at--;
    } else {
        return;
    }
    for (; at > 0 && comes_before(&one, &out->reads[at - 1]); at--)
        out->reads[at] = out->reads[at - 1];
    out->reads[at] = one;
}

void zr_rehearse_reads_read(struct zr_rehearse_figures *out, const struct zr_account *account,
                            const char *folder)
{
    char line[2 * PATH_MAX];
    FILE *file = zr_rehearse_take_file(folder, "reads");
    out->all_reads_count = account->reads_count;
    out->all_reads_bytes = account->reads_bytes;
    while (file && fgets(line, sizeof line, file)) {
        struct zr_rehearse_read one = {0};
        int at = 0;
        if (sscanf(line, "%" SCNu64 " %" SCNu64 " %d %63s %n", &one.count, &one.bytes, &one.sizes,
                   one.operator_name, &at) < 4)
            continue;
        snprintf(one.place, sizeof one.place, "%.*s", (int)strcspn(line + at, "\n"), line + at);
        zr_make_plain(one.place);
        add(out, one);
    }
    for (unsigned i = 0; i < out->reads_count; i++)
        out->size_reads_count += out->reads[i].sizes == 1;
    if (file)
        fclose(file);
}

/* At most three lines of the program. */
static void put_lines(struct zr_text *text, const struct zr_rehearse_read *reads, unsigned count)
{
    enum { SHOWN_MAX = 3 };
    for (unsigned i = 0; i < count && i < SHOWN_MAX; i++)
        zr_text_print(text, "%s %s at %s (%" PRIu64 " of %" PRIu64 " bytes)", i ? "," : "",
                      reads[i].operator_name, reads[i].place, reads[i].count, reads[i].bytes);
    if (count > SHOWN_MAX)
        zr_text_print(text, ", and %u other lines", count - SHOWN_MAX);
    zr_text_print(text, "\n");
}

void zr_rehearse_reads_print(struct zr_text *text, const struct zr_rehearse_figures *figures)
{
    const unsigned sizes = figures->size_reads_count;
    char room[ZR_TOOL_NUMBER_ROOM];
    if (sizes) {
        zr_text_print(text,
                      "zr: uncertain  sizes of tensors follow from results of kernels (--nonzero, --fill):");
        put_lines(text, figures->reads, sizes);
    }
    if (figures->reads_count > sizes) {
        zr_text_print(text, "zr: values     of kernels that the program reads; do sizes follow (--fill)?");
        put_lines(text, figures->reads + sizes, figures->reads_count - sizes);
    }
    if (figures->reads_count == 0 && figures->all_reads_count)
        zr_text_print(text,
                      "zr: values     of kernels that the program reads: %" PRIu64
                      " cop%s of %s; do sizes follow (--fill)?\n",
                      figures->all_reads_count, figures->all_reads_count == 1 ? "y" : "ies",
                      zr_tool_bytes(room, figures->all_reads_bytes));
}

void zr_rehearse_reads_json(struct zr_text *text, const struct zr_rehearse_figures *figures)
{
    zr_text_print(text,
                  "\"certain\": %s, \"reads_count\": %" PRIu64 ", \"reads_bytes\": %" PRIu64 ", \"reads\": [",
                  figures->size_reads_count  ? "false"
                  : figures->all_reads_count ? "null"
                                             : "true",
                  figures->all_reads_count, figures->all_reads_bytes);
    for (unsigned i = 0; i < figures->reads_count; i++) {
        const struct zr_rehearse_read *each = &figures->reads[i];
        zr_text_print(text, "%s{\"count\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"sizes\": %s, ",
                      i ? ", " : "", each->count, each->bytes, each->sizes ? "true" : "false");
        zr_tool_json_words(text, "operator", each->operator_name);
        zr_text_print(text, ", ");
        zr_tool_json_words(text, "place", each->place);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]");
}
