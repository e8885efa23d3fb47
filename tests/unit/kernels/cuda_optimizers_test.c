/* cuda_optimizers_test.c: the cases of optimizers_test.c on a card's table
 * (tests/support/kernels/kernels_card.h). */
#define ZR_TEST_ON_CARD
#include "tests/unit/kernels/optimizers_test.c"
