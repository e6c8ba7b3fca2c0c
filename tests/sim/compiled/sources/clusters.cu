// What sm_90 has: clusters, and copies by TMA.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>
namespace cg = cooperative_groups;

extern "C" __global__ void __cluster_dims__(2, 1, 1) neighbours(const int* in, int* out, int n) {
    __shared__ int own[32];
    auto cluster = cg::this_cluster();
    own[threadIdx.x] = in[32 * blockIdx.x + threadIdx.x];
    cluster.sync();
    int* other = cluster.map_shared_rank(own, cluster.block_rank() ^ 1);
    out[32 * blockIdx.x + threadIdx.x] = other[31 - threadIdx.x];
    cluster.sync();
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_histogram(const int* in, int* out, int n) {
    __shared__ int bins[4];
    auto cluster = cg::this_cluster();
    if (threadIdx.x < 4) bins[threadIdx.x] = 0;
    cluster.sync();
    int x = in[32 * blockIdx.x + threadIdx.x] & 15;
    atomicAdd(cluster.map_shared_rank(bins, x / 4) + x % 4, 1);
    cluster.sync();
    if (threadIdx.x < 4) out[4 * cluster.block_rank() + threadIdx.x] = bins[threadIdx.x];
}

extern "C" __global__ void bulk_copy(const int* in, int* out, int n) {
    __shared__ alignas(16) int tile[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    if (threadIdx.x == 0) init(&ready, blockDim.x);
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    cuda::barrier<cuda::thread_scope_block>::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(tile, in, cuda::aligned_size_t<16>(sizeof(tile)), ready);
        token = cuda::device::barrier_arrive_tx(ready, 1, sizeof(tile));
    } else {
        token = ready.arrive();
    }
    ready.wait(std::move(token));
    tile[threadIdx.x] += 7;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, out, tile, sizeof(tile));
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group(cuda::ptx::n32_t<0>());
    }
}
