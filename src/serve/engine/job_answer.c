/* The items of an answer, from the results of its job. */
#include <math.h>
#include <string.h>

#include "serve/engine/job.h"

status job_answer_items(job *j) {
    const infer_query *q = &j->q;
    engine_item *to;
    TRY(ARENA_NEW(j->arena, &to, (size_t)q->n_best));
    for (int32_t i = 0; i < q->n_best; i++) {
        to[i] = served_item_names(j->m, q->item[i]);
        to[i].place = (uint32_t)i;
        to[i].values = &q->score[i];
    }
    j->out->items = to;
    j->out->n_items = (size_t)q->n_best;
    return OK;
}

/* A number that is less for candidates that come first: by value downwards, those without one last,
 * of equal ones the first given first. */
static uint64_t order_key(float value, uint32_t place) {
    uint32_t bits;
    if (isnan(value)) return (uint64_t)UINT32_MAX << 32 | place;
    value += 0.0f; /* -0 and 0 are equal */
    memcpy(&bits, &value, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 1u << 31; /* ascending as the values are */
    return (uint64_t)~bits << 32 | place;
}

/* Sorts keys whose lower halves, the places, ascend already: by the bytes of the upper ones, from
 * the last to the first.  `other` has room for as many; returns where the sorted ones are. */
static uint64_t *sort_keys(uint64_t *key, uint64_t *other, size_t n) {
    uint32_t at[4][256] = {0};
    for (size_t i = 0; i < n; i++)
        for (int byte = 0; byte < 4; byte++)
            at[byte][key[i] >> (32 + 8 * byte) & 255]++;
    for (int byte = 0; byte < 4; byte++) {
        int shift = 32 + 8 * byte;
        uint32_t sum = 0;
        if (at[byte][key[0] >> shift & 255] == n) continue; /* all have the same byte */
        for (int i = 0; i < 256; i++) {
            uint32_t count = at[byte][i];
            at[byte][i] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++)
            other[at[byte][key[i] >> shift & 255]++] = key[i];
        uint64_t *sorted = other;
        other = key;
        key = sorted;
    }
    return key;
}

static void clear_values(job *j) {
    size_t n = (size_t)j->q.n_candidates * (size_t)j->m->infer.columns.n;
    for (size_t i = 0; i < n; i++)
        j->q.values[i] = NAN;
}

/* Memory is cleared even where it is overwritten: so it is in this core's caches when the results
 * come. */
status job_name_candidates(job *j) {
    size_t n = (size_t)j->q.n_candidates, width = (size_t)j->m->infer.columns.n;
    if (j->named != NULL) return OK;
    if (j->q.logits != NULL && j->m->compute.be->act != ACT_F32)
        TRY(ARENA_NEW(j->arena, &j->wide, n * (size_t)j->m->infer.columns.width));
    TRY(ARENA_NEW(j->arena, &j->q.values, n * width));
    TRY(ARENA_NEW(j->arena, &j->keys, 2 * n));
    TRY(ARENA_NEW(j->arena, &j->named, n));
    for (size_t i = 0; i < n; i++) {
        engine_item *to = &j->named[i];
        if (j->q.candidate[i] != 0)
            *to = served_item_names(j->m, j->q.candidate[i]);
        else
            to->id = j->candidate_id[i];
        to->place = (uint32_t)i;
        to->values = j->q.values + i * width;
    }
    clear_values(j);
    return OK;
}

static uint64_t *find_order(job *j) {
    size_t n = (size_t)j->q.n_candidates, width = (size_t)j->m->infer.columns.n;
    for (size_t i = 0; i < n; i++)
        j->keys[i] = order_key(j->q.values[i * width], (uint32_t)i);
    return sort_keys(j->keys, j->keys + n, n);
}

/* The best ones first: each is moved to its place, around the circles of the permutation, so that
 * no memory but theirs is looked at. */
static void order_candidates(job *j) {
    size_t n = (size_t)j->q.n_candidates;
    uint64_t *key = find_order(j);
    for (size_t first = 0; first < n; first++) {
        engine_item kept = j->named[first];
        size_t at = first, from = (uint32_t)key[at];
        for (; from != first; from = (uint32_t)key[at]) {
            j->named[at] = j->named[from];
            key[at] = at;
            at = from;
        }
        j->named[at] = kept;
        key[at] = at;
    }
}

status job_answer_candidates(job *j) {
    int32_t n = j->q.n_candidates;
    TRY(job_name_candidates(j));
    if (j->q.logits != NULL) infer_finish(&j->m->infer, &j->q, j->wide);
    if (j->top_k > 0) order_candidates(j);
    j->out->items = j->named;
    j->out->n_items = (size_t)(j->top_k > 0 && j->top_k < n ? j->top_k : n);
    return OK;
}

void job_rehearse(job *j) {
    enum { MOST = 1024 }; /* of more the code is the smaller part */
    size_t n = (size_t)j->q.n_candidates * (size_t)j->m->infer.columns.width;
    if (j->named == NULL || j->wide == NULL || j->q.n_candidates > MOST) return;
    for (size_t i = 0; i < n; i++)
        j->wide[i] = (float)((uint32_t)i * 2654435761u >> 24) / 64;
    infer_finish_floats(&j->m->infer, &j->q, j->wide);
    if (j->top_k > 0) (void)find_order(j);
    clear_values(j);
}
