/* The pairs of a mixture of logits (ops.h): products, the gates' MLP, mixing, and their gradients.
 *
 * A warp has a tile of 16 pairs of one query.  Its logits are products of the items' vectors (16
 * rows) and the query's (8 columns), one for each component of an item: the sums of component r are
 * in the layout in which the next product reads rows, so that logits, hidden values and gates stay
 * in registers.  Logit p P_X + r is number 8 r + p in here.  Backward, a warp has a query: it
 * computes its tiles again, and then the gradients of logits and gates, which go to scratch memory
 * for the items' gradients (a block for each item, its pairs in order).  The gradients of the MLP
 * are products over the 64 pairs of a block, through shared memory; each block's sums are added in
 * order at the end, so that the bits are the same in every run.
 *
 * Operands are float16, which has as many bits as TF32 and more than bfloat16; gradients, which may
 * be small, are in here those of a loss without its scale.  Where products must be float32, and in
 * shapes that no published config has, operands are float32, split into two TF32 numbers.  Bound by
 * exponentials and random draws, and by the items' vectors from the L2 cache. */
#include "cuda/ops/mol_operands.cuh"

/* A lane's part of a tile: row l / 4 and that plus 8 are its two pairs, h = 0 and 1. */
typedef struct lane_pairs {
    int64_t i;      /* the query */
    int j[2];       /* the pairs, from first_pair on */
    int32_t row[2]; /* rows of items; n_items for none */
} lane_pairs;

/* Factors of the columns of a pair that the lane has. */
template <int NX>
__device__ static inline void drop_logits(const mol_args &a, const dropout &from, int64_t i, int j,
                                          float (&factor)[NX][2]) {
    const int t = (int)threadIdx.x % 4;
    const drop_row d = drop_begin(from, i);
#pragma unroll
    for (int k = 0; k < 2 * NX; k += 4) {
        int e = k / NX, r = k % NX;
        float4 x = make_float4(1, 1, 1, 1);
        if (d.rate > 0 && r < a.n_item) {
            uint32_t c =
                (uint32_t)((a.first_pair + j) * a.n_query + 2 * t + e) * (uint32_t)a.n_item +
                (uint32_t)r;
            x = drop_factors(d, c / 4);
            if (c % 4 != 0) { /* columns of two draws */
                float4 y = drop_factors(d, c / 4 + 1);
                if (c & 1) x = make_float4(x.y, x.z, x.w, y.x), y = make_float4(y.y, y.z, y.w, 0);
                if (c & 2) x = make_float4(x.z, x.w, y.x, y.y);
            }
        }
        factor[r][e] = x.x;
        factor[r + 1][e] = x.y;
        factor[r + 2][e] = x.z;
        factor[r + 3][e] = x.w;
    }
}

/* The width of vectors, known in the kernels that matter, so that addresses differ by constants. */
template <typename T, int NX, int PARTS> __device__ static inline int width_of(const mol_job &j) {
    return IS_QUICK<T, NX> ? 32 * PARTS : j.width;
}

/* The logits of a tile. */
template <typename T, int NX, int PARTS>
__device__ static inline void tile_logits(const mol_job &j, int64_t i, const int32_t (&row)[2],
                                          float (&s)[NX][4]) {
    const int lane = (int)threadIdx.x % WARP, t = lane % 4, g = lane / 4;
    const int width = width_of<T, NX, PARTS>(j);
    const float scale = 1 / j.a.temperature;
#pragma unroll
    for (int r = 0; r < NX; r++)
        s[r][0] = s[r][1] = s[r][2] = s[r][3] = 0;
    for (int c = 8 * t; c < width; c += 32) {
        eight<T> q = load_eight<T>(j.o.query, (i * MOST + g) * width + c);
#pragma unroll
        for (int r = 0; r < NX; r++) {
            eight<T> x = load_eight<T>(j.o.items, ((int64_t)row[0] * NX + r) * width + c);
            eight<T> y = load_eight<T>(j.o.items, ((int64_t)row[1] * NX + r) * width + c);
            mma<T>(s[r], x.v[0], y.v[0], x.v[1], y.v[1], q.v[0], q.v[1]);
            mma<T>(s[r], x.v[2], y.v[2], x.v[3], y.v[3], q.v[2], q.v[3]);
        }
    }
#pragma unroll
    for (int k = 0; k < 4 * NX; k++)
        s[k / 4][k % 4] *= scale;
}

/* Rows for the product with W1: dropped logits. */
template <typename T, int NX>
__device__ static inline void tile_drop(const mol_args &a, const lane_pairs &own,
                                        const float (&s)[NX][4], two<T> (&in)[NX][2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float factor[NX][2];
        drop_logits<NX>(a, a.drop_pair, own.i, own.j[h], factor);
#pragma unroll
        for (int r = 0; r < NX; r++)
            in[r][h] = make_two<T>(s[r][2 * h] * factor[r][0], s[r][2 * h + 1] * factor[r][1]);
    }
}

/* c += rows W, where the rows' sums go over logits: hidden values 8 n .. 8 n + 7. */
template <typename T, int NX>
__device__ static inline void over_logits(const T *w, int n, const two<T> (&in)[NX][2],
                                          float (&c)[4]) {
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < NX; k += 4) { /* two fragments of 16 logits */
        eight<T> b = load_eight<T>(w, ((int64_t)(n * (NX / 4) + k / 4) * WARP + lane) * 8);
        mma<T>(c, in[k][0], in[k][1], in[k + 1][0], in[k + 1][1], b.v[0], b.v[1]);
        mma<T>(c, in[k + 2][0], in[k + 2][1], in[k + 3][0], in[k + 3][1], b.v[2], b.v[3]);
    }
}

