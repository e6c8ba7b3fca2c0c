/* Parameter blocks of the kernels that test the building blocks one by one. */
#ifndef CUEVO_H
#define CUEVO_H

#include <stdint.h>

/* The fragments that warps read from an operand's tile in shared memory. */
typedef struct warp_iterator_params {
    const void *tile; /* [rows, columns], 16-bit, contiguous */
    void *fragments;  /* [warp, step, register, lane], 32-bit */
} warp_iterator_params;

void warp_iterator(const warp_iterator_params params);

/* 8x8 blocks of a tile as lanes get them from one ldmatrix each. */
typedef struct warp_load_params {
    const void *tile; /* [rows, 8 * chunks], 16-bit, contiguous */
    void *blocks;     /* [load, register, lane], 32-bit */
} warp_load_params;

void warp_load(const warp_load_params params);

/* What copies leave in shared memory. */
typedef struct copy_tile_params {
    const void *source;   /* rows of 16-bit elements, `stride` bytes apart */
    void *contents;       /* all bytes of the tile */
    int64_t stride;
    int64_t step;         /* stride * rows copied at a time */
    int32_t rows;         /* that exist; negative: the tile begins beyond the last one */
    int32_t bytes;        /* of a row that exist; likewise */
} copy_tile_params;

void copy_tile(const copy_tile_params params);

/* What an output iterator does to a matrix and to the fragments of its threads. */
typedef struct output_tile_params {
    void *matrix;          /* [rows, columns], elements of a row contiguous */
    const void *index;     /* [rows], int64_t or int32_t: where the rows go; read only if the tile scatters */
    const void *before;    /* [transfer, register, thread], 32-bit: the fragments at first */
    void *after;           /* the same at last */
    uint32_t *masks;       /* [get, thread] */
    int64_t stride;        /* from a row of the matrix to the next */
    int64_t shift;         /* what add_pointer_offset moves by */
    int64_t bound;         /* rows of the matrix that may be reached */
    uint32_t rows;
    uint32_t columns;
    uint32_t first_row;
    uint32_t first_column;
} output_tile_params;

void output_tile(const output_tile_params params);

/* Where a thread's first accumulator is, and a value joined with those of the threads that hold the same rows. */
typedef struct accumulator_params {
    const void *values; /* [thread], 32-bit */
    void *joined;       /* likewise */
    uint32_t *rows;     /* [thread] */
    uint32_t *columns;  /* likewise */
    uint32_t *owners;   /* likewise: whether the thread owns its rows */
} accumulator_params;

void accumulator(const accumulator_params params);

/* Something done to each row of the accumulators of one warp tile. */
typedef struct rows_params {
    const void *matrix; /* [rows, columns], contiguous, fp32, or fp16 where the accumulators are */
    float *result;      /* row_sum: [rows]; the others: [rows, columns] */
} rows_params;

void row_sum(const rows_params params);
void row_softmax(const rows_params params);
void layer_norm(const rows_params params);

/* Sums of one tile of a threadblock; twice, with another b the second time. */
typedef struct product_params {
    const void *a;      /* rows of k elements; transposed: rows of m elements */
    const void *b;      /* rows of n elements; not transposed: rows of k elements */
    const void *other;  /* the b of the second time */
    void *products;     /* [use, block_m, block_n], fp32 or fp16 */
    uint32_t *dirty;    /* [thread]: bits that are found changed in stages that are free */
    int64_t a_stride;
    int64_t a_step_pass;
    int64_t a_step_tile;
    int64_t b_stride;
    int64_t b_step_pass;
    int64_t b_step_tile;
    uint32_t m;
    uint32_t n;
    uint32_t k;
    uint32_t first_m;
    uint32_t first_n;
} product_params;

void mma_multistage(const product_params params);
void mma_pipelined(const product_params params);

/* Quotients and remainders of one division by a number of the template, and of one by the field `divisor`. */
typedef struct division_params {
    const uint32_t *n;   /* [thread], below 2^31 */
    uint32_t *quotients; /* [2, thread] */
    uint32_t *remainders;
    uint32_t divisor;
    uint32_t divisor_magic;
    uint32_t divisor_shift;
} division_params;

void division(const division_params params);

/* scores = q . k^T, the raw fp32 accumulators of the QK product. */
typedef struct attention_products_params {
    const void *q; /* [B, Lq, D], 16-bit floats, rows of D contiguous and 16-byte aligned */
    const void *k; /* [B, Lk, D], likewise */
    float *scores; /* [B, Lq, Lk], contiguous */

    int64_t q_stride_batch;
    int64_t q_stride_query;
    int64_t k_stride_batch;
    int64_t k_stride_key;

    uint32_t queries;     /* Lq */
    uint32_t keys;        /* Lk */
    uint32_t query_tiles; /* ceil(Lq / block_queries) */
} attention_products_params;

void attention_products(const attention_products_params params);

/* Powers of two of pairs of numbers. */
typedef struct emulated_powers_params {
    const float *exponents; /* [thread, 2] */
    void *powers;           /* [thread, 2], bf16 */
} emulated_powers_params;

void emulated_powers(const emulated_powers_params params);

#endif
