/* secret.c: the secret that the ranks of a run share, and the proofs of it. SHA-256 is nettle's, which
 * allocates nothing. */
#define _GNU_SOURCE
#include <errno.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "zero/comm/message/tcp/inside.h"

enum { TEXT_MIN = 16, FILE_MAX = 4096 };

_Static_assert(SHA256_DIGEST_SIZE == ZR_TCP_MAC_BYTES && SHA256_DIGEST_SIZE == ZR_TCP_SECRET_BYTES,
               "SHA-256");

zr_result zr_tcp_secret_make(unsigned char *secret)
{
    if (getrandom(secret, ZR_TCP_SECRET_BYTES, 0) != ZR_TCP_SECRET_BYTES)
        return zr_fail(ZR_ERR_UNAVAILABLE, "the system provides no random numbers for the secret of the run");
    return ZR_OK;
}

/* The text has any length, so its digest is the secret. A file made with echo ends with a newline. */
zr_result zr_tcp_secret_from_text(unsigned char *secret, const char *text, size_t bytes)
{
    struct sha256_ctx context;
    while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r'))
        bytes--;
    if (bytes < TEXT_MIN)
        return zr_fail(ZR_ERR_INVALID,
                       "the secret has %zu bytes, but at least %d are required; make one with: "
                       "head -c 32 /dev/urandom | base64",
                       bytes, TEXT_MIN);
    sha256_init(&context);
    sha256_update(&context, bytes, (const uint8_t *)text);
    sha256_digest(&context, ZR_TCP_SECRET_BYTES, secret);
    return ZR_OK;
}

zr_result zr_tcp_secret_from_file(unsigned char *secret, const char *path)
{
    struct zr_file file;
    struct stat status;
    char text[FILE_MAX];
    uint64_t bytes = 0;
    zr_result result = zr_file_open_regular(&file, path);
    if (result != ZR_OK)
        return result;
    if (fstat(file.fd, &status) != 0 || (status.st_mode & 077) != 0)
        result =
            zr_fail(ZR_ERR_INVALID, "--secret-file %s is open to other users; run: chmod 600 %s", path, path);
    if (result == ZR_OK)
        result = zr_file_size(&file, &bytes);
    if (result == ZR_OK && bytes > sizeof text)
        result =
            zr_fail(ZR_ERR_INVALID,
                    "--secret-file %s is longer than %d bytes; give a file that contains only the secret",
                    path, FILE_MAX);
    if (result == ZR_OK)
        result = zr_file_read_at(&file, 0, text, bytes);
    if (result == ZR_OK)
        result = zr_tcp_secret_from_text(secret, text, bytes);
    zr_file_close(&file);
    return result;
}

void zr_tcp_mac(unsigned char *out, const struct zr_tcp_proof *proof)
{
    struct hmac_sha256_ctx context;
    hmac_sha256_set_key(&context, ZR_TCP_SECRET_BYTES, proof->secret);
    hmac_sha256_update(&context, 4, (const uint8_t *)proof->label);
    hmac_sha256_update(&context, ZR_TCP_NONCE_BYTES, proof->a);
    hmac_sha256_update(&context, ZR_TCP_NONCE_BYTES, proof->c);
    if (proof->introduction)
        hmac_sha256_update(&context, sizeof *proof->introduction, (const uint8_t *)proof->introduction);
    hmac_sha256_digest(&context, ZR_TCP_MAC_BYTES, out);
}

bool zr_tcp_mac_equal(const unsigned char *a, const unsigned char *b)
{
    return memeql_sec(a, b, ZR_TCP_MAC_BYTES) != 0;
}
