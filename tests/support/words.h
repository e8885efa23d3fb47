/* words.h: whether the words of the last failure have a part; where not, they are in a note. */
#ifndef ZR_TEST_WORDS_H
#define ZR_TEST_WORDS_H

#include <string.h>

#include "alloc/base/error.h"
#include "tests/support/tap.h"

static inline bool words_have(const char *part)
{
    bool found = strstr(zr_last_error(), part) != NULL;
    if (!found)
        tap_note("words: %s", zr_last_error());
    return found;
}

#endif
