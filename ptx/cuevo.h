/* Parameter blocks and prototypes of every cuevo kernel, in what C11 and C++17 have in common.
 *
 * One struct a kernel, passed by value as its only parameter. Python fills it, the templates take their
 * `.param` offsets from it, and a C program that embeds a cubin includes it as it is.
 *
 * Extents: B batches, N rows (MSA sequences, or residues of a pair representation), H heads, Lq queries,
 * Lk keys, D head dim. Every stride is in bytes, may be zero (broadcast) or negative, and is used in 64 bits.
 */
#ifndef CUEVO_H
#define CUEVO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#else
#include <stdalign.h>
#endif

/* out = softmax(q . k^T * scale + mask_bias + pair_bias) . v, and the log-sum-exp of every row of scores. */
typedef struct evoformer_forward_params {
    const void *q;         /* [B, N, Lq, H, D], 16-bit floats, rows of D contiguous and 16-byte aligned */
    const void *k;         /* [B, N, Lk, H, D], likewise */
    const void *v;         /* [B, N, Lk, H, D], likewise */
    const void *mask_bias; /* [B, N, 1, 1, Lk], fp32, 16-bit float or bool; read only if the kernel has one */
    const void *pair_bias; /* [B, 1, H, Lq, Lk], fp32 or 16-bit float, keys contiguous, as pack_sm70 makes any other; likewise */
    void *out;             /* [B, N, Lq, H, D], type of q, rows of D contiguous and 16-byte aligned */
    float *lse;            /* [B, N, H, Lq], contiguous, natural logarithm; null: not stored */

    int64_t q_stride_batch;
    int64_t q_stride_row;
    int64_t q_stride_query;
    int64_t q_stride_head;
    int64_t k_stride_batch;
    int64_t k_stride_row;
    int64_t k_stride_key;
    int64_t k_stride_head;
    int64_t v_stride_batch;
    int64_t v_stride_row;
    int64_t v_stride_key;
    int64_t v_stride_head;
    int64_t mask_stride_batch;
    int64_t mask_stride_row;
    int64_t mask_stride_key;
    int64_t pair_stride_batch;
    int64_t pair_stride_head;
    int64_t pair_stride_query;
    int64_t out_stride_batch;
    int64_t out_stride_row;
    int64_t out_stride_query;
    int64_t out_stride_head;

    /* What a thread's copies move on by, so that the main loop adds constants: products of the strides above. */
    int64_t k_step_pass;    /* k_stride_key * rows copied at a time (Config.pass_rows) */
    int64_t k_step_tile;    /* k_stride_key * block_keys */
    int64_t v_step_pass;    /* v_stride_key, likewise */
    int64_t v_step_tile;
    int64_t pair_step_pass; /* pair_stride_query * queries copied at a time (Config.pair_pass_rows) */
    int64_t mask_step_tile; /* mask_stride_key * block_keys */

    uint32_t rows;        /* N */
    uint32_t heads;       /* H */
    uint32_t queries;     /* Lq */
    uint32_t keys;        /* Lk */
    uint32_t query_tiles; /* ceil(Lq / block_queries); with a short last tile, floor() * Config.groups_together + 1 */
    uint32_t row_groups;  /* ceil(N / block_rows), over groups_together */

    /* Multipliers and shifts that divide by heads, query_tiles and row_groups (lib/divide.ptx). */
    uint32_t heads_magic, heads_shift;
    uint32_t query_tiles_magic, query_tiles_shift;
    uint32_t row_groups_magic, row_groups_shift;

    float score_scale;     /* |scale| * log2(e): scores to powers of two */
    float bias_scale;      /* 1 / |scale|: biases to the units of q . k */
    uint32_t q_multiplier; /* two 16-bit floats, both sign(scale) (or 0 where scale is 0), applied to q */
} evoformer_forward_params;

void evoformer_forward_sm80(const evoformer_forward_params params);
void evoformer_forward_sm75(const evoformer_forward_params params);
void evoformer_forward_sm70(const evoformer_forward_params params);

