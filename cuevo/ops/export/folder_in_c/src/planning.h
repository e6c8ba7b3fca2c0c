/* What all planners are made of: arrays, launches, packing, and how a problem is stated. What is computed is in
 * formulas.h, what can be chosen in tables.h: both come from the Python package, whose plans these are. */
#ifndef CUEVO_PLANNING_H
#define CUEVO_PLANNING_H

#include "cuevo_launch.h"

#include <math.h>
#include <string.h>

#include "numbers.h"

/* -- What formulas work with ---------------------------------------------------------------------------------- */

typedef struct architecture {
    int64_t number; /* of the one that serves */
    int is_own;     /* whether that is the device's: kernels with what only it has run there */
    int64_t shared_per_multiprocessor;
    int64_t multiprocessors;
    int two_streams;
} architecture;

typedef struct problem {
    int64_t batch, rows, heads, queries, keys, head_dim;
    int64_t mapped, scaled, power_of_two, pair_mapped;
    int64_t pair_keys; /* of a row of the pair bias that may be read */
} problem;

typedef struct product {
    int64_t batch, m, n, k;
    int64_t mapped;
} product;

/* A group of positions of an array that lie at one stride, in what is packed. */
typedef struct axis {
    int64_t extent, source, packed;
} axis;

enum { ROW_ALIGNMENT = 16 };

/* From here on bytes of sums, and whatever else is counted, may not fit into 64 bits: scores of padded lengths. */
#define TOO_MANY_SCORES 0x1p58
/* The same of products: elements that the most threadblocks of a launch, of the largest tile, do not reach. */
#define TOO_MANY_RESULTS 0x1p50

#include "tables.h"

#include "formulas.h"

/* -- Plans ---------------------------------------------------------------------------------------------------- */

static uint64_t place_in_workspace(cuevo_plan *plan, uint64_t bytes)
{
    const uint64_t offset = plan->workspace_bytes;
    const uint64_t unit = CUEVO_WORKSPACE_ALIGNMENT;
    plan->workspace_bytes += (bytes + unit - 1) / unit * unit;
    return offset;
}

static void *in_workspace(void *workspace, uint64_t offset)
{
    return (void *)((uintptr_t)workspace + (uintptr_t)offset);
}

static cuevo_status wrong(cuevo_plan *plan, cuevo_status status, const char *what)
{
    plan->wrong = what;
    return status;
}

static cuevo_status check_workspace(cuevo_plan *plan, const void *workspace, uint64_t bytes)
{
    if (workspace != NULL && ((uintptr_t)workspace % CUEVO_WORKSPACE_ALIGNMENT || bytes < plan->workspace_bytes))
        return wrong(plan, CUEVO_WRONG_WORKSPACE, "workspace");
    return CUEVO_OK;
}

static cuevo_status add_launch(cuevo_plan *plan, uint32_t kernel, int64_t blocks, int64_t threads, int64_t shared_bytes,
                               const void *parameters, size_t parameter_bytes, cuevo_queue queue)
{
    cuevo_launch *launch;
    if (blocks >= INT64_C(1) << 31 || plan->count == CUEVO_MOST_LAUNCHES)
        return CUEVO_TOO_LARGE;
    launch = &plan->launches[plan->count++];
    memcpy(launch->parameters, parameters, parameter_bytes);
    launch->parameter_bytes = (uint32_t)parameter_bytes;
    launch->kernel = kernel;
    launch->grid[0] = (uint32_t)blocks;
    launch->block[0] = (uint32_t)threads;
    launch->grid[1] = launch->grid[2] = launch->block[1] = launch->block[2] = 1;
    launch->shared_bytes = (uint32_t)shared_bytes;
    launch->queue = queue;
    return CUEVO_OK;
}

static cuevo_status find_architecture(const cuevo_device *device, architecture *found)
{
    int i;
    for (i = 0; i < served_count; i++)
        if (device->architecture >= served[i].from) {
            if (served[i].by == 0 || device->multiprocessors < 1)
                return CUEVO_NO_ARCHITECTURE;
            found->number = served[i].by;
            found->is_own = device->architecture == served[i].by;
            found->shared_per_multiprocessor = served[i].shared_per_multiprocessor;
            found->multiprocessors = device->multiprocessors;
            found->two_streams = device->two_streams;
            return CUEVO_OK;
        }
    return CUEVO_NO_ARCHITECTURE;
}

/* -- Arrays --------------------------------------------------------------------------------------------------- */