/* ... and over hidden values 16 n .. 16 n + 15: all logits. */
template <typename T, int NX>
__device__ static inline void over_hidden(const T *w, int n, const two<T> (&in)[2][2],
                                          float (&c)[NX][4]) {
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < NX; r += 2) {
        eight<T> b = load_eight<T>(w, ((int64_t)(n * (NX / 2) + r / 2) * WARP + lane) * 8);
        mma<T>(c[r], in[0][0], in[0][1], in[1][0], in[1][1], b.v[0], b.v[1]);
        mma<T>(c[r + 1], in[0][0], in[0][1], in[1][0], in[1][1], b.v[2], b.v[3]);
    }
}

/* The MLP: pair[r] = its gates; hidden values and slopes of SiLU are kept in rows of shared memory,
 * if those are given. */
template <typename T, int NX>
__device__ static inline void tile_mlp(const T *weights, const float *bias,
                                       const two<T> (&in)[NX][2], T *hidden, T *slope,
                                       float (&pair)[NX][4]) {
    const int lane = (int)threadIdx.x % WARP, t = lane % 4, g = lane / 4;
    const T *second = weights + HIDDEN * 8 * NX;
#pragma unroll
    for (int r = 0; r < NX; r++) {
        float2 b = *(const float2 *)(bias + HIDDEN + 8 * r + 2 * t);
        pair[r][0] = pair[r][2] = b.x;
        pair[r][1] = pair[r][3] = b.y;
    }
#pragma unroll 2
    for (int n = 0; n < HIDDEN / 16; n++) {
        two<T> y[2][2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float2 b = *(const float2 *)(bias + 16 * n + 8 * k + 2 * t);
            float z[4] = {b.x, b.y, b.x, b.y}, f[4], df[4];
            over_logits<T, NX>(weights, 2 * n + k, in, z);
#pragma unroll
            for (int c = 0; c < 4; c++)
                f[c] = silu_of<T>(z[c], &df[c]);
            y[k][0] = make_two<T>(f[0], f[1]);
            y[k][1] = make_two<T>(f[2], f[3]);
            if (hidden == NULL) continue;
            int at = g * STRIDE + 16 * n + 8 * k + 2 * t;
            *(two<T> *)(hidden + at) = y[k][0];
            *(two<T> *)(hidden + at + 8 * STRIDE) = y[k][1];
            *(two<T> *)(slope + at) = make_two<T>(df[0], df[1]);
            *(two<T> *)(slope + at + 8 * STRIDE) = make_two<T>(df[2], df[3]);
        }
        over_hidden<T, NX>(second, n, y, pair);
    }
}

__device__ static inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* A lane's gates of one pair, and the slopes of SiLU there. */
template <int NX> struct mixture {
    float slope[NX][2], soft[NX][2], sum, kept; /* factor of a gate that is kept */
    uint32_t is_kept;                           /* bit 2 r + e */

    __device__ float factor(int k) const {
        return is_kept >> k & 1 ? kept : 0;
    }
    __device__ float gate(int k, float back) const { /* back: 1 / sum */
        return soft[k / 2][k % 2] * factor(k) * back;
    }
};

/* Of a fragment, the numbers of pair h. */
template <int NX>
__device__ static inline void take_pair(const float (&x)[NX][4], int h, float (&y)[NX][2]) {
#pragma unroll
    for (int k = 0; k < 2 * NX; k++)
        y[k / 2][k % 2] = h == 0 ? x[k / 2][k % 2] : x[k / 2][k % 2 + 2];
}

template <typename T, int NX>
__device__ static inline void tile_mix(const mol_args &a, int64_t i, int j,
                                       const pack<two<T>, NX> &query, const pack<two<T>, NX> &item,
                                       const float (&pair)[NX][2], mixture<NX> &m) {
    const int t = (int)threadIdx.x % 4;
    float largest = -INFINITY, sum = 0, kept = 0;
#pragma unroll
    for (int r = 0; r < NX; r++) {
        float2 q = two_floats(query.v[r]), y = two_floats(item.v[r]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            bool is_own = r < a.n_item && 2 * t + e < a.n_query;
            float g = (e == 0 ? q.x * y.x : q.y * y.y) + pair[r][e], x = sigmoid_of<T>(g);
            m.slope[r][e] = x * (1 + g * (1 - x));
            m.soft[r][e] = is_own ? g * x : -INFINITY;
            largest = fmaxf(largest, m.soft[r][e]);
        }
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
#pragma unroll
    for (int k = 0; k < 2 * NX; k++) {
        float &x = m.soft[k / 2][k % 2];
        x = sizeof(T) == 4 ? __expf(x - largest) : ex2_approx(1.44269504f * (x - largest));
        sum += x;
    }
    sum = reciprocal<T>(quad_sum(sum));
    float factor[NX][2];
    drop_logits<NX>(a, a.drop_gate, i, j, factor);
    m.is_kept = 0;
    m.kept = a.drop_gate.rate > 0 ? 1 / (1 - a.drop_gate.rate) : 1;
#pragma unroll
    for (int k = 0; k < 2 * NX; k++) {
        float &x = m.soft[k / 2][k % 2];
        x *= sum;
        if (factor[k / 2][k % 2] > 0) m.is_kept |= 1u << k;
        kept += x * factor[k / 2][k % 2];
    }
    m.sum = fmaxf(quad_sum(kept), 1e-6f);
}

/* The tile from pair `first` on of query i; a query of no row (is_there false) has no pairs. */
__device__ static inline lane_pairs tile_begin(const mol_args &a, int64_t i, int first,
                                               bool is_there) {
    lane_pairs own = {i};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int k = first + (int)threadIdx.x % WARP / 4 + 8 * h;
        int item = k;
        if (a.item != NULL && k < a.n_each) item = a.item[i * a.n_each + k];
        own.j[h] = k;
        own.row[h] = is_there && k < a.n_each && item >= 0 ? item : a.n_items;
    }
    return own;
}

