// Rows of a matrix over their root mean square, a threadblock a row, as nvcc compiles it:
//
//     nvcc -arch=sm_80 -O3 -lineinfo -ptx norm.cu

#include <cuda_pipeline.h>

// The sum of a value over the threads of a block, of 32 to 1024 threads; `partial` has a place for each warp.
static __device__ float sum_of_block(float value, float *partial)
{
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++)
        sum += partial[warp];
    return sum;
}

extern "C" __global__ void normalize(const float *x, float *y, int columns, float epsilon)
{
    extern __shared__ float row[];
    __shared__ float partial[32];
    const float *from = x + (size_t)blockIdx.x * columns;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        __pipeline_memcpy_async(row + i, from + i, sizeof(float));
    __pipeline_commit();
    __pipeline_wait_prior(0);

    float squares = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        squares += row[i] * row[i];
    const float factor = rsqrtf(sum_of_block(squares, partial) / columns + epsilon);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        y[(size_t)blockIdx.x * columns + i] = row[i] * factor;
}
