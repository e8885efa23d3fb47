/* report_page.c: pages on the terminal; see report_page.h. */
#include "zero/train/report/report_page.h"

#include <string.h>
#include <unistd.h>

void zr_page_open(struct zr_text_page *page, const struct zr_train_config *config)
{
    int fd = strcmp(config->json, "-") == 0 ? STDERR_FILENO : STDOUT_FILENO;
    zr_terminal_find(&page->terminal, fd);
    if (page->terminal.columns > 88)
        page->terminal.columns = 88;
    page->file = zr_file_borrow(fd, fd == STDOUT_FILENO ? "standard output" : "standard error");
    zr_text_start(&page->text, &page->file, page->buffer, sizeof page->buffer);
}

void zr_page_heading(struct zr_text_page *page, const char *heading)
{
    bool colour = page->terminal.colour;
    zr_text_print(&page->text, "\n%s%s%s ", colour ? "\033[1m" : "", heading, colour ? "\033[0m" : "");
    for (size_t i = strlen(heading) + 1; i < page->terminal.columns; i++)
        zr_text_print(&page->text, "%s", page->terminal.utf8 ? "─" : "-");
    zr_text_print(&page->text, "\n");
}