template <typename T, int NX>
__device__ static inline pack<two<T>, NX> load_gate(const void *gate, int64_t i) {
    return *(const pack<two<T>, NX> *)((const T *)gate + (i * 4 + threadIdx.x % 4) * 2 * NX);
}

/* Fragments and biases to shared memory, or those of scratch memory where they are too large. */
template <typename T, int NX> constexpr bool IS_SHARED = sizeof(T) == 2;

template <typename T, int NX>
__device__ static inline const T *share_weights(const mol_job &j, int n_matrices, char *room,
                                                float **bias) {
    const int n = n_matrices * HIDDEN * 8 * NX;
    *bias = (float *)room;
    for (int k = (int)threadIdx.x; k < HIDDEN + 8 * NX; k += THREADS)
        (*bias)[k] = j.o.bias[k];
    if (!IS_SHARED<T, NX>) return (const T *)j.o.weights;
    eight<T> *to = (eight<T> *)(*bias + HIDDEN + 8 * NX);
    for (int k = (int)threadIdx.x; k < n / 8; k += THREADS)
        to[k] = ((const eight<T> *)j.o.weights)[k];
    return (const T *)to;
}

template <typename T, int NX> static constexpr size_t weights_bytes(int n_matrices) {
    return (HIDDEN + 8 * NX) * 4 +
           (IS_SHARED<T, NX> ? (size_t)n_matrices * HIDDEN * 8 * NX * sizeof(T) : 0);
}

template <typename T, int NX, int PARTS>
static __global__ void __launch_bounds__(THREADS, IS_QUICK<T, NX> ? 4 : 2)
    mol_pairs_fwd_any_kernel(const __grid_constant__ mol_job j) {
    extern __shared__ uint4 room[];
    const mol_args &a = j.a;
    const int lane = (int)threadIdx.x % WARP, t = lane % 4, n = a.n_query * a.n_item;
    const int64_t n_blocks = (a.n_each + TILE - 1) / TILE;
    float *bias;
    const T *weights = share_weights<T, NX>(j, 2, (char *)room, &bias);
    __syncthreads();
    for (int64_t u = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; u < a.n * n_blocks;
         u += (int64_t)gridDim.x * WARPS) {
        const int64_t i = u / n_blocks;
        const lane_pairs own = tile_begin(a, i, (int)(u % n_blocks) * TILE, true);
        float s[NX][4], g[NX][4];
        two<T> in[NX][2];
        tile_logits<T, NX, PARTS>(j, i, own.row, s);
        tile_drop<T, NX>(a, own, s, in);
        tile_mlp<T, NX>(weights, bias, in, (T *)NULL, (T *)NULL, g);
        const pack<two<T>, NX> query = load_gate<T, NX>(j.o.query_gate, i);
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            const int pair = own.j[h];
            float own_s[NX][2], own_g[NX][2], sum = 0;
            mixture<NX> m;
            take_pair<NX>(s, h, own_s);
            take_pair<NX>(g, h, own_g);
            tile_mix<T, NX>(a, i, pair, query, load_gate<T, NX>(j.o.item_gate, own.row[h]), own_g,
                            m);
            const float back = reciprocal<T>(m.sum);
#pragma unroll
            for (int k = 0; k < 2 * NX; k++)
                sum += m.gate(k, back) * own_s[k / 2][k % 2];
            sum = quad_sum(sum);
            if (pair >= a.n_each) continue;
            int64_t at = (i * a.n_each + pair) * n;
            if (t == 0) a.sim[i * a.sim_row + pair * a.sim_pair] = sum;
            if (a.gate == NULL && a.s == NULL) continue;
#pragma unroll
            for (int k = 0; k < 2 * NX; k++) {
                int logit = logit_of(a, k / 2 * 8 + 2 * t + k % 2);
                if (logit >= 0 && a.gate != NULL) a.gate[at + logit] = m.gate(k, back);
                if (logit >= 0 && a.s != NULL) a.s[at + logit] = own_s[k / 2][k % 2];
            }
        }
    }
}

/* What a warp of the backward pass adds up: of W1 and its bias, or of W2 and its bias. */
template <int NX> struct sums {
    float matrix[OWN_TILES][NX][4], bias[OWN_TILES][4]; /* a warp of W2 has a share of its bias */
};

