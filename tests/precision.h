/* The precisions a backend computes in, as the tests see them: rounding to each, and the numbers of
 * 16 bits that a GPU keeps. */
#ifndef HSTU_TESTS_PRECISION_H
#define HSTU_TESTS_PRECISION_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/ops.h"

typedef enum { PRECISION_F32, PRECISION_TF32, PRECISION_BF16, PRECISION_F16 } precision;

/* float32, tf32, bfloat16, float16; false for another name. */
bool precision_parse(const char *name, precision *out);
const char *precision_name(precision p);

act_type precision_act(precision p); /* the type of activations */
bool precision_is_half(precision p); /* bfloat16 or float16 */

/* The unit roundoff: half the distance from 1 to the next number. */
double precision_unit(precision p);

/* v rounded to nearest even: as a number, as an activation (TF32 keeps float32 ones) and as a
 * factor of a product. */
double precision_round_act(precision p, double v);
double precision_round_factor(precision p, double v);

/* The larger of two errors, NAN where one of them is: unlike fmax, and unlike
 * `!(d <= error) ? d : error`, which forgets a NAN at the next number. */
static inline double worse_error(double error, double d) {
    return d > error || d != d ? d : error;
}

/* The bits of x as a 16-bit number: to nearest even, overflow to infinity.  The way back is in
 * base/half.h. */
uint16_t bf16_from_float(float x);
uint16_t f16_from_float(float x);

#endif
