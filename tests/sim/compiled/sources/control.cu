// Calls, pointers, switches, memory of threads.
#include <cassert>
#include <cstdio>

__device__ __noinline__ int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
extern "C" __global__ void recursion(const int* in, int* out, int n) {
    out[threadIdx.x] = fibonacci(in[threadIdx.x]);
}

__device__ int ackermann(int m, int n) {
    if (m == 0) return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
extern "C" __global__ void nested_recursion(const int* in, int* out, int n) {
    out[threadIdx.x] = ackermann(in[threadIdx.x], 2);
}

__device__ void quicksort(int* keys, int low, int high) {
    if (low >= high) return;
    int pivot = keys[high], place = low;
    for (int i = low; i < high; i++)
        if (keys[i] < pivot) {
            int kept = keys[i];
            keys[i] = keys[place];
            keys[place++] = kept;
        }
    keys[high] = keys[place];
    keys[place] = pivot;
    quicksort(keys, low, place - 1);
    quicksort(keys, place + 1, high);
}
extern "C" __global__ void own_quicksort(const int* in, int* out, int n) {
    int keys[8];
    for (int i = 0; i < 8; i++) keys[i] = in[8 * threadIdx.x + i];
    quicksort(keys, 0, 7);
    for (int i = 0; i < 8; i++) out[8 * threadIdx.x + i] = keys[i];
}

typedef int (*Operation)(int, int);
__device__ int add(int a, int b) { return a + b; }
__device__ int subtract(int a, int b) { return a - b; }
__device__ int multiply(int a, int b) { return a * b; }
__device__ Operation operations[3] = {add, subtract, multiply};

extern "C" __global__ void function_table(const int* in, int* out, int n) {
    int t = threadIdx.x;
    out[t] = operations[t % 3](in[t], t);
}

struct Shape {
    __device__ virtual int area() const = 0;
};
struct Square : Shape {
    int side;
    __device__ Square(int side) : side(side) {}
    __device__ int area() const override { return side * side; }
};
struct Strip : Shape {
    int length;
    __device__ Strip(int length) : length(length) {}
    __device__ int area() const override { return 2 * length; }
};
__device__ __noinline__ int area_of(const Shape& shape) { return shape.area(); }

extern "C" __global__ void virtual_calls(const int* in, int* out, int n) {
    int x = in[threadIdx.x];
    if (x % 2) out[threadIdx.x] = area_of(Square(x));
    else out[threadIdx.x] = area_of(Strip(x));
}

extern "C" __global__ void dense_switch(const int* in, int* out, int n) {
    int x = in[threadIdx.x], y = 0;
    switch (x) {
        case 0: y = 5; break;
        case 1: y = x * 3;
        case 2: y += 7; break;
        case 3: y = x << 4; break;
        case 4: return;
        case 5: y = -x; break;
        case 6: y = x * x * x; break;
        case 7: y = ~x; break;
        default: y = 99;
    }
    out[threadIdx.x] = y;
}

extern "C" __global__ void state_machine(const unsigned char* in, int* out, int n) {
    int state = threadIdx.x % 4, words = 0;
    for (int i = 0; i < n; i++) {
        switch (state) {
            case 0: if (in[i] != ' ') { words++; state = 1; } break;
            case 1: if (in[i] == ' ') state = 0; else if (in[i] == '"') state = 2; break;
            case 2: if (in[i] == '"') state = 1; else if (in[i] == '.') goto done; break;
            default: state = 0; continue;
        }
    }
done:
    out[threadIdx.x] = 10 * words + state;
}

struct Block { int values[6]; short tag; };
__device__ __noinline__ Block rotated(Block block, int by) {
    Block result;
    for (int i = 0; i < 6; i++) result.values[(i + by) % 6] = block.values[i];
    result.tag = block.tag + by;
    return result;
}
extern "C" __global__ void structs_by_value(const int* in, int* out, int n) {
    Block block;
    for (int i = 0; i < 6; i++) block.values[i] = in[6 * threadIdx.x + i];
    block.tag = threadIdx.x;
    block = rotated(block, threadIdx.x % 5);
    for (int i = 0; i < 6; i++) out[6 * threadIdx.x + i] = block.values[i] + block.tag;
}

extern "C" __global__ void local_indexing(const int* in, int* out, int n) {
    int counts[16] = {0};
    for (int i = 0; i < n; i++) counts[(in[i] + threadIdx.x) & 15]++;
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (counts[i] > counts[best]) best = i;
    out[threadIdx.x] = 100 * best + counts[best];
}

__constant__ unsigned short table[8] = {1, 10, 100, 1000, 10000, 2, 20, 200};
__device__ int totals[4];

extern "C" __global__ void constant_table(const int* in, int* out, int n) {
    int x = table[in[threadIdx.x] & 7];
    atomicAdd(&totals[threadIdx.x % 4], x);
    __syncthreads();
    out[threadIdx.x] = totals[threadIdx.x % 4] + x;
    __syncthreads();
    if (threadIdx.x < 4) totals[threadIdx.x] = 0;
}

template <typename F> __device__ int applied(F f, int times, int x) {
    for (int i = 0; i < times; i++) x = f(x);
    return x;
}
extern "C" __global__ void lambdas(const int* in, int* out, int n) {
    int by = threadIdx.x + 1;
    out[threadIdx.x] = applied([=](int x) { return x * 3 + by; }, 5, in[threadIdx.x]);
}

extern "C" __global__ void assertions(const int* in, int* out, int n) {
    assert(in[threadIdx.x] >= 0);
    out[threadIdx.x] = in[threadIdx.x] + 1;
}

extern "C" __global__ void printing(const int* in, int* out, int n) {
    if (threadIdx.x == 3) printf("thread %d has %d and %.2f\n", threadIdx.x, in[3], in[3] / 4.0);
    out[threadIdx.x] = in[threadIdx.x];
}
