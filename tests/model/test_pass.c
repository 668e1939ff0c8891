#include "model/pass.h"

#include "device.h"
#include "model/kv_store.h"
#include "oom.h"
#include "test.h"
#include "toy_model.h"

static pass *new_pass(model *m, int32_t max_users, bool is_training, pass *lender) {
    pass *p;
    CHECK_OK(pass_create(
        &p, m,
        &(pass_config){.max_users = max_users, .is_training = is_training, .lender = lender}));
    return p;
}

/* The results of a pass for a batch: encoded users or scores. n elements, freed by the caller. */
static float *answer_of(toy_model *t, pass *p, const batch *b, int64_t *n) {
    const void *from;
    if (t->m->is_ranking) {
        CHECK_OK(pass_score(p, b, &from, n));
        *n *= ranking_n_columns(&t->m->ranking);
    } else {
        CHECK_OK(pass_encode(p, b, &from));
        *n = (int64_t)b->n_users * t->m->dim;
    }
    float *out = malloc((size_t)*n * sizeof *out + 1);
    CHECK(out != NULL);
    CHECK_OK(backend_read_act(t->be, out, from, (size_t)*n));
    return out;
}

static void check_same(const float *a, const float *b, int64_t n, double bound) {
    for (int64_t i = 0; i < n; i++)
        CHECK(bound > 0 ? fabs((double)a[i] - (double)b[i]) <= bound * (1 + fabs((double)b[i]))
                        : memcmp(&a[i], &b[i], sizeof *a) == 0);
}

/* Off the CPU a product of another height may add in another order. */
static double other_height(void) {
    if (test_on.kind == ON_CPU) return 1e-6;
    return 1e-5 + (test_on.p == PRECISION_F32 ? 0 : 16 * precision_unit(test_on.p));
}

/* An inference pass shares the activations of one layer among all; one that borrows overwrites
 * those of the training pass.  Both give the results of the training pass, whatever ran in
 * between. */
TEST(passes_of_one_model_answer_alike) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_batch b, other;
        int64_t n[4];
        toy_model_open(&t, (toy_kind)kind, 0.2, 2);
        toy_batch_make(&b, (toy_kind)kind, 1);
        toy_batch_make(&other, (toy_kind)kind, 2);
        pass *own = new_pass(t.m, TOY_USERS, false, NULL);
        pass *lent = new_pass(t.m, TOY_USERS, false, t.p);
        float *want = answer_of(&t, t.p, &b.b, &n[0]), *got = answer_of(&t, own, &b.b, &n[1]);
        free(answer_of(&t, own, &other.b, &n[2]));
        toy_model_train(&t, &b.b, 0);
        float *borrowed = answer_of(&t, lent, &b.b, &n[3]),
              *again = answer_of(&t, own, &b.b, &n[2]);
        for (int i = 1; i < 4; i++)
            CHECK_EQ(n[i], n[0]);
        check_same(got, want, n[0], 0);
        check_same(borrowed, want, n[0], 0);
        check_same(again, want, n[0], 0);
        free(want), free(got), free(borrowed), free(again);
        pass_destroy(lent);
        pass_destroy(own);
        toy_model_close(&t);
    }
}

/* Training is the same, bit for bit, with an evaluation in its memory between two steps. */
TEST(passes_that_borrow_do_not_disturb_training) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t[2];
        toy_batch b;
        double loss[2];
        if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
        toy_batch_make(&b, (toy_kind)kind, 3);
        for (int i = 0; i < 2; i++) {
            int64_t n;
            toy_model_open(&t[i], (toy_kind)kind, 0.2, 2);
            pass *lent = new_pass(t[i].m, TOY_USERS, false, t[i].p);
            toy_model_train(&t[i], &b.b, 0);
            if (i == 1) free(answer_of(&t[i], lent, &b.b, &n));
            loss[i] = toy_model_train(&t[i], &b.b, 1);
            pass_destroy(lent);
        }
        CHECK(memcmp(&loss[0], &loss[1], sizeof loss[0]) == 0);
        for (int k = 0; k < t[0].m->params.n; k++) {
            const param *p = &t[0].m->params.item[k], *q = &t[1].m->params.item[k];
            CHECK(memcmp(p->grad, q->grad, (size_t)p->n * sizeof *p->grad) == 0);
        }
        toy_model_close(&t[0]);
        toy_model_close(&t[1]);
    }
}

