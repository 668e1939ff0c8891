#include "cpu/linear_f.h"

#include <math.h>

#include "cpu/vec.h"

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

/* Functions of z and their slopes, by vectors: of a loop over floats compilers make one that
 * multiplies by the sigmoid of a clamped argument in every lane before it selects, and that product
 * is denormal, 150 cycles a vector. */
typedef vec vec_function(vec z);

static inline vec load_part(const float *from, int64_t n) {
    vec x = {0};
    memcpy(&x, from, (size_t)n * sizeof *from);
    return x;
}

/* y = f(z) z.  The last elements are a vector too: every element has the same bits at any place. */
static inline __attribute__((always_inline)) void multiply(vec_function *f, int64_t n,
                                                           const float *z, float *y) {
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec x = vec_load(z + i);
        vec_store(y + i, x * f(x));
    }
    if (i == n) return;
    vec x = load_part(z + i, n - i), product = x * f(x);
    memcpy(y + i, &product, (size_t)(n - i) * sizeof *y);
}

/* dy = dy slope(z) */
static inline __attribute__((always_inline)) void descend(vec_function *slope, int64_t n,
                                                          const float *z, float *dy) {
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(dy + i, vec_load(dy + i) * slope(vec_load(z + i)));
    if (i == n) return;
    vec product = load_part(dy + i, n - i) * slope(load_part(z + i, n - i));
    memcpy(dy + i, &product, (size_t)(n - i) * sizeof *dy);
}

static inline vec silu_slope(vec z) {
    vec s = vecs_sigmoid(z);
    return s * (1.0f + z * (1.0f - s));
}

/* gelu by tanh: z / 2 (1 + tanh(u)) = z sigmoid(2 u). */
static inline vec gelu_tanh_factor(vec z) {
    return vecs_sigmoid(z * (1.59576912f + 0.0713548162726f * z * z));
}

static inline vec gelu_tanh_slope(vec z) {
    vec s = gelu_tanh_factor(z);
    return s + z * s * (1.0f - s) * (1.59576912f + 0.2140644488f * z * z);
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
        dy[i] *= normal(z[i]) + z[i] * 0.39894228f * vec_exp(-0.5f * z[i] * z[i]);
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
    if (f == EPILOGUE_SILU) multiply(vecs_sigmoid, n, z, y);
    if (f == EPILOGUE_RELU) relu_forward(n, z, y);
    if (f == EPILOGUE_GELU_TANH) multiply(gelu_tanh_factor, n, z, y);
    if (f == EPILOGUE_TANH) tanh_forward(n, z, y);
    if (f == EPILOGUE_GELU) gelu_forward(n, z, y);
}

void linear_f_backward(epilogue f, int64_t n, const float *z, float *dy) {
    if (f == EPILOGUE_SILU) descend(silu_slope, n, z, dy);
    if (f == EPILOGUE_RELU) relu_backward(n, z, dy);
    if (f == EPILOGUE_GELU_TANH) descend(gelu_tanh_slope, n, z, dy);
    if (f == EPILOGUE_TANH) tanh_backward(n, z, dy);
    if (f == EPILOGUE_GELU) gelu_backward(n, z, dy);
}
