#include "tune/chain.h"

#include "tune/chains.def"

const chain *chain_of(chain_layer layer) {
    return &chains[layer];
}

status chain_find(const char *name, const chain **out) {
    const char *names[N_CHAINS];
    for (int i = 0; i < N_CHAINS; i++) {
        names[i] = chains[i].name;
        *out = &chains[i];
        if (strcmp(name, names[i]) == 0) return OK;
    }
    *out = NULL;
    const char *near = nearest_name(name, names, N_CHAINS);
    return fail(ERR_USAGE, "--layer %.40s: the layers are bert, hstu and sasrec%s%s%s", name,
                near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                near != NULL ? "'?" : "");
}

const char *op_class_name(op_class c) {
    static const char *const names[] = {"compute", "memory", "reduction", "layout"};
    return names[c];
}

bool op_is_product(op_kind kind) {
    return kind == OP_PRODUCT || kind == OP_PRODUCT_QKV || kind == OP_SCORES || kind == OP_WEIGHTED;
}

bool op_is_elementwise(op_kind kind) {
    return !op_is_product(kind) && kind != OP_SOFTMAX && kind != OP_NORM;
}
