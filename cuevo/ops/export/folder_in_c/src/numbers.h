/* Arithmetic as Python has it. */
#ifndef CUEVO_NUMBERS_H
#define CUEVO_NUMBERS_H

#include <stdint.h>

/* Quotients and remainders for positive divisors. For 0 they are something: formulas compute what several of their cases
 * share before they know which case it is. */
static inline int64_t floor_div(int64_t a, int64_t b)
{
    return b ? a / b - (a % b < 0) : 0;
}

static inline int64_t floor_mod(int64_t a, int64_t b)
{
    return a - floor_div(a, b) * b;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return -floor_div(-a, b);
}

static inline int64_t bit_length(int64_t a)
{
    int64_t count = 0;
    for (; a > 0; a >>= 1)
        count++;
    return count;
}

#endif