/* The same, of operands that tensor maps describe and a pair bias in tiles (pair_tiles). */
typedef struct evoformer_forward_sm90a_params {
    alignas(64) uint8_t q_map[128]; /* q [B, N, H, Lq, D], 16-bit floats, axes as in the map, D contiguous; boxes: Config.q_map */
    alignas(64) uint8_t k_map[128]; /* k [B, N, H, Lk, D], likewise */
    alignas(64) uint8_t v_map[128]; /* v [B, N, H, Lk, D], likewise */
    alignas(64) uint8_t out_map[128]; /* out, axes as in the map of q; boxes: Config.out_map */
    alignas(64) uint8_t pair_map[128]; /* pair_bias [B, 1, H, Lq, Lk], 16-bit floats, Lk contiguous, for a kernel that converts it; boxes: Config.pair_map */
    const void *mask_bias;   /* [B, N, 1, 1, Lk], fp32, 16-bit float or bool, or where consumers ask mask_tiles, by rows n and tiles of keys; read only if there is one */
    const float *pair_tiles; /* what pair_tiles makes of the pair bias; null for a kernel that converts it; likewise */
    void *out;               /* [B, N, Lq, H, D], type of q, rows of D contiguous and 16-byte aligned */
    float *lse;              /* [B, N, H, Lq], contiguous, natural logarithm; null: not stored */

    int64_t mask_stride_batch;
    int64_t mask_stride_row;
    int64_t mask_stride_key;
    int64_t pair_stride_batch; /* of the tiles, or of pair_bias; 0 where batches share the pair bias */
    int64_t pair_stride_head;
    int64_t pair_stride_tile;  /* from a tile of keys to the next */
    int64_t out_stride_batch;
    int64_t out_stride_row;
    int64_t out_stride_query;
    int64_t out_stride_head;

    uint32_t rows;        /* N */
    uint32_t heads;       /* H */
    uint32_t queries;     /* Lq */
    uint32_t keys;        /* Lk */
    uint32_t first_query; /* of this launch, a multiple of 64 */
    uint32_t query_tiles; /* of this launch, of block_queries */
    uint32_t key_tiles;   /* ceil(Lk / block_keys) */

    /* Works of a cluster: their numbers count query tiles, then the heads of a set, then groups of rows, then sets, then batches. */
    uint32_t works;        /* B * head_sets * groups * set_heads * query_tiles, below 2^31; and what slices add */
    uint32_t first_sliced; /* from this one on, the same slice_works works once for each slice_rows of their rows n; works: there are none such */
    uint32_t slice_works;
    uint32_t slice_rows;
    uint32_t set_heads;    /* heads of a set, side by side */
    uint32_t groups;       /* ceil(N / block_rows) over the blocks of a cluster */
    uint32_t head_sets;    /* H / set_heads */

    /* Multipliers and shifts that divide by slice_works, query_tiles, set_heads, groups and head_sets (lib/divide.ptx). */
    uint32_t slice_works_magic, slice_works_shift;
    uint32_t query_tiles_magic, query_tiles_shift;
    uint32_t set_heads_magic, set_heads_shift;
    uint32_t groups_magic, groups_shift;
    uint32_t head_sets_magic, head_sets_shift;

    float score_scale;     /* scale * log2(e): scores to powers of two */
    float reference_scale; /* the same, in a register of its own */
    float bias_scale;      /* 1 / scale: biases to the units of q . k */
    float first_reference; /* what rows of bf16 are lowered by at first, in the units of q . k times sign(scale) */
    float q_scale;         /* what a kernel with Config.multiplies_q multiplies q by: with Config.scales_q the scale, in the place of which the fields above have 1; with
                              Config.counts_scores a power of two, by which their scale is divided */
    float count_scale;     /* score_scale / 2^141: scores to 256ths of powers of two, as subnormal numbers (lib/emulated_exponentials.ptx) */
} evoformer_forward_sm90a_params;

