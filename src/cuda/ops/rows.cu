/* Rows of tables (ops.h): gather, scatter, mark, and group, which makes the groups of scatter; and
 * dropout of rows.
 *
 * Gather: a thread owns V columns of a row of y; the limit is bytes.  Rows with moments are
 * gathered by rows_sm90.cu.
 *
 * Scatter must give the same bits every time and stay balanced although one row of a table may own
 * half of the batch and others one token each.  So the list of entries sorted by row is cut, not
 * the rows, into chunks of 16 to 64 entries; a thread owns V columns of a chunk and adds up runs of
 * equal rows.  The sum of a row that is within one chunk is added to the gradient directly.  For a
 * row that continues into the next chunks each chunk leaves one partial sum, and a second kernel
 * adds those, 32 in parallel.  The limit is the bytes of dy, which are read once; partial sums are
 * 1/32 of them at most where chunks have 64 entries. */
#include "cuda/core/kernel.cuh"

/* Clears row i of the blank arrays. */
template <typename T> __device__ static inline void gather_clear(const gather_blank &b, int64_t i) {
    for (int k = 0; k < b.n_arrays; k++)
        for (int c = (int)threadIdx.x; c < b.dim; c += (int)blockDim.x)
            ((T *)b.rows[k])[i * b.dim + c] = from_float<T>(0);
}

/* Adds columns of a row; none where the row is negative. */
template <int V, bool IS_PACKED>
__device__ static inline void gather_add(float (&y)[V], const float *table, int64_t row, int c,
                                         int dim) {
    if (row < 0) return;
    columns<float, V> x = load_columns<IS_PACKED, V>(table + row * dim, c, dim);
#pragma unroll
    for (int j = 0; j < V; j++)
        y[j] += column(x, j);
}

template <typename T, typename S, int V, bool IS_PACKED>
static __global__ void __launch_bounds__(256) gather_rows_any_kernel(const gather_args a) {
    int64_t i = row_grid_row();
    if (i >= a.n) return;
    int64_t row = a.index[i], other = a.other != NULL ? a.other_index[i] : -1;
    int64_t more = a.more != NULL ? a.more_index[i] : -1;
    const S *table_row = gather_row<S>(a, row);
    drop_row drop = drop_begin(a.drop, i);
    if (a.other != NULL && other < 0) gather_clear<T>(a.blank, i);
    for (int c = (int)threadIdx.x * V; c < a.dim; c += (int)blockDim.x * V) {
        float y[V] = {};
        if (row >= 0) {
            columns<S, V> x = load_columns<IS_PACKED, V>(table_row, c, a.dim);
#pragma unroll
            for (int j = 0; j < V; j++)
                y[j] = a.scale * column(x, j);
        }
        gather_add<V, IS_PACKED>(y, a.other, other, c, a.dim);
        gather_add<V, IS_PACKED>(y, a.more, more, c, a.dim);
        drop_columns(drop, c, y);
        store_columns<IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
    }
}

template <typename T, typename S, int V, bool IS_PACKED>
static status gather_launch(backend *be, const gather_args *a) {
    row_grid g = row_grid_of(a->n, a->dim, V);
    return cuda_launch(be, "gather", gather_rows_any_kernel<T, S, V, IS_PACKED>, g.blocks,
                       g.threads, 0, *a);
}

/* S is the type of the table. */
template <typename T, typename S> static status gather_from(backend *be, const gather_args *a) {
    const int v = columns_of<T>::PACKED;
    bool is_packed = can_pack(a->table, a->dim, a->dim, sizeof(S), v) &&
                     can_pack(a->other, a->dim, a->dim, sizeof(float), v) &&
                     can_pack(a->more, a->dim, a->dim, sizeof(float), v) &&
                     can_pack(a->y, a->dim, a->dim, sizeof(T), v);
    for (int k = 0; k < a->n_far; k++)
        is_packed = is_packed && can_pack(a->far[k].rows, a->far[k].stride, a->dim, sizeof(S), v);
    return is_packed ? gather_launch<T, S, v, true>(be, a)
                     : gather_launch<T, S, columns_of<T>::LOOSE, false>(be, a);
}

