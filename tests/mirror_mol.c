/* What the arguments of the mixture of logits hold (mirror_ops.c has the other ops). */
#include "mirror_int.h"

static status mirror_mol_glu(backend *be, const mol_glu_args *args, bool is_bwd) {
    mirror *m = mirror_of(be);
    mol_glu_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a, z, IN, ACT, 2 * a.n * a.dim);
    if (is_bwd) {
        a.y = NULL;
        MIRROR(m, &a, dy, IN, ACT, a.n * a.dim);
        MIRROR(m, &a, dz, OUT, ACT, 2 * a.n * a.dim);
        RUN(m, mol_glu_bwd, &a);
    }
    MIRROR(m, &a, y, OUT, ACT, a.n * a.dim);
    RUN(m, mol_glu_fwd, &a);
}

status mirror_mol_glu_fwd(backend *be, const mol_glu_args *args) {
    return mirror_mol_glu(be, args, false);
}

status mirror_mol_glu_bwd(backend *be, const mol_glu_args *args) {
    return mirror_mol_glu(be, args, true);
}

status mirror_mol_index(backend *be, const mol_index_args *args) {
    mirror *m = mirror_of(be);
    mol_index_args a = *args;
    int64_t n_user = a.n_user > 0 ? (a.n_user - 1) * a.user_stride + a.n : 0;
    mirror_begin(m);
    MIRROR(m, &a, negative, IN, I32, a.n * a.n_negatives);
    MIRROR(m, &a, positive, IN, I32, a.n);
    MIRROR(m, &a, item, OUT, I32, a.n * (a.n_negatives + 1));
    if (n_user == 0) a.user = NULL;
    MIRROR(m, &a, user, IN, I32, a.n);
    MIRROR(m, &a, user_row, LOOSE, I32, n_user);
    RUN(m, mol_index, &a);
}

/* What both passes over pairs read.  The CPU's room stays where it is. */
static void add_pairs(mirror *m, mol_args *a) {
    int64_t n = a->n * a->n_each, n_gate = (int64_t)a->n_query * a->n_item;
    int64_t n_weight = n_gate * a->pair_hidden;
    MIRROR(m, a, item, IN, I32, n);
    mirror_add_dropout(m, &a->drop_pair, a->n);
    mirror_add_dropout(m, &a->drop_gate, a->n);
    MIRROR(m, a, query_gate, IN, ACT, a->n * n_gate);
    MIRROR(m, a, item_gate, IN, ACT, a->n_items * n_gate);
    MIRROR(m, a, query, IN, ACT, a->n * (a->n_query - a->n_user) * a->dim);
    MIRROR_ROWS(m, a, user, IN, ACT, a->n_user, a->n * a->dim, a->user_stride * a->dim);
    MIRROR(m, a, items, IN, ACT, (int64_t)a->n_items * a->n_item * a->dim);
    for (int k = 0; k < 2; k++) {
        MIRROR(m, a, pair_w[k], IN, FACTOR, n_weight);
        MIRROR(m, a, pair_b[k], IN, F32, k == 0 ? a->pair_hidden : n_gate);
    }
}

status mirror_mol_pairs_fwd(backend *be, const mol_args *args) {
    mirror *m = mirror_of(be);
    mol_args a = *args;
    int64_t n = a.n * a.n_each, n_gate = (int64_t)a.n_query * a.n_item;
    mirror_begin(m);
    add_pairs(m, &a);
    MIRROR(m, &a, s, OUT, F32, n * n_gate);
    MIRROR(m, &a, sim, BOTH, F32,
           n > 0 ? (a.n - 1) * a.sim_row + (a.n_each - 1) * a.sim_pair + 1 : 0);
    MIRROR(m, &a, gate, OUT, F32, n * n_gate);
    RUN(m, mol_pairs_fwd, &a);
}

status mirror_mol_pairs_bwd(backend *be, const mol_args *args) {
    mirror *m = mirror_of(be);
    mol_args a = *args;
    int64_t n = a.n * a.n_each, n_gate = (int64_t)a.n_query * a.n_item;
    mirror_begin(m);
    add_pairs(m, &a);
    a.sim = a.gate = NULL;
    MIRROR(m, &a, s, IN, F32, n * n_gate);
    MIRROR(m, &a, dsim, IN, F32, n);
    MIRROR(m, &a, mean, IN, F32, n_gate);
    MIRROR(m, &a, grad_scale, IN, F32, 1);
    MIRROR(m, &a.groups, order, IN, I32, a.groups.n);
    MIRROR(m, &a.groups, begin, IN, I32, a.groups.n_rows + 1);
    MIRROR(m, &a, dquery, OUT, ACT, a.n * (a.n_query - a.n_user) * a.dim);
    MIRROR_ROWS(m, &a, duser, OUT, ACT, a.n_user, a.n * a.dim, a.user_stride * a.dim);
    MIRROR(m, &a, dquery_gate, OUT, ACT, a.n * n_gate);
    MIRROR(m, &a, ditem, BOTH, F32, (int64_t)a.n_items * a.n_item * a.dim);
    MIRROR(m, &a, ditem_gate, BOTH, F32, a.n_items * n_gate);
    for (int k = 0; k < 2; k++) {
        MIRROR(m, &a, dpair_w[k], BOTH, F32, n_gate * a.pair_hidden);
        MIRROR(m, &a, dpair_b[k], BOTH, F32, k == 0 ? a.pair_hidden : n_gate);
    }
    RUN(m, mol_pairs_bwd, &a);
}

status mirror_mol_balance(backend *be, const mol_balance_args *args) {
    mirror *m = mirror_of(be);
    mol_balance_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a, item, IN, I32, a.n);
    MIRROR(m, &a, gate, IN, F32, a.n * a.dim);
    MIRROR(m, &a, mean, OUT, F32, a.dim);
    MIRROR(m, &a, loss, BOTH, F64, 1);
    RUN(m, mol_balance, &a);
}

status mirror_mol_penalty(backend *be, const mol_penalty_args *args) {
    mirror *m = mirror_of(be);
    mol_penalty_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT, a.n);
    MIRROR(m, &a, dx, BOTH, ACT, a.n);
    MIRROR(m, &a, grad_scale, IN, F32, 1);
    MIRROR(m, &a, loss, BOTH, F64, 1);
    RUN(m, mol_penalty, &a);
}

status mirror_mol_loss(backend *be, const mol_loss_args *args) {
    mirror *m = mirror_of(be);
    mol_loss_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a, item, IN, I32, a.n * (a.n_negatives + 1));
    MIRROR(m, &a, grad_scale, IN, F32, 1);
    MIRROR(m, &a, sim, BOTH, F32, a.n * (a.n_negatives + 1));
    MIRROR(m, &a, loss, BOTH, F64, 1);
    RUN(m, mol_loss, &a);
}