void evoformer_forward_sm90a(const evoformer_forward_sm90a_params params);

/* The maps of q, k and v as evoformer_forward_sm90a has them, in memory, for a host that does not know the arrays' addresses; and tiles of the
 * pair bias, whose fields are those of pair_tiles. */
typedef struct attention_maps_params {
    const void *q; /* as evoformer_forward_sm90a has them */
    const void *k;
    const void *v;
    void *maps;    /* [sets, 3, 128] bytes at a multiple of 128 */
    const void *pair_bias; /* NULL, and zeros in the fields from pair_stride_batch on: there are no tiles */
    float *pair_tiles;

    int64_t q_strides[4]; /* in bytes, of the axes Lq, H, N, B */
    int64_t k_strides[4];
    int64_t v_strides[4];

    uint32_t q_extents[4]; /* of the same axes */
    uint32_t k_extents[4]; /* those of v, too */

    int64_t pair_stride_batch;
    int64_t pair_stride_head;
    int64_t pair_stride_query;
    int64_t pair_stride_key;
    uint32_t queries;
    uint32_t keys;
    uint32_t heads;
    uint32_t query_tiles;
    uint32_t key_tiles;
    uint32_t heads_magic, heads_shift;
    uint32_t query_tiles_magic, query_tiles_shift;
    uint32_t key_tiles_magic, key_tiles_shift;
    float bias_scale;
} attention_maps_params;

void attention_maps_sm90a(const attention_maps_params params);

/* The pair bias in the units of q . k, in fp32, as the accumulators of wgmma have it. */
typedef struct pair_tiles_params {
    const void *pair_bias; /* [B, 1, H, Lq, Lk], fp32 or 16-bit float, elements aligned */
    float *pair_tiles;     /* [B, H, key tiles, query tiles, block_keys / 8, 128, 4]: tiles of 64 queries */

    int64_t pair_stride_batch;
    int64_t pair_stride_head;
    int64_t pair_stride_query;
    int64_t pair_stride_key;

    uint32_t queries;     /* Lq */
    uint32_t keys;        /* Lk */
    uint32_t heads;       /* H */
    uint32_t query_tiles; /* of 64, as many as there is room for */
    uint32_t key_tiles;   /* ceil(Lk / block_keys) */

    /* Multipliers and shifts that divide by heads, query_tiles and key_tiles (lib/divide.ptx). */
    uint32_t heads_magic, heads_shift;
    uint32_t query_tiles_magic, query_tiles_shift;
    uint32_t key_tiles_magic, key_tiles_shift;

    float bias_scale; /* 1 / scale */
} pair_tiles_params;

void pair_tiles_sm90(const pair_tiles_params params);

/* The mask as what is added to exponents, or in the units of q . k, as products of wgmma add it; and the pair bias as pair_tiles has it, or
 * NULL and zeros in the fields from pair_stride_batch on. */
typedef struct bias_tiles_params {
    const void *mask_bias; /* [B, N, 1, 1, Lk], fp32, 16-bit float or bool, elements aligned */
    void *mask_tiles;      /* [B, key tiles, tiled_rows, 16 bytes and 4 a key, or 16 a key] */
    const void *pair_bias; /* as pair_tiles has it */
    float *pair_tiles;

    int64_t mask_stride_batch;
    int64_t mask_stride_row;
    int64_t mask_stride_key;

    uint32_t rows;       /* N */
    uint32_t keys;       /* Lk */
    uint32_t key_tiles;  /* ceil(Lk / block_keys) */
    uint32_t tiled_rows; /* rows n, and such as fill up what is read from the last ones on, as the last one */
    uint32_t mask_rows;  /* of all batches */

    /* Multiplier and shift that divide by tiled_rows (lib/divide.ptx). */
    uint32_t tiled_rows_magic, tiled_rows_shift;
    float bias_scale; /* 1 / scale */

    int64_t pair_stride_batch;
    int64_t pair_stride_head;
    int64_t pair_stride_query;
    int64_t pair_stride_key;

    uint32_t pair_blocks; /* threadblocks that make tiles of the pair bias, in front of others */
    uint32_t tiles;       /* of the pair bias, of all heads and batches */
    uint32_t queries;     /* Lq */
    uint32_t heads;       /* H */
    uint32_t query_tiles; /* of 64, as many as there is room for */
    uint32_t heads_magic, heads_shift;
    uint32_t query_tiles_magic, query_tiles_shift;
    uint32_t key_tiles_magic, key_tiles_shift;
} bias_tiles_params;