/* From a pair's mixture to the gradients of its logits, without those through the MLP, and g. */
template <typename T, int NX>
__device__ static inline void
tile_mix_bwd(const mol_args &a, int64_t i, int j, bool is_there, float scale, const mixture<NX> &m,
             const float (&s)[NX][2], two<T> (&ds)[NX], float (&dg)[NX][2]) {
    const int t = (int)threadIdx.x % 4;
    const bool is_balanced = a.balance > 0 && is_there && j == a.n_each - 1;
    const float unit = reciprocal<T>(scale), back = reciprocal<T>(m.sum), e = 1e-6f;
    const float dsim = is_there ? a.dsim[i * a.n_each + j] * unit : 0;
    const float weight = is_balanced ? *a.grad_scale * unit * a.balance : 0;
    float along = 0, total = 0;
#pragma unroll
    for (int k = 0; k < 2 * NX; k++) {
        const int r = k / 2, c = k % 2;
        float gate = m.gate(k, back), &d = dg[r][c];
        d = dsim * s[r][c];
        int logit = logit_of(a, 8 * r + 2 * t + c);
        if (is_balanced && logit >= 0) {
            float mean = a.mean[logit];
            d += weight * (log_of<T>(mean + e) - log_of<T>(gate + e) + e * reciprocal<T>(gate + e) -
                           e * reciprocal<T>(mean + e));
        }
        along += d * gate;
    }
#pragma unroll
    for (int r = 0; r < NX; r++)
        ds[r] = make_two<T>(dsim * m.gate(2 * r, back), dsim * m.gate(2 * r + 1, back));
    along = quad_sum(along);
    if (!(m.sum > e)) along = 0;
#pragma unroll
    for (int k = 0; k < 2 * NX; k++) {
        float &d = dg[k / 2][k % 2];
        d = (d - along) * back * m.factor(k);
        total += d * m.soft[k / 2][k % 2];
    }
    total = quad_sum(total);
#pragma unroll
    for (int k = 0; k < 2 * NX; k++) {
        float &d = dg[k / 2][k % 2];
        d = m.soft[k / 2][k % 2] * (d - total) * m.slope[k / 2][k % 2];
    }
}

/* Of the transposed tile (pairs, stride), rows `c` .. c + 15 over 16 pairs: the fragment of a left
 * operand; turned, those of two right operands, one after the other. */
template <typename T, bool IS_RIGHT>
__device__ static inline void load_turned(const T *tile, int stride, int c, two<T> (&x)[4]) {
    const int lane = (int)threadIdx.x % WARP, t = lane % 4, g = lane / 4;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int pair = IS_RIGHT ? k % 2 : k / 2, row = IS_RIGHT ? k / 2 : k % 2;
            const T *from = tile + (pair * 8 + 2 * t) * stride + c + row * 8 + g;
            x[k] = make_float2(from[0], from[stride]);
        }
    } else {
        const int first = lane / 8 % 2 * 8, second = lane / 16 * 8;
        const int pair = lane % 8 + (IS_RIGHT ? first : second);
        const int column = c + (IS_RIGHT ? second : first);
        ldmatrix_x4_trans(x, shared_address(tile + pair * stride + column));
    }
}

/* The tiles of a block in shared memory, a row for each of its pairs: hidden values, their
 * gradients (before: slopes), logits after dropout, and gradients of the MLP's gates. */
template <typename T, int NX> struct block_tiles {
    static constexpr int ROWS = WARPS * TILE, LOGITS = 8 * NX + 8;
    T hidden[ROWS * STRIDE], dz[ROWS * STRIDE], in[ROWS * LOGITS], dg[ROWS * LOGITS];
    pack<float, 2 * NX> dgate[THREADS]; /* gradients of a lane's gates of the query */
};

/* The gradients of W1 (a half of the warps) or W2 over the pairs of a block, and of a bias: a warp
 * of W1 has the bias of its hidden values, one of W2 that of a share of the logits. */
template <typename T, int NX, bool IS_FIRST>
__device__ static inline void add_matrix(const T *rows, const T *columns, int share,
                                         sums<NX> &sum) {
    constexpr int LOGITS = block_tiles<T, NX>::LOGITS;
    const two<T> one = make_two<T>(1, 1);
#pragma unroll(IS_QUICK <T, NX> ? 4 : 1)
    for (int k = 0; k < WARPS; k++) {
        two<T> x[OWN_TILES][4], y[4];
#pragma unroll
        for (int m = 0; m < OWN_TILES; m++) {
            load_turned<T, false>(rows + k * TILE * STRIDE, STRIDE, (share * OWN_TILES + m) * TILE,
                                  x[m]);
            if (IS_FIRST) mma<T>(sum.bias[m], x[m][0], x[m][1], x[m][2], x[m][3], one, one);
        }
#pragma unroll
        for (int r = 0; r < NX && !IS_FIRST; r += WARPS / 2) {
            load_turned<T, true>(columns + k * TILE * LOGITS, LOGITS, 8 * ((share + r) % NX), y);
            mma<T>(sum.bias[r / (WARPS / 2)], one, one, one, one, y[0], y[1]);
        }
#pragma unroll
        for (int r = 0; r < NX; r += 2) {
            load_turned<T, true>(columns + k * TILE * LOGITS, LOGITS, 8 * r, y);
#pragma unroll
            for (int m = 0; m < OWN_TILES; m++) {
                mma<T>(sum.matrix[m][r], x[m][0], x[m][1], x[m][2], x[m][3], y[0], y[1]);
                mma<T>(sum.matrix[m][r + 1], x[m][0], x[m][1], x[m][2], x[m][3], y[2], y[3]);
            }
        }
    }
}

template <typename T, int NX>
__device__ static inline void add_weights(const block_tiles<T, NX> &tiles, sums<NX> &sum) {
    const int warp = (int)threadIdx.x / WARP, share = warp % (WARPS / 2);
    if (warp < WARPS / 2)
        add_matrix<T, NX, true>(tiles.dz, tiles.in, share, sum);
    else
        add_matrix<T, NX, false>(tiles.hidden, tiles.dg, share, sum);
}

