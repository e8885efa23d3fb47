/* page_text.c: embeds the page's CSS, HTML and JavaScript with the assembler. The Makefile lists the files as
 * dependencies. */
#include "defrag/report/page/page_text.h"

#define EMBED(name, path)                                                                                    \
    __asm__(".pushsection .rodata\n"                                                                         \
            ".global " #name "\n"                                                                            \
            ".hidden " #name "\n"                                                                            \
            ".type " #name ", @object\n" #name ":\n"                                                         \
            ".incbin \"" path "\"\n"                                                                         \
            ".byte 0\n"                                                                                      \
            ".size " #name ", . - " #name "\n"                                                               \
            ".popsection\n")

EMBED(zr_page_css, "defrag/report/page/page.css");
EMBED(zr_page_html, "defrag/report/page/page.html");
EMBED(zr_page_data_js, "defrag/report/page/page_data.js");
EMBED(zr_page_draw_js, "defrag/report/page/page_draw.js");
EMBED(zr_page_map_js, "defrag/report/page/page_map.js");
EMBED(zr_page_js, "defrag/report/page/page.js");