void bias_tiles_sm90(const bias_tiles_params params);

/* Gradients of the forward kernel's operands: of k and v and the mask, or of q and the pair bias. */
typedef struct evoformer_backward_params {
    const void *q;         /* as in the forward kernel */
    const void *k;
    const void *v;
    const void *dout;      /* [B, N, Lq, H, D], like q */
    const void *pair_bias; /* [B, 1, H, Lq, Lk], as in the forward kernel */
    const float *stats;    /* [B, N, H, query_positions / 16, 48], contiguous: what attention_delta makes */
    const float *key_bias; /* [B, N, key_positions], contiguous: what key_bias makes; read only if the kernel has one */
    void *first_grad;      /* dk [B, N, Lk, H, D] or dq [B, N, Lq, H, D], type of q, rows 16-byte aligned; null: not wanted */
    void *second_grad;     /* dv, likewise */
    float *mask_sums;      /* [B, N, H, key_positions], contiguous: dS summed over queries; or null */
    float *pair_sums;      /* [chunks, B, H, query_positions, key_positions], contiguous: dS summed over a chunk's rows; or null */

    int64_t q_stride_batch;
    int64_t q_stride_row;
    int64_t q_stride_query;
    int64_t q_stride_head;
    int64_t k_stride_batch;
    int64_t k_stride_row;
    int64_t k_stride_key;
    int64_t k_stride_head;
    int64_t v_stride_batch;
    int64_t v_stride_row;
    int64_t v_stride_key;
    int64_t v_stride_head;
    int64_t dout_stride_batch;
    int64_t dout_stride_row;
    int64_t dout_stride_query;
    int64_t dout_stride_head;
    int64_t pair_stride_batch;
    int64_t pair_stride_head;
    int64_t pair_stride_query;
    int64_t first_grad_stride_batch;
    int64_t first_grad_stride_row;
    int64_t first_grad_stride_position;
    int64_t first_grad_stride_head;
    int64_t second_grad_stride_batch;
    int64_t second_grad_stride_row;
    int64_t second_grad_stride_position;
    int64_t second_grad_stride_head;

    /* What a thread's copies of the streamed operands advance by: q and dout, or k and v. */
    int64_t first_step_pass; /* stride of a position * positions copied at a time (Config.pass_rows) */
    int64_t first_step_tile; /* the same * block_streamed */
    int64_t second_step_pass;
    int64_t second_step_tile;
    int64_t pair_step_pass; /* pair_stride_query * queries copied at a time (Config.pair_pass_rows) */
    int64_t pair_step_tile; /* pair_stride_query * block_streamed */

    uint32_t batches;         /* B */
    uint32_t rows;            /* N */
    uint32_t heads;           /* H */
    uint32_t queries;         /* Lq */
    uint32_t keys;            /* Lk */
    uint32_t pair_keys;       /* keys of a row of pair_bias that may be read: Lk, or more where rows are padded */
    uint32_t query_positions; /* Lq rounded up to whole tiles of every kernel */
    uint32_t key_positions;   /* Lk, likewise */
    uint32_t stationary_tiles; /* ceil(Lk or Lq / block_stationary); with a short last tile, floor() * Config.chunks_together + 1 */
    uint32_t chunks;          /* of the ceil(N / block_rows) groups of rows n; those of a chunk are one threadblock's, one after the other;
                                 with a short last tile, chunks_together of them are counted as one */
    uint32_t groups;          /* groups of a chunk, at least */
    uint32_t longer_chunks;   /* the first chunks, which have one more */
    uint32_t whole_tiles;     /* streamed tiles all of which exist: Lq or Lk / block_streamed */

    /* Multipliers and shifts that divide by heads, stationary_tiles and chunks (lib/divide.ptx). */
    uint32_t heads_magic, heads_shift;
    uint32_t stationary_tiles_magic, stationary_tiles_shift;
    uint32_t chunks_magic, chunks_shift;

    float score_scale;     /* |scale| * log2(e) */
    float bias_scale;      /* 1 / |scale| */
    float gradient_scale;  /* scale */
    uint32_t q_multiplier; /* two 16-bit floats, both sign(scale) (or 0 where scale is 0) */
} evoformer_backward_params;

