// Groups, barriers, copies that go on by themselves, locks and flags.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
namespace cg = cooperative_groups;

extern "C" __global__ void tile_sums(const int* in, int* out, int n) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int value = in[threadIdx.x];
    for (int by = tile.size() / 2; by > 0; by /= 2) value += tile.shfl_down(value, by);
    if (tile.thread_rank() == 0) out[threadIdx.x / 8] = value;
}

extern "C" __global__ void group_reduce(const int* in, int* out, int n) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int x = in[threadIdx.x];
    int sum = cg::reduce(warp, x, cg::plus<int>()), most = cg::reduce(warp, x, cg::greater<int>());
    out[threadIdx.x] = 1000 * most + sum;
}

extern "C" __global__ void coalesced_counter(const int* in, int* out, int n) {
    if (in[threadIdx.x] % 3 == 0) {
        auto active = cg::coalesced_threads();
        int first = 0;
        if (active.thread_rank() == 0) first = atomicAdd(out, (int)active.size());
        out[1 + active.shfl(first, 0) + active.thread_rank()] = 1;
    }
}

extern "C" __global__ void matching(const int* in, int* out, int n) {
    unsigned int same = __match_any_sync(~0u, in[threadIdx.x]);
    int leader = __ffs(same) - 1, all;
    __match_all_sync(~0u, in[threadIdx.x / 32 * 32], &all);
    out[threadIdx.x] = 100 * __popc(same) + 10 * (leader == threadIdx.x % 32) + all;
}

extern "C" __global__ void votes(const int* in, int* out, int n) {
    bool even = in[threadIdx.x] % 2 == 0;
    out[threadIdx.x] = 4 * __all_sync(~0u, even) + 2 * __any_sync(~0u, even) +
                       (__shfl_sync(~0u, (int)even, (threadIdx.x + 5) % 32));
}

extern "C" __global__ void half_warps(const int* in, int* out, int n) {
    unsigned int mask = threadIdx.x % 32 < 16 ? 0xffff : 0xffff0000;
    out[threadIdx.x] = __reduce_add_sync(mask, in[threadIdx.x]);
}

extern "C" __global__ void block_barrier(const int* in, int* out, int n) {
    __shared__ int values[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    if (threadIdx.x == 0) init(&ready, blockDim.x);
    __syncthreads();
    values[threadIdx.x] = in[threadIdx.x];
    auto token = ready.arrive();
    ready.wait(std::move(token));
    out[threadIdx.x] = values[63 - threadIdx.x];
}

extern "C" __global__ void pipelined_copies(const int* in, int* out, int n) {
    __shared__ int stages[2][32];
    int t = threadIdx.x, sum = 0;
    for (int i = 0; i < 2; i++) {
        __pipeline_memcpy_async(&stages[i][t], in + 32 * i + t, sizeof(int));
        __pipeline_commit();
    }
    for (int i = 0; i < n / 32; i++) {
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += stages[i % 2][31 - t] * (i + 1);
        __syncthreads();
        if (i + 2 < n / 32)
            __pipeline_memcpy_async(&stages[i % 2][t], in + 32 * (i + 2) + t, sizeof(int));
        __pipeline_commit();
    }
    out[t] = sum;
}

extern "C" __global__ void pipeline_of_blocks(const int* in, int* out, int n) {
    __shared__ __align__(16) int staged[2][64];
    auto pipe = cuda::make_pipeline();
    int t = threadIdx.x, sum = 0;
    pipe.producer_acquire();
    cuda::memcpy_async(&staged[0][2 * t], in + 2 * t, sizeof(int2), pipe);
    pipe.producer_commit();
    for (int i = 0; i < n / 64; i++) {
        if (i + 1 < n / 64) {
            pipe.producer_acquire();
            cuda::memcpy_async(&staged[(i + 1) % 2][2 * t], in + 64 * (i + 1) + 2 * t, sizeof(int2), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += staged[i % 2][2 * t] - staged[i % 2][2 * t + 1];
        pipe.consumer_release();
    }
    out[t] = sum;
}

extern "C" __global__ void named_barriers(const int* in, int* out, int n) {
    __shared__ int handed[32];
    if (threadIdx.x < 32) {
        handed[threadIdx.x] = 2 * in[threadIdx.x];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
        out[threadIdx.x] = 0;
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[threadIdx.x] = handed[63 - threadIdx.x];
    }
}

__device__ int lock, guarded;

extern "C" __global__ void spin_lock(const int* in, int* out, int n) {
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(&lock, 0, 1) != 0) {}
        __threadfence();
        int seen = *(volatile int*)&guarded;
        *(volatile int*)&guarded = seen + in[threadIdx.x];
        __threadfence();
        atomicExch(&lock, 0);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        out[0] = *(volatile int*)&guarded;
        guarded = 0;
    }
}

__device__ volatile int flag, letter;

extern "C" __global__ void hand_over(const int* in, int* out, int n) {
    if (threadIdx.x == 0) {
        letter = in[0] + 1;
        __threadfence();
        flag = 1;
    } else if (threadIdx.x == 32) {
        while (flag == 0) {}
        __threadfence();
        out[0] = letter;
        flag = 0;
    }
}

extern "C" __global__ void pyramid(const int* in, int* out, int n) {
    auto block = cg::this_thread_block();
    __shared__ int level[64];
    level[block.thread_rank()] = in[block.thread_rank()];
    block.sync();
    for (int half = 32; half > 0; half /= 2) {
        int sum = 0;
        if (block.thread_rank() < half)
            sum = level[2 * block.thread_rank()] - level[2 * block.thread_rank() + 1];
        block.sync();
        if (block.thread_rank() < half) level[block.thread_rank()] = sum;
        block.sync();
    }
    if (block.thread_rank() == 0) out[0] = level[0];
}