/* A block's sums to memory. */
template <int NX> __device__ static inline void put_sums(const mol_job &j, const sums<NX> &sum) {
    const int lane = (int)threadIdx.x % WARP, t = lane % 4, g = lane / 4;
    const int warp = (int)threadIdx.x / WARP, first = warp % (WARPS / 2) * OWN_TILES * TILE;
    float *parts = j.o.parts + (int64_t)blockIdx.x * N_PARTS<NX>;
    float *to = parts + warp / (WARPS / 2) * (HIDDEN * 8 * NX), *bias = parts + 2 * HIDDEN * 8 * NX;
#pragma unroll
    for (int m = 0; m < OWN_TILES; m++) {
        int row = first + m * TILE + g;
#pragma unroll
        for (int k = 0; k < 4 * NX; k++)
            to[(row + k % 4 / 2 * 8) * 8 * NX + k / 4 * 8 + 2 * t + k % 2] =
                sum.matrix[m][k / 4][k % 4];
        if (t > 0 || warp >= WARPS / 2) continue;
        bias[row] = sum.bias[m][0];
        bias[row + 8] = sum.bias[m][2];
    }
#pragma unroll
    for (int r = 0; r < NX; r++)
        for (int e = 0; e < 2; e++)
            if (warp == WARPS / 2 + r % (WARPS / 2) && g == 0)
                bias[HIDDEN + 8 * r + 2 * t + e] = sum.bias[r / (WARPS / 2)][e];
}

__device__ static inline void act_put(void *to, act_type act, int64_t at, float x) {
    if (act == ACT_BF16)
        ((__nv_bfloat16 *)to)[at] = from_float<__nv_bfloat16>(x);
    else if (act == ACT_F16)
        ((__half *)to)[at] = from_float<__half>(x);
    else
        ((float *)to)[at] = x;
}

/* x, which the compiler does not know, so that nothing made of it leaves a loop: registers are few.
 */
__device__ static inline int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* A query's gradients: dq of fragments (tile_query). */
template <int NX, int PARTS>
__device__ static inline void put_query(const mol_job &j, act_type act, int64_t i, float scale,
                                        const float (&dq)[2 * PARTS][4],
                                        const pack<float, 2 * NX> &dgate) {
    const mol_args &a = j.a;
    const int lane = opaque((int)threadIdx.x % WARP), t = lane % 4, g = lane / 4;
    const int n_own = a.n_query - a.n_user, n = a.n_query * a.n_item;
#pragma unroll
    for (int k = 0; k < 8 * PARTS; k++) {
        int c = k / 8 * 32 + g / 2 * 8 + k / 4 % 2 * 4 + k / 2 % 2 * 2 + g % 2, p = 2 * t + k % 2;
        float x = scale / a.temperature * dq[k / 4][k % 4];
        if (c >= a.dim || p >= a.n_query) continue;
        if (p < n_own)
            act_put(a.dquery, act, (i * n_own + p) * a.dim + c, x);
        else
            act_put(a.duser, act, ((p - n_own) * a.user_stride + i) * a.dim + c, x);
    }
#pragma unroll
    for (int k = 0; k < 2 * NX; k++) {
        float x = dgate.v[k];
        int logit = logit_of(a, k / 2 * 8 + 2 * t + k % 2);
        for (int l = 4; l < WARP; l *= 2)
            x += __shfl_xor_sync(0xffffffffu, x, l);
        if (g == 0 && logit >= 0) act_put(a.dquery_gate, act, i * n + logit, scale * x);
    }
}

/* dq += the items' vectors, transposed, times the gradients of their logits. */
template <typename T, int NX, int PARTS>
__device__ static inline void tile_query(const mol_job &j, const int32_t (&row)[2],
                                         const float (&ds)[NX][4], float (&dq)[2 * PARTS][4]) {
    const int c = (int)threadIdx.x % 4 * 8, width = width_of<T, NX, PARTS>(j);
#pragma unroll
    for (int r = 0; r < NX; r++) {
        if (r >= j.a.n_item) continue;
        two<T> b0 = turn<T>(make_two<T>(ds[r][0], ds[r][1]));
        two<T> b1 = turn<T>(make_two<T>(ds[r][2], ds[r][3]));
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            if (32 * k >= width) continue;
            eight<T> x = load_eight<T>(j.o.items, ((int64_t)row[0] * NX + r) * width + c + 32 * k);
            eight<T> y = load_eight<T>(j.o.items, ((int64_t)row[1] * NX + r) * width + c + 32 * k);
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                mma<T>(dq[2 * k + e / 2], turn<T>(x.v[e]), turn<T>(x.v[e + 1]), turn<T>(y.v[e]),
                       turn<T>(y.v[e + 1]), b0, b1);
        }
    }
}

/* ds = the gradients of logits through the MLP; the hidden values' gradients replace the slopes. */
template <typename T, int NX>
__device__ static inline void tile_mlp_bwd(const T *weights, const two<T> (&dg)[NX][2], T *slope,
                                           float (&ds)[NX][4]) {
    const int lane = (int)threadIdx.x % WARP, t = lane % 4, g = lane / 4;
    const T *second = weights + 2 * HIDDEN * 8 * NX, *first = second + HIDDEN * 8 * NX;
#pragma unroll
    for (int k = 0; k < 4 * NX; k++)
        ds[k / 4][k % 4] = 0;
#pragma unroll 2
    for (int n = 0; n < HIDDEN / 16; n++) {
        two<T> dz[2][2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float d[4] = {};
            over_logits<T, NX>(second, 2 * n + k, dg, d);
            T *at = slope + g * STRIDE + 16 * n + 8 * k + 2 * t;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2 x = two_floats(*(two<T> *)(at + h * 8 * STRIDE));
                dz[k][h] = make_two<T>(d[2 * h] * x.x, d[2 * h + 1] * x.y);
                *(two<T> *)(at + h * 8 * STRIDE) = dz[k][h];
            }
        }
        over_hidden<T, NX>(first, n, dz, ds);
    }
}

