// Numbers: wide, narrow, packed, floating.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void wide_product(const long long* in, long long* out, int n) {
    int t = threadIdx.x;
    __int128 product = (__int128)in[2 * t] * in[2 * t + 1] + in[2 * t];
    out[2 * t] = (long long)product;
    out[2 * t + 1] = (long long)(product >> 64);
}

extern "C" __global__ void wide_quotient(const unsigned long long* in, unsigned long long* out, int n) {
    int t = threadIdx.x;
    unsigned __int128 a = (unsigned __int128)in[2 * t] << 32 | in[2 * t + 1];
    unsigned __int128 b = in[2 * t + 1] / 3 + 1;
    out[2 * t] = (unsigned long long)(a / b);
    out[2 * t + 1] = (unsigned long long)(a % b);
}

extern "C" __global__ void long_quotient(const long long* in, long long* out, int n) {
    int t = threadIdx.x;
    long long by = in[t] % 1000 + 1001;
    out[2 * t] = in[t] / by;
    out[2 * t + 1] = in[t] % by;
}

extern "C" __global__ void short_quotient(const int* in, int* out, int n) {
    int t = threadIdx.x, x = in[t];
    out[4 * t] = x / 7;
    out[4 * t + 1] = x % 10;
    out[4 * t + 2] = x / (t + 1);
    out[4 * t + 3] = (unsigned int)x % (2u * t + 3);
}

extern "C" __global__ void bit_counts(const unsigned int* in, unsigned int* out, int n) {
    int t = threadIdx.x;
    unsigned int x = in[t];
    out[4 * t] = __popc(x);
    out[4 * t + 1] = __clz(x);
    out[4 * t + 2] = __ffs(x);
    out[4 * t + 3] = __brev(x);
}

extern "C" __global__ void packed_bytes(const unsigned int* in, unsigned int* out, int n) {
    int t = threadIdx.x;
    unsigned int x = in[2 * t], y = in[2 * t + 1];
    out[6 * t] = __vadd4(x, y);
    out[6 * t + 1] = __vabsdiffu4(x, y);
    out[6 * t + 2] = __vmaxu4(x, y);
    out[6 * t + 3] = __byte_perm(x, y, 0x6240);
    out[6 * t + 4] = __vsadu4(x, y);
    out[6 * t + 5] = __dp4a((int)x, (int)y, t);
}

extern "C" __global__ void half_arithmetic(const half* in, half* out, int n) {
    int t = threadIdx.x;
    half2 x = ((const half2*)in)[t], y = __half2half2(__float2half(0.5f));
    ((half2*)out)[t] = __hmul2(__hadd2(x, y), __hsub2(x, y));
}

extern "C" __global__ void bfloat_arithmetic(const float* in, __nv_bfloat16* out, int n) {
    int t = threadIdx.x;
    __nv_bfloat162 x = __floats2bfloat162_rn(in[2 * t], in[2 * t + 1]);
    ((__nv_bfloat162*)out)[t] = __hfma2(x, x, x);
}

extern "C" __global__ void double_functions(const double* in, double* out, int n) {
    int t = threadIdx.x;
    double x = in[t];
    out[5 * t] = sqrt(x) / (1 + x);
    out[5 * t + 1] = exp(-x);
    out[5 * t + 2] = sin(x) * cos(x);
    out[5 * t + 3] = log1p(x);
    out[5 * t + 4] = pow(x, 1.5);
}

extern "C" __global__ void float_functions(const float* in, float* out, int n) {
    int t = threadIdx.x;
    float x = in[t];
    out[6 * t] = sqrtf(x) / (1 + x);
    out[6 * t + 1] = expf(-x);
    out[6 * t + 2] = sinf(100 * x);
    out[6 * t + 3] = logf(x);
    out[6 * t + 4] = erff(x);
    out[6 * t + 5] = tanhf(x);
}

extern "C" __global__ void conversions(const float* in, int* out, int n) {
    int t = threadIdx.x;
    float x = in[t];
    out[6 * t] = (int)x;
    out[6 * t + 1] = __float2int_rn(x);
    out[6 * t + 2] = __float2int_ru(x);
    out[6 * t + 3] = (unsigned char)(int)x;
    out[6 * t + 4] = __float_as_int((float)(double)x);
    out[6 * t + 5] = (short)__float2int_rd(x * 100);
}

extern "C" __global__ void collatz(const int* in, int* out, int n) {
    long long x = in[threadIdx.x];
    int steps = 0;
    while (x != 1) {
        x = x % 2 ? 3 * x + 1 : x / 2;
        steps++;
    }
    out[threadIdx.x] = steps;
}

extern "C" __global__ void divisors(const int* in, int* out, int n) {
    int a = in[2 * threadIdx.x], b = in[2 * threadIdx.x + 1];
    while (b) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    out[threadIdx.x] = a;
}

extern "C" __global__ void xorshift(const unsigned int* in, unsigned int* out, int n) {
    unsigned int x = in[threadIdx.x] | 1;
    for (int i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    out[threadIdx.x] = x;
}

extern "C" __global__ void mandelbrot(const float2* in, int* out, int n) {
    float2 c = in[threadIdx.x];
    float x = 0, y = 0;
    int i = 0;
    for (; i < n && __fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)) <= 4.f; i++) {
        float next = __fadd_rn(__fsub_rn(__fmul_rn(x, x), __fmul_rn(y, y)), c.x);
        y = __fadd_rn(__fmul_rn(__fmul_rn(2.f, x), y), c.y);
        x = next;
    }
    out[threadIdx.x] = i;
}