status cuda_gather(backend *be, const gather_args *a) {
    if (a->moments != NULL) a->moments->width = 0;
    if (a->n == 0 || a->dim == 0) return OK;
    if (cuda_gather_moments_can(be, a)) return cuda_gather_moments(be, a);
    CUDA_WITH_ACT(be,
                  return a->is_act ? (gather_from<T, T>(be, a)) : (gather_from<T, float>(be, a)));
}

/* A block has at most 16 chunks of 64 entries (8 threads a chunk at least). */
enum { SCATTER_THREADS = 128, SCATTER_ENTRIES = 1024, SCATTER_AT_ONCE = 4, TAIL_COLUMNS = 32 };

/* How the order is cut.  A row that spans chunks q .. p leaves its partials in slot 1 of q and in
 * slot 0 of q + 1 .. p, since a chunk can have one row that continues from the previous chunk and
 * another that continues into the next. */
typedef struct scatter_cut {
    int32_t chunk; /* entries */
    int32_t n_chunks;
    int64_t stride;  /* of partials: dim, rounded up to 4 */
    float *partials; /* (n_chunks, 2, stride) */
    int32_t *tail;   /* (n_chunks): the row that begins here and goes on in the next chunk, or -1 */
} scatter_cut;

/* The row that owns entry k of the order: the first row whose group ends after k. */
__device__ static inline int32_t owner(const row_groups &g, int64_t k) {
    int32_t low = 0, high = g.n_rows - 1;
    BISECT(low, high, g.begin[middle + 1] <= k);
    return low;
}

/* Stores the sum of one run of a chunk, entries from .. to - 1: to the gradient or, if it is not
 * the whole row, to a partial. */
template <typename G, int V, bool IS_PACKED>
__device__ static inline void end_run(const scatter_args &a, const scatter_cut &s, int64_t chunk,
                                      int32_t row, int from, int to, int count, int c,
                                      float (&sum)[V]) {
    int64_t first = chunk * s.chunk;
    bool came_in = from == 0 && a.groups.begin[row] < first;
    bool goes_on = to == count && a.groups.begin[row + 1] > first + count;
    if (came_in || goes_on) {
        pack<float, V> out;
#pragma unroll
        for (int j = 0; j < V; j++)
            out.v[j] = sum[j];
        *(pack<float, V> *)(s.partials + (2 * chunk + !came_in) * s.stride + c) = out;
        if (!came_in && c == 0) s.tail[chunk] = row;
        return;
    }
    G *grad = (G *)a.grad + (int64_t)row * a.dim;
    columns<G, V> old = load_columns<IS_PACKED, V>(grad, c, a.dim);
#pragma unroll
    for (int j = 0; j < V; j++)
        sum[j] = column(old, j) + a.scale * sum[j];
    store_columns<IS_PACKED>(grad, c, a.dim, sum);
}

/* The sums of the runs of one chunk, for columns c .. c + V - 1.  Several rows of dy are loaded
 * at once, and their dropout is drawn in parallel. */
template <typename T, typename G, int V, bool IS_PACKED>
__device__ static inline void sum_chunk(const scatter_args &a, const scatter_cut &s, int64_t chunk,
                                        int count, const int32_t *rows, const int32_t *tokens,
                                        int c) {
    float sum[V] = {};
    int from = 0;
    for (int e = 0; e < count; e += SCATTER_AT_ONCE) {
        columns<T, V> x[SCATTER_AT_ONCE];
        drop_row drop[SCATTER_AT_ONCE];
        float y[SCATTER_AT_ONCE][V];
#pragma unroll
        for (int u = 0; u < SCATTER_AT_ONCE; u++) {
            int64_t token = tokens[min(e + u, count - 1)];
            x[u] = load_columns<IS_PACKED, V>((const T *)a.dy + token * a.dim, c, a.dim);
            drop[u] = drop_begin(a.drop, token);
        }
#pragma unroll
        for (int u = 0; u < SCATTER_AT_ONCE; u++) {
#pragma unroll
            for (int j = 0; j < V; j++)
                y[u][j] = column(x[u], j);
            drop_columns(drop[u], c, y[u]);
        }
#pragma unroll
        for (int u = 0; u < SCATTER_AT_ONCE; u++) {
            int here = e + u;
            if (here >= count) break;
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] += y[u][j];
            if (here + 1 < count && rows[here + 1] == rows[here]) continue;
            end_run<G, V, IS_PACKED>(a, s, chunk, rows[here], from, here + 1, count, c, sum);
            from = here + 1;
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] = 0;
        }
    }
}

