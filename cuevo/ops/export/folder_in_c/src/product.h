/* The planner of matrix products. */
#ifndef CUEVO_PRODUCT_H
#define CUEVO_PRODUCT_H

#include "planning.h"

/* -- Arrays of three axes ------------------------------------------------------------------------------------- */

static int is_empty_matrix(const cuevo_array *x)
{
    return x->shape[0] == 0 || x->shape[1] == 0 || x->shape[2] == 0;
}

static void set_strides(cuevo_array *x, int64_t batch, int64_t row, int64_t column)
{
    x->strides[0] = batch;
    x->strides[1] = row;
    x->strides[2] = column;
}

/* Whether columns are contiguous, and rows are not. */
static int has_columns(const cuevo_array *x)
{
    return x->strides[2] != item_bytes(x->type);
}

/* The largest power of two up to 16 that rows, or contiguous columns, are aligned to. */
static int64_t matrix_alignment(const cuevo_array *x)
{
    uint64_t all = 16;
    if (!is_empty_matrix(x))
        all |= (uint64_t)(uintptr_t)x->data | (uint64_t)x->strides[0] | (uint64_t)x->strides[has_columns(x) ? 2 : 1];
    return (int64_t)(all & (~all + 1));
}

/* Checks that an array is somewhere, that rows, or also columns, are contiguous and elements aligned. Strides along axes
 * of extent 1 become those that kernels expect. */
static cuevo_status check_matrix(cuevo_plan *plan, cuevo_array *x, int may_have_columns, const char *name)
{
    const int64_t size = item_bytes(x->type), rows = x->shape[1], columns = x->shape[2];
    const int64_t first = x->shape[0] > 1 ? x->strides[0] : 0;
    if (is_empty_matrix(x)) {
        const int64_t row = size * (columns ? columns : 1);
        set_strides(x, row * (rows ? rows : 1), row, size);
    } else if (columns == 1 || x->strides[2] == size) {
        set_strides(x, first, rows > 1 ? x->strides[1] : 0, size);
    } else if (may_have_columns && (rows == 1 || x->strides[1] == size)) {
        set_strides(x, first, size, x->strides[2]);
    } else {
        return wrong(plan, CUEVO_WRONG_STRIDE, name);
    }
    if (x->data == NULL && !is_empty_matrix(x))
        return wrong(plan, CUEVO_NO_DATA, name);
    return matrix_alignment(x) < size ? wrong(plan, CUEVO_WRONG_STRIDE, name) : CUEVO_OK;
}

/* Checks a shape; one batch may stand for all, which has then a stride of 0. */
static cuevo_status fit_matrix(cuevo_plan *plan, cuevo_array *x, int64_t batch, int64_t rows, int64_t columns,
                               const char *name)
{
    if (x->shape[0] == 1 && batch != 1) {
        x->shape[0] = batch;
        x->strides[0] = 0;
    }
    if (x->shape[0] != batch || x->shape[1] != rows || x->shape[2] != columns)
        return wrong(plan, CUEVO_WRONG_SHAPE, name);
    return CUEVO_OK;
}

static cuevo_status check_vector(cuevo_plan *plan, const cuevo_array *x, int64_t extent, const char *name)
{
    const int64_t size = item_bytes(x->type);
    if (x->shape[0] != extent)
        return wrong(plan, CUEVO_WRONG_SHAPE, name);
    if (x->data == NULL && extent)
        return wrong(plan, CUEVO_NO_DATA, name);
    if ((extent > 1 && x->strides[0] != size) || (extent && (uint64_t)(uintptr_t)x->data % (uint64_t)size))
        return wrong(plan, CUEVO_WRONG_STRIDE, name);
    return CUEVO_OK;
}

/* Whether rows, or contiguous columns, and batches follow each other as a tensor map can state it. */
static int goes_forward(const cuevo_array *x)
{
    const int axis = has_columns(x) ? 2 : 1;
    const int64_t most = INT64_C(1) << 40;
    return (x->shape[axis] == 1 || (x->strides[axis] > 0 && x->strides[axis] < most)) && x->strides[0] >= 0 &&
           x->strides[0] < most;
}

/* -- The problem ---------------------------------------------------------------------------------------------- */

static int is_16_bits(cuevo_type type)
{
    return type == CUEVO_F16 || type == CUEVO_BF16;
}

