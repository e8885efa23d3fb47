/* page_text.h: the page's CSS, HTML and JavaScript, embedded from files of this folder. Private to
 * defrag/report/. */
#ifndef ZR_PAGE_TEXT_H
#define ZR_PAGE_TEXT_H

/* Zero-terminated. */
extern const char zr_page_css[], zr_page_html[], zr_page_data_js[], zr_page_draw_js[], zr_page_map_js[],
    zr_page_js[];

#endif