/* Two training passes add to the same gradients: each half of the users, together all. */
TEST(training_passes_share_gradients) {
    toy_model t, whole;
    toy_batch b, one;
    double loss = 0, sum = 0;
    model_step at = {5, 2, 1};
    toy_model_open(&t, TOY_RANK_BITS, 0.3, 2);
    toy_model_open(&whole, TOY_RANK_BITS, 0.3, 2);
    toy_batch_make(&b, TOY_RANK_BITS, 8);
    double want = toy_model_train(&whole, &b.b, 2);
    pass *second = new_pass(t.m, 1, true, NULL);
    for (int u = 0; u < TOY_USERS; u++) {
        toy_batch_take(&one, &b, u);
        CHECK_OK(pass_train(u % 2 == 0 ? t.p : second, &one.b, &at, NULL));
    }
    CHECK_OK(pass_take_loss(t.p, &loss));
    CHECK_OK(pass_take_loss(second, &sum));
    double bound = test_on.p == PRECISION_F32 ? 1e-4 : 16 * precision_unit(test_on.p);
    CHECK(fabs(loss + sum - want) < bound * fabs(want));
    const param *p = t.m->layers[0].hstu.uvqk, *q = whole.m->layers[0].hstu.uvqk;
    double most = 0;
    for (int64_t i = 0; i < q->n; i++)
        if (fabs((double)q->grad[i]) > most) most = fabs((double)q->grad[i]);
    for (int64_t i = 0; i < p->n; i++)
        CHECK(fabs((double)p->grad[i] - (double)q->grad[i]) <= bound * (1 + most));
    pass_destroy(second);
    toy_model_close(&t);
    toy_model_close(&whole);
}

/* With the keys and values of all but the last token of each history from pages, which an earlier
 * pass has filled. */
static float *cached_answer(toy_model *t, pass *p, kv_store *store, const batch *b, bool is_reused,
                            int64_t *n) {
    int32_t reused[TOY_USERS], stored[TOY_USERS], pages[TOY_USERS];
    const int32_t *page[TOY_USERS];
    const void *from;
    int32_t per_event = t->m->plan.has_actions ? 2 : 1;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t n_events = b->offsets[u + 1] - b->offsets[u] - b->n_targets[u];
        stored[u] = t->m->plan.n_context + per_event * n_events;
        reused[u] = is_reused && stored[u] > 1 ? stored[u] - 1 : 0;
        CHECK(stored[u] <= KV_PAGE_LEN);
        pages[u] = u;
        page[u] = &pages[u];
    }
    layout_cache c = {reused, stored, page};
    if (t->m->is_ranking) {
        CHECK_OK(pass_score_cached(p, b, store, &c, &from, n));
        *n *= ranking_n_columns(&t->m->ranking);
    } else {
        CHECK_OK(pass_encode_cached(p, b, store, &c, &from));
        *n = (int64_t)b->n_users * t->m->dim;
    }
    float *out = malloc((size_t)*n * sizeof *out + 1);
    CHECK(out != NULL);
    CHECK_OK(backend_read_act(t->be, out, from, (size_t)*n));
    return out;
}

/* Leaves NaN where attention and gate of a pass write, as a batch that failed might. */
static void poison(toy_model *t, pass *p) {
    const layer *l = &t->m->layers[0];
    char *nan;
    if (l->kind != &hstu_layer_kind) return;
    size_t row = (size_t)(l->hstu.config.n_heads * l->hstu.config.dim_v) * act_bytes(t->be->act);
    size_t bytes = (size_t)p->plan.max_tokens * row;
    CHECK_OK(MEM_NEW(&nan, bytes));
    memset(nan, 0xff, bytes);
    CHECK_OK(t->be->ops->copy_in(t->be, p->layers[0].hstu.attn, nan, bytes));
    CHECK_OK(t->be->ops->copy_in(t->be, p->layers[0].hstu.gated, nan, bytes));
    mem_free(nan);
}