static cuevo_status check_product_types(cuevo_plan *plan, const cuevo_gemm *g)
{
    if (!is_16_bits(g->a.type))
        return wrong(plan, CUEVO_WRONG_TYPE, "a");
    if (g->b.type != g->a.type)
        return wrong(plan, CUEVO_WRONG_TYPE, "b");
    if (!is_16_bits(g->out.type) && g->out.type != CUEVO_F32)
        return wrong(plan, CUEVO_WRONG_TYPE, "out");
    if (!is_absent(&g->c) && !is_16_bits(g->c.type) && g->c.type != CUEVO_F32)
        return wrong(plan, CUEVO_WRONG_TYPE, "c");
    if (!is_absent(&g->bias) && g->bias.type != g->out.type &&
        !(g->out.type == CUEVO_F32 && g->bias.type == g->a.type))
        return wrong(plan, CUEVO_WRONG_TYPE, "bias");
    if (!is_absent(&g->scatter) && g->scatter.type != CUEVO_I32 && g->scatter.type != CUEVO_I64)
        return wrong(plan, CUEVO_WRONG_TYPE, "scatter");
    return CUEVO_OK;
}

/* Checks a call; arrays become such as kernels see them, and c absent where it is not read. */
static cuevo_status state_product(cuevo_plan *plan, product *x, cuevo_gemm *g)
{
    const int64_t rows = g->out.shape[1];
    cuevo_status status;
    int i;
    if ((status = check_product_types(plan, g)) != CUEVO_OK)
        return status;
    x->batch = g->a.shape[0] == 1 ? g->b.shape[0] : g->a.shape[0];
    x->m = g->a.shape[1];
    x->k = g->a.shape[2];
    x->n = g->b.shape[2];
    for (i = 0; i < 3; i++)
        if (g->a.shape[i] < 0 || g->b.shape[i] < 0 || g->out.shape[i] < 0)
            return wrong(plan, CUEVO_WRONG_SHAPE, g->a.shape[i] < 0 ? "a" : g->b.shape[i] < 0 ? "b" : "out");
    for (i = 1; i < 3; i++)
        if (g->a.shape[i] > MOST_ROWS || g->b.shape[i] > MOST_ROWS || g->out.shape[i] > MOST_ROWS)
            return CUEVO_TOO_LARGE;
    if (x->batch > MOST_EXTENT ||
        at_least_one(x->batch) * (double)(x->m + 256) * (double)(x->n + 256) >= TOO_MANY_RESULTS)
        return CUEVO_TOO_LARGE;
    if ((status = fit_matrix(plan, &g->a, x->batch, x->m, x->k, "a")) != CUEVO_OK)
        return status;
    if ((status = fit_matrix(plan, &g->b, x->batch, x->k, x->n, "b")) != CUEVO_OK)
        return status;
    if (g->out.shape[0] != x->batch || g->out.shape[2] != x->n || (rows != x->m && g->scatter.type == CUEVO_ABSENT))
        return wrong(plan, CUEVO_WRONG_SHAPE, "out");
    if ((status = check_matrix(plan, &g->a, 1, "a")) != CUEVO_OK)
        return status;
    if ((status = check_matrix(plan, &g->b, 1, "b")) != CUEVO_OK)
        return status;
    if ((status = check_matrix(plan, &g->out, 0, "out")) != CUEVO_OK)
        return status;
    if (overlaps(&g->out, 2))
        return wrong(plan, CUEVO_WRONG_STRIDE, "out");
    if (g->c.type != CUEVO_ABSENT) {
        if ((status = fit_matrix(plan, &g->c, x->batch, rows, x->n, "c")) != CUEVO_OK)
            return status;
        if ((status = check_matrix(plan, &g->c, 0, "c")) != CUEVO_OK)
            return status;
    }
    if (g->bias.type != CUEVO_ABSENT && (status = check_vector(plan, &g->bias, x->n, "bias")) != CUEVO_OK)
        return status;
    if (g->scatter.type != CUEVO_ABSENT && (status = check_vector(plan, &g->scatter, x->m, "scatter")) != CUEVO_OK)
        return status;
    if (!isfinite(g->alpha) || !isfinite(g->beta))
        return wrong(plan, CUEVO_WRONG_SCALE, isfinite(g->alpha) ? "beta" : "alpha");
    g->alpha += 0.0f; /* there is no -0 */
    g->beta += 0.0f;
    if (g->beta == 0.0f)
        memset(&g->c, 0, sizeof g->c);
    x->mapped = goes_forward(&g->a) && goes_forward(&g->b);
    return CUEVO_OK;
}

