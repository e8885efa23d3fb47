/* crc64_test.c: the checksum of checkpoints is CRC-64/XZ, in pieces as at once. */
#include "tests/support/tap.h"
#include "zero/train/crc64.h"

int main(void)
{
    unsigned char data[1000];
    bool same = true;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * i >> 3);
    tap_ok(zr_crc64(0, "123456789", 9) == UINT64_C(0x995dc9bbdf1939fa), "the check value of CRC-64/XZ");
    tap_ok(zr_crc64(0, "", 0) == 0, "of nothing");
    for (size_t cut = 0; cut <= sizeof data; cut++)
        same &=
            zr_crc64(zr_crc64(0, data, cut), data + cut, sizeof data - cut) == zr_crc64(0, data, sizeof data);
    tap_ok(same, "pieces give the sum of the whole");
    return tap_done();
}
