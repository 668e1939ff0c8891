#include "cpu/product_pack.h"

#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* Whole panels; width is a compile-time constant where this is inlined. */
static inline __attribute__((always_inline)) void
copy_whole(float *to, int width, const float *from, ptrdiff_t stride, ptrdiff_t kk) {
    for (ptrdiff_t k = 0; k < kk; k++, to += width, from += stride)
        memcpy(to, from, (size_t)width * sizeof *to);
}

/* n < width columns of each row: 16 and four at a time, then the rest, a constant number in each
 * loop. */
static void copy_part(float *to, int width, const float *from, ptrdiff_t stride, int n,
                      ptrdiff_t kk) {
    int sixteens = n / 16 * 16, fours = n / 4 * 4, rest = n - fours;
    memset(to, 0, (size_t)(kk * width) * sizeof *to);
    for (int j = 0; j < sixteens; j += 16)
        for (ptrdiff_t k = 0; k < kk; k++)
            memcpy(to + k * width + j, from + k * stride + j, 16 * sizeof *to);
    for (int j = sixteens; j < fours; j += 4)
        for (ptrdiff_t k = 0; k < kk; k++)
            memcpy(to + k * width + j, from + k * stride + j, 4 * sizeof *to);
    to += fours, from += fours;
    for (ptrdiff_t k = 0; rest == 1 && k < kk; k++)
        to[k * width] = from[k * stride];
    for (ptrdiff_t k = 0; rest >= 2 && k < kk; k++)
        memcpy(to + k * width, from + k * stride, 2 * sizeof *to);
    for (ptrdiff_t k = 0; rest == 3 && k < kk; k++)
        to[k * width + 2] = from[k * stride + 2];
}

void product_pack_copy(float *to, int width, const float *from, ptrdiff_t stride, int n,
                       ptrdiff_t kk) {
    if (n < width)
        copy_part(to, width, from, stride, n, kk);
    else if (width == 6)
        copy_whole(to, 6, from, stride, kk);
    else if (width == 8)
        copy_whole(to, 8, from, stride, kk);
    else if (width == 12)
        copy_whole(to, 12, from, stride, kk);
    else if (width == 16)
        copy_whole(to, 16, from, stride, kk);
    else if (width == 32)
        copy_whole(to, 32, from, stride, kk);
    else if (width == 48)
        copy_whole(to, 48, from, stride, kk);
    else
        copy_whole(to, width, from, stride, kk);
}

/* Transposes four rows of four floats.  Rows of `to` are `width` apart. */
static inline void transpose4(float *to, int width, const float *from, ptrdiff_t stride) {
#if defined(__aarch64__)
    float32x4_t r0 = vld1q_f32(from), r1 = vld1q_f32(from + stride);
    float32x4_t r2 = vld1q_f32(from + 2 * stride), r3 = vld1q_f32(from + 3 * stride);
    float32x4_t a = vtrn1q_f32(r0, r1), b = vtrn2q_f32(r0, r1);
    float32x4_t c = vtrn1q_f32(r2, r3), d = vtrn2q_f32(r2, r3);
    vst1q_f32(to, vcombine_f32(vget_low_f32(a), vget_low_f32(c)));
    vst1q_f32(to + width, vcombine_f32(vget_low_f32(b), vget_low_f32(d)));
    vst1q_f32(to + 2 * width, vcombine_f32(vget_high_f32(a), vget_high_f32(c)));
    vst1q_f32(to + 3 * width, vcombine_f32(vget_high_f32(b), vget_high_f32(d)));
#elif defined(__SSE2__)
    __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + stride);
    __m128 r2 = _mm_loadu_ps(from + 2 * stride), r3 = _mm_loadu_ps(from + 3 * stride);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(to, r0);
    _mm_storeu_ps(to + width, r1);
    _mm_storeu_ps(to + 2 * width, r2);
    _mm_storeu_ps(to + 3 * width, r3);
#else
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < 4; j++)
            to[k * width + j] = from[j * stride + k];
#endif
}

/* `n` columns beginning with column j0, four k at a time where there are four columns. */
static void transpose_columns(float *to, int width, const float *from, ptrdiff_t stride, int n,
                              ptrdiff_t kk) {
    ptrdiff_t k = 0;
    for (; n == 4 && k + 4 <= kk; k += 4)
        transpose4(to + k * width, width, from + k, stride);
    for (; k < kk; k++)
        for (int j = 0; j < n; j++)
            to[k * width + j] = from[j * stride + k];
}

void product_pack_transpose(float *to, int width, const float *from, ptrdiff_t stride, int n,
                            ptrdiff_t kk) {
    for (int j = 0; j < n; j += 4)
        transpose_columns(to + j, width, from + j * stride, stride, n - j < 4 ? n - j : 4, kk);
    for (ptrdiff_t k = 0; n < width && k < kk; k++)
        memset(to + k * width + n, 0, (size_t)(width - n) * sizeof *to);
}