/* threadIdx.x and blockIdx.y go over columns, threadIdx.y and blockIdx.x over chunks. */
template <typename T, typename G, int V, bool IS_PACKED>
static __global__ void __launch_bounds__(SCATTER_THREADS)
    scatter_chunks_any_kernel(const scatter_args a, const scatter_cut s) {
    __shared__ int32_t rows[SCATTER_ENTRIES], tokens[SCATTER_ENTRIES];
    int64_t n_entries = a.groups.begin[a.groups.n_rows];
    int64_t chunk = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int64_t first = (int64_t)blockIdx.x * blockDim.y * s.chunk;
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    for (int e = thread; e < (int)blockDim.y * s.chunk; e += SCATTER_THREADS)
        if (first + e < n_entries) {
            rows[e] = owner(a.groups, first + e);
            tokens[e] = a.groups.order[first + e];
        }
    __syncthreads();
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x) * V;
    if (chunk >= s.n_chunks || c >= a.dim) return;
    if (c == 0) s.tail[chunk] = -1;
    int count = (int)min((int64_t)s.chunk, n_entries - chunk * s.chunk);
    int at = (int)threadIdx.y * s.chunk;
    sum_chunk<T, G, V, IS_PACKED>(a, s, chunk, count, rows + at, tokens + at, c);
}

/* A block adds 32 columns of the rows that begin in its chunks and continue after them.  8 threads
 * read one partial; each of 32 such teams adds every 32nd chunk, and their sums are added in
 * order. */
template <typename G>
static __global__ void __launch_bounds__(256)
    scatter_tails_any_kernel(const scatter_args a, const scatter_cut s, int n_chunks) {
    __shared__ float sums[32][TAIL_COLUMNS + 1];
    int lane = (int)threadIdx.x % 8, part = (int)threadIdx.x / 8;
    int c = (int)blockIdx.x * TAIL_COLUMNS + 4 * lane;
    int64_t end = min((int64_t)(blockIdx.y + 1) * n_chunks, (int64_t)s.n_chunks);
    for (int64_t q = (int64_t)blockIdx.y * n_chunks; q < end; q++) {
        int32_t row = s.tail[q];
        if (row < 0) continue;
        int64_t last = (a.groups.begin[row + 1] - 1) / s.chunk;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int64_t p = c < s.stride ? q + part : last + 1; p <= last; p += 32) {
            float4 x = *(const float4 *)(s.partials + (2 * p + (p == q)) * s.stride + c);
            sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
        }
        sums[part][4 * lane] = sum.x;
        sums[part][4 * lane + 1] = sum.y;
        sums[part][4 * lane + 2] = sum.z;
        sums[part][4 * lane + 3] = sum.w;
        __syncthreads();
        int column = (int)(blockIdx.x * TAIL_COLUMNS + threadIdx.x);
        if (threadIdx.x < TAIL_COLUMNS && column < a.dim) {
            float total = 0;
#pragma unroll
            for (int k = 0; k < 32; k++)
                total += sums[k][threadIdx.x];
            G *grad = (G *)a.grad + (int64_t)row * a.dim + column;
            *grad = from_float<G>(to_float(*grad) + a.scale * total);
        }
        __syncthreads();
    }
}

/* Long chunks leave few partials; short ones fill the GPU where there is little to do. */
static int32_t chunk_of(const backend *be, int64_t n, int64_t n_packs) {
    int32_t chunk = 64;
    while (chunk > 16 && n / chunk * n_packs < cuda_of(be)->n_multiprocessors * (int64_t)1024)
        chunk /= 2;
    return chunk;
}

template <typename G>
static status add_tails(backend *be, const scatter_args *a, const scatter_cut *s) {
    int64_t n_slabs = cuda_div_up(a->dim, TAIL_COLUMNS);
    int64_t wanted = cuda_of(be)->n_multiprocessors * (int64_t)8; /* blocks */
    int64_t n_chunks = s->n_chunks * n_slabs / wanted;            /* of a block */
    if (n_chunks < cuda_div_up(s->n_chunks, 65535)) n_chunks = cuda_div_up(s->n_chunks, 65535);
    dim3 blocks((unsigned)n_slabs, (unsigned)cuda_div_up(s->n_chunks, n_chunks));
    return cuda_launch(be, "scatter's rows of many chunks", scatter_tails_any_kernel<G>, blocks,
                       256, 0, *a, *s, (int)n_chunks);
}

