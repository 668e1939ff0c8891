/* Any bytes as a pickle: reading must refuse, or give a tree whose texts can be read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const allowed[] = {"collections.OrderedDict", "torch._utils._rebuild_tensor_v2",
                                      "torch.FloatStorage", "torch.Size", NULL};

/* Lists may contain themselves: the walk is limited. */
static size_t walk(const pickle_value *v, int depth) {
    size_t sum = 1;
    if (depth > 12) return 0;
    switch (v->type) {
    case PICKLE_TEXT:
    case PICKLE_BYTES:
        if (v->text[v->n] != '\0') abort();
        return sum;
    case PICKLE_TUPLE:
    case PICKLE_LIST:
    case PICKLE_DICT: {
        size_t count = 0;
        for (const pickle_item *i = v->first; i != NULL; i = i->next, count++) {
            if ((i->key != NULL) != (v->type == PICKLE_DICT)) abort();
            if (count < 3) sum += walk(i->value, depth + 1);
        }
        if (count != v->n) abort();
        return sum;
    }
    case PICKLE_CALL:
        if (v->function->type != PICKLE_GLOBAL) abort();
        return walk(v->args, depth + 1);
    case PICKLE_OUTSIDE:
        return walk(v->args, depth + 1);
    default:
        return sum;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    arena a;
    const pickle_value *v;
    /* An exact allocation, so that a read past the end is found. */
    uint8_t *bytes = malloc(n + (n == 0));
    if (bytes == NULL) return 0;
    memcpy(bytes, data, n);
    arena_init(&a, 4096);
    if (pickle_read(&v, &a, "fuzz", bytes, n, allowed) == OK) walk(v, 0);
    arena_fini(&a);
    free(bytes);
    return 0;
}
