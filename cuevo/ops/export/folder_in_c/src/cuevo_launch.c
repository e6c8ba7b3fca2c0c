/* The planners of cuevo_launch.h. */
#include "cuevo_launch.h"

#include "backward.h"
#include "forward.h"
#include "product.h"

const char *cuevo_status_text(cuevo_status status)
{
    switch (status) {
    case CUEVO_OK:
        return "done";
    case CUEVO_WRONG_SHAPE:
        return "an array has another shape than the others make it";
    case CUEVO_WRONG_TYPE:
        return "an array has a type that it cannot have, or not that of q or a";
    case CUEVO_WRONG_STRIDE:
        return "the rows of an array have to be contiguous and start at multiples of 16 bytes, or of elements in "
               "products; those of a result may not overlap";
    case CUEVO_WRONG_SCALE:
        return "a scale has to be finite and at most 2^64 in magnitude, a factor finite";
    case CUEVO_WRONG_WORKSPACE:
        return "the workspace has to start at a multiple of 256 bytes and have as many as the plan says";
    case CUEVO_NOT_EXPORTED:
        return "the folder was exported without a kernel for this head dim, type, bias, order or alignment";
    case CUEVO_NO_ARCHITECTURE:
        return "the folder was exported without kernels for this device";
    case CUEVO_TOO_LARGE:
        return "the problem has more threadblocks or positions than a launch can have";
    case CUEVO_ENCODER_FAILED:
        return "the encoder of tensor maps refused";
    case CUEVO_NO_DATA:
        return "an array has elements and no address";
    default:
        return "no status of cuevo";
    }
}
