/* group (ops.h): rows of y by row of the table.  A stable sort of (index, place) keeps the
 * order of the batch inside a group; then a thread for each row of the table finds where its group
 * begins.  The limit is latency: a pass over 8 bits of the keys costs a few microseconds, so no
 * more bits are sorted than the table's rows need. */
#include <string.h>

#include "cuda/core/cuda.h"

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
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (keys[middle] < (uint32_t)r)
            low = middle + 1;
        else
            high = middle;
    }
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
    group_keys_any_kernel<<<(unsigned)cuda_div_up(n, GROUP_THREADS), GROUP_THREADS, 0, stream>>>(
        n, groups->n_rows, index, room.keys, room.places);
    TRY(cuda_launched("the keys of group"));
    TRY(sort(be, groups, &room));
    group_begins_any_kernel<<<(unsigned)cuda_div_up((int64_t)groups->n_rows + 1, GROUP_THREADS),
                              GROUP_THREADS, 0, stream>>>(n, groups->n_rows, room.sorted,
                                                          groups->begin);
    return cuda_launched("the begins of group");
}
