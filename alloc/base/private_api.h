/* private_api.h: what the libraries of zr share beneath their public headers. Private to the project.
 *
 * libzr.so holds alloc/ and defrag/ and is the only copy of them in a process: its index, its options and its
 * last words are one. libzr_zero.so uses it and needs a few functions that are not public.
 * Those are declared ZR_PRIVATE_API: libzr.so exports them under a symbol version of exactly this release
 * (ZR_PRIVATE_VERSION), so that the loader refuses two libraries of different releases. A function of alloc/
 * that zero/ or kernels/ begins to use gets the mark too; the link of libzr_zero.so fails without it. */
#ifndef ZR_PRIVATE_API_H
#define ZR_PRIVATE_API_H

#if defined(__GNUC__)
#define ZR_PRIVATE_API __attribute__((visibility("default")))
#else
#define ZR_PRIVATE_API
#endif

#endif