/* -- What is chosen ------------------------------------------------------------------------------------------- */

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Bytes that the kernels of this folder take rows of c and out to be aligned to. */
static int64_t results_aligned(const cuevo_gemm *g, int64_t n)
{
    const int64_t out = item_bytes(g->out.type), c = g->c.type == CUEVO_ABSENT ? 16 : item_bytes(g->c.type);
    const int64_t found = g->c.type == CUEVO_ABSENT ? 16 : matrix_alignment(&g->c);
    if (n * out % 16 == 0 && n * c % 16 == 0 && lesser(found, matrix_alignment(&g->out)) == 16 &&
        PRODUCT_ALIGNMENT == 16)
        return 16;
    return lesser(out, c);
}

static const product_choice *find_product(const product_choice *choices, int count, const architecture *arch,
                                          const product *x, const cuevo_gemm *g)
{
    const int64_t operands = lesser(matrix_alignment(&g->a), matrix_alignment(&g->b)) == 16 ? PRODUCT_ALIGNMENT : 2;
    const int64_t results = results_aligned(g, x->n);
    int i;
    for (i = 0; i < count; i++) {
        const product_choice *each = &choices[i];
        if (each->architecture == arch->number && each->type == g->a.type && each->result == g->out.type &&
            each->added == g->c.type && each->bias == g->bias.type && each->scatter == g->scatter.type &&
            each->a_columns == has_columns(&g->a) && each->b_columns == has_columns(&g->b) &&
            each->operands_aligned == operands && each->results_aligned == results)
            return each;
    }
    return NULL;
}

/* The cheapest tiling that k is split for as `splits` says, and its cost; null where there is none. */
static const product_tiling *find_split(const architecture *arch, const product *x, const cuevo_gemm *g,
                                        int64_t *splits, double *least)
{
    const product_choice *offered = find_product(product_choices, product_choices_count, arch, x, g);
    const product_tiling *found = NULL;
    int64_t i;
    int k;
    for (i = 0; offered != NULL && i < offered->count; i++) {
        const product_tiling *each = &product_tilings[offered->first + i];
        const product_config *c = &product_configs[each->chosen];
        for (k = 0; k < product_splits_count; k++) {
            double cost;
            if (!product_serves(c, x, product_splits[k]))
                continue;
            cost = product_cost(c, x, product_splits[k], each->speed, arch);
            if (found == NULL || cost < *least) {
                found = each;
                *splits = product_splits[k];
                *least = cost;
            }
        }
    }
    return found;
}

/* The tiling of a kernel with tensor maps, and its cost; null where none of them serves. */
static const mapped_product_tiling *find_mapped_product(const architecture *arch, const product *x,
                                                        const cuevo_gemm *g, double *least)
{
    const product_choice *offered = find_product(mapped_product_choices, mapped_product_choices_count, arch, x, g);
    const mapped_product_tiling *found = NULL;
    int64_t i;
    for (i = 0; offered != NULL && i < offered->count; i++) {
        const mapped_product_tiling *each = &mapped_product_tilings[offered->first + i];
        const mapped_product_config *c = &mapped_product_configs[each->chosen];
        double cost;
        if (!mapped_product_serves(c, x))
            continue;
        cost = mapped_product_cost(c, x, each->speed, arch);
        if (found == NULL || cost < *least) {
            found = each;
            *least = cost;
        }
    }
    return found;
}

/* -- The call ------------------------------------------------------------------------------------------------- */

static cuevo_status plan_split(cuevo_plan *plan, const product_config *c, int64_t splits, const product *x,
                               const cuevo_gemm *g)
{
    cuevo_array partials, arrivals;
    int64_t elements[2];
    gemm_params p;
    cuevo_status status;
    if (product_blocks(c, x, splits) >= INT64_C(1) << 31)
        return CUEVO_TOO_LARGE;
    memset(&partials, 0, sizeof partials);
    memset(&arrivals, 0, sizeof arrivals);
    product_workspace(elements, c, x, splits);
    if (elements[0]) {
        partials.data = in_workspace(g->workspace, place_in_workspace(plan, 4 * (uint64_t)elements[0]));
        plan->cleared_bytes = 4 * (uint64_t)elements[1];
        plan->cleared_at = place_in_workspace(plan, plan->cleared_bytes);
        arrivals.data = in_workspace(g->workspace, plan->cleared_at);
    }
    memset(&p, 0, sizeof p);
    status = product_fields(&p, c, x, splits, &g->a, &g->b, &g->c, &g->out, &g->bias, &g->scatter, &partials, &arrivals,
                            g->alpha, g->beta);
    if (status != CUEVO_OK)
        return status;
    return add_launch(plan, (uint32_t)c->kernel, product_blocks(c, x, splits), c->threads, c->shared_bytes, &p,
                      sizeof p, CUEVO_FIRST);
}