/* A tile, forward and backward, but for the gradients of weights. */
template <typename T, int NX, int PARTS>
__device__ static inline void tile_bwd(const mol_job &j, const lane_pairs &own, bool is_there,
                                       float scale, const T *weights, const float *bias,
                                       block_tiles<T, NX> &tiles, float (&dq)[2 * PARTS][4]) {
    using B = block_tiles<T, NX>;
    const mol_args &a = j.a;
    const int lane = (int)threadIdx.x % WARP, t = lane % 4, g = lane / 4;
    const int first = (int)threadIdx.x / WARP * TILE;
    T *hidden = tiles.hidden + first * STRIDE, *slope = tiles.dz + first * STRIDE;
    const int64_t at = ((own.i * a.n_each + own.j[0]) * 4 + t) * 2 * NX;
    const bool has[2] = {is_there && own.j[0] < a.n_each, is_there && own.j[1] < a.n_each};
    pack<two<T>, NX> *to_ds = (pack<two<T>, NX> *)((T *)j.o.ds + at);
    pack<two<T>, NX> *to_dg = (pack<two<T>, NX> *)((T *)j.o.dg + at);
    T *in = tiles.in + (first + g) * B::LOGITS + 2 * t;
    T *dg_row = tiles.dg + (first + g) * B::LOGITS + 2 * t;
    float ds[NX][4];
    two<T> x[NX][2];
    {
        float s[NX][4], pair[NX][4];
        tile_logits<T, NX, PARTS>(j, own.i, own.row, s);
        tile_drop<T, NX>(a, own, s, x);
#pragma unroll
        for (int k = 0; k < 2 * NX; k++)
            *(two<T> *)(in + k % 2 * 8 * B::LOGITS + k / 2 * 8) = x[k / 2][k % 2];
        tile_mlp<T, NX>(weights, bias, x, hidden, slope, pair);
        const pack<two<T>, NX> query = load_gate<T, NX>(j.o.query_gate, own.i);
#pragma unroll 1
        for (int h = 0; h < 2; h++) {
            const pack<two<T>, NX> item = load_gate<T, NX>(j.o.item_gate, own.row[h]);
            pack<float, 2 *NX> &dgate = tiles.dgate[threadIdx.x];
            pack<two<T>, NX> direct, both;
            float own_s[NX][2], own_pair[NX][2], dg[NX][2];
            mixture<NX> m;
            take_pair<NX>(s, h, own_s);
            take_pair<NX>(pair, h, own_pair);
            tile_mix<T, NX>(a, own.i, own.j[h], query, item, own_pair, m);
            tile_mix_bwd<T, NX>(a, own.i, own.j[h], own.row[h] < a.n_items, scale, m, own_s,
                                direct.v, dg);
#pragma unroll
            for (int r = 0; r < NX; r++) {
                const float2 y = two_floats(item.v[r]);
                both.v[r] = make_two<T>(dg[r][0], dg[r][1]);
                *(two<T> *)(dg_row + h * 8 * B::LOGITS + r * 8) = both.v[r];
                dgate.v[2 * r] += dg[r][0] * y.x;
                dgate.v[2 * r + 1] += dg[r][1] * y.y;
            }
            if (has[h]) to_ds[h * 8 * 4] = direct, to_dg[h * 8 * 4] = both;
        }
    }
#pragma unroll
    for (int k = 0; k < 2 * NX; k++)
        x[k / 2][k % 2] = *(two<T> *)(dg_row + k % 2 * 8 * B::LOGITS + k / 2 * 8);
    tile_mlp_bwd<T, NX>(weights, x, slope, ds);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        pack<two<T>, NX> all = {};
        float factor[NX][2];
        if (has[h]) all = to_ds[h * 8 * 4]; /* those that do not go through the MLP */
        drop_logits<NX>(a, a.drop_pair, own.i, own.j[h], factor);
#pragma unroll
        for (int r = 0; r < NX; r++) {
            float2 y = two_floats(all.v[r]);
            ds[r][2 * h] = ds[r][2 * h] * factor[r][0] + y.x;
            ds[r][2 * h + 1] = ds[r][2 * h + 1] * factor[r][1] + y.y;
            all.v[r] = make_two<T>(ds[r][2 * h], ds[r][2 * h + 1]);
        }
        if (has[h]) to_ds[h * 8 * 4] = all;
    }
    tile_query<T, NX, PARTS>(j, own.row, ds, dq);
}

template <typename T, int NX, int PARTS>
static __global__ void __launch_bounds__(THREADS, IS_QUICK<T, NX> ? 2 : 1)
    mol_pairs_bwd_any_kernel(const __grid_constant__ mol_job j, act_type act) {
    extern __shared__ uint4 room[];
    const mol_args &a = j.a;
    block_tiles<T, NX> &tiles = *(block_tiles<T, NX> *)room;
    float *bias;
    const T *weights = share_weights<T, NX>(j, 4, (char *)(&tiles + 1), &bias);
    const float scale = scale_of<T>(a);
    sums<NX> sum = {};
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.x * WARPS; first < a.n;
         first += (int64_t)gridDim.x * WARPS) {
        const bool is_there = first + threadIdx.x / WARP < a.n;
        const int64_t i = is_there ? first + threadIdx.x / WARP : first;
        float dq[2 * PARTS][4] = {};
        tiles.dgate[threadIdx.x] = {};
#pragma unroll 1
        for (int from = 0; from < a.n_each; from += TILE) {
            const lane_pairs own = tile_begin(a, i, from, is_there);
            tile_bwd<T, NX, PARTS>(j, own, is_there, scale, weights, bias, tiles, dq);
            __syncthreads();
            add_weights<T, NX>(tiles, sum);
            __syncthreads();
        }
        if (is_there) put_query<NX, PARTS>(j, act, i, scale, dq, tiles.dgate[threadIdx.x]);
    }
    put_sums<NX>(j, sum);
}