void evoformer_backward_sm80(const evoformer_backward_params params);
void evoformer_backward_sm75(const evoformer_backward_params params);
void evoformer_backward_sm70(const evoformer_backward_params params);

/* A side of the scores, of operands that tensor maps describe and a pair bias in tiles whose rows are keys or queries (pair_tiles). */
typedef struct evoformer_backward_sm90a_params {
    alignas(64) uint8_t q_map[128]; /* q [B, N, H, Lq, D], 16-bit floats, axes as in the map, D contiguous; boxes: Config.q_map */
    alignas(64) uint8_t k_map[128]; /* k [B, N, H, Lk, D], likewise */
    alignas(64) uint8_t v_map[128]; /* v [B, N, H, Lk, D], likewise */
    alignas(64) uint8_t dout_map[128]; /* dout, as q */
    alignas(64) uint8_t terms_map[128]; /* keys: operands [B, N, H, query positions / 8, 128], bf16, contiguous: what attention_delta makes; queries: key_terms
                                           [B, N, key positions / 8, 64], likewise, what key_bias makes; read only if the kernel has a mask */
    const float *pair_tiles; /* what pair_tiles makes of the pair bias, for keys of the transposed one [B, 1, H, Lk, Lq]; read only if the kernel has one */
    const float *key_bias;   /* keys: [B, N, key_positions], contiguous: what key_bias makes; read only if the kernel has one */
    const float *stats;      /* queries: [B, N, H, query_positions / 16, 48], contiguous: what attention_delta makes */
    void *first_grad;        /* dk [B, N, Lk, H, D], or dq, type of q, rows 16-byte aligned; null: not wanted */
    void *second_grad;       /* keys: dv, likewise */
    float *mask_sums;        /* keys: [B, N, H, key_positions], contiguous: dS summed over queries; or null */
    float *pair_sums;        /* queries: [chunks, B, H, query_positions, key_positions], contiguous: dS summed over the rows n of a chunk; or null */

    int64_t pair_stride_batch; /* 0 where batches share the pair bias */
    int64_t pair_stride_head;
    int64_t pair_stride_tile;  /* from a streamed tile to the next */
    int64_t first_grad_stride_batch;
    int64_t first_grad_stride_row;
    int64_t first_grad_stride_position;
    int64_t first_grad_stride_head;
    int64_t second_grad_stride_batch;
    int64_t second_grad_stride_row;
    int64_t second_grad_stride_position;
    int64_t second_grad_stride_head;

    uint32_t batches;          /* B */
    uint32_t rows;             /* N */
    uint32_t heads;            /* H */
    uint32_t queries;          /* Lq */
    uint32_t keys;             /* Lk */
    uint32_t query_positions;  /* Lq rounded up to whole tiles of every kernel */
    uint32_t key_positions;    /* the same of Lk */
    uint32_t streamed_tiles;   /* ceil(Lq / block_streamed), or of Lk */
    uint32_t stationary_tiles; /* ceil(Lk / 64), or of Lq */
    uint32_t chunks;           /* of the ceil(N / block_rows) groups of rows n; those of a chunk are one threadblock's, one after the other */
    uint32_t groups;           /* groups of a chunk, at least */
    uint32_t longer_chunks;    /* the first chunks, which have one more */

    /* Multipliers and shifts that divide by heads, stationary_tiles and chunks (lib/divide.ptx). */
    uint32_t heads_magic, heads_shift;
    uint32_t stationary_tiles_magic, stationary_tiles_shift;
    uint32_t chunks_magic, chunks_shift;

    float score_scale;    /* scale * log2(e): scores to powers of two */
    float bias_sign;      /* keys: sign of the scale, for key_bias, which is divided by its magnitude */
    float gradient_scale; /* scale */
} evoformer_backward_sm90a_params;

