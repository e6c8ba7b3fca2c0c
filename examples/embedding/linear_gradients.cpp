// The gradients of a linear layer y = x . w^T from C++: dx = dy . w, and dw = dy^T . x in float, which sums over all
// positions, so that threadblocks share these and exchange what they found in the workspace.
//
//   cuevo export gemm --orders nn,tn --results own,f32 --architectures sm_80,sm_90a,sm_100,sm_120 -o products
//   cc -std=c11 -c -Iproducts/include products/src/cuevo_launch.c products/src/cuevo_kernels.c
//   c++ -std=c++17 -Iproducts/include -DCUEVO_FOLDER='"products"' linear_gradients.cpp cuevo_launch.o cuevo_kernels.o
//       -lcuda -o linear_gradients
//   ./linear_gradients
//
// Compares the gradients with those in double, and says how far they are away.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuevo_driver.h"

namespace {

constexpr int POSITIONS = 1536, INPUTS = 24, OUTPUTS = 40;

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

// A matrix of contiguous rows, here and on the device.
template <typename Element> class Matrix {
public:
    Matrix(int rows, int columns)
        : rows_(rows), columns_(columns), host_(static_cast<std::size_t>(rows) * columns),
          memory_(sizeof(Element) * host_.size())
    {
    }

    void fill(unsigned seed)
    {
        std::mt19937 source(seed);
        std::normal_distribution<float> normal;
        for (auto &x : host_)
            x = to_bf16(normal(source));
        check(cuMemcpyHtoD(memory_.at(), host_.data(), sizeof(Element) * host_.size()), "copying a matrix");
    }
    void fetch() { check(cuMemcpyDtoH(host_.data(), memory_.at(), sizeof(Element) * host_.size()), "a result"); }
    Element operator()(int i, int j) const { return host_[static_cast<std::size_t>(i) * columns_ + j]; }

    // As a product sees it: [1, rows, columns], or with its axes exchanged.
    cuevo_array seen(bool exchanged = false) const
    {
        constexpr std::int64_t size = sizeof(Element);
        cuevo_array found{};
        found.data = memory_.pointer();
        found.type = size == 4 ? CUEVO_F32 : CUEVO_BF16;
        found.shape[0] = 1;
        found.shape[exchanged ? 2 : 1] = rows_;
        found.shape[exchanged ? 1 : 2] = columns_;
        found.strides[exchanged ? 2 : 1] = size * columns_;
        found.strides[exchanged ? 1 : 2] = size;
        return found;
    }

private:
    int rows_, columns_;
    std::vector<Element> host_;
    Memory memory_;
};

// out = a . b, queued.
void multiply(const cuevo_device &device, const cuevo_array &a, const cuevo_array &b, const cuevo_array &out)
{
    cuevo_gemm problem{};
    cuevo_plan plan;
    problem.a = a;
    problem.b = b;
    problem.out = out;
    problem.alpha = 1;
    const auto planned = [&] {
        const cuevo_status status = cuevo_plan_gemm(&device, &problem, &plan);
        if (status != CUEVO_OK)
            throw std::runtime_error(std::string(plan.wrong ? plan.wrong : "a product") + ": " +
                                     cuevo_status_text(status));
    };
    planned();
    const Memory workspace(plan.workspace_bytes);
    if (plan.cleared_bytes)
        check(cuMemsetD8(workspace.at() + plan.cleared_at, 0, plan.cleared_bytes), "clearing the workspace");
    problem.workspace = workspace.pointer();
    problem.workspace_bytes = plan.workspace_bytes;
    planned();
    for (std::uint32_t i = 0; i < plan.count; i++) {
        CUmodule module;
        CUfunction function;
        check(cuevo_load(CUEVO_FOLDER, plan.launches[i].kernel, &module, &function), "a kernel");
        check(cuevo_queue_launch(&plan.launches[i], function, nullptr), "a launch");
    }
    check(cuCtxSynchronize(), "a product"); // before its workspace goes
    std::printf("%llu bytes of workspace\n", static_cast<unsigned long long>(plan.workspace_bytes));
}

// How far `found` [rows, columns] is from a . b, relative to that; all are given by element.
template <typename Found, typename A, typename B>
double distance(int rows, int columns, int depth, const Found &found, const A &a, const B &b)
{
    double wrong = 0, all = 0;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            double exact = 0;
            for (int k = 0; k < depth; k++)
                exact += static_cast<double>(from_bf16(a(i, k))) * from_bf16(b(k, j));
            wrong += std::pow(found(i, j) - exact, 2);
            all += exact * exact;
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

    Matrix<std::uint16_t> x(POSITIONS, INPUTS), w(OUTPUTS, INPUTS), dy(POSITIONS, OUTPUTS), dx(POSITIONS, INPUTS);
    Matrix<float> dw(OUTPUTS, INPUTS);
    x.fill(1);
    w.fill(2);
    dy.fill(3);
    multiply(described, dy.seen(), w.seen(), dx.seen());
    multiply(described, dy.seen(true), x.seen(), dw.seen());
    dx.fetch();
    dw.fetch();
    const auto rounded = [&](int i, int j) { return from_bf16(dx(i, j)); };
    const auto exchanged = [&](int i, int j) { return dy(j, i); };
    const double of_dx = distance(POSITIONS, INPUTS, OUTPUTS, rounded, dy, w);
    const double of_dw = distance(OUTPUTS, INPUTS, POSITIONS, dw, exchanged, x);
    std::printf("dx: relative error %.1e\ndw: relative error %.1e\n", of_dx, of_dw);
    return of_dx < 1e-2 && of_dw < 1e-5 ? 0 : 1;
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
