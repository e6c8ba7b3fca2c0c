/* What to launch for an attention or a matrix product, from C or C++: kernels, grids and parameter blocks.
 *
 * A planner takes a problem, arrays in device memory, and writes a plan: the launches in their order. It
 * allocates nothing, keeps nothing, and calls nothing but the encoder of tensor maps that it is given. It
 * chooses as the Python package does, among the kernels of this folder.
 *
 * Plan once without a workspace, to learn how large one has to be, and again with it; or give one that is
 * large enough at once.
 */
#ifndef CUEVO_LAUNCH_H
#define CUEVO_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "cuevo.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cuevo_status {
    CUEVO_OK = 0,
    CUEVO_WRONG_SHAPE,        /* arrays do not fit each other */
    CUEVO_WRONG_TYPE,
    CUEVO_WRONG_STRIDE,       /* rows are not contiguous, do not start where they have to, or overlap in a result */
    CUEVO_WRONG_SCALE,        /* a scale or factor is not finite, or a scale above 2^64 in magnitude */
    CUEVO_WRONG_WORKSPACE,    /* not at a multiple of 256 bytes, or too small */
    CUEVO_NOT_EXPORTED,       /* this folder has no kernel for that head dim, type, bias, order or alignment */
    CUEVO_NO_ARCHITECTURE,    /* this folder has no kernels for that device */
    CUEVO_TOO_LARGE,          /* more threadblocks, or positions in a row, than a launch can have */
    CUEVO_ENCODER_FAILED,     /* the encoder of tensor maps refused */
    CUEVO_NO_DATA,            /* an array has elements and no address */
    CUEVO_STATUSES
} cuevo_status;

/* A sentence for a status. */
const char *cuevo_status_text(cuevo_status status);

typedef enum cuevo_type { CUEVO_ABSENT = 0, CUEVO_F16, CUEVO_BF16, CUEVO_F32, CUEVO_BOOL, CUEVO_I32, CUEVO_I64 } cuevo_type;

/* An array in device memory; all zeros: there is none. */
typedef struct cuevo_array {
    void *data;         /* element (0, 0, ...) */
    cuevo_type type;
    int64_t shape[5];
    int64_t strides[5]; /* bytes; 0 along a broadcast axis of an operand */
} cuevo_array;

/* Encodes a tensor map: the arguments of cuTensorMapEncodeTiled in the CUDA driver API, enumerations as int,
 * and its result, 0 for success. cuevo_driver.h has one. */
typedef int (*cuevo_encoder)(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                             int interleave, int swizzle, int l2_promotion, int fill);

typedef struct cuevo_device {
    int architecture;      /* 10 * major + minor of its compute capability */
    int multiprocessors;
    cuevo_encoder encoder; /* needed on architecture 90 alone; null: kernels without tensor maps run there */
    int two_streams;       /* whether launches that are CUEVO_BESIDE are given another stream: such a pair of a forward
                            * pass shares the multiprocessors, and one after the other would take twice as long */
} cuevo_device;

/* out = softmax(q . k^T * scale + mask_bias + pair_bias) . v */
typedef struct cuevo_forward {
    cuevo_array q;         /* [B, N, Lq, H, D], f16 or bf16, rows of D contiguous, at multiples of 16 bytes */
    cuevo_array k;         /* [B, N, Lk, H, D], likewise */
    cuevo_array v;         /* [B, N, Lk, H, D], likewise */
    cuevo_array out;       /* [B, N, Lq, H, D], likewise */
    cuevo_array mask_bias; /* [B or 1, N or 1, 1, 1, Lk], type of q, f32 or bool, any strides; or absent */
    cuevo_array pair_bias; /* [B or 1, 1, H, Lq, Lk], type of q or f32, any strides; or absent */
    float *lse;            /* [B, N, H, Lq], contiguous; or null */
    double scale;          /* of the scores, as a rule 1 / sqrt(D) */
    void *workspace;       /* memory that no other work touches until the launches are done; or null */
    uint64_t workspace_bytes;
} cuevo_forward;

