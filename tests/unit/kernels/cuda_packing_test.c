/* cuda_packing_test.c: the cases of packing_test.c on a card's table (tests/support/kernels/kernels_card.h):
 * the bits of the processor's plain loops. */
#define ZR_TEST_ON_CARD
#include "tests/unit/kernels/packing_test.c"
