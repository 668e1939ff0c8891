#include "profile/links.h"

#include <string.h>

#include "base/mem.h"

/* Attention in a graph: the op that launched the graph knows how many pairs there were. */
static void give_work(recorder *r, span *s) {
    double pairs = s->op >= 0 ? r->spans[s->op].pairs : 0;
    if (s->of_pair <= 0 || pairs <= 0) return;
    s->has_work = true;
    s->flop = s->is_first ? s->of_pair * pairs : 0;
    s->moved = s->is_first ? s->pair_bytes : 0;
}

/* Gives what the GPU ran the op that launched it, and takes the links out. */
status links_resolve(recorder *r) {
    uint32_t top = 0;
    int64_t *op_of;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].correlation > top) top = r->spans[i].correlation;
    TRY(mem_alloc_raw((void **)&op_of, (size_t)top + 1, sizeof *op_of));
    for (uint32_t i = 0; i <= top && top < UINT32_MAX; i++)
        op_of[i] = RECORDER_NO_OP;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].kind == N_SPAN_KINDS) op_of[r->spans[i].correlation] = r->spans[i].op;
    size_t n = 0, *moved;
    status st = mem_alloc_raw((void **)&moved, r->n_spans + 1, sizeof *moved);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        moved[i] = n;
        if (r->spans[i].kind == N_SPAN_KINDS) continue;
        r->spans[n] = r->spans[i];
        if (r->spans[n].correlation > 0) r->spans[n].op = op_of[r->spans[n].correlation];
        n++;
    }
    for (size_t i = 0; st == OK && i < n; i++) {
        span *s = &r->spans[i];
        bool is_known = s->op >= 0 && (size_t)s->op < r->n_spans;
        s->op = is_known ? (int64_t)moved[s->op] : RECORDER_NO_OP;
    }
    if (st == OK) r->n_spans = n;
    for (size_t i = 0; st == OK && i < n; i++)
        give_work(r, &r->spans[i]);
    mem_free(op_of);
    mem_free(moved);
    return st;
}

/* Whether a span is, or is inside, a range of this name: by the spans around it. */
static bool is_inside(const recorder *r, const span *s, const char *name) {
    for (; s != NULL; s = s->op == RECORDER_NO_OP ? NULL : &r->spans[s->op])
        if (s->kind == SPAN_RANGE && strcmp(recorder_name(r, s), name) == 0) return true;
    return false;
}

/* The outermost ones count: a range may be inside another one of its name. */
static uint64_t time_of(const recorder *r, const char *name) {
    uint64_t ns = 0;
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i], *around = s->op == RECORDER_NO_OP ? NULL : &r->spans[s->op];
        if (s->kind == SPAN_RANGE && s->end_ns != 0 && strcmp(recorder_name(r, s), name) == 0 &&
            !is_inside(r, around, name))
            ns += s->end_ns - s->start_ns;
    }
    return ns;
}

status links_keep_range(recorder *r, const char *name) {
    size_t n = 0;
    int64_t *moved;
    TRY(mem_alloc_raw((void **)&moved, r->n_spans + 1, sizeof *moved));
    r->active_ns = time_of(r, name);
    for (size_t i = 0; i < r->n_spans; i++)
        moved[i] = is_inside(r, &r->spans[i], name) ? (int64_t)n++ : RECORDER_NO_OP;
    for (size_t i = 0; i < r->n_spans; i++) {
        if (moved[i] == RECORDER_NO_OP) continue;
        span s = r->spans[i];
        if (s.op != RECORDER_NO_OP) s.op = moved[s.op];
        r->spans[moved[i]] = s;
    }
    r->n_spans = n;
    mem_free(moved);
    return OK;
}
