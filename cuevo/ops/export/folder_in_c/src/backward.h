/* The planner of the backward pass. */
#ifndef CUEVO_BACKWARD_H
#define CUEVO_BACKWARD_H

#include "planning.h"

/* An array that only kernels see, contiguous, in the workspace. */
static cuevo_array workspace_array(cuevo_plan *plan, void *workspace, int64_t a, int64_t b, int64_t c, int64_t d,
                                   int64_t e)
{
    cuevo_array x;
    memset(&x, 0, sizeof x);
    x.type = CUEVO_F32;
    x.shape[0] = a;
    x.shape[1] = b;
    x.shape[2] = c;
    x.shape[3] = d;
    x.shape[4] = e;
    lay_in_workspace(plan, workspace, &x);
    return x;
}

/* -- Sums ----------------------------------------------------------------------------------------------------- */

static int64_t whole_root(int64_t of)
{
    int64_t root = (int64_t)sqrt((double)of);
    while (root * root > of)
        root--;
    while ((root + 1) * (root + 1) <= of)
        root++;
    return root;
}

/* Sums of `partials` [outer, terms, rows, columns] over their terms, into `sums` [outer, rows, columns]. Of many terms,
 * groups are summed first. */
static cuevo_status add_sum(cuevo_plan *plan, void *workspace, cuevo_array partials, const cuevo_array *sums,
                            cuevo_queue queue)
{
    for (;;) {
        const int64_t terms = partials.shape[1], columns = partials.shape[3];
        int64_t groups = 1, size, width, each;
        const sums_config *c = NULL;
        cuevo_array target = *sums;
        partial_sums_params p;
        cuevo_status status;
        int i;
        if (terms > MOST_TERMS) {
            each = whole_root(terms - 1) + 1;
            each = each < MOST_TERMS ? each : MOST_TERMS;
            groups = ceil_div(terms, each);
            groups = groups < MOST_GROUPS ? groups : MOST_GROUPS;
            target = workspace_array(plan, workspace, 1, groups, partials.shape[0], partials.shape[2], columns);
        }
        size = item_bytes(target.type);
        width = columns | 16 / size;
        width &= -width;
        each = ceil_div(terms, groups);
        for (i = 0; i < sums_configs_count && c == NULL; i++)
            if (sums_configs[i].type == (int64_t)target.type && sums_configs[i].width == width &&
                sums_configs[i].terms == sums_terms(each) && sums_configs[i].row_threads == sums_row_threads(columns))
                c = &sums_configs[i];
        if (c == NULL)
            return CUEVO_NOT_EXPORTED;
        memset(&p, 0, sizeof p);
        if ((status = sums_fields(&p, c, &partials, &target, groups)) != CUEVO_OK)
            return status;
        status = add_launch(plan, (uint32_t)c->kernel, sums_blocks(c, &partials), c->threads, 0, &p, sizeof p, queue);
        if (status != CUEVO_OK)
            return status;
        plan->launches[plan->count - 1].grid[1] = (uint32_t)groups;
        if (groups == 1)
            return CUEVO_OK;
        /* The groups are the terms of what follows. */
        partials.data = target.data;
        partials.shape[1] = groups;
        partials.strides[0] = target.strides[2];
        partials.strides[1] = target.strides[1];
        partials.strides[2] = target.strides[3];
    }
}

static cuevo_array as_partials(const cuevo_array *x, int64_t outer, int64_t terms, int64_t rows, int64_t columns,
                               int64_t outer_step, int64_t term_step, int64_t row_step)
{
    cuevo_array found = *x;
    found.shape[0] = outer;
    found.shape[1] = terms;
    found.shape[2] = rows;
    found.shape[3] = columns;
    found.strides[0] = outer_step;
    found.strides[1] = term_step;
    found.strides[2] = row_step;
    found.strides[3] = 4;
    return found;
}

/* The gradient of the pair bias, from sums [chunks, B, H, query positions, key positions]. */
static cuevo_status add_pair_sums(cuevo_plan *plan, const problem *x, void *workspace, const cuevo_array *partials,
                                  const cuevo_array *sums, cuevo_queue queue)
{
    const int64_t batches = sums->shape[0];
    const cuevo_array read =
        as_partials(partials, batches * x->heads, partials->shape[0] * x->batch / batches, x->queries, x->keys,
                    partials->strides[2], partials->strides[batches != x->batch], partials->strides[3]);
    return add_sum(plan, workspace, read, sums, queue);
}

