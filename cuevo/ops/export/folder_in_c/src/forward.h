/* The planner of the forward pass. */
#ifndef CUEVO_FORWARD_H
#define CUEVO_FORWARD_H

#include "planning.h"

_Static_assert(sizeof(evoformer_forward_sm90a_params) <= CUEVO_MOST_PARAMETERS, "the largest block fits into a launch");

static cuevo_status plan_multistage(cuevo_plan *plan, const architecture *arch, const problem *x, cuevo_forward *f,
                                    const cuevo_array *lse)
{
    const choice *offered;
    const forward_tiling *tiling = NULL;
    const forward_config *c;
    evoformer_forward_params p;
    double least = 0;
    int64_t i, rest, last;
    cuevo_status status;

    if ((status = pack_mask(plan, &f->mask_bias, f->workspace)) != CUEVO_OK)
        return status;
    if ((status = pack_pair(plan, &f->pair_bias, f->workspace)) != CUEVO_OK)
        return status;
    offered = find_choice(forward_choices, forward_choices_count, arch, x, f->q.type,
                          f->mask_bias.type, f->pair_bias.type);
    if (offered == NULL)
        return CUEVO_NOT_EXPORTED;
    for (i = 0; i < offered->count; i++) {
        const forward_tiling *each = &forward_tilings[offered->first + i];
        const double cost = forward_cost(&forward_configs[each->chosen], each->speed, x, arch);
        if (tiling == NULL || cost < least) {
            tiling = each;
            least = cost;
        }
    }
    c = &forward_configs[tiling->instance];
    rest = x->queries % forward_configs[tiling->chosen].block_queries;
    if (rest && x->queries > rest && tiling->shorts >= 0 &&
        forward_gains_by_short_tile(&forward_configs[tiling->chosen], x, arch)) {
        last = short_tiles[tiling->shorts + (rest - 1) / SHORT_STEP];
        c = last < 0 ? c : &forward_configs[last];
    }
    if (forward_blocks(c, x) >= INT64_C(1) << 31)
        return CUEVO_TOO_LARGE;
    memset(&p, 0, sizeof p);
    status = forward_fields(&p, c, &f->q, &f->k, &f->v, &f->out, &f->mask_bias, &f->pair_bias, lse, f->scale);
    if (status != CUEVO_OK)
        return status;
    return add_launch(plan, (uint32_t)c->kernel, forward_blocks(c, x), c->threads, c->shared_bytes, &p, sizeof p,
                      CUEVO_FIRST);
}

/* Writes the tensor map of an array at `map`, whose axes but for the contiguous one have these extents and strides, of boxes of so many
 * columns, positions and rows, swizzled over row_bytes, of which L2 fetches so many bytes. */
