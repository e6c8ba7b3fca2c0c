// Scans, sorts, histograms.

extern "C" __global__ void inclusive_scan(const int* in, int* out, int n) {
    __shared__ int sums[2][64];
    int t = threadIdx.x, now = 0;
    sums[0][t] = in[t];
    for (int by = 1; by < 64; by *= 2) {
        __syncthreads();
        sums[1 - now][t] = sums[now][t] + (t >= by ? sums[now][t - by] : 0);
        now = 1 - now;
    }
    out[t] = sums[now][t];
}

extern "C" __global__ void exclusive_scan(const int* in, int* out, int n) {
    extern __shared__ int tree[];
    int t = threadIdx.x, by = 1;
    tree[2 * t] = in[2 * t];
    tree[2 * t + 1] = in[2 * t + 1];
    for (int d = n / 2; d > 0; d /= 2, by *= 2) {
        __syncthreads();
        if (t < d) tree[by * (2 * t + 2) - 1] += tree[by * (2 * t + 1) - 1];
    }
    __syncthreads();
    if (t == 0) tree[n - 1] = 0;
    for (int d = 1; d < n; d *= 2) {
        by /= 2;
        __syncthreads();
        if (t < d) {
            int left = by * (2 * t + 1) - 1, right = by * (2 * t + 2) - 1, kept = tree[left];
            tree[left] = tree[right];
            tree[right] += kept;
        }
    }
    __syncthreads();
    out[2 * t] = tree[2 * t];
    out[2 * t + 1] = tree[2 * t + 1];
}

extern "C" __global__ void warp_scan(const int* in, int* out, int n) {
    int value = in[threadIdx.x], lane = threadIdx.x % 32;
    for (int by = 1; by < 32; by *= 2) {
        int other = __shfl_up_sync(~0u, value, by);
        if (lane >= by) value += other;
    }
    out[threadIdx.x] = value;
}

extern "C" __global__ void bitonic_sort(const int* in, int* out, int n) {
    __shared__ int keys[128];
    int t = threadIdx.x;
    keys[t] = in[t];
    for (int size = 2; size <= 128; size *= 2)
        for (int by = size / 2; by > 0; by /= 2) {
            __syncthreads();
            int other = t ^ by;
            if (other > t && (keys[t] > keys[other]) == ((t & size) == 0)) {
                int kept = keys[t];
                keys[t] = keys[other];
                keys[other] = kept;
            }
        }
    __syncthreads();
    out[t] = keys[t];
}

extern "C" __global__ void odd_even_sort(const unsigned char* in, unsigned char* out, int n) {
    __shared__ unsigned char keys[32];
    int t = threadIdx.x;
    keys[t] = in[t];
    __syncthreads();
    for (int round = 0; round < 32; round++) {
        int left = 2 * t + round % 2;
        if (left + 1 < 32) {
            unsigned char a = keys[left], b = keys[left + 1];
            if (a > b) keys[left] = b, keys[left + 1] = a;
        }
        __syncthreads();
    }
    out[t] = keys[t];
}

extern "C" __global__ void radix_sort(const unsigned int* in, unsigned int* out, int n) {
    __shared__ unsigned int keys[32];
    unsigned int lane = threadIdx.x, key = in[lane];
    for (int bit = 0; bit < 16; bit++) {
        unsigned int ones = __ballot_sync(~0u, key >> bit & 1), below = (1u << lane) - 1;
        int place = key >> bit & 1 ? __popc(~ones) + __popc(ones & below) : __popc(~ones & below);
        keys[place] = key;
        __syncwarp();
        key = keys[lane];
        __syncwarp();
    }
    out[lane] = key;
}

extern "C" __global__ void histogram(const unsigned char* in, int* out, int n) {
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&bins[in[i] / 16], 1);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}

extern "C" __global__ void compaction(const int* in, int* out, int n) {
    __shared__ int base;
    if (threadIdx.x == 0) base = 1;
    __syncthreads();
    for (int start = 0; start < n; start += 32) {
        int value = in[start + threadIdx.x];
        unsigned int kept = __ballot_sync(~0u, value > 0);
        int place = base + __popc(kept & ((1u << threadIdx.x) - 1));
        if (value > 0) out[place] = value;
        __syncthreads();
        if (threadIdx.x == 0) base += __popc(kept);
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = base - 1;
}

__device__ int rank_in(const int* keys, int n, int key, bool or_equal) {
    int low = 0, high = n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (keys[middle] < key || (or_equal && keys[middle] == key)) low = middle + 1;
        else high = middle;
    }
    return low;
}

extern "C" __global__ void merge(const int* in, int* out, int n) {
    int half = n / 2, t = threadIdx.x;
    if (t < half) out[t + rank_in(in + half, half, in[t], false)] = in[t];
    else out[t - half + rank_in(in, half, in[t], true)] = in[t];
}

extern "C" __global__ void counting_sort(const int* in, int* out, int n) {
    __shared__ int counts[9];
    int t = threadIdx.x;
    if (t < 9) counts[t] = 0;
    __syncthreads();
    atomicAdd(&counts[in[t] + 1], 1);
    __syncthreads();
    if (t == 0)
        for (int i = 1; i < 9; i++) counts[i] += counts[i - 1];
    __syncthreads();
    out[atomicAdd(&counts[in[t]], 1)] = in[t];
}
