/* utf8.c: texts from outside: which bytes are UTF-8, and which are safe to print. Apart from text.c, because
 * error.c uses it and text.c uses error.c. */
#include "alloc/base/system/file.h"

#include <string.h>

size_t zr_utf8_length(const unsigned char *s, size_t bytes)
{
    size_t length = s[0] < 0x80   ? 1
                    : s[0] < 0xc2 ? 0
                    : s[0] < 0xe0 ? 2
                    : s[0] < 0xf0 ? 3
                    : s[0] < 0xf5 ? 4
                                  : 0;
    if (length == 0 || length > bytes)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] >= 0xa0;
    bool beyond = s[0] == 0xf4 && s[1] >= 0x90;
    return length > 1 && (overlong || surrogate || beyond) ? 0 : length;
}

void zr_make_plain(char *words)
{
    unsigned char *at = (unsigned char *)words;
    for (size_t left = strlen(words), length; left > 0; at += length, left -= length) {
        length = zr_utf8_length(at, left);
        bool control = at[0] < ' ' || at[0] == 0x7f || (at[0] == 0xc2 && length == 2 && at[1] < 0xa0);
        if (length == 0 || control) {
            length = length ? length : 1;
            memset(at, '?', length);
        }
    }
}
