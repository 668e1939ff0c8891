#include "serve/cache/kv_heap.h"

#include "base/mem.h"

status kv_heap_init(kv_heap *h, int32_t n_numbers) {
    *h = (kv_heap){0};
    status st = MEM_NEW(&h->item, (size_t)n_numbers);
    if (st == OK) st = MEM_NEW(&h->place, (size_t)n_numbers);
    if (st == OK) st = MEM_NEW(&h->key, (size_t)n_numbers);
    for (int32_t i = 0; i < n_numbers && st == OK; i++)
        h->place[i] = -1;
    return st;
}

void kv_heap_fini(kv_heap *h) {
    mem_free(h->item);
    mem_free(h->place);
    mem_free(h->key);
    *h = (kv_heap){0};
}

static void put(kv_heap *h, int32_t at, int32_t number) {
    h->item[at] = number;
    h->place[number] = at;
}

static bool is_below(const kv_heap *h, int32_t a, int32_t b) {
    return h->key[a] < h->key[b];
}

/* Puts a number where it belongs, from a place that is empty. */
static void settle(kv_heap *h, int32_t at, int32_t number) {
    for (; at > 0 && is_below(h, number, h->item[(at - 1) / 2]); at = (at - 1) / 2)
        put(h, at, h->item[(at - 1) / 2]);
    for (int32_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && is_below(h, h->item[child + 1], h->item[child])) child++;
        if (!is_below(h, h->item[child], number)) break;
        put(h, at, h->item[child]);
    }
    put(h, at, number);
}

static void take_out(kv_heap *h, int32_t number) {
    int32_t at = h->place[number], last = h->item[--h->n];
    h->place[number] = -1;
    if (last != number) settle(h, at, last);
}

void kv_heap_set(kv_heap *h, int32_t number, bool is_in, double key) {
    if (kv_heap_has(h, number)) {
        if (is_in && h->key[number] == key) return;
        take_out(h, number);
    }
    if (!is_in) return;
    h->key[number] = key;
    settle(h, h->n++, number);
}

bool kv_heap_is_sound(const kv_heap *h) {
    for (int32_t i = 0; i < h->n; i++) {
        if (h->place[h->item[i]] != i) return false;
        if (i > 0 && is_below(h, h->item[i], h->item[(i - 1) / 2])) return false;
    }
    return true;
}
