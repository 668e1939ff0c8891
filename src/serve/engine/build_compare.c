/* Whether an engine folder answers as its run does. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "serve/engine/build_int.h"
#include "serve/engine/engine.h"

enum { N_ASKED = 32, N_CANDIDATES = 64, TOP_K = 10, LONGEST = 256 };

status build_list_folder(const char *path, char (**out)[256], size_t *n) {
    size_t capacity = 0;
    status st = OK;
    *out = NULL;
    *n = 0;
    DIR *dir = opendir(path);
    if (dir == NULL) return fail_errno("%s", path);
    for (struct dirent *e = readdir(dir); e != NULL && st == OK; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        st = mem_reserve((void **)out, &capacity, *n + 1, sizeof **out);
        if (st == OK) snprintf((*out)[(*n)++], sizeof **out, "%.255s", e->d_name);
    }
    closedir(dir);
    if (st == OK) return OK;
    mem_free(*out);
    *out = NULL;
    return st;
}

typedef struct comparison {
    engine *e; /* model 0: the run, model 1: the folder */
    engine_model_info info;
    bool is_exact;
    build_report *out;
    engine_event history[LONGEST];
    engine_id candidate[N_CANDIDATES];
    uint64_t n_drawn, n_top, n_top_kept;
} comparison;

static uint32_t draw(comparison *k, uint32_t n) {
    rng_block b = rng_draw64(rng_make_key(17, RNG_TEST), k->n_drawn++, 0);
    return rng_below(b.word[0], n);
}

static status some_item(comparison *k, engine_id *out) {
    engine_item item;
    TRY(engine_item_of(k->e, 0, 1 + draw(k, (uint32_t)k->info.n_items), &item));
    *out = item.id;
    return OK;
}

static status draw_request(comparison *k, engine_request *r) {
    uint32_t longest = k->info.max_history < LONGEST ? (uint32_t)k->info.max_history : LONGEST;
    uint32_t n = 1 + draw(k, longest);
    for (uint32_t i = 0; i < n; i++) {
        k->history[i] = (engine_event){.has_time = true, .time = 1500000000 + 600 * (int64_t)i};
        TRY(some_item(k, &k->history[i].item));
    }
    for (int i = 0; i < N_CANDIDATES; i++)
        TRY(some_item(k, &k->candidate[i]));
    *r = (engine_request){.task = ENGINE_RANK,
                          .has_history = true,
                          .history = k->history,
                          .n_history = n,
                          .candidates = k->candidate,
                          .n_candidates = N_CANDIDATES,
                          .deadline_ns = 600000000000u};
    return OK;
}

/* The scores of the same candidates. */
static status compare_scores(comparison *k, const engine_answer *a, const engine_answer *b) {
    double low = INFINITY, high = -INFINITY, worst = 0;
    if (a->n_items != b->n_items || a->n_columns != b->n_columns)
        return fail(ERR_NUMERIC, "the engine answers with other items than the run");
    for (size_t i = 0; i < a->n_items; i++) {
        const float *x = a->items[i].values, *y = b->items[i].values;
        size_t bytes = (size_t)a->n_columns * sizeof *x;
        if (a->items[i].number != b->items[i].number || (k->is_exact && memcmp(x, y, bytes) != 0))
            return fail(ERR_NUMERIC, "the engine answers otherwise than the run");
        for (int c = 0; c < a->n_columns; c++) {
            low = fmin(low, (double)x[c]);
            high = fmax(high, (double)x[c]);
            worst = fmax(worst, fabs((double)x[c] - (double)y[c]));
        }
    }
    if (high > low && worst / (high - low) > k->out->score_error)
        k->out->score_error = worst / (high - low);
    return OK;
}

static status compare_best(comparison *k, const engine_answer *a, const engine_answer *b) {
    uint64_t n = 0;
    for (size_t i = 0; i < a->n_items; i++)
        for (size_t j = 0; j < b->n_items; j++)
            n += a->items[i].number == b->items[j].number;
    k->n_top += a->n_items;
    k->n_top_kept += n;
    return k->is_exact ? compare_scores(k, a, b) : OK;
}

typedef status (*judge_fn)(comparison *k, const engine_answer *a, const engine_answer *b);

static status ask_both(comparison *k, engine_request *r, judge_fn judge) {
    engine_answer a, b;
    r->model = 0;
    engine_ask(k->e, r, &a);
    r->model = 1;
    engine_ask(k->e, r, &b);
    status st = OK;
    if (a.outcome != ENGINE_OK) st = fail(ERR_NUMERIC, "the run does not answer: %s", a.error);
    if (st == OK && b.outcome != ENGINE_OK)
        st = fail(ERR_NUMERIC, "the engine does not answer: %s", b.error);
    if (st == OK) st = judge(k, &a, &b);
    engine_answer_release(&a);
    engine_answer_release(&b);
    return st;
}

static status ask_all(comparison *k) {
    engine_request r;
    for (; k->out->n_asked < N_ASKED; k->out->n_asked++) {
        TRY(draw_request(k, &r));
        TRY(ask_both(k, &r, compare_scores));
        if (k->out->is_ranking) continue;
        r.task = ENGINE_RECOMMEND;
        r.candidates = NULL;
        r.n_candidates = 0;
        r.top_k = TOP_K;
        TRY(ask_both(k, &r, compare_best));
    }
    k->out->top_kept = k->n_top > 0 ? (double)k->n_top_kept / (double)k->n_top : 1;
    return OK;
}

static status open_both(comparison *k, const char *checkpoint, const char *folder) {
    engine_model_info info;
    TRY(engine_load(k->e, "run", checkpoint));
    TRY(engine_load(k->e, "engine", folder));
    TRY(engine_model(k->e, 0, &k->info));
    TRY(engine_model(k->e, 1, &info));
    k->out->n_items = info.n_items;
    k->out->is_ranking = strcmp(info.task, "ranking") == 0;
    k->out->run_open_s = k->info.load_s;
    k->out->engine_open_s = info.load_s;
    return OK;
}

status build_compare(const char *checkpoint, const char *folder, const build_config *c,
                     build_report *out) {
    comparison *k;
    engine_config of_engine = {.device = "cpu",
                               .max_batch = c->limits.max_batch,
                               .max_tokens = c->limits.max_tokens,
                               .kv_pages = c->limits.kv_pages};
    TRY(MEM_NEW(&k, 1));
    k->out = out;
    k->is_exact = c->dtype == DTYPE_FLOAT32;
    status st = engine_create(&k->e, &of_engine);
    if (st == OK) st = open_both(k, checkpoint, folder);
    if (st == OK) st = ask_all(k);
    engine_destroy(k->e);
    mem_free(k);
    return st;
}