/* Answers of a recorded pass of `t` beside those of a plain pass of `plain`: also when a recorded
 * shape is replayed with other data, and with the cache; and whatever an earlier batch has left.
 * is_exact: shapes are recorded as they are, when they came before. */
static void check_recorded_as(toy_model *plain, toy_model *t, toy_kind kind, bool is_exact) {
    int64_t n[4];
    if (t->be->token_bucket == 0) t->be->token_bucket = 1; /* nothing is recorded, but rounded */
    pass *p = new_pass(plain->m, TOY_USERS, false, NULL), *recorded;
    bool has_cache = kv_store_check(t->m) == NULL;
    CHECK_OK(pass_create(
        &recorded, t->m,
        &(pass_config){.max_users = TOY_USERS, .has_cache = has_cache, .is_recorded = true}));
    kv_store store = {0};
    if (has_cache) CHECK_OK(kv_store_init(&store, t->m, &(kv_store_config){.n_pages = TOY_USERS}));
    if (is_exact) recorded->plan.round_most = 0;
    for (int i = 0; i < (is_exact ? 9 : 5); i++) {
        toy_batch b, one;
        toy_batch_make(&b, kind, 1 + (uint64_t)(i % 2));
        toy_batch_take(&one, &b, i % TOY_USERS);
        const batch *asked = i == 4 ? &one.b : &b.b;
        float *want = answer_of(plain, p, asked, &n[0]);
        poison(t, recorded);
        float *got = answer_of(t, recorded, asked, &n[1]);
        CHECK_EQ(n[1], n[0]);
        CHECK(!is_exact || !recorded->plan.is_round);
        CHECK_EQ(recorded->n_shapes > 0, is_exact && recorded->plan.config.is_rounded);
        check_same(got, want, n[0], other_height());
        poison(t, recorded);
        for (int reuses = 0; reuses < 2 && has_cache; reuses++) {
            float *cached = cached_answer(t, recorded, &store, asked, reuses, &n[2]);
            CHECK_EQ(n[2], n[0]);
            check_same(cached, want, n[0], other_height());
            free(cached);
        }
        free(want), free(got);
    }
    kv_store_fini(&store);
    pass_destroy(recorded);
    pass_destroy(p);
}

static void check_recorded(toy_model *plain, toy_model *t, toy_kind kind) {
    check_recorded_as(plain, t, kind, false);
    check_recorded_as(plain, t, kind, true);
}

/* A pass whose shapes are rounded up answers as one whose are not. */
TEST(passes_that_record_answer_alike) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_model_open(&t, (toy_kind)kind, 0, 2);
        check_recorded(&t, &t, (toy_kind)kind);
        toy_model_close(&t);
    }
}

/* Whether the last layer of a packed model computes the tokens of the head alone. */
static bool chooses(const model *m, const pass *p) {
    return m->is_ranking ? p->ranking.tokens.is_done : p->retrieval.tokens.is_done;
}

/* A model whose weights are packed answers as it did before; its last layer computes chosen tokens
 * alone where it has no bias, and all of them for events that are all scored. */
TEST(passes_of_a_packed_model_answer_alike) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model plain, t;
        toy_batch b;
        int64_t n[2];
        toy_model_open(&plain, (toy_kind)kind, 0, 2);
        toy_model_open(&t, (toy_kind)kind, 0, 2);
        CHECK_OK(model_pack(t.m));
        toy_batch_make(&b, (toy_kind)kind, 7);
        pass *p[2] = {new_pass(plain.m, TOY_USERS, false, NULL),
                      new_pass(t.m, TOY_USERS, false, NULL)};
        float *want = answer_of(&plain, p[0], &b.b, &n[0]), *got = answer_of(&t, p[1], &b.b, &n[1]);
        CHECK_EQ(n[1], n[0]);
        check_same(got, want, n[0], other_height());
        CHECK(!chooses(plain.m, p[0]));
        CHECK(chooses(t.m, p[1]) ==
              (kind == TOY_RETRIEVAL || kind == TOY_RANK_BITS || kind == TOY_RANK_MLP));
        free(want), free(got);
        pass_destroy(p[0]);
        pass_destroy(p[1]);
        check_recorded(&plain, &t, (toy_kind)kind);
        toy_model_close(&plain);
        toy_model_close(&t);
    }
}

