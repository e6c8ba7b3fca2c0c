/* A linear layer from C: y = x . w^T + bias, of weights as frameworks keep them, [outputs, inputs].
 *
 *   cuevo export gemm --orders nt --architectures sm_80,sm_90a,sm_100,sm_120 -o products
 *   cc -std=c11 -Iproducts/include -DCUEVO_FOLDER='"products"' linear.c \
 *       products/src/cuevo_launch.c products/src/cuevo_kernels.c -lcuda -lm -o linear
 *   ./linear
 *
 * Compares the result with one in double, and says how far it is away.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuevo_driver.h"

enum { POSITIONS = 137, INPUTS = 72, OUTPUTS = 88 };

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

static void check(CUresult result, const char *doing)
{
    const char *text = NULL;
    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorString(result, &text);
    fprintf(stderr, "%s: %s\n", doing, text ? text : "unknown error");
    exit(1);
}

/* Memory on the device, of the values at `host`. */
static void *on_device(const void *host, size_t bytes)
{
    CUdeviceptr memory;
    check(cuMemAlloc(&memory, bytes), "memory for an array");
    check(cuMemcpyHtoD(memory, host, bytes), "copying an array");
    return (void *)(uintptr_t)memory;
}

static bf16 x[POSITIONS][INPUTS], w[OUTPUTS][INPUTS], bias[OUTPUTS], y[POSITIONS][OUTPUTS];

/* Values between -1 and 1. */
static void fill(bf16 *values, size_t count, uint32_t state)
{
    size_t i;
    for (i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = to_bf16((float)(state >> 8) / (float)(1u << 23) - 1.0f);
    }
}

/* The distance of y from the exact result, relative to that. */
static double error(void)
{
    double wrong = 0, all = 0;
    int i, j, k;
    for (i = 0; i < POSITIONS; i++)
        for (j = 0; j < OUTPUTS; j++) {
            double exact = from_bf16(bias[j]), difference;
            for (k = 0; k < INPUTS; k++)
                exact += (double)from_bf16(x[i][k]) * from_bf16(w[j][k]);
            difference = from_bf16(y[i][j]) - exact;
            wrong += difference * difference;
            all += exact * exact;
        }
    return sqrt(wrong / all);
}

int main(void)
{
    enum { SIZE = sizeof(bf16) };
    CUdevice device;
    CUcontext context;
    cuevo_device described;
    static cuevo_plan plan;
    cuevo_gemm problem;
    cuevo_status status;
    uint32_t i;
    double found;

    check(cuInit(0), "starting the driver");
    check(cuDeviceGet(&device, 0), "the first device");
    check(cuDevicePrimaryCtxRetain(&context, device), "a context");
    check(cuCtxSetCurrent(context), "a context");
    check(cuevo_describe(device, &described), "the device's attributes");

    fill(&x[0][0], POSITIONS * INPUTS, 1);
    fill(&w[0][0], OUTPUTS * INPUTS, 2);
    fill(bias, OUTPUTS, 3);

    /* b [1, K, N] is w with its axes exchanged: its columns are contiguous. */
    const cuevo_array a = {on_device(x, sizeof x), CUEVO_BF16, {1, POSITIONS, INPUTS}, {0, SIZE * INPUTS, SIZE}};
    const cuevo_array b = {on_device(w, sizeof w), CUEVO_BF16, {1, INPUTS, OUTPUTS}, {0, SIZE, SIZE * INPUTS}};
    const cuevo_array added = {on_device(bias, sizeof bias), CUEVO_BF16, {OUTPUTS}, {SIZE}};
    const cuevo_array out = {on_device(y, sizeof y), CUEVO_BF16, {1, POSITIONS, OUTPUTS}, {0, SIZE * OUTPUTS, SIZE}};
    memset(&problem, 0, sizeof problem);
    problem.a = a;
    problem.b = b;
    problem.bias = added;
    problem.out = out;
    problem.alpha = 1;

    status = cuevo_plan_gemm(&described, &problem, &plan);
    if (status == CUEVO_OK && plan.workspace_bytes > 0) {
        CUdeviceptr workspace;
        check(cuMemAlloc(&workspace, plan.workspace_bytes), "a workspace");
        check(cuMemsetD8(workspace + plan.cleared_at, 0, plan.cleared_bytes), "clearing it");
        problem.workspace = (void *)(uintptr_t)workspace;
        problem.workspace_bytes = plan.workspace_bytes;
        status = cuevo_plan_gemm(&described, &problem, &plan);
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
    check(cuMemcpyDtoH(y, (CUdeviceptr)(uintptr_t)out.data, sizeof y), "the result");
    found = error();
    printf("relative error %.1e\n", found);
    return found < 1e-2 ? 0 : 1;
}
