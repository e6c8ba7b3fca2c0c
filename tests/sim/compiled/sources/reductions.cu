// Reductions: of blocks, warps, the whole grid.
#include <cuda_fp16.h>

extern "C" __global__ void block_sum(const int* in, int* out, int n) {
    __shared__ int partial[64];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    partial[t] = i < n ? in[i] : 0;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = partial[0];
}

extern "C" __global__ void warp_sum(const int* in, int* out, int n) {
    int value = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int by = 16; by > 0; by /= 2) value += __shfl_down_sync(0xffffffff, value, by);
    if (threadIdx.x % 32 == 0) out[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = value;
}

extern "C" __global__ void atomic_sum(const int* in, int* out, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(out + in[i] % 4, 1);
}

extern "C" __global__ void float_maximum(const float* in, float* out, int n) {
    __shared__ float of_warps[2];
    float most = -INFINITY;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, in[i]);
    for (int by = 16; by > 0; by /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, by));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = fmaxf(of_warps[0], of_warps[1]);
}

__device__ unsigned int blocks_done;

extern "C" __global__ void last_block_sum(const int* in, int* out, int n) {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < 32; i++) sum += in[32 * blockIdx.x + i];
        out[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicInc(&blocks_done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        volatile int* parts = out;
        int total = 0;
        for (int i = 0; i < gridDim.x; i++) total += parts[i];
        out[gridDim.x] = total;
    }
}

extern "C" __global__ void half2_dot(const __half2* in, float* out, int n) {
    __half2 sum = __float2half2_rn(0.f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum = __hfma2(in[i], in[i], sum);
    out[threadIdx.x] = __low2float(sum) + __high2float(sum);
}

extern "C" __global__ void argmin(const int* in, int* out, int n) {
    __shared__ int values[64], places[64];
    int t = threadIdx.x, best = 0x7fffffff, at = -1;
    for (int i = t; i < n; i += 64)
        if (in[i] < best) best = in[i], at = i;
    values[t] = best;
    places[t] = at;
    for (int half = 32; half > 0; half /= 2) {
        __syncthreads();
        if (t < half && (values[t + half] < values[t] ||
                         (values[t + half] == values[t] && places[t + half] < places[t]))) {
            values[t] = values[t + half];
            places[t] = places[t + half];
        }
    }
    if (t == 0) out[0] = values[0], out[1] = places[0];
}

struct Range { int low, high; };

__device__ Range join(Range a, Range b) {
    return {min(a.low, b.low), max(a.high, b.high)};
}

extern "C" __global__ void ranges(const int* in, int* out, int n) {
    Range own = {in[threadIdx.x], in[threadIdx.x]};
    for (int by = 1; by < 32; by *= 2) {
        Range other = {__shfl_xor_sync(~0u, own.low, by), __shfl_xor_sync(~0u, own.high, by)};
        own = join(own, other);
    }
    if (threadIdx.x % 32 == 0) ((int2*)out)[threadIdx.x / 32] = make_int2(own.low, own.high);
}

extern "C" __global__ void count_odd(const int* in, int* out, int n) {
    unsigned int odd = __ballot_sync(~0u, in[threadIdx.x] & 1);
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = __popc(odd);
}

extern "C" __global__ void double_mean(const double* in, double* out, int n) {
    __shared__ double sums[32];
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum += in[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
        for (double each : sums) total += each;
        out[0] = total / n;
    }
}