/* The gradients of the MLP: a thread adds the blocks' sums of one element. */
template <typename T, int NX>
static __global__ void __launch_bounds__(THREADS) mol_weights_any_kernel(const mol_job j) {
    enum { N_MATRIX = HIDDEN * 8 * NX };
    const mol_args &a = j.a;
    const int k = (int)(blockIdx.x * THREADS + threadIdx.x), n = a.n_query * a.n_item;
    const bool is_bias = k >= 2 * N_MATRIX, is_last = k >= 2 * N_MATRIX + HIDDEN;
    const int hidden = is_bias ? k - 2 * N_MATRIX : k % N_MATRIX / (8 * NX);
    const int own = is_last ? k - 2 * N_MATRIX - HIDDEN : k % (8 * NX);
    if (k >= 2 * N_MATRIX + HIDDEN + 8 * NX) return;
    const int logit = logit_of(a, own);
    if ((!is_last && hidden >= a.pair_hidden) || ((is_last || !is_bias) && logit < 0)) return;
    float sum = 0;
    const float *from = j.o.parts + k;
#pragma unroll 8
    for (int b = 0; b < j.n_blocks; b++)
        sum += from[(int64_t)b * N_PARTS<NX>];
    sum *= scale_of<T>(a);
    if (is_last)
        a.dpair_b[1][logit] += sum;
    else if (is_bias)
        a.dpair_b[0][hidden] += sum;
    else if (k < N_MATRIX)
        a.dpair_w[0][hidden * n + logit] += sum;
    else
        a.dpair_w[1][logit * a.pair_hidden + hidden] += sum;
}

/* The gradients of an item over its pairs in order: 32 of them a warp at a time, two in each
 * product, whose rows are columns of the vectors and whose columns are components of the item. */
template <typename T, int NX, int PARTS>
static __global__ void __launch_bounds__(THREADS) mol_items_any_kernel(const mol_job j) {
    constexpr int WORDS = 4 * NX; /* pairs of gates */
    __shared__ float gates[WARPS][8 * NX], rows[WARPS][8][8];
    const mol_args &a = j.a;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int t = lane % 4, g = lane / 4, width = width_of<T, NX, PARTS>(j);
    const int64_t item = blockIdx.x;
    const int begin = a.groups.begin[item], end = a.groups.begin[item + 1];
    const float scale = scale_of<T>(a);
    float sum[2 * PARTS][4] = {}, gate[2] = {};
    if (begin == end) return;
    for (int k = begin + warp * WARP; k < end; k += THREADS) {
        const int n = min(end - k, (int)WARP);
        const int own = lane < n ? a.groups.order[k + lane] : -1, query = own / a.n_each;
#pragma unroll 2
        for (int m = 0; m < n; m += 2) {
            two<T> b[2] = {}, x[2][4 * PARTS] = {};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int64_t pair = __shfl_sync(0xffffffffu, own, m + h);
                const int64_t i = __shfl_sync(0xffffffffu, query, m + h);
                if (pair < 0) continue;
                if (g < NX) b[h] = ((const two<T> *)j.o.ds)[(pair * 4 + t) * NX + g];
                const T *from = (const T *)j.o.turned + (i * WARP + lane) * (width / 4);
#pragma unroll
                for (int c = 0; c < PARTS; c++) {
                    if (32 * c >= width) continue;
                    eight<T> y = load_eight<T>(from, 8 * c);
#pragma unroll
                    for (int v = 0; v < 4; v++)
                        x[h][4 * c + v] = y.v[v];
                }
            }
#pragma unroll
            for (int v = 0; v < 2 * WORDS / WARP; v++) {
                const int word = (lane + v * WARP) % WORDS, h = (lane + v * WARP) / WORDS;
                const int64_t pair = __shfl_sync(0xffffffffu, own, m + h);
                const int64_t i = __shfl_sync(0xffffffffu, query, m + h);
                if (pair < 0) continue;
                float2 d = two_floats(((const two<T> *)j.o.dg)[pair * WORDS + word]);
                float2 q = two_floats(((const two<T> *)j.o.query_gate)[i * WORDS + word]);
                gate[0] += d.x * q.x;
                gate[1] += d.y * q.y;
            }
            __syncwarp();
#pragma unroll
            for (int r = 0; r < 2 * PARTS; r++)
                mma<T>(sum[r], x[0][2 * r], x[0][2 * r + 1], x[1][2 * r], x[1][2 * r + 1], b[0],
                       b[1]);
        }
    }
    if (WORDS < WARP) { /* two lanes have the same gates */
        gate[0] += __shfl_xor_sync(0xffffffffu, gate[0], WORDS);
        gate[1] += __shfl_xor_sync(0xffffffffu, gate[1], WORDS);
    }
    for (int e = 0; e < 2 && lane < WORDS; e++)
        gates[warp][2 * lane + e] = gate[e];
    __syncthreads();
    for (int k = (int)threadIdx.x; k < 8 * NX; k += THREADS) {
        const int logit = logit_of(a, k / 2 % NX * 8 + k / (2 * NX) * 2 + k % 2);
        float x = 0;
        for (int w = 0; w < WARPS; w++)
            x += gates[w][k];
        if (logit >= 0) a.ditem_gate[item * a.n_query * a.n_item + logit] += scale * x;
    }
    /* The warps' sums, 8 rows at a time. */