static int64_t item_bytes(cuevo_type type)
{
    switch (type) {
    case CUEVO_F16:
    case CUEVO_BF16:
        return 2;
    case CUEVO_F32:
    case CUEVO_I32:
        return 4;
    case CUEVO_I64:
        return 8;
    default:
        return 1;
    }
}

/* Gives an array of this type and shape, contiguous, that only kernels see, a place in the workspace. */
static void lay_in_workspace(cuevo_plan *plan, void *workspace, cuevo_array *x)
{
    int64_t step = item_bytes(x->type);
    int i;
    for (i = 4; i >= 0; i--) {
        x->strides[i] = step;
        step *= x->shape[i];
    }
    x->data = in_workspace(workspace, place_in_workspace(plan, (uint64_t)step));
}

static int is_absent(const cuevo_array *x)
{
    return x->type == CUEVO_ABSENT && x->data == NULL;
}

static int is_empty(const cuevo_array *x)
{
    int i;
    for (i = 0; i < 5; i++)
        if (x->shape[i] == 0)
            return 1;
    return 0;
}

/* The largest power of two up to 16 that divides the address and the strides, but that of one axis. */
static int64_t alignment(const cuevo_array *x, int but)
{
    uint64_t all = 16 | (uint64_t)(uintptr_t)x->data;
    int i;
    for (i = 0; i < 5; i++)
        if (x->shape[i] > 1 && i != but)
            all |= (uint64_t)x->strides[i];
    return (int64_t)(all & (~all + 1));
}

/* The alignment of rows; 0 where their elements are not side by side, or not aligned. */
static int64_t row_alignment(const cuevo_array *x)
{
    const int64_t size = item_bytes(x->type);
    int64_t found;
    if (x->shape[4] > 1 && x->strides[4] != size)
        return 0;
    found = alignment(x, 4);
    return found < size ? 0 : found;
}

static double at_least_one(int64_t extent)
{
    return extent > 1 ? (double)extent : 1;
}

static cuevo_status check_rows(cuevo_plan *plan, const cuevo_array *x, const char *name)
{
    if (!is_empty(x) && (x->strides[4] != item_bytes(x->type) || alignment(x, 4) < ROW_ALIGNMENT))
        return wrong(plan, CUEVO_WRONG_STRIDE, name);
    return CUEVO_OK;
}

/* Whether rows, along that axis, of what is written begin within others. */
static int overlaps(const cuevo_array *out, int row_axis)
{
    const int64_t row = out->shape[row_axis] * item_bytes(out->type);
    int i, found = 0;
    for (i = 0; i < row_axis; i++) {
        if (out->shape[i] == 0)
            return 0;
        found |= out->shape[i] > 1 && out->strides[i] < row && out->strides[i] > -row;
    }
    return found;
}

/* Whether a tensor map can describe an array: steps forward, each to another element. */
static int is_mapped(const cuevo_array *x)
{
    int i;
    for (i = 0; i < 4; i++)
        if (x->shape[i] > 1 && (x->strides[i] <= 0 || x->strides[i] >= INT64_C(1) << 40))
            return 0;
    return 1;
}

/* The same of a pair bias, which batches may share. */
static int is_mapped_pair(const cuevo_array *x)
{
    cuevo_array seen = *x;
    if (seen.strides[0] == 0)
        seen.shape[0] = 1;
    return row_alignment(&seen) == ROW_ALIGNMENT && is_mapped(&seen);
}

/* Checks that an array is somewhere, and its shape, letters as in cuevo_launch.h; an axis in lower case may be 1 and
 * has then, in the array as kernels see it, the extent of the problem and a stride of 0. */
static cuevo_status fit(cuevo_plan *plan, cuevo_array *x, const char *axes, const problem *of, const char *name)
{
    int i;
    for (i = 0; i < 5; i++) {
        int64_t expected = 1;
        switch (axes[i]) {
        case 'B':
        case 'b':
            expected = of->batch;
            break;
        case 'N':
        case 'n':
            expected = of->rows;
            break;
        case 'H':
            expected = of->heads;
            break;
        case 'Q':
            expected = of->queries;
            break;
        case 'K':
            expected = of->keys;
            break;
        case 'D':
            expected = of->head_dim;
            break;
        default:
            break;
        }
        if (x->shape[i] == expected)
            continue;
        if ((axes[i] != 'b' && axes[i] != 'n') || x->shape[i] != 1)
            return wrong(plan, CUEVO_WRONG_SHAPE, name);
        x->shape[i] = expected;
        x->strides[i] = 0;
    }
    if (x->data == NULL && !is_empty(x))
        return wrong(plan, CUEVO_NO_DATA, name);
    return CUEVO_OK;
}

