/* What the losses of retrieval compute of single scores and rows, on the CPU and on a GPU: compiled
 * by cc and nvcc, as optimizer_rule.h is. */
#pragma once

#include "ops/optimizer_rule.h"

/* The binary loss of one score, and its derivative, without overflow: softplus(x), sigmoid(x). */
OPTIMIZER_FN float pairs_softplus(float x) {
    return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
}

OPTIMIZER_FN float pairs_sigmoid(float x) {
    float small = expf(-fabsf(x));
    return (x > 0 ? 1 : small) / (1 + small);
}

/* The place of a row in a list of items; the list has it. */
OPTIMIZER_FN int32_t full_softmax_place(const int32_t *item, int32_t n_items, int32_t row) {
    int32_t low = 0, high = n_items - 1;
    if (item == NULL || row < 0) return row;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (item[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