void evoformer_backward_sm90a(const evoformer_backward_sm90a_params params);

/* What backward needs of every query: its log-sum-exp, and delta = rowsum(dout * out). Of 16 queries stats are
   -delta of (0, 1, 0, 1), (2, 3, 2, 3) ... (14, 15, 14, 15), 0 where there is no query, and then
   -lse * log2(e) of (0, 1, 8, 9), (2, 3, 10, 11) ... (6, 7, 14, 15), -inf there and where lse < -2^22. Of 8 queries
   operands are, a query after the other, the three bf16 whose sum is -lse / scale, infinite there and where lse < -2^22,
   two ones and three zeros; and then the three whose sum is -delta, and five zeros. */
typedef struct attention_delta_params {
    const void *out;  /* [B, N, Lq, H, D], 16-bit floats, rows of D contiguous and 16-byte aligned */
    const void *dout; /* [B, N, Lq, H, D], likewise */
    const float *lse; /* [B, N, H, Lq], contiguous, natural logarithm */
    float *stats;     /* [B, N, H, positions / 16, 48], contiguous: see above; written only if the kernel makes them */
    void *operands;   /* [B, N, H, positions / 8, 128] bf16, contiguous: see above; likewise */

    int64_t out_stride_batch;
    int64_t out_stride_row;
    int64_t out_stride_query;
    int64_t out_stride_head;
    int64_t dout_stride_batch;
    int64_t dout_stride_row;
    int64_t dout_stride_query;
    int64_t dout_stride_head;

    uint32_t rows;           /* N */
    uint32_t heads;          /* H */
    uint32_t queries;        /* Lq */
    uint32_t positions;      /* Lq rounded up, at least to a multiple of 16 */
    uint32_t position_tiles; /* ceil(positions / block_positions) */
    uint32_t head_groups;    /* H / block_heads */

    /* Multipliers and shifts that divide by rows, position_tiles and head_groups (lib/divide.ptx). */
    uint32_t rows_magic, rows_shift;
    uint32_t position_tiles_magic, position_tiles_shift;
    uint32_t head_groups_magic, head_groups_shift;

    float lse_factor; /* -1 / scale */
} attention_delta_params;

void attention_delta_sm70(const attention_delta_params params);

/* The mask in the units of q . k, and -inf where there is no key. Of 8 keys terms are, a key after the other, the three bf16 whose sum that is, with the sign of the scale, and
   five zeros. */
typedef struct key_bias_params {
    const void *mask_bias; /* [B, N, 1, 1, Lk], fp32, 16-bit float or bool; read only if the kernel has one */
    float *key_bias;       /* [B, N, positions], contiguous; written only if the kernel makes it */
    void *key_terms;       /* [B, N, 1, positions / 8, 64] bf16, contiguous: see above; likewise */

    int64_t mask_stride_batch;
    int64_t mask_stride_row;
    int64_t mask_stride_key;

    uint32_t rows;      /* N */
    uint32_t keys;      /* Lk */
    uint32_t positions; /* Lk rounded up */
    uint32_t key_tiles; /* ceil(positions / 128) */
    uint32_t tiles;     /* B * N * key_tiles, below 2^31 */

    /* Multipliers and shifts that divide by rows and key_tiles (lib/divide.ptx). */
    uint32_t rows_magic, rows_shift;
    uint32_t key_tiles_magic, key_tiles_shift;

    float bias_scale; /* 1 / |scale| */
    float sign;       /* of the scale, for key_terms */
} key_bias_params;

