/* crc64.c: eight bytes at a time through eight tables ("slicing by 8"), about 2 GB/s. */
#include "zero/train/crc64.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL UINT64_C(0xc96c5795d7870f42)

static uint64_t tables[8][256]; /* tables[k][b]: byte b followed by k zero bytes */
static bool tables_ready;

static void make_tables(void)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t rest = byte;
        for (int bit = 0; bit < 8; bit++)
            rest = rest & 1 ? (rest >> 1) ^ POLYNOMIAL : rest >> 1;
        tables[0][byte] = rest;
    }
    for (unsigned k = 1; k < 8; k++)
        for (unsigned byte = 0; byte < 256; byte++) {
            uint64_t rest = tables[k - 1][byte];
            tables[k][byte] = (rest >> 8) ^ tables[0][rest & 255];
        }
    tables_ready = true;
}

uint64_t zr_crc64(uint64_t before, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t rest = ~before;

    if (!tables_ready)
        make_tables();
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8); /* little-endian machines only, as all of zr */
        word ^= rest;
        rest = tables[7][word & 255] ^ tables[6][word >> 8 & 255] ^ tables[5][word >> 16 & 255] ^
               tables[4][word >> 24 & 255] ^ tables[3][word >> 32 & 255] ^ tables[2][word >> 40 & 255] ^
               tables[1][word >> 48 & 255] ^ tables[0][word >> 56];
    }
    for (; bytes > 0; bytes--, at++)
        rest = (rest >> 8) ^ tables[0][(rest ^ *at) & 255];
    return ~rest;
}