/* The gradient of the mask, from sums [1, B, N, H, key positions]. */
static cuevo_status add_mask_sums(cuevo_plan *plan, const problem *x, void *workspace, const cuevo_array *partials,
                                  const cuevo_array *sums, cuevo_queue queue)
{
    const int64_t rows = sums->shape[1], step = partials->strides[3];
    /* Where what B is summed over is not side by side with the heads, these come first. */
    const int twice = sums->shape[0] != x->batch && rows != 1;
    const int64_t batches = twice ? x->batch : sums->shape[0];
    const int64_t terms = x->batch * x->rows * x->heads / (batches * rows);
    const cuevo_array read =
        as_partials(partials, batches * rows, terms, 1, x->keys, terms * step, step, step);
    cuevo_array of_rows;
    cuevo_status status;
    if (!twice)
        return add_sum(plan, workspace, read, sums, queue);
    of_rows = workspace_array(plan, workspace, 1, 1, batches, rows, x->keys);
    if ((status = add_sum(plan, workspace, read, &of_rows, queue)) != CUEVO_OK)
        return status;
    of_rows = as_partials(&of_rows, 1, batches, rows, x->keys, 0, rows * of_rows.strides[3], of_rows.strides[3]);
    return add_sum(plan, workspace, of_rows, sums, queue);
}

/* -- What both sides read ------------------------------------------------------------------------------------- */

static cuevo_status add_delta(cuevo_plan *plan, const problem *x, const cuevo_backward *b, const cuevo_array *lse,
                              const cuevo_array *stats)
{
    const int64_t positions = 16 * stats->shape[3];
    const delta_config *c = NULL;
    attention_delta_params p;
    cuevo_status status;
    int i;
    for (i = 0; i < delta_configs_count; i++) {
        const delta_config *each = &delta_configs[i];
        if (each->head_dim == x->head_dim && each->type == (int64_t)b->q.type && x->heads % each->block_heads == 0 &&
            (c == NULL || each->block_heads > c->block_heads))
            c = each;
    }
    if (c == NULL)
        return CUEVO_NOT_EXPORTED;
    memset(&p, 0, sizeof p);
    if ((status = delta_fields(&p, c, &b->out, &b->dout, lse, stats)) != CUEVO_OK)
        return status;
    return add_launch(plan, (uint32_t)c->kernel, delta_blocks(c, x, positions), c->threads, 0, &p, sizeof p,
                      CUEVO_FIRST);
}

static cuevo_status add_key_bias(cuevo_plan *plan, const problem *x, const cuevo_backward *b,
                                 const cuevo_array *key_bias)
{
    const int64_t positions = key_bias->shape[4];
    const key_bias_config *c = NULL;
    key_bias_params p;
    cuevo_status status;
    int i;
    for (i = 0; i < key_bias_configs_count && c == NULL; i++)
        if (key_bias_configs[i].mask == (int64_t)b->mask_bias.type)
            c = &key_bias_configs[i];
    if (c == NULL)
        return wrong(plan, CUEVO_NOT_EXPORTED, "mask_bias");
    memset(&p, 0, sizeof p);
    if ((status = key_bias_fields(&p, x, positions, key_bias, &b->mask_bias, b->scale)) != CUEVO_OK)
        return status;
    return add_launch(plan, (uint32_t)c->kernel, key_bias_blocks(c, x, positions), c->threads, 0, &p, sizeof p,
                      CUEVO_FIRST);
}

/* -- Sides ---------------------------------------------------------------------------------------------------- */

/* Groups of rows that a threadblock takes one after the other. */
static int64_t backward_groups(const backward_config *c, const problem *x, const architecture *arch)
{
    const int64_t row_groups = backward_row_groups(c, x);
    int64_t most, groups, chunks, found = 1;
    double least = 0;
    if (c->by_keys || !c->sums)
        return 1;
    most = backward_most_chunks(x);
    most = row_groups < most ? row_groups : most;
    for (chunks = 1; chunks <= most; chunks = backward_next_chunks(row_groups, groups, chunks)) {
        const double time = backward_time(c, x, arch, groups = ceil_div(row_groups, chunks));
        if (chunks == 1 || time < least) {
            found = groups;
            least = time;
        }
    }
    return found;
}

/* The tiling of a side, or null. */
static const backward_tiling *find_tiling(const choice *choices, int count, const architecture *arch, const problem *x,
                                          const cuevo_backward *b, int sums)
{
    const backward_tiling *found = NULL;
    double least = 0;
    int64_t i;
    int k;
    for (k = 0; k < count; k++) {
        const choice *offered = &choices[k];
        if (offered->architecture != arch->number || offered->head_dim != x->head_dim || offered->type != b->q.type ||
            offered->pair != b->pair_bias.type || offered->sums != sums)
            continue;
        for (i = 0; i < offered->count; i++) {
            const backward_tiling *each = &backward_tilings[offered->first + i];
            const backward_config *c = &backward_configs[each->chosen];
            const double cost = backward_cost(c, x, arch, each->speed, backward_groups(c, x, arch));
            if (found == NULL || cost < least) {
                found = each;
                least = cost;
            }
        }
    }
    return found;
}