void key_bias_sm70(const key_bias_params params);

/* packed = source, its bits unchanged: columns side by side, in rows that begin at multiples of 16 bytes, zeros behind the last column in its chunk of 16. */
typedef struct pack_params {
    const void *source; /* [outer, middle, inner, row, column], elements of 1, 2 or 4 bytes, at any address */
    void *packed;       /* the same extents, rows of whole chunks of 16 bytes, zeros behind their last column */

    int64_t source_stride_outer;
    int64_t source_stride_middle;
    int64_t source_stride_inner;
    int64_t source_stride_row;
    int64_t source_stride_column;
    int64_t packed_stride_outer;
    int64_t packed_stride_middle;
    int64_t packed_stride_inner;
    int64_t packed_stride_row;

    uint32_t middles;      /* extents */
    uint32_t inners;
    uint32_t rows;
    uint32_t columns;      /* fewer than 2^31 bytes */
    uint32_t row_chunks;   /* 16-byte chunks of a packed row */
    uint32_t row_parts;    /* rows, or tiles of rows */
    uint32_t column_parts; /* of a row: chunks, or tiles of columns */
    uint32_t parts;        /* outer * middle * inner * row_parts * column_parts, below 2^31 */

    /* Multipliers and shifts that divide by middles, inners, row_parts and column_parts (lib/divide.ptx). */
    uint32_t middles_magic, middles_shift;
    uint32_t inners_magic, inners_shift;
    uint32_t row_parts_magic, row_parts_shift;
    uint32_t column_parts_magic, column_parts_shift;
} pack_params;

void pack_sm70(const pack_params params);

/* sums = partials summed over the terms of each group, one after the other: those of group g are g, g + groups, g + 2 * groups ... */
typedef struct partial_sums_params {
    const float *partials; /* [outer, terms of all groups, rows, columns], columns contiguous, rows 16-byte aligned */
    void *sums;            /* [groups, outer, rows, columns], contiguous, fp32, fp16 or bf16 */

    int64_t partials_stride_outer;
    int64_t partials_stride_group; /* from a term to the next */
    int64_t partials_stride_term;  /* the same * groups */
    int64_t partials_stride_row;

    uint32_t count;         /* terms of the first groups, at least 1 */
    uint32_t longer_groups; /* how many those are; the others have one less */
    uint32_t rows;
    uint32_t columns;
    uint32_t lines;         /* outer * rows, below 2^31 - 1024 */
    uint32_t column_tiles;  /* ceil(columns / block_columns) */

    /* Multipliers and shifts that divide by rows and column_tiles (lib/divide.ptx). */
    uint32_t rows_magic, rows_shift;
    uint32_t column_tiles_magic, column_tiles_shift;
} partial_sums_params;

void partial_sums_sm70(const partial_sums_params params);

