/* report_page.h: destination and headings of tables. Private to report*.c. */
#ifndef ZR_TRAIN_REPORT_PAGE_H
#define ZR_TRAIN_REPORT_PAGE_H

#include "zero/train/settings/args.h"
#include "zero/train/report/terminal.h"

struct zr_text_page {
    struct zr_terminal terminal;
    struct zr_file file;
    struct zr_text text;
    char buffer[8192];
};

/* Tables go to stdout, or to stderr if stdout has the JSON. zr_text_flush(&page->text) ends a page. */
void zr_page_open(struct zr_text_page *page, const struct zr_train_config *config);
void zr_page_heading(struct zr_text_page *page, const char *heading);

#endif