/* The gradients of a forward pass, from that of its result. */
typedef struct cuevo_backward {
    cuevo_array dout;       /* [B, N, Lq, H, D], type of q, any strides */
    cuevo_array q, k, v;    /* as the forward pass had them, */
    cuevo_array out;        /* and its result */
    cuevo_array mask_bias;
    cuevo_array pair_bias;
    cuevo_array dq, dk, dv; /* like q, k and v, contiguous, from multiples of 16 bytes */
    cuevo_array dmask_bias; /* like mask_bias, of its type or f32, likewise; absent: not wanted */
    cuevo_array dpair_bias; /* like pair_bias, likewise; there where that is */
    const float *lse;       /* [B, N, H, Lq], contiguous: what the forward pass has stored */
    double scale;
    void *workspace;        /* as in cuevo_forward; it is always needed */
    uint64_t workspace_bytes;
} cuevo_backward;

/* out = alpha * a . b + beta * c + bias. Arrays have three axes, in the first places of shape and strides; extents of 1
 * along B stand for all batches, but for that of out. */
typedef struct cuevo_gemm {
    cuevo_array a;       /* [B or 1, M, K], f16 or bf16; rows or columns are contiguous, other strides any */
    cuevo_array b;       /* [B or 1, K, N], likewise, of the same type */
    cuevo_array c;       /* [B or 1, M, N], f16, bf16 or f32, rows contiguous; absent, or not read where beta is 0 */
    cuevo_array bias;    /* [N], contiguous, of the type of out, or of a where out is f32; or absent */
    cuevo_array scatter; /* [M], i32 or i64, contiguous: row i becomes row scatter[i] of out, if that has it, and c has
                          * the rows of out, of which there may be any number; or absent */
    cuevo_array out;     /* [B, M, N], f16, bf16 or f32, rows contiguous; may be c, and overlaps nothing else */
    float alpha;
    float beta;
    void *workspace;     /* as in cuevo_forward; see cleared_bytes of the plan */
    uint64_t workspace_bytes;
} cuevo_gemm;

enum {
    CUEVO_MOST_LAUNCHES = 24,
    CUEVO_MOST_PARAMETERS = 1024, /* bytes */
    CUEVO_WORKSPACE_ALIGNMENT = 256
};

/* When a launch may begin: those of a plan are in their order, on one stream. Where there is another stream,
 * those BESIDE may go there once the FIRST are done, and what follows waits for both; they have to where the device
 * has two_streams. */
typedef enum cuevo_queue { CUEVO_FIRST = 0, CUEVO_BESIDE, CUEVO_AFTER } cuevo_queue;

typedef struct cuevo_launch {
    unsigned char parameters[CUEVO_MOST_PARAMETERS]; /* the kernel's one parameter, by value */
    uint32_t parameter_bytes;
    uint32_t kernel;       /* in cuevo_kernels */
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes; /* dynamic shared memory of a threadblock */
    cuevo_queue queue;
} cuevo_launch;

typedef struct cuevo_plan {
    cuevo_launch launches[CUEVO_MOST_LAUNCHES];
    uint32_t count;           /* 0 where the problem is empty: see what results are to be then */
    uint64_t workspace_bytes; /* that the launches need */
    uint64_t cleared_at;      /* of these, from which on cleared_bytes have to be 0 before the launches, */
    uint64_t cleared_bytes;   /* which leave them so; 0 but for some matrix products */
    const char *wrong;        /* the array or field that a status other than CUEVO_OK is about, or null */
} cuevo_plan;

/* The launches of a forward pass; `plan` is overwritten. Addresses within a missing workspace are wrong. Where there are
 * none, out is to be 0 and lse -inf, wherever they have elements. */
cuevo_status cuevo_plan_forward(const cuevo_device *device, const cuevo_forward *problem, cuevo_plan *plan);

/* The launches of a backward pass, likewise; where there are none, all gradients are to be 0. */
cuevo_status cuevo_plan_backward(const cuevo_device *device, const cuevo_backward *problem, cuevo_plan *plan);

/* The launches of a matrix product, likewise; where there are none, out is to be 0, but with a scatter to stay as it is:
 * rows that this does not name always do. */
cuevo_status cuevo_plan_gemm(const cuevo_device *device, const cuevo_gemm *problem, cuevo_plan *plan);

/* A kernel of this folder. */
typedef struct cuevo_kernel {
    const char *file;  /* below the folder: a fat binary, for cuModuleLoad */
    const char *entry; /* the function in it */
} cuevo_kernel;

extern const cuevo_kernel cuevo_kernels[];
extern const uint32_t cuevo_kernel_count;

#ifdef __cplusplus
}
#endif

#endif