/* A pass for one user gives the same results as one for many, user by user. */
TEST(pass_for_one_user_answers_as_one_for_many) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_batch b, one;
        int64_t n, n_one, at = 0;
        toy_model_open(&t, (toy_kind)kind, 0, 2);
        toy_batch_make(&b, (toy_kind)kind, 4);
        pass *single = new_pass(t.m, 1, false, NULL);
        CHECK(pass_memory_bytes(single) < pass_memory_bytes(t.p) / 4);
        float *all = answer_of(&t, t.p, &b.b, &n);
        for (int u = 0; u < TOY_USERS; u++) {
            toy_batch_take(&one, &b, u);
            float *mine = answer_of(&t, single, &one.b, &n_one);
            check_same(mine, all + at, n_one, other_height());
            at += n_one;
            free(mine);
        }
        CHECK_EQ(at, n);
        const void *out;
        CHECK_FAILS(pass_encode(single, &b.b, &out), ERR_CONFIG,
                    t.m->is_ranking ? "scores candidates" : "6 users");
        free(all);
        pass_destroy(single);
        toy_model_close(&t);
    }
}

/* A model for inference is its values and nothing else that grows with them; its pass has neither
 * gradients nor a set of activations for each layer. */
TEST(inference_allocates_no_gradients) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        config c = toy_model_config((toy_kind)kind, 0);
        model_limits l = toy_model_limits((toy_kind)kind);
        backend *be;
        model *m;
        pass *shallow, *deep;
        CHECK_OK(backend_create_cpu(&be, NULL));
        CHECK_OK(model_create(&m, be, &c, &l));
        uint64_t values = (uint64_t)model_n_numbers(m) * sizeof(float);
        uint64_t of_corpus =
            m->is_ranking ? 0 : (uint64_t)(TOY_ITEMS * (m->dim + 1)) * sizeof(float);
        uint64_t before = model_memory_bytes(m);
        CHECK(before >= values + of_corpus && before < values + of_corpus + 64);
        shallow = new_pass(m, TOY_USERS, false, NULL);
        uint64_t of_pass = pass_memory_bytes(shallow);
        CHECK_EQ(model_memory_bytes(m), before);
        CHECK(model_dense_grads(m).n == 0 && shallow->d_hidden == NULL && shallow->loss == NULL);
        for (int i = 0; i < m->params.n; i++)
            CHECK(m->params.item[i].grad == NULL && m->params.item[i].marks == NULL);
        CHECK_FAILS(pass_train(shallow, &(batch){.offsets = &(int32_t){0}}, &(model_step){0}, NULL),
                    ERR_USAGE, "without the memory for training");
        pass_destroy(shallow);
        model_destroy(m);
        c.network.n_layers = 8;
        CHECK_OK(model_create(&m, be, &c, &l));
        deep = new_pass(m, TOY_USERS, false, NULL);
        CHECK_EQ(pass_memory_bytes(deep), of_pass);
        pass *train = new_pass(m, TOY_USERS, true, NULL);
        CHECK(pass_memory_bytes(train) > 2 * of_pass && model_dense_grads(m).n > 0);
        pass *lent = new_pass(m, TOY_USERS, false, train);
        CHECK(pass_memory_bytes(lent) < of_pass / 2); /* plan, statistics, lists */
        pass_destroy(lent);
        pass_destroy(train);
        pass_destroy(deep);
        model_destroy(m);
        backend_destroy(be);
    }
}