template <typename T, typename G, int V, bool IS_PACKED>
static status scatter_launch(backend *be, const scatter_args *a) {
    int64_t n_packs = cuda_div_up(a->dim, V);
    scatter_cut s = {chunk_of(be, a->groups.n, n_packs), 0, cuda_div_up(a->dim, 4) * 4, NULL, NULL};
    s.n_chunks = (int32_t)cuda_div_up(a->groups.n, s.chunk);
    size_t partials_bytes = cuda_align((size_t)(2 * s.n_chunks * s.stride) * sizeof(float));
    void *memory;
    TRY(cuda_scratch(be, partials_bytes + (size_t)s.n_chunks * sizeof(int32_t), &memory));
    s.partials = (float *)memory;
    s.tail = (int32_t *)((char *)memory + partials_bytes);
    unsigned x = 8;
    while (x < n_packs && x < SCATTER_THREADS)
        x *= 2;
    dim3 threads(x, SCATTER_THREADS / x);
    dim3 blocks((unsigned)cuda_div_up(s.n_chunks, threads.y), (unsigned)cuda_div_up(n_packs, x));
    TRY((cuda_launch(be, "scatter", scatter_chunks_any_kernel<T, G, V, IS_PACKED>, blocks, threads,
                     0, *a, s)));
    return add_tails<G>(be, a, &s);
}

/* G is the type of the gradient. */
template <typename T, typename G> static status scatter_into(backend *be, const scatter_args *a) {
    const int v = columns_of<T>::PACKED;
    bool is_packed = can_pack(a->dy, a->dim, a->dim, sizeof(T), v) &&
                     can_pack(a->grad, a->dim, a->dim, sizeof(G), v);
    return is_packed ? scatter_launch<T, G, v, true>(be, a)
                     : scatter_launch<T, G, columns_of<T>::LOOSE, false>(be, a);
}

status cuda_scatter(backend *be, const scatter_args *a) {
    if (a->groups.n == 0 || a->groups.n_rows == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be,
                  return a->is_act ? (scatter_into<T, T>(be, a)) : (scatter_into<T, float>(be, a)));
}

static __global__ void __launch_bounds__(256)
    mark_rows_any_kernel(int64_t n, const int32_t *index, int64_t offset, uint8_t *marks) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i < n && index[i] >= 0) marks[index[i] + offset] = 1;
}

status cuda_mark(backend *be, int64_t n, const int32_t *index, int32_t offset, uint8_t *marks) {
    if (n == 0) return OK;
    return cuda_launch(be, "mark", mark_rows_any_kernel, cuda_div_up(n, 256), 256, 0, n, index,
                       offset, marks);
}

/* group: rows of y by row of the table.  A stable sort of (index, place) keeps the order of the
 * batch inside a group; then a thread for each row of the table finds where its group begins. Bound
 * by latency: a pass over 8 bits of the keys costs a few microseconds, so no more bits are sorted
 * than the table's rows need. */
enum { GROUP_THREADS = 256 };

/* A row that belongs to no group sorts after all others, and so does an index beyond the table: the
 * CPU refuses it, but a kernel cannot report an error. */
static __global__ void __launch_bounds__(GROUP_THREADS)
    group_keys_any_kernel(int n, int32_t n_rows, const int32_t *index, uint32_t *keys,
                          uint32_t *places) {
    int i = (int)(blockIdx.x * GROUP_THREADS + threadIdx.x);
    if (i >= n) return;
    keys[i] = min((uint32_t)index[i], (uint32_t)n_rows); /* negative: huge */
    places[i] = (uint32_t)i;
}

/* begin[r] is the number of keys below r. */
static __global__ void __launch_bounds__(GROUP_THREADS)
    group_begins_any_kernel(int n, int32_t n_rows, const uint32_t *keys, int32_t *begin) {
    int64_t r = (int64_t)blockIdx.x * GROUP_THREADS + threadIdx.x;
    if (r > n_rows) return;
    int low = 0, high = n;
    BISECT(low, high, keys[middle] < (uint32_t)r);
    begin[r] = low;
}

/* The layout of the scratch memory. */
typedef struct group_room {
    uint32_t *keys, *sorted, *places; /* (n) each */
    void *sort;
    size_t sort_bytes;
} group_room;