/* -- Packing -------------------------------------------------------------------------------------------------- */

/* The axis before the last whose elements lie side by side, aligned to their size; -1 where there is none, or those
 * of the last axis do. */
static int adjacent_axis(const cuevo_array *source)
{
    const int64_t size = item_bytes(source->type);
    int i;
    if (source->shape[4] == 1 || source->strides[4] == size || alignment(source, -1) % size)
        return -1;
    for (i = 0; i < 4; i++)
        if (source->strides[i] == size && source->shape[i] > 1)
            return i;
    return -1;
}

/* Puts a launch into the plan that packs an array, which becomes the packed one. */
static cuevo_status pack(cuevo_plan *plan, cuevo_array *x, void *workspace, const char *name)
{
    const cuevo_array source = *x;
    const int64_t size = item_bytes(source.type);
    const int64_t row_bytes = packed_row_bytes(&source, size);
    const int row = adjacent_axis(&source);
    const pack_config *c = NULL;
    cuevo_array packed = source;
    axis merged[4];
    axis axes[4];
    int64_t step = row_bytes, memory = row_bytes, reads = PACK_CHUNKS, width = 1, lanes = 32, unit;
    pack_params p;
    cuevo_status status;
    int each, i, count = 0;

    packed.strides[4] = size;
    for (i = 3; i >= 0; i--) {
        packed.strides[i] = source.strides[i] == 0 ? 0 : step;
        if (source.strides[i] != 0) {
            step *= source.shape[i];
            memory *= source.shape[i];
        }
    }
    packed.data = in_workspace(workspace, place_in_workspace(plan, (uint64_t)memory));

    /* The axes before the last, as few as there may be, the adjacent one behind the others. */
    for (i = 0; i < 5; i++) {
        const int at = i < 4 ? i : row;
        axis next;
        if (at < 0 || (i < 4 && at == row) || source.shape[at] <= 1 || source.strides[at] == 0)
            continue;
        next.extent = source.shape[at];
        next.source = source.strides[at];
        next.packed = packed.strides[at];
        if (count && merged[count - 1].source == next.source * next.extent &&
            merged[count - 1].packed == next.packed * next.extent) {
            next.extent *= merged[count - 1].extent;
            count--;
        }
        merged[count++] = next;
    }
    if (count == 0) {
        merged[0].extent = 1;
        merged[0].source = merged[0].packed = 0;
        count = 1;
    }
    for (i = 0; i < 4; i++) {
        axes[i].extent = 1;
        axes[i].source = axes[i].packed = 0;
        if (i >= 4 - count)
            axes[i] = merged[i - (4 - count)];
    }

    unit = alignment(&source, -1);
    unit = unit < size ? unit : size;
    if (row >= 0) {
        const int64_t rows = axes[3].extent;
        const int64_t most = rows * size <= PACK_WIDE_ROWS ? PACK_CHUNK : 4;
        const int64_t of_all = rows | most / size | alignment(&source, row) / size;
        reads = PACK_TILE;
        width = of_all & -of_all;
        lanes = INT64_C(1) << bit_length(rows / width - 1);
        lanes = lanes < 32 ? lanes : 32;
    } else if (source.shape[4] != 1 && source.strides[4] != size) {
        reads = PACK_ELEMENTS;
    }
    for (each = 0; each < pack_configs_count && c == NULL; each++) {
        const pack_config *offered = &pack_configs[each];
        if (offered->size == size && offered->axes == count && offered->reads == reads && offered->unit == unit &&
            offered->width == width && offered->lanes == lanes)
            c = offered;
    }
    if (c == NULL)
        return wrong(plan, CUEVO_NOT_EXPORTED, name);
    memset(&p, 0, sizeof p);
    status = pack_fields(&p, c, axes, &source, &packed);
    if (status == CUEVO_OK)
        status = add_launch(plan, (uint32_t)c->kernel, pack_blocks(c, p.parts), c->threads, 0, &p, sizeof p, CUEVO_FIRST);
    *x = packed;
    return status == CUEVO_OK ? CUEVO_OK : wrong(plan, status, name);
}

static cuevo_status pack_mask(cuevo_plan *plan, cuevo_array *mask_bias, void *workspace)
{
    if (mask_bias->type == CUEVO_ABSENT || alignment(mask_bias, -1) % item_bytes(mask_bias->type) == 0)
        return CUEVO_OK;
    return pack(plan, mask_bias, workspace, "mask_bias");
}

