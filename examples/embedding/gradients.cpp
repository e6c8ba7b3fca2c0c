// A forward and a backward pass from C++: odd lengths, a mask, and a pair bias as a linear layer leaves it,
// [B, Lq, Lk, H].
//
//   cuevo export forward backward --head-dims 16 --architectures sm_80,sm_90a,sm_100,sm_120 -o attention
//   cc -std=c11 -c -Iattention/include attention/src/cuevo_launch.c attention/src/cuevo_kernels.c
//   c++ -std=c++17 -Iattention/include -DCUEVO_FOLDER='"attention"' gradients.cpp cuevo_launch.o cuevo_kernels.o
//       -lcuda -o gradients
//   ./gradients
//
// Compares the gradients with those in double, and says how far they are away.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuevo_driver.h"

namespace {

constexpr int B = 1, N = 3, LQ = 37, LK = 53, H = 2, D = 16;

void check(CUresult result, const std::string &doing)
{
    const char *text = nullptr;
    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorString(result, &text);
    throw std::runtime_error(doing + ": " + (text ? text : "unknown error"));
}

float from_bf16(std::uint16_t x)
{
    const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

std::uint16_t to_bf16(float value)
{
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Memory of the device, for as long as the object lives.
class Memory {
public:
    explicit Memory(std::size_t bytes) { check(cuMemAlloc(&at_, bytes ? bytes : 1), "memory of the device"); }
    ~Memory() { cuMemFree(at_); }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    void *pointer() const { return reinterpret_cast<void *>(static_cast<std::uintptr_t>(at_)); }
    CUdeviceptr at() const { return at_; }

private:
    CUdeviceptr at_ = 0;
};

// A bf16 array of five axes, which lie in memory in the order that is given, here and on the device.
class Array {
public:
    Array(std::initializer_list<std::int64_t> shape, std::initializer_list<int> order = {0, 1, 2, 3, 4})
    {
        std::int64_t step = 1;
        std::size_t i = 0;
        for (const std::int64_t extent : shape)
            seen_.shape[i++] = extent;
        for (auto axis = order.end(); axis != order.begin();) {
            --axis;
            seen_.strides[*axis] = 2 * step;
            step *= seen_.shape[*axis];
        }
        host_.resize(static_cast<std::size_t>(step));
        memory_ = std::make_unique<Memory>(2 * host_.size());
        seen_.type = CUEVO_BF16;
        seen_.data = memory_->pointer();
    }

    Array &fill(unsigned seed)
    {
        std::mt19937 source(seed);
        std::normal_distribution<float> normal;
        for (auto &x : host_)
            x = to_bf16(normal(source));
        check(cuMemcpyHtoD(memory_->at(), host_.data(), 2 * host_.size()), "copying an array");
        return *this;
    }
    void fetch() { check(cuMemcpyDtoH(host_.data(), memory_->at(), 2 * host_.size()), "a result"); }
    const cuevo_array &seen() const { return seen_; }
    double operator()(int a, int b, int c, int d, int e) const
    {
        const int place[] = {a, b, c, d, e};
        std::int64_t at = 0;
        for (int i = 0; i < 5; i++)
            at += place[i] * seen_.strides[i] / 2;
        return from_bf16(host_[static_cast<std::size_t>(at)]);
    }

private:
    cuevo_array seen_{};
    std::vector<std::uint16_t> host_;
    std::unique_ptr<Memory> memory_;
};

// Kernels, loaded once each, and the launches of plans.
class Runner {
public:
    void run(const cuevo_plan &plan)
    {
        for (std::uint32_t i = 0; i < plan.count; i++) {
            const cuevo_launch &launch = plan.launches[i];
            CUfunction &function = functions_[launch.kernel];
            CUmodule module;
            if (function == nullptr)
                check(cuevo_load(CUEVO_FOLDER, launch.kernel, &module, &function), "a kernel");
            check(cuevo_queue_launch(&launch, function, nullptr), "a launch");
        }
    }

private:
    std::map<std::uint32_t, CUfunction> functions_;
};

void check(cuevo_status status, const cuevo_plan &plan)
{
    if (status != CUEVO_OK)
        throw std::runtime_error(std::string(plan.wrong ? plan.wrong : "the problem") + ": " + cuevo_status_text(status));
}

double distance(const Array &found, const std::vector<double> &exact)
{
    double wrong = 0, all = 0;
    std::size_t at = 0;
    const std::int64_t *n = found.seen().shape;
    for (int a = 0; a < n[0]; a++)
        for (int b = 0; b < n[1]; b++)
            for (int c = 0; c < n[2]; c++)
                for (int d = 0; d < n[3]; d++)
                    for (int e = 0; e < n[4]; e++, at++) {
                        wrong += std::pow(found(a, b, c, d, e) - exact[at], 2);
                        all += exact[at] * exact[at];
                    }
    return std::sqrt(wrong / all);
}

int run()
{
    CUdevice device;
    CUcontext context;
    cuevo_device described{};
    check(cuInit(0), "starting the driver");
    check(cuDeviceGet(&device, 0), "the first device");
    check(cuDevicePrimaryCtxRetain(&context, device), "a context");
    check(cuCtxSetCurrent(context), "a context");
    check(cuevo_describe(device, &described), "the device's attributes");

    Array q{B, N, LQ, H, D}, k{B, N, LK, H, D}, v{B, N, LK, H, D}, dout{B, N, LQ, H, D}, out{B, N, LQ, H, D};
    Array mask_bias{B, N, 1, 1, LK}, pair_bias({B, 1, H, LQ, LK}, {0, 1, 3, 4, 2});
    Array dq{B, N, LQ, H, D}, dk{B, N, LK, H, D}, dv{B, N, LK, H, D};
    Array dmask_bias{B, N, 1, 1, LK}, dpair_bias{B, 1, H, LQ, LK};
    Memory lse(4 * B * N * H * LQ);
    unsigned seed = 0;
    for (Array *each : {&q, &k, &v, &dout, &mask_bias, &pair_bias})
        each->fill(++seed);
    const double scale = 1.0 / std::sqrt(static_cast<double>(D));

    cuevo_forward forward{};
    forward.q = q.seen();
    forward.k = k.seen();
    forward.v = v.seen();
    forward.out = out.seen();
    forward.mask_bias = mask_bias.seen();
    forward.pair_bias = pair_bias.seen();
    forward.lse = static_cast<float *>(lse.pointer());
    forward.scale = scale;

    cuevo_backward backward{};
    backward.dout = dout.seen();
    backward.q = q.seen();
    backward.k = k.seen();
    backward.v = v.seen();
    backward.out = out.seen();
    backward.mask_bias = mask_bias.seen();
    backward.pair_bias = pair_bias.seen();
    backward.dq = dq.seen();
    backward.dk = dk.seen();
    backward.dv = dv.seen();
    backward.dmask_bias = dmask_bias.seen();
    backward.dpair_bias = dpair_bias.seen();
    backward.lse = static_cast<const float *>(lse.pointer());
    backward.scale = scale;

    // Once to learn how much memory is needed, which one pass may take after the other, and again with it.
    cuevo_plan plans[2];
    check(cuevo_plan_forward(&described, &forward, &plans[0]), plans[0]);
    check(cuevo_plan_backward(&described, &backward, &plans[1]), plans[1]);
    const std::uint64_t bytes =
        plans[0].workspace_bytes > plans[1].workspace_bytes ? plans[0].workspace_bytes : plans[1].workspace_bytes;
    Memory workspace(bytes);
    forward.workspace = backward.workspace = workspace.pointer();
    forward.workspace_bytes = backward.workspace_bytes = bytes;
    check(cuevo_plan_forward(&described, &forward, &plans[0]), plans[0]);
    check(cuevo_plan_backward(&described, &backward, &plans[1]), plans[1]);
    Runner runner;
    for (const cuevo_plan &plan : plans)
        runner.run(plan);
    for (Array *each : {&dq, &dk, &dv, &dmask_bias, &dpair_bias})
        each->fetch();

    std::vector<double> exact_dq(B * N * LQ * H * D), exact_dk(B * N * LK * H * D), exact_dv(B * N * LK * H * D);
    std::vector<double> exact_dmask(B * N * LK), exact_dpair(B * H * LQ * LK);
    for (int b = 0; b < B; b++)
        for (int n = 0; n < N; n++)
            for (int h = 0; h < H; h++)
                for (int i = 0; i < LQ; i++) {
                    double p[LK], dp[LK], most = -INFINITY, sum = 0, delta = 0;
                    const auto at = [&](int length, int x, int d) {
                        return static_cast<std::size_t>((((b * N + n) * length + x) * H + h) * D + d);
                    };
                    for (int j = 0; j < LK; j++) {
                        double dot = 0;
                        dp[j] = 0;
                        for (int d = 0; d < D; d++) {
                            dot += q(b, n, i, h, d) * k(b, n, j, h, d);
                            dp[j] += dout(b, n, i, h, d) * v(b, n, j, h, d);
                        }
                        p[j] = dot * scale + mask_bias(b, n, 0, 0, j) + pair_bias(b, 0, h, i, j);
                        most = p[j] > most ? p[j] : most;
                    }
                    for (double &x : p)
                        sum += x = std::exp(x - most);
                    for (int j = 0; j < LK; j++)
                        delta += (p[j] /= sum) * dp[j];
                    for (int j = 0; j < LK; j++) {
                        const double ds = p[j] * (dp[j] - delta);
                        exact_dmask[static_cast<std::size_t>((b * N + n) * LK + j)] += ds;
                        exact_dpair[static_cast<std::size_t>(((b * H + h) * LQ + i) * LK + j)] += ds;
                        for (int d = 0; d < D; d++) {
                            exact_dq[at(LQ, i, d)] += scale * ds * k(b, n, j, h, d);
                            exact_dk[at(LK, j, d)] += scale * ds * q(b, n, i, h, d);
                            exact_dv[at(LK, j, d)] += p[j] * dout(b, n, i, h, d);
                        }
                    }
                }
    const double distances[] = {distance(dq, exact_dq), distance(dk, exact_dk), distance(dv, exact_dv),
                                distance(dmask_bias, exact_dmask), distance(dpair_bias, exact_dpair)};
    const char *const names[] = {"dq", "dk", "dv", "dmask_bias", "dpair_bias"};
    int status = 0;
    for (int i = 0; i < 5; i++) {
        std::printf("%s: relative error %.1e\n", names[i], distances[i]);
        status |= !(distances[i] < 2e-2);
    }
    return status;
}

} // namespace

int main()
{
    try {
        return run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
