/* What a plan needs of the CUDA driver: a device's facts, the encoder of tensor maps, kernels, launches. It is all
 * here, to be used or to be read; link with -lcuda.
 */
#ifndef CUEVO_DRIVER_H
#define CUEVO_DRIVER_H

#include <cuda.h>
#include <stdio.h>

#include "cuevo_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A cuevo_encoder. */
static inline int cuevo_encode(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                               const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                               int interleave, int swizzle, int l2_promotion, int fill)
{
    return (int)cuTensorMapEncodeTiled((CUtensorMap *)map, (CUtensorMapDataType)type, rank, address,
                                       (const cuuint64_t *)extents, (const cuuint64_t *)strides, box, element_strides,
                                       (CUtensorMapInterleave)interleave, (CUtensorMapSwizzle)swizzle,
                                       (CUtensorMapL2promotion)l2_promotion, (CUtensorMapFloatOOBfill)fill);
}

static inline CUresult cuevo_describe(CUdevice device, cuevo_device *found)
{
    int major = 0, minor = 0;
    CUresult result = cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(&found->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    found->architecture = 10 * major + minor;
    found->encoder = cuevo_encode;
    found->two_streams = 0;
    return result;
}

/* Loads a kernel from the folder into the current context. Keep the function: loading takes milliseconds. */
static inline CUresult cuevo_load(const char *folder, uint32_t kernel, CUmodule *module, CUfunction *function)
{
    char path[4096];
    CUresult result;
    const int length = snprintf(path, sizeof path, "%s/%s", folder, cuevo_kernels[kernel].file);
    if (length < 0 || (size_t)length >= sizeof path)
        return CUDA_ERROR_FILE_NOT_FOUND;
    result = cuModuleLoad(module, path);
    if (result == CUDA_SUCCESS)
        result = cuModuleGetFunction(function, *module, cuevo_kernels[kernel].entry);
    return result;
}

/* Queues one launch of a plan, whose kernel has been loaded. */
static inline CUresult cuevo_queue_launch(const cuevo_launch *launch, CUfunction function, CUstream stream)
{
    void *arguments[1];
    CUresult result = cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                         (int)launch->shared_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    arguments[0] = (void *)(uintptr_t)launch->parameters; /* which the driver only reads */
    return cuLaunchKernel(function, launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0],
                          launch->block[1], launch->block[2], launch->shared_bytes, stream, arguments, NULL);
}

#ifdef __cplusplus
}
#endif

#endif
