/* faults.h: a piece of work, with each pass of a fault site struck in turn until a run is clean. What a
 * signal interrupts or what moves only a part is done all the same; what is refused fails with words, or is
 * done without; nothing leaks, and the next run is good again. */
#ifndef ZR_TEST_FAULTS_H
#define ZR_TEST_FAULTS_H

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "tests/support/folder.h"
#include "tests/support/tap.h"

/* ZR_ERR_CORRUPT: done, and the result is wrong. */
typedef zr_result fault_work(void *state);

/* Returns how many passes were struck. Of many, fewer and fewer are: each tenth of those so far. */
static inline uint64_t fault_each(const char *what, unsigned site, fault_work *work, void *state)
{
    bool must_pass = (site & ~0xffu) >= ZR_FAULT_EINTR;
    uint64_t struck = 0;
    bool clean = false;
    unsigned wrong = 0;
    int before = open_descriptors();
    zr_result result = ZR_OK;
    for (uint64_t nth = 1; !clean && wrong < 3; nth += 1 + nth / 10) {
        zr_fault_set(site, nth);
        result = work(state);
        clean = zr_fault_set(site, 0) < nth;
        struck += !clean;
        bool good =
            result == ZR_OK || (!must_pass && !clean && result != ZR_ERR_CORRUPT && zr_last_error()[0]);
        good = good && open_descriptors() == before;
        if (!good)
            tap_note("%s:%llu: %s (%s), %d descriptors more", zr_fault_site_name(site),
                     (unsigned long long)nth, zr_result_name(result), zr_last_error(),
                     open_descriptors() - before);
        wrong += !good;
    }
    if (wrong == 0 && (result = work(state)) != ZR_OK)
        tap_note("%s (%s)", zr_result_name(result), zr_last_error());
    tap_ok(wrong == 0 && result == ZR_OK && struck > 0, "%s: %s in turn, %llu times", what,
           zr_fault_site_name(site), (unsigned long long)struck);
    return struck;
}

#endif