/* The model's limit holds for its passes; recorded steps of two passes are never mixed up. */
TEST(passes_have_limits_and_keys) {
    toy_model t;
    toy_batch b;
    pass *p;
    toy_model_open(&t, TOY_SASREC, 0, 1);
    CHECK_FAILS(pass_create(&p, t.m, &(pass_config){.max_users = TOY_USERS + 1}), ERR_CONFIG,
                "a pass for 7 users; the model was made for 1 to 6");
    CHECK(p == NULL);
    CHECK_FAILS(pass_create(&p, t.m, &(pass_config){0}), ERR_CONFIG, "a pass for 0 users");
    toy_batch_make(&b, TOY_SASREC, 1);
    p = new_pass(t.m, TOY_USERS, true, NULL);
    CHECK_OK(pass_train(p, &b.b, &(model_step){5, 0, 1}, NULL));
    toy_model_train(&t, &b.b, 0);
    uint64_t mine = pass_record_key(p, 5);
    CHECK_EQ(pass_record_key(p, 5), mine);
    CHECK(pass_record_key(p, 6) != mine && pass_record_key(t.p, 5) != mine);
    pass_destroy(p);
    p = new_pass(t.m, TOY_USERS, true, NULL); /* at the same address, as likely as not */
    CHECK_OK(pass_train(p, &b.b, &(model_step){5, 0, 1}, NULL));
    CHECK(pass_record_key(p, 5) != mine);
    pass_destroy(p);
    toy_model_close(&t);
}

static const float *encode(toy_model *t, const int32_t *offsets, int32_t n_users) {
    toy_batch b;
    const void *got;
    toy_batch_make(&b, TOY_SASREC, 3);
    memset(b.n_targets, 0, sizeof b.n_targets);
    memcpy(b.offsets, offsets, (size_t)(n_users + 1) * sizeof *offsets);
    b.b.n_users = n_users;
    b.b.n_tokens = offsets[n_users];
    CHECK_OK(pass_encode(t->p, &b.b, &got));
    return got;
}

/* As many users as tokens, yet the tokens are not the users' in turn. */
TEST(pass_encodes_users_without_events_beside_others) {
    enum { DIM = 12 };
    toy_model t;
    float alone[DIM], nobody[DIM];
    size_t bytes = sizeof alone;
    toy_model_open(&t, TOY_SASREC, 0, 1);
    memcpy(alone, encode(&t, (int32_t[]){0, 2}, 1), bytes);
    memcpy(nobody, encode(&t, (int32_t[]){0, 0}, 1), bytes);
    const float *both = encode(&t, (int32_t[]){0, 2, 2}, 2);
    CHECK(memcmp(both, alone, bytes) == 0 && memcmp(both + DIM, nobody, bytes) == 0);
    both = encode(&t, (int32_t[]){0, 0, 2}, 2);
    CHECK(memcmp(both, nobody, bytes) == 0 && memcmp(both + DIM, alone, bytes) == 0);
    toy_model_close(&t);
}

/* A pass for few tokens refuses more, and answers alike up to then; one for more candidates than
 * the model has takes them. */
TEST(passes_can_be_bounded_by_tokens) {
    toy_model t;
    toy_batch b, one;
    pass *p;
    const void *bounded, *whole;
    int64_t n_rows, n_whole;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    toy_batch_make(&b, TOY_RANK_BITS, 3);
    int longest = 0;
    for (int u = 1; u < TOY_USERS; u++)
        if (b.b.offsets[u + 1] - b.b.offsets[u] > b.b.offsets[longest + 1] - b.b.offsets[longest])
            longest = u;
    toy_batch_take(&one, &b, longest);
    int32_t last = one.b.n_tokens, n = TOY_FEATURES + 2 * last;
    CHECK(last > t.c.data.max_candidates);
    CHECK_OK(pass_create(&p, t.m, &(pass_config){.max_users = TOY_USERS, .max_tokens = n}));
    CHECK_FAILS(pass_score(p, &b.b, &bounded, &n_rows), ERR_CONFIG, "more than");
    CHECK_OK(pass_score(p, &one.b, &bounded, &n_rows));
    CHECK_OK(pass_score(t.p, &one.b, &whole, &n_whole));
    CHECK(n_rows == n_whole && n_rows > 0);
    CHECK(memcmp(bounded, whole, (size_t)n_rows * 3 * sizeof(float)) == 0);
    pass_destroy(p);
    one.b.n_targets[0] = last;
    CHECK_FAILS(pass_score(t.p, &one.b, &whole, &n_whole), ERR_CONFIG, "candidates");
    CHECK_OK(pass_create(&p, t.m, &(pass_config){.max_users = 1, .max_targets = last}));
    CHECK_OK(pass_score(p, &one.b, &bounded, &n_rows));
    CHECK_EQ(n_rows, last);
    pass_destroy(p);
    CHECK_FAILS(
        pass_create(&p, t.m, &(pass_config){.max_users = 1, .is_training = true, .max_tokens = 5}),
        ERR_USAGE, "a pass that trains");
    toy_model_close(&t);
}

