/* doctor.c: `zr doctor`: checks whether programs can run on zr's malloc and CUDA memory here, and prints the
 * command that fixes a problem. Uses doctor_system.c and doctor_program.c. */
#define _GNU_SOURCE
#include "defrag/tool/run/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "Checks whether programs can run on zr's malloc and CUDA memory on this machine, and prints commands that fix problems.\n"
    "\n"
    "Examples\n"
    "  zr doctor\n"
    "  zr doctor -- python3 train.py\n"
    "  zr doctor --json -- ./server | jq '.findings[] | select(.verdict == \"bad\")'\n"
    "\n"
    "zr doctor [--json] [-- PROGRAM ARGUMENT..]\n"
    "  PROGRAM   is checked too, with each library that its loader would load; for a shell script that wraps a program, that\n"
    "            program. No program is run. Libraries that a program loads later, by dlopen(), are not checked\n"
    "  --json    the findings as JSON\n"
    "\n"
    "The exit code is 1 if a finding is bad, 3 if there is no such program.\n";

struct zr_doctor_finding *zr_doctor_add(struct zr_doctor *doctor, enum zr_doctor_verdict verdict,
                                        const char *name, const char *format, ...)
{
    unsigned place = doctor->count < ZR_DOCTOR_MAX ? doctor->count : ZR_DOCTOR_MAX - 1;
    struct zr_doctor_finding *finding = &doctor->findings[place];
    if (doctor->count >= ZR_DOCTOR_MAX && finding->verdict > verdict)
        finding = &doctor->left_out;
    va_list list;
    doctor->count++;
    *finding = (struct zr_doctor_finding){.verdict = verdict};
    snprintf(finding->name, sizeof finding->name, "%s", name);
    va_start(list, format);
    vsnprintf(finding->found, sizeof finding->found, format, list);
    va_end(list);
    return finding;
}

static const char *const verdicts[] = {"fine", "note", "bad"};

static unsigned shown_count(const struct zr_doctor *doctor)
{
    return doctor->count < ZR_DOCTOR_MAX ? doctor->count : ZR_DOCTOR_MAX;
}

static void show_text(struct zr_text *text, const struct zr_doctor *doctor)
{
    for (unsigned i = 0; i < shown_count(doctor); i++) {
        const struct zr_doctor_finding *finding = &doctor->findings[i];
        zr_text_print(text, "%-4s  %-20s  %s\n", verdicts[finding->verdict], finding->name, finding->found);
        if (finding->type[0])
            zr_text_print(text, "%28stype: %s\n", "", finding->type);
    }
}

static void show_json(struct zr_text *text, const struct zr_doctor *doctor)
{
    zr_text_print(text, "{\"version\": 1, \"findings\": [");
    for (unsigned i = 0; i < shown_count(doctor); i++) {
        const struct zr_doctor_finding *finding = &doctor->findings[i];
        zr_text_print(text, "%s\n  {\"verdict\": \"%s\", ", i ? "," : "", verdicts[finding->verdict]);
        zr_tool_json_words(text, "name", finding->name);
        zr_text_print(text, ", ");
        zr_tool_json_words(text, "found", finding->found);
        zr_text_print(text, ", ");
        zr_tool_json_words(text, "type", finding->type);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "\n ]}\n");
}

int zr_tool_doctor(int argc, char **argv)
{
    static struct zr_doctor doctor; /* too large for the stack */
    struct zr_tool_output out;
    struct zr_program program;
    bool json = false;
    const struct zr_tool_option options[] = {{"--json", ZR_TOOL_FLAG, &json}, {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = help, .options = options, .stops_at_file = true};
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    zr_doctor_look_at_system(&doctor);
    if (arguments.files_count > 0) {
        if (!zr_program_find(arguments.files[0], &program)) {
            zr_tool_log("doctor: %s: %s", arguments.files[0], strerror(program.error));
            return ZR_TOOL_INPUT;
        }
        zr_doctor_look_at_program(&doctor, &program, (struct zr_doctor_wanted){true, true});
    }
    zr_tool_output_start(&out);
    if (json)
        show_json(&out.text, &doctor);
    else
        show_text(&out.text, &doctor);
    code = zr_tool_output_end(&out);
    for (unsigned i = 0; i < shown_count(&doctor) && code == ZR_TOOL_FINE; i++)
        code = doctor.findings[i].verdict == ZR_DOCTOR_BAD ? ZR_TOOL_THRESHOLD : ZR_TOOL_FINE;
    return code;
}