static cuevo_status pack_pair(cuevo_plan *plan, cuevo_array *pair_bias, void *workspace)
{
    if (pair_bias->type == CUEVO_ABSENT || row_alignment(pair_bias) == ROW_ALIGNMENT)
        return CUEVO_OK;
    return pack(plan, pair_bias, workspace, "pair_bias");
}

/* -- The problem ---------------------------------------------------------------------------------------------- */

/* Checks what both directions have, and makes the biases as large as the problem. */
static cuevo_status state_problem(cuevo_plan *plan, problem *found, const cuevo_array *q, const cuevo_array *k,
                                  const cuevo_array *v, cuevo_array *mask_bias, cuevo_array *pair_bias, double scale)
{
    cuevo_array operands[3];
    static const char *const names[] = {"q", "k", "v"};
    cuevo_status status;
    int i, exponent;
    found->batch = q->shape[0];
    found->rows = q->shape[1];
    found->queries = q->shape[2];
    found->heads = q->shape[3];
    found->head_dim = q->shape[4];
    found->keys = k->shape[2];
    for (i = 0; i < 5; i++)
        if (q->shape[i] < 0 || k->shape[i] < 0)
            return wrong(plan, CUEVO_WRONG_SHAPE, q->shape[i] < 0 ? "q" : "k");
    if (q->type != CUEVO_F16 && q->type != CUEVO_BF16)
        return wrong(plan, CUEVO_WRONG_TYPE, "q");
    if (found->head_dim % 8 || found->head_dim < 8 || found->head_dim > 128)
        return wrong(plan, CUEVO_NOT_EXPORTED, "q");
    if (found->queries > MOST_POSITIONS || found->keys > MOST_POSITIONS)
        return wrong(plan, CUEVO_TOO_LARGE, found->queries > MOST_POSITIONS ? "q" : "k");
    if (found->batch > MOST_EXTENT || found->rows > MOST_EXTENT || found->heads > MOST_EXTENT)
        return wrong(plan, CUEVO_TOO_LARGE, "q");
    if (at_least_one(found->batch) * at_least_one(found->rows) * at_least_one(found->heads) *
            (double)(found->queries + 128) * (double)(found->keys + 128) >= TOO_MANY_SCORES)
        return CUEVO_TOO_LARGE;
    operands[0] = *q;
    operands[1] = *k;
    operands[2] = *v;
    for (i = 0; i < 3; i++) {
        if ((status = fit(plan, &operands[i], i ? "BNKHD" : "BNQHD", found, names[i])) != CUEVO_OK)
            return status;
        if (operands[i].type != q->type)
            return wrong(plan, CUEVO_WRONG_TYPE, names[i]);
        if ((status = check_rows(plan, &operands[i], names[i])) != CUEVO_OK)
            return status;
    }
    if (!is_absent(mask_bias)) {
        if ((status = fit(plan, mask_bias, "bn11K", found, "mask_bias")) != CUEVO_OK)
            return status;
        if (mask_bias->type != q->type && mask_bias->type != CUEVO_F32 && mask_bias->type != CUEVO_BOOL)
            return wrong(plan, CUEVO_WRONG_TYPE, "mask_bias");
    }
    if (!is_absent(pair_bias)) {
        if ((status = fit(plan, pair_bias, "b1HQK", found, "pair_bias")) != CUEVO_OK)
            return status;
        if (pair_bias->type != q->type && pair_bias->type != CUEVO_F32)
            return wrong(plan, CUEVO_WRONG_TYPE, "pair_bias");
    }
    if (!(fabs(scale) <= MOST_SCALE))
        return wrong(plan, CUEVO_WRONG_SCALE, "scale");
    found->mapped = is_mapped(q) && is_mapped(k) && is_mapped(v);
    found->pair_mapped = is_absent(pair_bias) || is_mapped_pair(pair_bias);
    found->scaled = fabs(scale) >= NEGLIGIBLE_SCALE;
    found->power_of_two = fabs(scale) >= LEAST_POWER && fabs(scale) <= 1 && fabs(frexp(scale, &exponent)) == 0.5;
    return CUEVO_OK;
}

static const choice *find_choice(const choice *choices, int count, const architecture *arch, const problem *x,
                                 cuevo_type type, cuevo_type mask, cuevo_type pair)
{
    int i;
    for (i = 0; i < count; i++)
        if (choices[i].architecture == arch->number && choices[i].head_dim == x->head_dim && choices[i].type == type &&
            choices[i].mask == mask && choices[i].pair == pair)
            return &choices[i];
    return NULL;
}

#endif