typedef struct between {
    int64_t query_positions, key_positions;
    cuevo_array stats, key_bias;
} between;

static cuevo_status add_side(cuevo_plan *plan, const backward_config *c, const architecture *arch, const problem *x,
                             const cuevo_backward *b, const between *arrays, cuevo_queue queue)
{
    const cuevo_array none = {NULL, CUEVO_ABSENT, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}};
    const int64_t groups = backward_groups(c, x, arch);
    cuevo_array sums = none;
    evoformer_backward_params p;
    cuevo_status status;
    if (c->sums && c->by_keys)
        sums = workspace_array(plan, b->workspace, 1, x->batch, x->rows, x->heads, arrays->key_positions);
    else if (c->sums)
        sums = workspace_array(plan, b->workspace, backward_chunks(c, x, groups), x->batch, x->heads,
                               arrays->query_positions, arrays->key_positions);
    if (backward_blocks(c, x, groups) >= INT64_C(1) << 31)
        return CUEVO_TOO_LARGE;
    memset(&p, 0, sizeof p);
    status = backward_fields(&p, c, x, groups, &b->q, &b->k, &b->v, &b->dout, &b->pair_bias, &arrays->stats, &arrays->key_bias,
                             c->by_keys ? &b->dk : &b->dq, c->by_keys ? &b->dv : &none, c->by_keys ? &sums : &none,
                             c->by_keys ? &none : &sums, b->scale);
    if (status != CUEVO_OK)
        return status;
    status = add_launch(plan, (uint32_t)c->kernel, backward_blocks(c, x, groups), c->threads, c->shared_bytes, &p,
                        sizeof p, queue);
    if (status != CUEVO_OK || !c->sums)
        return status;
    return c->by_keys ? add_mask_sums(plan, x, b->workspace, &sums, &b->dmask_bias, queue)
                      : add_pair_sums(plan, x, b->workspace, &sums, &b->dpair_bias, queue);
}

/* -- The call ------------------------------------------------------------------------------------------------- */

/* Checks an array for a gradient: of the shape of `like`, contiguous, from a multiple of 16 bytes. */
static cuevo_status check_gradient(cuevo_plan *plan, const cuevo_array *x, const cuevo_array *like, const char *name)
{
    int64_t step = item_bytes(x->type);
    int i;
    if (memcmp(x->shape, like->shape, sizeof x->shape) != 0)
        return wrong(plan, CUEVO_WRONG_SHAPE, name);
    for (i = 4; i >= 0; i--) {
        if (x->shape[i] > 1 && x->strides[i] != step)
            return wrong(plan, CUEVO_WRONG_STRIDE, name);
        step *= x->shape[i];
    }
    if ((uintptr_t)x->data % 16)
        return wrong(plan, CUEVO_WRONG_STRIDE, name);
    if (x->data == NULL && !is_empty(x))
        return wrong(plan, CUEVO_NO_DATA, name);
    return CUEVO_OK;
}

static cuevo_status check_gradients(cuevo_plan *plan, const cuevo_backward *b)
{
    const cuevo_array *const found[] = {&b->dq, &b->dk, &b->dv, &b->dmask_bias, &b->dpair_bias};
    const cuevo_array *const of[] = {&b->q, &b->k, &b->v, &b->mask_bias, &b->pair_bias};
    static const char *const names[] = {"dq", "dk", "dv", "dmask_bias", "dpair_bias"};
    cuevo_status status;
    int i;
    for (i = 0; i < 5; i++) {
        const int absent = is_absent(found[i]);
        if (absent != is_absent(of[i]) && !(absent && i == 3))
            return wrong(plan, CUEVO_WRONG_SHAPE, names[i]);
        if (absent)
            continue;
        if (of[i]->type == CUEVO_BOOL || (found[i]->type != of[i]->type && (i < 3 || found[i]->type != CUEVO_F32)))
            return wrong(plan, CUEVO_WRONG_TYPE, names[i]);
        if ((status = check_gradient(plan, found[i], of[i], names[i])) != CUEVO_OK)
            return status;
    }
    return CUEVO_OK;
}

