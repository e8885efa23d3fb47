/* cuda_fp8_test.c: the cases of fp8_test.c on a card's table (tests/support/kernels/kernels_card.h), whose
 * products are cuBLASLt's; and where a card or its library has no eight bits. */
#define ZR_TEST_ON_CARD
#include "tests/unit/kernels/fp8_test.c"
