/* matrices.c: products of matrices and loads for them by the 32 lanes of a warp, with the lanes' parts laid
 * out as PTX says of mma.m16n8k16 and ldmatrix. See kernels.h. Compiled without sanitizers, like threads.c.
 */
#include "tests/emulators/cuda/kernels.h"

enum { LANES = 32, M = 16, N = 8, K = 16 };

/* Matrix i has the rows that lanes 8 i to 8 i + 7 brought. Lane l leaves with elements 2 (l % 4) and the next
 * of row l / 4 or, of a transposed one, of column l / 4. */
void emu_matrices_load(struct zr_device_matrices *const *lanes)
{
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned i = 0; i < 4; i++) {
            unsigned line = lane / 4, at = lane % 4 * 2;
            bool transposed = lanes[lane]->transposed;
            uint32_t first = transposed ? lanes[8 * i + at]->row[line] : lanes[8 * i + line]->row[at];
            uint32_t second =
                transposed ? lanes[8 * i + at + 1]->row[line] : lanes[8 * i + line]->row[at + 1];
            lanes[lane]->part[i] = second << 16 | first;
        }
}

/* A sum of 16 products and what was there is rounded once; a card rounds a little sooner, in an order of its
 * own. */
void emu_matrices_multiply(struct zr_device_fragments *const *lanes)
{
    double a[M][K], b[K][N], sums[M][N];
    for (unsigned lane = 0; lane < LANES; lane++) {
        const struct zr_device_fragments *own = lanes[lane];
        unsigned g = lane / 4, t = lane % 4 * 2;
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned r = 0; r < 4; r++)
                a[g + r % 2 * 8][t + r / 2 * 8 + half] = (double)own->a[2 * r + half];
            for (unsigned r = 0; r < 2; r++) {
                b[t + r * 8 + half][g] = (double)own->b[2 * r + half];
                sums[g + r * 8][t + half] = (double)own->sums[2 * r + half];
            }
        }
    }
    for (unsigned m = 0; m < M; m++)
        for (unsigned k = 0; k < K; k++)
            for (unsigned n = 0; n < N; n++)
                sums[m][n] += a[m][k] * b[k][n];
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned i = 0; i < 4; i++)
            lanes[lane]->sums[i] = (float)sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}
