/* The parameter block of pause. */
#ifndef PAUSE_H
#define PAUSE_H

#include <stdint.h>

typedef struct pause_params {
    uint64_t *ended;      /* the device's clock at the end, in nanoseconds */
    uint64_t nanoseconds; /* of the pause */
} pause_params;

void pause_device(const pause_params params);

#endif
