// Tiles, stencils, rows.
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void transpose(const float* in, float* out, int n) {
    __shared__ float tile[16][17];
    int x = 16 * blockIdx.x + threadIdx.x, y = 16 * blockIdx.y + threadIdx.y;
    if (x < n && y < n) tile[threadIdx.y][threadIdx.x] = in[y * n + x];
    __syncthreads();
    x = 16 * blockIdx.y + threadIdx.x;
    y = 16 * blockIdx.x + threadIdx.y;
    if (x < n && y < n) out[y * n + x] = tile[threadIdx.x][threadIdx.y];
}

template <typename T> __device__ void product(const T* in, T* out, int n) {
    __shared__ T a[8][8], b[8][8];
    int x = threadIdx.x, y = threadIdx.y;
    T sum = 0;
    for (int k = 0; k < n; k += 8) {
        a[y][x] = in[(8 * blockIdx.y + y) * n + k + x];
        b[y][x] = in[n * n + (k + y) * n + 8 * blockIdx.x + x];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) sum += a[y][i] * b[i][x];
        __syncthreads();
    }
    out[(8 * blockIdx.y + y) * n + 8 * blockIdx.x + x] = sum;
}

extern "C" __global__ void float_product(const float* in, float* out, int n) { product(in, out, n); }
extern "C" __global__ void double_product(const double* in, double* out, int n) { product(in, out, n); }
extern "C" __global__ void long_product(const long long* in, long long* out, int n) { product(in, out, n); }

__constant__ float weights[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};

extern "C" __global__ void stencil(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int k = -2; k <= 2; k++) {
        int at = min(max(i + k, 0), n - 1);
        sum += weights[k + 2] * in[at];
    }
    out[i] = sum;
}

extern "C" __global__ void vector_copy(const float4* in, float4* out, int n) {
    float4 v = __ldg(in + threadIdx.x);
    out[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
}

extern "C" __global__ void softmax(const float* in, float* out, int n) {
    const float* row = in + threadIdx.x * n;
    float most = row[0], sum = 0;
    for (int i = 1; i < n; i++) most = fmaxf(most, row[i]);
    for (int i = 0; i < n; i++) sum += expf(row[i] - most);
    for (int i = 0; i < n; i++) out[threadIdx.x * n + i] = expf(row[i] - most) / sum;
}

extern "C" __global__ void layer_norm(const float* in, float* out, int n) {
    float x = in[blockIdx.x * 32 + threadIdx.x], sum = x, squares = x * x;
    for (int by = 16; by; by /= 2) {
        sum += __shfl_xor_sync(~0u, sum, by);
        squares += __shfl_xor_sync(~0u, squares, by);
    }
    float mean = sum / 32, variance = squares / 32 - mean * mean;
    out[blockIdx.x * 32 + threadIdx.x] = (x - mean) * rsqrtf(variance + 1e-5f);
}

template <int M, int N, int K, typename A, typename C, typename RowsOfB>
__device__ void warp_product(const A* in, C* out, float scale) {
    wmma::fragment<wmma::matrix_a, M, N, K, A, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, M, N, K, A, RowsOfB> b;
    wmma::fragment<wmma::accumulator, M, N, K, C> c;
    wmma::fill_fragment(c, (C)1);
    wmma::load_matrix_sync(a, in, K);
    wmma::load_matrix_sync(b, in + M * K, std::is_same<RowsOfB, wmma::row_major>::value ? N : K);
    wmma::mma_sync(c, a, b, c);
    for (int i = 0; i < c.num_elements; i++) c.x[i] = c.x[i] * (C)scale;
    wmma::store_matrix_sync(out, c, N, wmma::mem_row_major);
}

extern "C" __global__ void wmma_half(const half* in, float* out, int n) {
    warp_product<16, 16, 16, half, float, wmma::col_major>(in, out, 2);
}
extern "C" __global__ void wmma_tall(const half* in, half* out, int n) {
    warp_product<32, 8, 16, half, half, wmma::row_major>(in, out, 2);
}
extern "C" __global__ void wmma_wide(const half* in, float* out, int n) {
    warp_product<8, 32, 16, half, float, wmma::row_major>(in, out, 2);
}
extern "C" __global__ void wmma_bfloat(const __nv_bfloat16* in, float* out, int n) {
    warp_product<16, 16, 16, __nv_bfloat16, float, wmma::row_major>(in, out, 2);
}
extern "C" __global__ void wmma_bytes(const signed char* in, int* out, int n) {
    warp_product<32, 8, 16, signed char, int, wmma::col_major>(in, out, 2);
}
extern "C" __global__ void wmma_unsigned(const unsigned char* in, int* out, int n) {
    warp_product<8, 32, 16, unsigned char, int, wmma::col_major>(in, out, 2);
}
extern "C" __global__ void wmma_double(const double* in, double* out, int n) {
    warp_product<8, 8, 4, double, double, wmma::row_major>(in, out, 2);
}
extern "C" __global__ void wmma_tf32(const float* in, float* out, int n) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> c;
    __shared__ __align__(32) float staged[256];
    for (int i = threadIdx.x; i < 256; i += 32) staged[i] = in[i];
    __syncthreads();
    wmma::load_matrix_sync(c, staged, 16, wmma::mem_col_major);
    wmma::load_matrix_sync(a, in, 8);
    wmma::load_matrix_sync(b, in + 128, 8);
    for (float& each : a.x) each = wmma::__float_to_tf32(each);
    wmma::mma_sync(c, a, b, c);
    __syncthreads();
    wmma::store_matrix_sync(staged, c, 16, wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 32) out[i] = staged[i];
}

namespace small = wmma::experimental;

// A, B with columns of twice their length, C by columns.
template <typename T, int K, typename Multiply>
__device__ void small_product(const int* in, int* out, Multiply multiply) {
    wmma::fragment<wmma::matrix_a, 8, 8, K, T, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 8, 8, K, T, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 8, 8, K, int> c;
    wmma::load_matrix_sync(a, in, K);
    wmma::load_matrix_sync(b, in + 32, 2 * K);
    wmma::load_matrix_sync(c, in + 96, 8, wmma::mem_col_major);
    multiply(c, a, b);
    wmma::store_matrix_sync(out, c, 8, wmma::mem_row_major);
}

extern "C" __global__ void wmma_nibbles(const int* in, int* out, int n) {
    using namespace small::precision;
    small_product<s4, 32>(in, out, [](auto& c, auto& a, auto& b) { wmma::mma_sync(c, a, b, c, true); });
    small_product<u4, 32>(in, out + 64, [](auto& c, auto& a, auto& b) { wmma::mma_sync(c, a, b, c); });
}
extern "C" __global__ void wmma_bits(const int* in, int* out, int n) {
    using small::precision::b1;
    small_product<b1, 128>(in, out, [](auto& c, auto& a, auto& b) {
        wmma::bmma_sync(c, a, b, c, small::bmmaBitOpXOR);
    });
    small_product<b1, 128>(in, out + 64, [](auto& c, auto& a, auto& b) {
        wmma::bmma_sync(c, a, b, c, small::bmmaBitOpAND);
    });
}
