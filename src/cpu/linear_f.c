#include "cpu/linear_f.h"

#include <math.h>

#include "cpu/vec_math.h"

/* SiLU runs for every token, so its loops use vec_exp; gelu runs in ranking heads only, where the
 * library's erfcf is fast enough.
 *
 * Phi, the normal distribution function: gelu(z) = z Phi(z). */
static inline float normal(float z) {
    return 0.5f * erfcf(z * -0.70710678f);
}

static void silu_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = z[i] * vec_sigmoid(z[i]);
}

static void silu_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i++) {
        float s = vec_sigmoid(z[i]);
        dy[i] *= s * (1.0f + z[i] * (1.0f - s));
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
