/* The activation functions after a linear layer, over packs: the branch on the function is taken
 * once for each pack, so that its elements are computed in parallel.
 *
 * float32 gets the library's functions; for 16-bit activations the fast ones are exact enough
 * (their error is a hundredth of the rounding of the result) and keep the pass bound by bytes. */
#pragma once

#include "cuda/core/kernel.cuh"

template <typename T> __device__ static inline float sigmoid(float z) {
    return __fdividef(1.0f, 1.0f + __expf(-z));
}
template <> __device__ inline float sigmoid<float>(float z) {
    return 1.0f / (1.0f + expf(-z));
}

/* Phi, the normal distribution function: gelu(z) = z Phi(z). */
__device__ static inline float normal(float z) {
    return 0.5f * erfcf(z * -0.70710678f);
}

/* gelu by tanh: z / 2 (1 + tanh(u)) = z sigmoid(2 u). */
__device__ static inline float gelu_twice_u(float z) {
    return z * (1.59576912f + 0.0713548163f * z * z);
}

/* x = f(x) */
template <typename T, int N> __device__ static inline void linear_f(epilogue f, pack<T, N> *x) {
    if (f == EPILOGUE_SILU) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float z = to_float(x->v[i]);
            x->v[i] = from_float<T>(z * sigmoid<T>(z));
        }
    } else if (f == EPILOGUE_RELU) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float z = to_float(x->v[i]);
            x->v[i] = from_float<T>(z > 0 ? z : 0);
        }
    } else if (f == EPILOGUE_GELU) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float z = to_float(x->v[i]);
            x->v[i] = from_float<T>(z * normal(z));
        }
    } else if (f == EPILOGUE_GELU_TANH) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float z = to_float(x->v[i]);
            x->v[i] = from_float<T>(z * sigmoid<T>(gelu_twice_u(z)));
        }
    } else if (f == EPILOGUE_TANH) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x->v[i] = from_float<T>(tanhf(to_float(x->v[i])));
    }
}

/* dy = dy f'(z); gelu' is Phi(z) + z phi(z), where phi is the normal density. */
template <typename T, int N>
__device__ static inline void linear_df(epilogue f, const pack<T, N> &z, pack<T, N> *dy) {
    if (f == EPILOGUE_SILU) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float x = to_float(z.v[i]), s = sigmoid<T>(x);
            dy->v[i] = from_float<T>(to_float(dy->v[i]) * (s * (1.0f + x * (1.0f - s))));
        }
    } else if (f == EPILOGUE_RELU) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!(to_float(z.v[i]) > 0)) dy->v[i] = from_float<T>(0);
    } else if (f == EPILOGUE_GELU) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float x = to_float(z.v[i]);
            float slope = normal(x) + x * 0.39894228f * expf(-0.5f * x * x);
            dy->v[i] = from_float<T>(to_float(dy->v[i]) * slope);
        }
    } else if (f == EPILOGUE_GELU_TANH) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float x = to_float(z.v[i]), s = sigmoid<T>(gelu_twice_u(x));
            float slope = s + x * s * (1.0f - s) * (1.59576912f + 0.2140644488f * x * x);
            dy->v[i] = from_float<T>(to_float(dy->v[i]) * slope);
        }
    } else if (f == EPILOGUE_TANH) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float t = tanhf(to_float(z.v[i]));
            dy->v[i] = from_float<T>(to_float(dy->v[i]) * ((1.0f - t) * (1.0f + t)));
        }
    }
}