static cuevo_status encode_axes(unsigned char *map, const cuevo_array *x, const int64_t axes[8], int64_t row_bytes,
                                int64_t columns, int64_t positions, int64_t rows, int64_t l2_promotion,
                                cuevo_encoder encoder)
{
    uint64_t extents[5], strides[4];
    uint32_t box[5] = {0, 0, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    const int swizzle = row_bytes == 32 ? MAP_SWIZZLE_32 : row_bytes == 64 ? MAP_SWIZZLE_64 : MAP_SWIZZLE_128;
    const int promotion = l2_promotion == 128  ? MAP_PROMOTION_128
                          : l2_promotion == 64 ? MAP_PROMOTION_64
                                               : MAP_PROMOTION_NONE;
    int i;
    extents[0] = (uint64_t)x->shape[4];
    for (i = 0; i < 4; i++) {
        extents[i + 1] = (uint64_t)axes[i];
        strides[i] = (uint64_t)axes[4 + i];
    }
    box[0] = (uint32_t)columns;
    box[1] = (uint32_t)positions;
    box[3] = (uint32_t)rows;
    if (encoder(map, x->type == CUEVO_BF16 ? MAP_BF16 : MAP_F16, 5, x->data, extents, strides, box, steps, 0, swizzle,
                promotion, 0))
        return CUEVO_ENCODER_FAILED;
    return CUEVO_OK;
}

/* The same of q, k, v or out. */
static cuevo_status encode(unsigned char *map, const mapped_config *c, const cuevo_array *x, int64_t positions,
                           int64_t rows, int64_t l2_promotion, cuevo_encoder encoder)
{
    int64_t axes[8];
    map_axes(axes, x);
    return encode_axes(map, x, axes, c->row_bytes, x->shape[4], positions, rows, l2_promotion, encoder);
}

/* The same of the pair bias, for a kernel that converts it. */
static cuevo_status encode_pair(unsigned char *map, const mapped_config *c, const cuevo_array *x, cuevo_encoder encoder)
{
    int64_t axes[8];
    pair_axes(axes, x);
    return encode_axes(map, x, axes, 2 * c->block_keys, c->block_keys, c->block_queries, 1, 128, encoder);
}

/* Whether the pair bias is packed for such a kernel. */
static int packs_pair(const problem *x, const cuevo_forward *f)
{
    const int masked = f->mask_bias.type != CUEVO_ABSENT;
    return masked && f->pair_bias.type == CUEVO_BF16 && mapped_prefers_packed(x);
}

/* The tiling for a problem that a kernel with tensor maps serves, and faster than another one; or null. */
static const mapped_tiling *find_mapped(const architecture *arch, const problem *x, const cuevo_forward *f)
{
    problem read = *x;
    const choice *offered = find_choice(mapped_choices, mapped_choices_count, arch, x, f->q.type, f->mask_bias.type,
                                        f->pair_bias.type);
    const mapped_tiling *found = NULL;
    double least = 0;
    int64_t i;
    const cuevo_type pair = f->pair_bias.type;
    const int64_t lower = pair == CUEVO_F32    ? mapped_prefers_lower_f32(x)
                          : pair == CUEVO_BF16 ? mapped_prefers_lower_bf16(x)
                          : pair == CUEVO_F16  ? mapped_prefers_lower_f16(x)
                                               : mapped_prefers_lower_none(x);
    if (offered == NULL || lower)
        return NULL;
    read.pair_mapped = x->pair_mapped || packs_pair(x, f);
    for (i = 0; i < offered->count; i++) {
        const mapped_tiling *each = &mapped_tilings[offered->first + i];
        const mapped_config *c = &mapped_configs[each->chosen];
        const double cost = mapped_cost(c, mapped_speed(c, &read), &read, arch);
        if (mapped_serves(c, &read, arch) && (found == NULL || cost < least)) {
            found = each;
            least = cost;
        }
    }
    return found;
}

/* Lays the tiles of the pair bias that such a kernel reads in the workspace, if there are any; of a pair bias that it converts, tiles are its axes. */
static cuevo_status lay_pair_tiles(cuevo_plan *plan, const mapped_config *c, cuevo_forward *f, cuevo_array *tiles)
{
    cuevo_status status;
    memset(tiles, 0, sizeof *tiles);
    if (c->converts) {
        tiles->strides[0] = f->pair_bias.strides[0];
        tiles->strides[1] = f->pair_bias.strides[2];
    }
    if (!c->tiled)
        return CUEVO_OK;
    if (alignment(&f->pair_bias, -1) % item_bytes(f->pair_bias.type) &&
        (status = pack(plan, &f->pair_bias, f->workspace, "pair_bias")) != CUEVO_OK)
        return status;
    tiles->type = CUEVO_F32;
    tiles_shape(tiles->shape, c, &f->pair_bias);
    lay_in_workspace(plan, f->workspace, tiles);
    if (tiles->shape[0] != f->pair_bias.shape[0])
        tiles->strides[0] = 0;
    return CUEVO_OK;
}

/* Puts a launch into the plan that makes these tiles. */
static cuevo_status tile_pair(cuevo_plan *plan, const mapped_config *c, const cuevo_forward *f, const cuevo_array *tiles)
{
    const tiles_config *own = NULL;
    pair_tiles_params p;
    cuevo_status status;
    int i;
    for (i = 0; i < tiles_configs_count && own == NULL; i++)
        if (tiles_configs[i].pair == (int64_t)f->pair_bias.type && tiles_configs[i].block_keys == c->block_keys)
            own = &tiles_configs[i];
    if (own == NULL)
        return CUEVO_NOT_EXPORTED;
    memset(&p, 0, sizeof p);
    if ((status = tiles_fields(&p, &f->pair_bias, tiles, mapped_scores_scale(c, f->scale))) != CUEVO_OK)
        return status;
    return add_launch(plan, (uint32_t)own->kernel, tiles_blocks(tiles), own->threads, 0, &p, sizeof p, CUEVO_FIRST);
}

/* The same of these tiles, if there are any, and those of the mask; lets f have the latter for its mask. */
static cuevo_status tile_biases(cuevo_plan *plan, const mapped_config *c, cuevo_forward *f, const cuevo_array *pair_tiles)
{
    const int64_t pair = c->tiled ? (int64_t)f->pair_bias.type : (int64_t)CUEVO_ABSENT;
    const bias_tiles_config *own = NULL;
    bias_tiles_params p;
    const double scale = mapped_scores_scale(c, f->scale);
    cuevo_array tiles;
    cuevo_status status;
    int i;
    for (i = 0; i < bias_tiles_configs_count && own == NULL; i++)
        if (bias_tiles_configs[i].mask == (int64_t)f->mask_bias.type && bias_tiles_configs[i].pair == pair &&
            bias_tiles_configs[i].block_rows == c->block_rows && bias_tiles_configs[i].block_keys == c->block_keys &&
            bias_tiles_configs[i].added == c->mask_addends &&
            bias_tiles_configs[i].counted_tiles == c->counted_tiles)
            own = &bias_tiles_configs[i];
    if (own == NULL)
        return CUEVO_NOT_EXPORTED;
    memset(&tiles, 0, sizeof tiles);
    tiles.type = CUEVO_BOOL; /* bytes */
    mask_tiles_shape(tiles.shape, own, &f->mask_bias);
    tiles.shape[4] = 1;
    lay_in_workspace(plan, f->workspace, &tiles);
    memset(&p, 0, sizeof p);
    status = c->tiled ? bias_tiles_fields(&p, own, &f->mask_bias, &tiles, &f->pair_bias, pair_tiles, scale)
                      : mask_tiles_fields(&p, &f->mask_bias, &tiles, scale);
    if (status != CUEVO_OK)
        return status;
    status = add_launch(plan, (uint32_t)own->kernel, bias_tiles_blocks(own, &tiles, pair_tiles), own->threads, 0, &p,
                        sizeof p, CUEVO_FIRST);
    f->mask_bias.data = tiles.data;
    mask_tiles_seen_strides(f->mask_bias.strides, own, &tiles);
    return status;
}

/* Works that a cluster of a launch has one after the other. */
static double rounds_of(const mapped_config *c, const problem *x, int64_t blocks)
{
    int64_t slices[4];
    mapped_slices(slices, c, x, blocks);
    return mapped_rounds(c, x, blocks, slices);
}

/* How many of a device's threadblocks take the works of a last tile beside those of the whole ones; 0: each launch has all of the device. */
static int64_t blocks_of_last(const architecture *arch, const mapped_config *whole, const mapped_config *low,
                              const problem *x, const problem *last)
{
    const int64_t all = arch->multiprocessors;
    const int64_t least = mapped_least_blocks_of_last(whole, x, arch, mapped_works(whole, x), mapped_works(low, last));
    double fewest;
    int64_t best = 0, more;
    if (least == 0)
        return 0;
    fewest = 100 * (rounds_of(whole, x, all) + rounds_of(low, last, all)) - 10;
    for (more = 0; more < 3; more++) {
        const int64_t most = all - whole->cluster, wanted = least + more * whole->cluster;
        const int64_t share = wanted < most ? wanted : most;
        const double of_whole = 100 * rounds_of(whole, x, all - share);
        const double of_last = (double)mapped_last_hundredths(whole, x) * rounds_of(low, last, share);
        const double rounds = of_whole > of_last ? of_whole : of_last;
        if (rounds < fewest) {
            best = share;
            fewest = rounds;
        }
    }
    return best;
}

static cuevo_status plan_mapped(cuevo_plan *plan, const architecture *arch, const mapped_tiling *tiling,
                                const problem *x, cuevo_forward *f, const cuevo_array *lse, cuevo_encoder encoder)
{
    const int added = lse->data != NULL;
    const mapped_config *whole = &mapped_configs[added ? tiling->whole_with_lse : tiling->whole];
    const mapped_config *low = &mapped_configs[added ? tiling->low_with_lse : tiling->low];
    const int64_t rest = x->queries % whole->block_queries;
    const int parts = mapped_has_last_tile(whole, x) ? 2 : 1;
    int64_t of_last = 0;
    problem part[2];
    cuevo_array tiles;
    cuevo_status status;
    int n, together;
    if ((status = pack_mask(plan, &f->mask_bias, f->workspace)) != CUEVO_OK)
        return status;
    if (packs_pair(x, f) && (status = pack(plan, &f->pair_bias, f->workspace, "pair_bias")) != CUEVO_OK)
        return status;
    if ((status = lay_pair_tiles(plan, whole, f, &tiles)) != CUEVO_OK)
        return status;
    if (whole->reads_mask_tiles && (status = tile_biases(plan, whole, f, &tiles)) != CUEVO_OK)
        return status;
    if (whole->tiled && !whole->reads_mask_tiles && (status = tile_pair(plan, whole, f, &tiles)) != CUEVO_OK)
        return status;
    part[0] = part[1] = *x;
    if (parts == 2) {
        part[0].queries = x->queries - rest;
        part[1].queries = rest;
    }
    /* Beside each other, where there are launches that both follow. */
    together = parts == 2 && plan->count;
    if (together && arch->two_streams)
        of_last = blocks_of_last(arch, whole, low, &part[0], &part[1]);
    for (n = 0; n < parts; n++) {
        /* The whole tiles right behind the launches that both follow. */
        const int i = together ? 1 - n : n;
        const mapped_config *c = i ? low : whole;
        const int64_t blocks = i && of_last ? of_last : arch->multiprocessors - of_last;
        const int64_t l2_promotion = mapped_l2_promotion(c, &part[i]);
        int64_t slices[4];
        evoformer_forward_sm90a_params p;
        memset(&p, 0, sizeof p);
        if ((status = encode(p.q_map, c, &f->q, c->block_queries, c->block_rows, l2_promotion, encoder)) !=
            CUEVO_OK)
            return wrong(plan, status, "q");
        if ((status = encode(p.k_map, c, &f->k, c->block_keys, c->block_rows, l2_promotion, encoder)) != CUEVO_OK)
            return wrong(plan, status, "k");
        if ((status = encode(p.v_map, c, &f->v, c->block_keys, c->block_rows, l2_promotion, encoder)) != CUEVO_OK)
            return wrong(plan, status, "v");
        if ((status = encode(p.out_map, c, &f->out, c->stored_queries, 1, 128, encoder)) != CUEVO_OK)
            return wrong(plan, status, "out");
        if (c->converts && (status = encode_pair(p.pair_map, c, &f->pair_bias, encoder)) != CUEVO_OK)
            return wrong(plan, status, "pair_bias");
        mapped_slices(slices, c, &part[i], blocks);
        status = mapped_fields(&p, c, &part[i], slices, &f->out, &f->mask_bias, &tiles, lse, f->scale,
                               i ? x->queries - rest : 0);
        if (status != CUEVO_OK)
            return status;
        status = add_launch(plan, (uint32_t)c->kernel, mapped_blocks(c, &part[i], blocks, slices), c->threads,
                            c->shared_bytes, &p, sizeof p, !together ? CUEVO_FIRST : i ? CUEVO_BESIDE : CUEVO_AFTER);
        if (status != CUEVO_OK)
            return status;
    }
    return CUEVO_OK;
}

cuevo_status cuevo_plan_forward(const cuevo_device *device, const cuevo_forward *given, cuevo_plan *plan)
{
    cuevo_forward f = *given;
    const mapped_tiling *mapped = NULL;
    cuevo_array lse;
    architecture arch;
    problem x;
    cuevo_status status;

    memset(plan, 0, sizeof *plan);
    memset(&x, 0, sizeof x);
    if ((status = state_problem(plan, &x, &f.q, &f.k, &f.v, &f.mask_bias, &f.pair_bias, f.scale)) != CUEVO_OK)
        return status;
    if ((status = fit(plan, &f.out, "BNQHD", &x, "out")) != CUEVO_OK)
        return status;
    if (f.out.type != f.q.type)
        return wrong(plan, CUEVO_WRONG_TYPE, "out");
    if ((status = check_rows(plan, &f.out, "out")) != CUEVO_OK)
        return status;
    if (overlaps(&f.out, 4))
        return wrong(plan, CUEVO_WRONG_STRIDE, "out");
    if ((uintptr_t)f.lse % 4)
        return wrong(plan, CUEVO_WRONG_STRIDE, "lse");
    if ((status = find_architecture(device, &arch)) != CUEVO_OK)
        return status;
    if (is_empty(&f.q) || x.keys == 0)
        return CUEVO_OK;
    memset(&lse, 0, sizeof lse);
    lse.data = f.lse;
    x.mapped = x.mapped && is_mapped(&f.out);
    if (device->encoder != NULL && arch.is_own)
        mapped = find_mapped(&arch, &x, &f);
    status = mapped ? plan_mapped(plan, &arch, mapped, &x, &f, &lse, device->encoder)
                    : plan_multistage(plan, &arch, &x, &f, &lse);
    if (status != CUEVO_OK)
        return status;
    return check_workspace(plan, f.workspace, f.workspace_bytes);
}

#endif
