/* The sort of group and of unique, by CUB: in one file with one type of keys, because it takes as
 * long to compile as ten other files. */
#include <cub/device/device_radix_sort.cuh>

#include "cuda/core/cuda.h"

status cuda_sort_pairs(backend *be, void *room, size_t *room_bytes, const uint32_t *keys,
                       uint32_t *sorted_keys, const uint32_t *values, uint32_t *sorted_values,
                       int n, int bits) {
    CUDA_TRY(cub::DeviceRadixSort::SortPairs(room, *room_bytes, keys, sorted_keys, values,
                                             sorted_values, n, 0, bits, cuda_of(be)->stream));
    return OK;
}