#pragma unroll
    for (int r = 0; r < 4 * PARTS; r++) {
        if (8 * r >= width) continue;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 2; e++)
            rows[warp][g][2 * t + e] = sum[r / 2][r % 2 * 2 + e];
        __syncthreads();
        for (int k = (int)threadIdx.x; k < 64; k += THREADS) {
            const int c = 8 * r + k % 8, own = k / 8;
            float x = 0;
            for (int w = 0; w < WARPS; w++)
                x += rows[w][k % 8][own];
            if (c < a.dim && own < a.n_item)
                a.ditem[(item * a.n_item + own) * a.dim + c] += scale / a.temperature * x;
        }
    }
}

template <typename S, typename T, int NX, int PARTS>
static status run_pairs(backend *be, const mol_args *a, bool is_bwd) {
    const int64_t n_tiles = cuda_div_up(a->n_each, TILE), n_sm = cuda_of(be)->n_multiprocessors;
    mol_job j = {*a, {}, IS_QUICK<T, NX> ? 32 * PARTS : (a->dim + 31) / 32 * 32, 0};
    char *at = NULL, *room;
    int64_t most = 0, most_blocks, n_blocks;
    most_blocks = n_sm * (IS_QUICK<T, NX> ? 2 : 1) * (is_bwd ? 1 : 2);
    n_blocks = cuda_div_up(is_bwd ? a->n : a->n * n_tiles, WARPS);
    if (n_blocks > most_blocks) n_blocks = most_blocks;
    j.n_blocks = (int32_t)n_blocks;
    for (int is_set = 0; is_set < 2; is_set++) {
        size_t n = (size_t)a->n, n_items = (size_t)a->n_items + 1, w = (size_t)j.width;
        size_t n_pairs = is_bwd ? n * (size_t)a->n_each * 8 * NX : 0;
        T *part;
        cuda_cut(&at, n * MOST * w, &part), j.o.query = part;
        cuda_cut(&at, is_bwd ? n * MOST * w : 0, &part), j.o.turned = is_bwd ? part : NULL;
        cuda_cut(&at, n_items * NX * w, &part), j.o.items = part;
        cuda_cut(&at, n * 8 * NX, &part), j.o.query_gate = part;
        cuda_cut(&at, n_items * 8 * NX, &part), j.o.item_gate = part;
        cuda_cut(&at, (size_t)4 * HIDDEN * 8 * NX, &part), j.o.weights = part;
        cuda_cut(&at, n_pairs, &part), j.o.ds = part;
        cuda_cut(&at, n_pairs, &part), j.o.dg = part;
        cuda_cut(&at, (size_t)HIDDEN + 8 * NX, &j.o.bias);
        cuda_cut(&at, is_bwd ? (size_t)n_blocks * N_PARTS<NX> : 0, &j.o.parts);
        if (is_set > 0) continue;
        TRY(cuda_scratch(be, (size_t)at, (void **)&room));
        at = room;
    }
    for (int array = 0; array < COPY_ARRAYS; array++)
        most = copy_count<NX>(j, array) > most ? copy_count<NX>(j, array) : most;
    dim3 blocks((unsigned)cuda_div_up(most, COPY_THREADS), COPY_ARRAYS);
    TRY(cuda_launch(be, "the operands of mol_pairs", mol_operands_any_kernel<S, T, NX>, blocks,
                    COPY_THREADS, 0, j));
    if (!is_bwd)
        return cuda_launch(be, "mol_pairs", mol_pairs_fwd_any_kernel<T, NX, PARTS>,
                           (unsigned)n_blocks, THREADS, weights_bytes<T, NX>(2), j);
    TRY(cuda_launch(be, "the gradients of mol_pairs", mol_pairs_bwd_any_kernel<T, NX, PARTS>,
                    (unsigned)n_blocks, THREADS,
                    sizeof(block_tiles<T, NX>) + weights_bytes<T, NX>(4), j, be->act));
    TRY(cuda_launch(be, "the gradients of gates", mol_weights_any_kernel<T, NX>,
                    cuda_div_up(N_PARTS<NX>, THREADS), THREADS, 0, j));
    if (a->groups.n_rows == 0) return OK;
    return cuda_launch(be, "the gradients of items", mol_items_any_kernel<T, NX, PARTS>,
                       (unsigned)a->groups.n_rows, THREADS, 0, j);
}

/* Shapes of the published configs have kernels of their own. */
template <typename S> static status pairs_of(backend *be, const mol_args *a, bool is_bwd) {
    const bool is_short = a->dim <= 64, is_f32 = be->act == ACT_F32 && !cuda_of(be)->is_tf32;
    if (a->n_query > MOST || a->n_item > MOST || a->dim > 32 * MOST_PARTS ||
        a->pair_hidden > HIDDEN)
        return fail(ERR_UNSUPPORTED,
                    "%d x %d components of %d numbers and %d hidden values are more than a GPU "
                    "takes (%d x %d, %d and %d); use --device cpu",
                    a->n_query, a->n_item, a->dim, a->pair_hidden, MOST, MOST, 32 * MOST_PARTS,
                    HIDDEN);
    if (a->n == 0 || a->n_each == 0) return OK;
    if (a->n_item <= 4 && is_short && !is_f32) return run_pairs<S, __half, 4, 2>(be, a, is_bwd);
    if (a->n_item <= 4 && !is_f32) return run_pairs<S, __half, 4, MOST_PARTS>(be, a, is_bwd);
    if (is_short && !is_f32) return run_pairs<S, __half, MOST, 2>(be, a, is_bwd);
    return run_pairs<S, float, MOST, MOST_PARTS>(be, a, is_bwd);
}

status cuda_mol_pairs_fwd(backend *be, const mol_args *a) {
    CUDA_WITH_ACT(be, return pairs_of<T>(be, a, false));
}

status cuda_mol_pairs_bwd(backend *be, const mol_args *a) {
    CUDA_WITH_ACT(be, return pairs_of<T>(be, a, true));
}
