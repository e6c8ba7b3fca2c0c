/* The functions of the CUDA driver that the examples call, for memory of the host; launches go to a test. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

typedef void (*launch_function)(const char *path, const unsigned *shape, const void *parameters);

static launch_function on_launch;
CUdeviceptr cuevo_test_memory[256];
size_t cuevo_test_bytes[256];
unsigned cuevo_test_allocations;

void cuevo_test_begin(launch_function function)
{
    on_launch = function;
    cuevo_test_allocations = 0;
}

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
CUresult cuMemFree(CUdeviceptr at) { return at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)&on_launch;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 8
             : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT   ? 108
                                                                       : 0;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error ? "refused by the test" : "no error";
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
    bytes = (bytes + 255) / 256 * 256;
    *at = (CUdeviceptr)(size_t)aligned_alloc(256, bytes);
    memset((void *)(size_t)*at, 0xff, bytes);
    cuevo_test_memory[cuevo_test_allocations] = *at;
    cuevo_test_bytes[cuevo_test_allocations++] = bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
    memcpy((void *)(size_t)to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
    memcpy(to, (const void *)(size_t)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8(CUdeviceptr at, unsigned char value, size_t bytes)
{
    memset((void *)(size_t)at, value, bytes);
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    char *kept = malloc(strlen(path) + 1);
    *module = (CUmodule)(void *)strcpy(kept, path);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    *function = (CUfunction)(void *)module;
    return strstr((const char *)module, name) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    const int known = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0;
    return function && known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    const unsigned shape[] = {x, y, z, threads, threads_y, threads_z, shared};
    if (stream || extra)
        return CUDA_ERROR_INVALID_VALUE;
    on_launch((const char *)function, shape, parameters[0]);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)map, (void)type, (void)rank, (void)address, (void)extents, (void)strides, (void)box, (void)steps;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    return CUDA_ERROR_NOT_SUPPORTED;
}
