#include "nn/layer.h"

static const layer_kind *const kinds[] = {
    [LAYER_HSTU] = &hstu_layer_kind, [LAYER_SASREC] = &sasrec_layer_kind};

status layer_add_params(layer *l, const layer_config *c, param_list *params,
                        const layer_place *place) {
    *l = (layer){.kind = kinds[c->type]};
    return l->kind->add_params(l, c, params, place);
}

uint32_t layer_site(const layer_kind *kind, int index) {
    return 1 + kind->n_sites * (uint32_t)index;
}
