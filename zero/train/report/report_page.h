/* report_page.h: where tables for people go, and how their headings look. Private to report*.c. */
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

/* Tables are data, and go to stdout, unless the JSON is there. zr_text_flush(&page->text) ends a page. */
void zr_page_open(struct zr_text_page *page, const struct zr_train_config *config);
void zr_page_heading(struct zr_text_page *page, const char *words);

#endif