/* Writes the tensor map of a or b at `map`. */
static cuevo_status encode_matrix(unsigned char *map, const cuevo_array *x, int64_t columns, int64_t box_rows,
                                  cuevo_encoder encoder)
{
    int64_t axes[5];
    uint64_t extents[3], strides[2];
    uint32_t box[3] = {64, 0, 1}, steps[3] = {1, 1, 1};
    int i;
    product_map_axes(axes, x, columns);
    for (i = 0; i < 3; i++)
        extents[i] = (uint64_t)axes[i];
    for (i = 0; i < 2; i++)
        strides[i] = (uint64_t)axes[3 + i];
    box[1] = (uint32_t)box_rows;
    if (encoder(map, x->type == CUEVO_BF16 ? MAP_BF16 : MAP_F16, 3, x->data, extents, strides, box, steps, 0,
                MAP_SWIZZLE_128, MAP_PROMOTION_256, 0))
        return CUEVO_ENCODER_FAILED;
    return CUEVO_OK;
}

static cuevo_status plan_mapped_product(cuevo_plan *plan, const mapped_product_config *c, const architecture *arch,
                                        const product *x, const cuevo_gemm *g, cuevo_encoder encoder)
{
    gemm_sm90a_params p;
    cuevo_status status;
    memset(&p, 0, sizeof p);
    if ((status = encode_matrix(p.a_map, &g->a, c->a_columns, c->a_box_rows, encoder)) != CUEVO_OK)
        return wrong(plan, status, "a");
    if ((status = encode_matrix(p.b_map, &g->b, c->b_columns, c->b_box_rows, encoder)) != CUEVO_OK)
        return wrong(plan, status, "b");
    status = mapped_product_fields(&p, c, x, &g->a, &g->b, &g->c, &g->out, &g->bias, &g->scatter, g->alpha, g->beta);
    if (status != CUEVO_OK)
        return status;
    return add_launch(plan, (uint32_t)c->kernel, mapped_product_blocks(c, x, arch), c->threads, c->shared_bytes, &p,
                      sizeof p, CUEVO_FIRST);
}

cuevo_status cuevo_plan_gemm(const cuevo_device *device, const cuevo_gemm *given, cuevo_plan *plan)
{
    cuevo_gemm g = *given;
    const mapped_product_tiling *mapped = NULL;
    const product_tiling *tiling;
    double of_mapped = 0, least = 0;
    int64_t splits = 1;
    architecture arch;
    product x;
    cuevo_status status;

    memset(plan, 0, sizeof *plan);
    memset(&x, 0, sizeof x);
    if ((status = state_product(plan, &x, &g)) != CUEVO_OK)
        return status;
    if ((status = find_architecture(device, &arch)) != CUEVO_OK)
        return status;
    if (x.batch == 0 || x.m == 0 || x.n == 0 ||
        (x.k == 0 && g.c.type == CUEVO_ABSENT && g.bias.type == CUEVO_ABSENT && g.scatter.type == CUEVO_ABSENT))
        return CUEVO_OK;
    if (device->encoder != NULL && arch.is_own)
        mapped = find_mapped_product(&arch, &x, &g, &of_mapped);
    if (mapped == NULL || of_mapped > least_cost_of_lower(&x, &arch)) {
        tiling = find_split(&arch, &x, &g, &splits, &least);
        if (mapped != NULL && tiling != NULL && least < of_mapped)
            mapped = NULL;
    } else {
        tiling = NULL;
    }
    if (mapped != NULL)
        status = plan_mapped_product(plan, &mapped_product_configs[mapped->instance], &arch, &x, &g, device->encoder);
    else if (tiling != NULL)
        status = plan_split(plan, &product_configs[splits > 1 ? tiling->split : tiling->whole], splits, &x, &g);
    else
        status = CUEVO_NOT_EXPORTED;
    if (status != CUEVO_OK)
        return status;
    return check_workspace(plan, g.workspace, g.workspace_bytes);
}

#endif
