/* cuda_llama_test.c: the cases of llama_kernels_test.c on a card's table
 * (tests/support/kernels/kernels_card.h). */
#define ZR_TEST_ON_CARD
#include "tests/unit/kernels/llama_kernels_test.c"
