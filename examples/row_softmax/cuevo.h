/* The parameter block of the example: y = softmax(a . b + bias) over the columns. */
#ifndef ROW_SOFTMAX_H
#define ROW_SOFTMAX_H

#include <stdint.h>

typedef struct row_softmax_params {
    const void *a;     /* [m, k], 16-bit floats, contiguous */
    const void *b;     /* [k, n], likewise */
    const float *bias; /* [n] */
    float *y;          /* [m, n], contiguous */

    uint32_t m;
    uint32_t n; /* at most block_n */
    uint32_t k;
} row_softmax_params;

void row_softmax(const row_softmax_params params);

#endif