/* Top k and ranks of targets of a batch against a loop over the catalogue. */
TEST(pass_rank_equals_a_loop) {
    toy_model t;
    toy_batch b;
    model_items corpus;
    int32_t best[TOY_USERS * 5], target[TOY_USERS], rank[TOY_USERS];
    float score[TOY_USERS * 5], rows[TOY_ITEMS * 12];
    int64_t n;
    if (test_on.p != PRECISION_F32) SKIP_TEST("ties of rounded scores");
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0, 2);
    toy_batch_make(&b, TOY_HSTU_RESEARCH, 12);
    pass *p = new_pass(t.m, TOY_USERS, false, NULL);
    CHECK_OK(model_corpus(t.m, &corpus));
    CHECK_OK(t.be->ops->copy_out(t.be, rows, corpus.rows, sizeof rows));
    for (int u = 0; u < TOY_USERS; u++)
        target[u] = (int32_t)b.item[b.offsets[u + 1] - 1] - 1;
    rank_query q = {
        .corpus = &corpus, .target = target, .rank = rank, .k = 5, .best = best, .score = score};
    CHECK_OK(pass_rank(p, &b.b, &q));
    float *query = answer_of(&t, p, &b.b, &n);
    for (int u = 0; u < TOY_USERS; u++) {
        double all[TOY_ITEMS];
        int above = 0;
        for (int v = 0; v < TOY_ITEMS; v++) {
            all[v] = 0;
            for (int d = 0; d < 12; d++)
                all[v] += (double)query[12 * u + d] * (double)rows[12 * v + d];
        }
        double of_target = all[target[u]];
        bool is_seen = false;
        for (int32_t i = b.offsets[u]; i < b.offsets[u + 1] - b.n_targets[u]; i++) {
            is_seen |= b.item[i] - 1 == (uint32_t)target[u];
            all[b.item[i] - 1] = -INFINITY;
        }
        for (int v = 0; v < TOY_ITEMS; v++)
            above += all[v] > of_target;
        CHECK_EQ(rank[u], is_seen ? TOY_ITEMS + 1 : above + 1);
        for (int i = 0; i < 5; i++) {
            double here = all[best[5 * u + i] - 1];
            int better = 0;
            for (int v = 0; v < TOY_ITEMS; v++)
                better += all[v] > here + 1e-5;
            CHECK(better <= i && fabs(here - (double)score[5 * u + i]) < 1e-5);
        }
    }
    CHECK_FAILS(pass_rank(t.p, &b.b, &q), ERR_USAGE, "made for training");
    free(query);
    pass_destroy(p);
    toy_model_close(&t);
}

/* Model, pass and a pass that borrows, with the k-th allocation failing. */
static status make_and_ask(void *ctx) {
    toy_kind kind = *(const toy_kind *)ctx;
    config c = toy_model_config(kind, 0);
    model_limits l = toy_model_limits(kind);
    static toy_batch b;
    backend *be = NULL;
    model *m = NULL;
    pass *train = NULL, *p = NULL;
    const void *out;
    int64_t n;
    toy_batch_make(&b, kind, 3);
    status st = backend_create_cpu(&be, NULL);
    if (st == OK) st = model_create(&m, be, &c, &l);
    if (st == OK) st = pass_create(&train, m, &(pass_config){.max_users = 2, .is_training = true});
    if (st == OK) st = pass_create(&p, m, &(pass_config){.max_users = TOY_USERS, .lender = train});
    if (st == OK) st = model_init(m, 1);
    if (st == OK) st = m->is_ranking ? pass_score(p, &b.b, &out, &n) : pass_encode(p, &b.b, &out);
    pass_destroy(p);
    pass_destroy(train);
    model_destroy(m);
    backend_destroy(be);
    return st;
}

TEST(passes_out_of_memory) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_kind k = (toy_kind)kind;
        CHECK(oom_at_each_allocation(make_and_ask, &k) > 40);
    }
}
