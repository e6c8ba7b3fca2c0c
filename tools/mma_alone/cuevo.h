/* The parameter block of mma_alone. */
#ifndef MMA_ALONE_H
#define MMA_ALONE_H

#include <stdint.h>

typedef struct mma_alone_params {
    const void *fragments; /* [32][32], a row the 32 registers of a lane: 16 of A, 16 of B */
    float *sums;           /* one a thread */
    uint32_t iterations;   /* of the loop: 64 of k each */
} mma_alone_params;

void mma_alone(const mma_alone_params params);

#endif
