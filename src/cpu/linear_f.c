#include "cpu/linear_f.h"

#include <math.h>

#include "cpu/vec_math.h"

/* SiLU is on the way of every token, so its loops are made of vec_exp; gelu is only on that of a
 * ranking head, where the library's erfcf will do.
 *
 * Phi, the normal distribution function: gelu(z) = z Phi(z). */
static inline float normal(float z) {
    return 0.5f * erfcf(z * -0.70710678f);
}

static void silu_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i += VEC) {
        vec x = vec_load_n(z + i, n - i);
        vec_store_n(y + i, x * vec_sigmoid(x), n - i);
    }
}

static void silu_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i += VEC) {
        vec x = vec_load_n(z + i, n - i), s = vec_sigmoid(x);
        vec_store_n(dy + i, vec_load_n(dy + i, n - i) * s * (1.0f + x * (1.0f - s)), n - i);
    }
}

static void relu_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = z[i] > 0 ? z[i] : 0;
}

static void relu_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i++)
        dy[i] = z[i] > 0 ? dy[i] : 0;
}

static void gelu_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = z[i] * normal(z[i]);
}

/* gelu' = Phi(z) + z phi(z), phi being the normal density. */
static void gelu_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i++)
        dy[i] *= normal(z[i]) + z[i] * 0.39894228f * expf(-0.5f * z[i] * z[i]);
}

void linear_f_forward(epilogue f, int64_t n, const float *z, float *y) {
    if (f == EPILOGUE_SILU) silu_forward(n, z, y);
    if (f == EPILOGUE_RELU) relu_forward(n, z, y);
    if (f == EPILOGUE_GELU) gelu_forward(n, z, y);
}

void linear_f_backward(epilogue f, int64_t n, const float *z, float *dy) {
    if (f == EPILOGUE_SILU) silu_backward(n, z, dy);
    if (f == EPILOGUE_RELU) relu_backward(n, z, dy);
    if (f == EPILOGUE_GELU) gelu_backward(n, z, dy);
}
