/* The parameter block of pause. */
#ifndef PAUSE_H
#define PAUSE_H

#include <stdint.h>

typedef struct pause_params {
    uint64_t *passed;     /* nanoseconds */
    uint64_t nanoseconds; /* asked for */
} pause_params;

void pause_device(const pause_params params);

#endif
