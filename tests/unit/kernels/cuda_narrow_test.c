/* cuda_narrow_test.c: the cases of kernels_narrow_test.c on a card's table
 * (tests/support/kernels/kernels_card.h). */
#define ZR_TEST_ON_CARD
#include "tests/unit/kernels/kernels_narrow_test.c"
