/* Evoformer attention from C: odd lengths, a mask, and a pair bias as a linear layer leaves it, [B, Lq, Lk, H].
 *
 *   cuevo export forward --head-dims 16 --architectures sm_80,sm_90a,sm_100,sm_120 -o attention
 *   cc -std=c11 -Iattention/include -DCUEVO_FOLDER='"attention"' forward.c \
 *       attention/src/cuevo_launch.c attention/src/cuevo_kernels.c -lcuda -lm -o forward
 *   ./forward
 *
 * Compares the result with one in double, of every EACHth query, and says how far it is away. Other sizes, for which TMA and wgmma are
 * faster on a device of sm_90: -DSIZES='N = 384, LQ = 315, LK = 293, H = 2, EACH = 29'
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuevo_driver.h"

#ifndef SIZES
#define SIZES N = 3, LQ = 37, LK = 53, H = 2, EACH = 1
#endif
enum { B = 1, D = 16, SIZES };

typedef uint16_t bf16;

static float from_bf16(bf16 x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bf16 to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

/* Something between -2 and 2. */
static bf16 value(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return to_bf16((float)(*state >> 8) / (float)(1u << 22) - 2.0f);
}

static void check(CUresult result, const char *doing)
{
    const char *text = NULL;
    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorString(result, &text);
    fprintf(stderr, "%s: %s\n", doing, text ? text : "unknown error");
    exit(1);
}

/* An array of five axes in memory of its own on the device, of the values at `host`, its axes in this order in memory. */
static cuevo_array on_device(const bf16 *host, size_t count, const int64_t shape[5], const int order[5])
{
    cuevo_array x;
    CUdeviceptr memory;
    int64_t step = sizeof(bf16);
    int i;
    memset(&x, 0, sizeof x);
    x.type = CUEVO_BF16;
    for (i = 4; i >= 0; i--) {
        x.shape[order[i]] = shape[order[i]];
        x.strides[order[i]] = step;
        step *= shape[order[i]];
    }
    check(cuMemAlloc(&memory, count * sizeof(bf16)), "memory for an array");
    if (host != NULL)
        check(cuMemcpyHtoD(memory, host, count * sizeof(bf16)), "copying an array");
    x.data = (void *)(uintptr_t)memory;
    return x;
}

static bf16 q[B][N][LQ][H][D], k[B][N][LK][H][D], v[B][N][LK][H][D], out[B][N][LQ][H][D];
static bf16 mask_bias[B][N][LK], pair_bias[B][LQ][LK][H];

static void fill(bf16 *x, size_t count, uint32_t seed)
{
    size_t i;
    for (i = 0; i < count; i++)
        x[i] = value(&seed);
}

/* The distance of those queries of `out` from the exact result, relative to that. */
static double error(double scale)
{
    double wrong = 0, all = 0, p[LK];
    int b, n, i, j, h, d;
    for (b = 0; b < B; b++)
        for (n = 0; n < N; n++)
            for (i = 0; i < LQ; i += EACH)
                for (h = 0; h < H; h++) {
                    double most = -INFINITY, sum = 0;
                    for (j = 0; j < LK; j++) {
                        double dot = 0;
                        for (d = 0; d < D; d++)
                            dot += (double)from_bf16(q[b][n][i][h][d]) * from_bf16(k[b][n][j][h][d]);
                        p[j] = dot * scale + from_bf16(mask_bias[b][n][j]) + from_bf16(pair_bias[b][i][j][h]);
                        most = p[j] > most ? p[j] : most;
                    }
                    for (j = 0; j < LK; j++)
                        sum += p[j] = exp(p[j] - most);
                    for (d = 0; d < D; d++) {
                        double exact = 0, difference;
                        for (j = 0; j < LK; j++)
                            exact += p[j] / sum * from_bf16(v[b][n][j][h][d]);
                        difference = from_bf16(out[b][n][i][h][d]) - exact;
                        wrong += difference * difference;
                        all += exact * exact;
                    }
                }
    return sqrt(wrong / all);
}

int main(void)
{
    static const int in_order[] = {0, 1, 2, 3, 4}, heads_last[] = {0, 1, 3, 4, 2};
    static const int64_t of_queries[] = {B, N, LQ, H, D}, of_keys[] = {B, N, LK, H, D};
    static const int64_t of_mask[] = {B, N, 1, 1, LK}, of_pair[] = {B, 1, H, LQ, LK};
    static cuevo_plan plan;
    CUdevice device;
    CUcontext context;
    CUdeviceptr workspace = 0;
    cuevo_device described;
    cuevo_forward problem;
    cuevo_status status;
    double found;
    uint32_t i;

    fill(&q[0][0][0][0][0], sizeof q / sizeof(bf16), 1);
    fill(&k[0][0][0][0][0], sizeof k / sizeof(bf16), 2);
    fill(&v[0][0][0][0][0], sizeof v / sizeof(bf16), 3);
    fill(&mask_bias[0][0][0], sizeof mask_bias / sizeof(bf16), 4);
    fill(&pair_bias[0][0][0][0], sizeof pair_bias / sizeof(bf16), 5);

    check(cuInit(0), "starting the driver");
    check(cuDeviceGet(&device, 0), "the first device");
    check(cuDevicePrimaryCtxRetain(&context, device), "a context");
    check(cuCtxSetCurrent(context), "a context");
    check(cuevo_describe(device, &described), "the device's attributes");

    memset(&problem, 0, sizeof problem);
    problem.q = on_device(&q[0][0][0][0][0], sizeof q / sizeof(bf16), of_queries, in_order);
    problem.k = on_device(&k[0][0][0][0][0], sizeof k / sizeof(bf16), of_keys, in_order);
    problem.v = on_device(&v[0][0][0][0][0], sizeof v / sizeof(bf16), of_keys, in_order);
    problem.out = on_device(NULL, sizeof out / sizeof(bf16), of_queries, in_order);
    problem.mask_bias = on_device(&mask_bias[0][0][0], sizeof mask_bias / sizeof(bf16), of_mask, in_order);
    problem.pair_bias = on_device(&pair_bias[0][0][0][0], sizeof pair_bias / sizeof(bf16), of_pair, heads_last);
    problem.scale = 1.0 / sqrt((double)D);

    status = cuevo_plan_forward(&described, &problem, &plan);
    if (status == CUEVO_OK && plan.workspace_bytes > 0) {
        check(cuMemAlloc(&workspace, plan.workspace_bytes), "a workspace");
        problem.workspace = (void *)(uintptr_t)workspace;
        problem.workspace_bytes = plan.workspace_bytes;
        status = cuevo_plan_forward(&described, &problem, &plan);
    }
    if (status != CUEVO_OK) {
        fprintf(stderr, "%s: %s\n", plan.wrong ? plan.wrong : "the problem", cuevo_status_text(status));
        return 1;
    }
    for (i = 0; i < plan.count; i++) {
        CUmodule module;
        CUfunction function;
        check(cuevo_load(CUEVO_FOLDER, plan.launches[i].kernel, &module, &function), "a kernel");
        check(cuevo_queue_launch(&plan.launches[i], function, NULL), "a launch");
        printf("%s on %u blocks\n", cuevo_kernels[plan.launches[i].kernel].entry, plan.launches[i].grid[0]);
    }
    check(cuMemcpyDtoH(out, (CUdeviceptr)(uintptr_t)problem.out.data, sizeof out), "the result");
    found = error(problem.scale);
    printf("relative error %.1e\n", found);
    return found < 1e-2 ? 0 : 1;
}
