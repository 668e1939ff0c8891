#include "cpu/linear_f.h"

#include <math.h>

#include "cpu/vec_math.h"

/* Phi, the normal distribution function: gelu(z) = z Phi(z).  Without branches, so that its loops
 * are vectors.  With t = |z| / sqrt(2), near zero erf(t) = t + t P(t^2); from t = 0.93 on it is
 * 1 - e^Q(t), of which a negative z needs e^Q / 2 alone: nothing cancels.  (The polynomials are
 * Juffa's, for erff within one ulp.) */
static inline float normal(float z) {
    float t = fabsf(z) * 0.70710678f, s = t * t;
    float q = (-1.72853470e-5f * t + 3.83197126e-4f) * s + (-3.88396438e-3f * t + 2.42546219e-2f);
    q = ((q * t - 1.06777877e-1f) * t - 6.34846687e-1f) * t - 1.28717512e-1f;
    float tail = 0.5f * vec_exp(q * t - t);
    float p = ((-5.96761703e-4f * s + 4.99119423e-3f) * s - 2.67681349e-2f) * s + 1.12819925e-1f;
    p = (p * s - 3.76125336e-1f) * s + 1.28379166e-1f;
    float half = 0.5f * (p * t + t), far = z > 0 ? 1.0f - tail : tail;
    return t > 0.927734375f ? far : z > 0 ? 0.5f + half : 0.5f - half;
}

/* gelu by tanh: z / 2 (1 + tanh(u)) = z sigmoid(2 u). */
static inline float twice_u(float z) {
    return z * (1.59576912f + 0.0713548162726f * z * z);
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

static void gelu_tanh_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = z[i] * vec_sigmoid(twice_u(z[i]));
}

static void gelu_tanh_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i++) {
        float s = vec_sigmoid(twice_u(z[i]));
        float slope = 1.59576912f + 0.2140644488f * z[i] * z[i];
        dy[i] *= s + z[i] * s * (1.0f - s) * slope;
    }
}

/* Once a sequence, so the library's is fast enough. */
static void tanh_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = tanhf(z[i]);
}

static void tanh_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i++) {
        float t = tanhf(z[i]);
        dy[i] *= (1.0f - t) * (1.0f + t);
    }
}

void linear_f_forward(epilogue f, int64_t n, const float *z, float *y) {
    if (f == EPILOGUE_SILU) silu_forward(n, z, y);
    if (f == EPILOGUE_RELU) relu_forward(n, z, y);
    if (f == EPILOGUE_GELU_TANH) gelu_tanh_forward(n, z, y);
    if (f == EPILOGUE_TANH) tanh_forward(n, z, y);
    if (f == EPILOGUE_GELU) gelu_forward(n, z, y);
}

void linear_f_backward(epilogue f, int64_t n, const float *z, float *dy) {
    if (f == EPILOGUE_SILU) silu_backward(n, z, dy);
    if (f == EPILOGUE_RELU) relu_backward(n, z, dy);
    if (f == EPILOGUE_GELU_TANH) gelu_tanh_backward(n, z, dy);
    if (f == EPILOGUE_TANH) tanh_backward(n, z, dy);
    if (f == EPILOGUE_GELU) gelu_backward(n, z, dy);
}
