/* The activations after a linear layer, over n numbers on the calling thread. */
#ifndef HSTU_CPU_LINEAR_F_H
#define HSTU_CPU_LINEAR_F_H

#include "ops/ops.h"

/* y = f(z); y may be z. */
void linear_f_forward(epilogue f, int64_t n, const float *z, float *y);

/* dy *= f'(z). */
void linear_f_backward(epilogue f, int64_t n, const float *z, float *dy);

#endif