/* Checks a call; in `b` biases become as large as the problem. */
static cuevo_status check_backward(cuevo_plan *plan, problem *x, const cuevo_backward *given, cuevo_backward *b)
{
    cuevo_status status = state_problem(plan, x, &b->q, &b->k, &b->v, &b->mask_bias, &b->pair_bias, b->scale);
    if (status != CUEVO_OK)
        return status;
    if ((status = check_gradients(plan, given)) != CUEVO_OK)
        return status;
    if ((status = fit(plan, &b->dout, "BNQHD", x, "dout")) != CUEVO_OK)
        return status;
    if ((status = fit(plan, &b->out, "BNQHD", x, "out")) != CUEVO_OK)
        return status;
    if (b->dout.type != b->q.type || b->out.type != b->q.type)
        return wrong(plan, CUEVO_WRONG_TYPE, b->out.type == b->q.type ? "dout" : "out");
    if ((status = check_rows(plan, &b->out, "out")) != CUEVO_OK)
        return status;
    if ((uintptr_t)b->lse % 4)
        return wrong(plan, CUEVO_WRONG_STRIDE, "lse");
    if (b->lse == NULL && !is_empty(&b->q))
        return wrong(plan, CUEVO_NO_DATA, "lse");
    return CUEVO_OK;
}

static int64_t round_up(int64_t extent, int64_t a, int64_t b)
{
    const int64_t step = a > b ? a : b;
    return ceil_div(extent, step) * step;
}

static cuevo_status add_backward(cuevo_plan *plan, const architecture *arch, problem *x, cuevo_backward *b)
{
    const backward_tiling *of_queries, *of_keys;
    const backward_config *queries, *keys;
    const int packed = b->pair_bias.type != CUEVO_ABSENT && row_alignment(&b->pair_bias) != ROW_ALIGNMENT;
    cuevo_array lse;
    between arrays;
    cuevo_status status;

    memset(&lse, 0, sizeof lse);
    memset(&arrays, 0, sizeof arrays);
    lse.data = (void *)(uintptr_t)b->lse;
    if (row_alignment(&b->dout) < ROW_ALIGNMENT && (status = pack(plan, &b->dout, b->workspace, "dout")) != CUEVO_OK)
        return status;
    if ((status = pack_mask(plan, &b->mask_bias, b->workspace)) != CUEVO_OK)
        return status;
    if ((status = pack_pair(plan, &b->pair_bias, b->workspace)) != CUEVO_OK)
        return status;
    x->pair_keys = packed ? padded_keys(x, b->pair_bias.type) : x->keys;
    of_queries = find_tiling(backward_queries_choices, backward_queries_choices_count, arch, x, b,
                             b->pair_bias.type != CUEVO_ABSENT);
    of_keys = find_tiling(backward_keys_choices, backward_keys_choices_count, arch, x, b,
                          b->dmask_bias.type != CUEVO_ABSENT);
    if (of_queries == NULL || of_keys == NULL)
        return CUEVO_NOT_EXPORTED;
    queries = &backward_configs[of_queries->chosen];
    keys = &backward_configs[of_keys->chosen];
    arrays.query_positions = round_up(x->queries, queries->block_stationary, keys->block_streamed);
    arrays.key_positions = round_up(x->keys, queries->block_streamed, keys->block_stationary);
    arrays.stats = workspace_array(plan, b->workspace, x->batch, x->rows, x->heads, arrays.query_positions / 16, 48);
    if ((status = add_delta(plan, x, b, &lse, &arrays.stats)) != CUEVO_OK)
        return status;
    arrays.key_bias = workspace_array(plan, b->workspace, 1, 1, x->batch, x->rows, arrays.key_positions);
    if ((status = add_key_bias(plan, x, b, &arrays.key_bias)) != CUEVO_OK)
        return status;
    /* The queries' threadblocks, which live long, go first: those of keys fill what is left. */
    status = add_side(plan, &backward_configs[of_queries->instance], arch, x, b, &arrays, CUEVO_BESIDE);
    if (status != CUEVO_OK)
        return status;
    return add_side(plan, &backward_configs[of_keys->instance], arch, x, b, &arrays, CUEVO_AFTER);
}

cuevo_status cuevo_plan_backward(const cuevo_device *device, const cuevo_backward *given, cuevo_plan *plan)
{
    cuevo_backward b = *given;
    architecture arch;
    problem x;
    cuevo_status status;

    memset(plan, 0, sizeof *plan);
    memset(&x, 0, sizeof x);
    if ((status = check_backward(plan, &x, given, &b)) != CUEVO_OK)
        return status;
    if ((status = find_architecture(device, &arch)) != CUEVO_OK)
        return status;
    if (is_empty(&b.q) || x.keys == 0)
        return CUEVO_OK;
    if ((status = add_backward(plan, &arch, &x, &b)) != CUEVO_OK)
        return status;
    return check_workspace(plan, b.workspace, b.workspace_bytes);
}

#endif