/* d = alpha * a . b + beta * c + bias, with fp32 or fp16 accumulators. */
typedef struct gemm_params {
    const void *a;          /* [batch, m, k], 16-bit floats, one of the last two axes contiguous */
    const void *b;          /* [batch, k, n], likewise */
    const void *c;          /* [batch, m, n], fp16, bf16 or fp32, rows contiguous; read only if the kernel has one */
    const void *bias;       /* [n], type of d, or of a beside an fp32 d, contiguous; likewise */
    const void *scatter;    /* [m], int64_t or int32_t, contiguous: row i of the product is row scatter[i] of c and d; likewise */
    void *d;                /* [batch, m, n], fp16, bf16 or fp32, rows contiguous */
    float *partials;        /* what a split of k leaves for the last one: Config.workspace; likewise */
    uint32_t *arrivals;     /* [batch * tiles], zeros before and after a launch; likewise */

    int64_t a_stride_batch;
    int64_t b_stride_batch;
    int64_t c_stride_batch;
    int64_t d_stride_batch;
    int64_t c_stride_row;
    int64_t d_stride_row;
    int64_t a_stride;    /* from a row of a to the next, or from a column where these are contiguous */
    int64_t b_stride;
    int64_t a_step_pass; /* a_stride * what is copied at a time (Config.a.pass_rows) */
    int64_t b_step_pass;
    int64_t a_step_tile; /* what a moves on by from one k tile to the next */
    int64_t b_step_tile;

    uint32_t m;
    uint32_t n;
    uint32_t k;
    uint32_t rows;        /* of c and d: m, or more with scatter; rows outside of it are not written */
    uint32_t tiles_m;     /* ceil(m / block_m) */
    uint32_t tiles_n;     /* ceil(n / block_n) */
    uint32_t splits;      /* threadblocks that share the k tiles of one tile of d */
    uint32_t split_tiles; /* k tiles of each of them, the last ones may have fewer */
    uint32_t tiles;       /* tiles_m * tiles_n */
    uint32_t group;       /* raster * tiles_n */
    uint32_t last_rows;   /* tile rows of the last group: tiles_m % raster, or raster */

    /* Multipliers and shifts that divide by tiles, splits, group and last_rows (lib/divide.ptx). */
    uint32_t tiles_magic, tiles_shift;
    uint32_t splits_magic, splits_shift;
    uint32_t group_magic, group_shift;
    uint32_t last_rows_magic, last_rows_shift;

    float alpha;
    float beta;
} gemm_params;

void gemm_sm80(const gemm_params params);
void gemm_sm75(const gemm_params params);
void gemm_sm70(const gemm_params params);

/* The same, of operands that a tensor map describes (cuevo.cuda.tensor_map). */
typedef struct gemm_sm90a_params {
    alignas(64) uint8_t a_map[128]; /* a [batch, m, k], 16-bit floats, one of the last two axes contiguous; boxes: Config.a_map */
    alignas(64) uint8_t b_map[128]; /* b [batch, k, n], likewise */
    const void *c;          /* [batch, m, n], fp16, bf16 or fp32, rows contiguous; read only if the kernel has one */
    const void *bias;       /* [n], type of d, or of a beside an fp32 d, contiguous; likewise */
    const void *scatter;    /* [m], int64_t or int32_t, contiguous: row i of the product is row scatter[i] of c and d; likewise */
    void *d;                /* [batch, m, n], fp16, bf16 or fp32, rows contiguous */

    int64_t c_stride_batch;
    int64_t d_stride_batch;
    int64_t c_stride_row;
    int64_t d_stride_row;

    uint32_t m;
    uint32_t n;
    uint32_t k_tiles;   /* ceil(k / block_k), at least 1 */
    uint32_t rows;      /* of c and d: m, or more with scatter; rows outside of it are not written */
    uint32_t a_batched; /* 1; 0 where the map of a has one batch, which serves all */
    uint32_t b_batched;
    uint32_t works;     /* batch * tiles, below 2^31 */
    uint32_t tiles_m;   /* ceil(m / block_m) */
    uint32_t tiles;     /* tiles_m * ceil(n / block_n) */
    uint32_t group;     /* raster * ceil(n / block_n) */
    uint32_t last_rows; /* tile rows of the last group: tiles_m % raster, or raster */

    /* Multipliers and shifts that divide by tiles, group and last_rows (lib/divide.ptx). */
    uint32_t tiles_magic, tiles_shift;
    uint32_t group_magic, group_shift;
    uint32_t last_rows_magic, last_rows_shift;

    float alpha;
    float beta;
} gemm_sm90a_params;

void gemm_sm90a(const gemm_sm90a_params params);

#ifdef __cplusplus
}
#endif

#endif