static int key_bits(int32_t n_rows) {
    int bits = 1;
    while (n_rows >> bits != 0)
        bits++;
    return bits;
}

static status sort(backend *be, const row_groups *g, group_room *room) {
    return cuda_sort_pairs(be, room->sort, &room->sort_bytes, room->keys, room->sorted,
                           room->places, (uint32_t *)g->order, (int)g->n, key_bits(g->n_rows));
}

static status make_room(backend *be, const row_groups *g, group_room *room) {
    size_t keys_bytes = cuda_align((size_t)g->n * sizeof(uint32_t));
    void *memory;
    memset(room, 0, sizeof *room);
    TRY(sort(be, g, room)); /* without memory it tells how much it needs */
    TRY(cuda_scratch(be, 3 * keys_bytes + room->sort_bytes, &memory));
    room->keys = (uint32_t *)memory;
    room->sorted = (uint32_t *)((char *)memory + keys_bytes);
    room->places = (uint32_t *)((char *)memory + 2 * keys_bytes);
    room->sort = (char *)memory + 3 * keys_bytes;
    return OK;
}

status cuda_group(backend *be, const int32_t *index, row_groups *groups) {
    cudaStream_t stream = cuda_of(be)->stream;
    int n = (int)groups->n;
    size_t begin_bytes = ((size_t)groups->n_rows + 1) * sizeof(int32_t);
    group_room room;
    if (n == 0) {
        CUDA_TRY(cudaMemsetAsync(groups->begin, 0, begin_bytes, stream));
        return OK;
    }
    TRY(make_room(be, groups, &room));
    TRY(cuda_launch(be, "the keys of group", group_keys_any_kernel, cuda_div_up(n, GROUP_THREADS),
                    GROUP_THREADS, 0, n, groups->n_rows, index, room.keys, room.places));
    TRY(sort(be, groups, &room));
    return cuda_launch(be, "the begins of group", group_begins_any_kernel,
                       cuda_div_up((int64_t)groups->n_rows + 1, GROUP_THREADS), GROUP_THREADS, 0, n,
                       groups->n_rows, room.sorted, groups->begin);
}

/* Dropout: a thread owns V columns of a row, and one draw serves four of them.  Bound by bytes, two
 * rows of activations; the random draws overlap with the memory traffic. */
template <typename T, int V, bool IS_PACKED>
static __global__ void __launch_bounds__(256) dropout_rows_any_kernel(const dropout_args a) {
    int64_t i = row_grid_row();
    if (i >= a.n) return;
    drop_row drop = drop_begin(a.drop, i);
    float path = 1;
    if (a.is_path) {
        drop.position = (uint32_t)DROP_PATH;
        path = drop_factor(drop, 0);
        drop.rate = 0;
    }
    for (int c = (int)threadIdx.x * V; c < a.dim; c += (int)blockDim.x * V) {
        columns<T, V> x = load_columns<IS_PACKED, V>((const T *)a.x + i * a.dim, c, a.dim);
        float y[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] = column(x, j) * path;
        drop_columns(drop, c, y);
        if (a.residual != NULL) {
            columns<T, V> r =
                load_columns<IS_PACKED, V>((const T *)a.residual + i * a.dim, c, a.dim);
#pragma unroll
            for (int j = 0; j < V; j++)
                y[j] += column(r, j);
        }
        store_columns<IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
    }
}

template <typename T, int V, bool IS_PACKED>
static status drop_launch(backend *be, const dropout_args *a) {
    row_grid g = row_grid_of(a->n, a->dim, V);
    return cuda_launch(be, "dropout", dropout_rows_any_kernel<T, V, IS_PACKED>, g.blocks, g.threads,
                       0, *a);
}

template <typename T> static status drop(backend *be, const dropout_args *a) {
    const int v = columns_of<T>::PACKED;
    bool is_packed = can_pack(a->x, a->dim, a->dim, sizeof(T), v) &&
                     can_pack(a->y, a->dim, a->dim, sizeof(T), v) &&
                     (a->residual == NULL || can_pack(a->residual, a->dim, a->dim, sizeof(T), v));
    return is_packed ? drop_launch<T, v, true>(be, a)
                     : drop_launch<T, columns_of<T>::LOOSE, false>(be, a);
}

status cuda_dropout(backend *be, const dropout_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return drop<T>(be, a));
}
