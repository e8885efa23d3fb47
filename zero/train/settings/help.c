/* help.c: --help and --version, printed from the table of options; examples first. */
#include "zero/train/settings/flags.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/sizes.h"
#include "alloc/base/system/file.h"
#include "zero/train/settings/config.h"

static const char examples[] =
    "Train a GPT on text; all memory comes from a zr arena.\n"
    "\n"
    "Examples\n"
    "  zr-train --data bible.txt                      a small model, some minutes\n"
    "  zr-train --data bible.txt --ranks 2 --stage 1 --steps 1000 --sample 400\n"
    "  zr-train --data bible.txt --steps 1000 --save runs/bible --save-every 100\n"
    "  zr-train --data bible.txt --steps 2000 --resume runs/bible --save runs/bible\n"
    "  zr-train --dry-run --layers 48 --hidden 1600 --heads 25 --stage 1 --world-size 64\n"
    "                                                 the byte plan of a large run, without training\n"
    "  zr-train --params 1e9 --find-max batch --memory-limit 16GB --ranks 8 --stage 2\n"
    "                                                 the largest batch that fits\n"
    "  zr-train --data bible.txt --json - >run.json   numbers on stdout, messages on stderr\n"
    "  zr-train sample --model DIR --prompt TEXT      text of a model of transformers\n"
    "  zr-train eval --model DIR FILE..               its loss and perplexity on texts and token files\n";

static const char ending[] =
    "\n"
    "Keys of optimizer, scheduler and gradient_clipping that the file omits have DeepSpeed's defaults, and\n"
    "\"auto\" leaves a key to its option; the run prints both.\n"
    "\n" ZR_SIZE_HELP
    "Exit codes: 0 success, 1 a check failed, 2 usage, 3 bad input or output, 4 out of memory,\n"
    "128 + n: signal n ended the run or killed a rank.\n";

/* "(default 4MiB)", or "" without a default. */
static void default_words(const struct zr_flag *flag, char *out, size_t room_bytes)
{
    const char *value = flag->fallback ? flag->fallback : flag->resolved;
    out[0] = '\0';
    if (value && (strcmp(value, "0") != 0 || flag->kind == ZR_FLAG_CHOICE))
        snprintf(out, room_bytes, " (default %s)", value);
}

zr_result zr_help_print(void)
{
    struct zr_file out = zr_file_borrow(STDOUT_FILENO, "standard output");
    struct zr_text text;
    char buffer[4096], left[64], value[64];
    const char *group = "";

    zr_text_start(&text, &out, buffer, sizeof buffer);
    zr_text_print(&text, "%s", examples);
    for (size_t i = 0; i < zr_flags_count; i++) {
        const struct zr_flag *flag = &zr_flags[i];
        const char *argument = flag->argument ? flag->argument : flag->choices;
        if (strcmp(group, flag->group) != 0)
            zr_text_print(&text, "\n%s\n", flag->group);
        group = flag->group;
        snprintf(left, sizeof left, "--%s%s%s", flag->name, argument ? " " : "", argument ? argument : "");
        default_words(flag, value, sizeof value);
        if (strlen(left) > 28)
            zr_text_print(&text, "  %s\n  %-28s  %s%s\n", left, "", flag->help, value);
        else
            zr_text_print(&text, "  %-28s  %s%s\n", left, flag->help, value);
    }
    zr_optimizers_help(&text);
    zr_config_help(&text);
    zr_text_print(&text, "%s", ending);
    return zr_text_flush(&text);
}

zr_result zr_version_print(void)
{
    struct zr_file out = zr_file_borrow(STDOUT_FILENO, "standard output");
    struct zr_text text;
    char buffer[128];

    zr_text_start(&text, &out, buffer, sizeof buffer);
    zr_text_print(&text, "zr-train %s\n", ZR_VERSION_STRING);
    return zr_text_flush(&text);
}
