/* Losses of retrieval: gradients, parts of batches, draws; and the pieces of a sampled softmax fit
 * the scratch memory that was made for them. */
#include "device.h"
#include "toy_model.h"
#include "train_test.h"

static struct {
    int64_t max_n, n_negatives, n_calls, n_whole; /* n_whole: calls of as many rows as fit */
    const ops *below;
} seen;

static size_t note_scratch(backend *be, int64_t max_n, int32_t n_negatives, int32_t dim,
                           int32_t n_rows) {
    seen.max_n = max_n;
    seen.n_negatives = n_negatives;
    return seen.below->sampled_softmax_scratch(be, max_n, n_negatives, dim, n_rows);
}

static status check_piece(backend *be, const sampled_softmax_args *a) {
    CHECK(a->n <= seen.max_n && a->n_negatives <= seen.n_negatives);
    seen.n_calls++;
    seen.n_whole += a->n == seen.max_n;
    return seen.below->sampled_softmax(be, a);
}

/* As many negatives as loss positions: a batch of short histories has fewer than the most, for
 * which the memory is made, and more than one piece. */
TEST(sampled_loss_of_a_smaller_batch_fits) {
    static const char gin[] = "TrainerArgs.train_batch_size = 40\n"
                              "TrainerArgs.eval_interval = 1000\n"
                              "DatasetArgs.dataset_name = 'synth'\n"
                              "DatasetArgs.max_history_seqlen = 400\n"
                              "NetworkArgs.dtype_str = 'float32'\n"
                              "NetworkArgs.num_layers = 1\n"
                              "NetworkArgs.num_attention_heads = 1\n"
                              "NetworkArgs.hidden_size = 4\n"
                              "NetworkArgs.num_position_buckets = 512\n"
                              "RetrievalArgs.num_negatives = -1\n";
    bench_top top;
    model_step at = {.seed = 1, .grad_scale = 1};
    batcher *b;
    const batch *next;
    CHECK_OK(top_open(&top, gin, NULL, 0, 2));
    session_close(&top.session);
    ops checked = *top.be->ops;
    seen.below = top.be->ops;
    checked.sampled_softmax_scratch = note_scratch;
    checked.sampled_softmax = check_piece;
    top.be->ops = &checked;
    CHECK_OK(session_open(&top.session, top.config, top.data, top.be));
    split_rule rule = session_split(top.config, false);
    batcher_config c = session_train_batches(&top.session, rule, 1);
    CHECK_OK(model_init(top.session.model, 1));
    CHECK_OK(batcher_create(&b, top.data, &c));
    CHECK_OK(batcher_next(b, &next));
    int64_t n_loss = model_count_loss(top.session.model, next);
    CHECK(n_loss > seen.max_n && n_loss < seen.n_negatives / 2);
    CHECK_OK(pass_train(top.session.train, next, &at, NULL));
    CHECK(seen.n_calls > 1);
    CHECK_EQ(seen.n_whole, n_loss / seen.max_n);
    CHECK_EQ(seen.n_calls, (n_loss + seen.max_n - 1) / seen.max_n);
    batcher_destroy(b);
    top.be->ops = seen.below;
    top_close(&top);
}

typedef struct loss_try {
    toy_kind kind;
    config_retrieval r; /* loss, negatives, draw, shares_negatives, logq, and numbers */
} loss_try;

static const loss_try losses[] = {
    {TOY_HSTU_RESEARCH, {.loss = LOSS_FULL_SOFTMAX, .label_smoothing = 0.2}},
    {TOY_RETRIEVAL, {.loss = LOSS_FULL_SOFTMAX}},
    {TOY_SASREC, {.loss = LOSS_BCE, .negatives = NEGATIVES_LOCAL, .n_negatives = 3}},
    {TOY_HSTU_RESEARCH,
     {.loss = LOSS_GBCE, .negatives = NEGATIVES_LOCAL, .n_negatives = 5, .gbce_calibration = 0.75}},
    {TOY_RETRIEVAL, {.loss = LOSS_GBCE, .gbce_calibration = 0.5}},
    {TOY_HSTU_RESEARCH, {.shares_negatives = true, .logq = LOGQ_OF_ALL}},
    {TOY_RETRIEVAL, {.shares_negatives = true}},
    {TOY_HSTU_RESEARCH,
     {.negatives = NEGATIVES_LOCAL,
      .n_negatives = 6,
      .draw = NEGATIVES_BY_POPULARITY,
      .logq = LOGQ_OF_NEGATIVES}},
    {TOY_OWN,
     {.negatives = NEGATIVES_LOCAL,
      .n_negatives = 6,
      .draw = NEGATIVES_BY_POPULARITY,
      .shares_negatives = true,
      .logq = LOGQ_OF_ALL}},
};
enum { N_LOSSES = sizeof losses / sizeof *losses };

/* Item i has i % 4 events of a thousand users. */
static void open_loss(toy_model *t, int i, double rate, int n_threads) {
    uint32_t counts[TOY_ITEMS];
    model_limits limits = toy_model_limits(losses[i].kind);
    const config_retrieval *r = &losses[i].r;
    toy_model_open(t, losses[i].kind, rate, n_threads);
    t->c.retrieval.loss = r->loss;
    t->c.retrieval.negatives = r->negatives;
    t->c.retrieval.n_negatives = r->n_negatives;
    t->c.retrieval.draw = r->draw;
    t->c.retrieval.shares_negatives = r->shares_negatives;
    t->c.retrieval.logq = r->logq;
    t->c.retrieval.gbce_calibration = r->gbce_calibration;
    t->c.retrieval.label_smoothing = r->label_smoothing;
    t->c.retrieval.has_item_norm = i % 2 == 0;
    toy_model_remake(t, &limits, 3);
    for (uint32_t k = 0; k < TOY_ITEMS; k++)
        counts[k] = 1 + k % 4 * 200;
    if (model_needs_counts(t->m)) {
        model_step at = {5, 1, 1};
        toy_batch b;
        toy_batch_make(&b, losses[i].kind, 6);
        CHECK_FAILS(pass_train(t->p, &b.b, &at, NULL), ERR_USAGE, "how many training events");
    }
    CHECK_OK(model_set_counts(t->m, counts));
    toy_enlarge(t);
}

TEST(gradients_of_losses) {
    if (test_on.p != PRECISION_F32) SKIP_TEST("differences need float32");
    for (int i = 0; i < N_LOSSES; i++) {
        toy_model t;
        toy_batch b;
        open_loss(&t, i, 0.2, 2);
        toy_batch_make(&b, losses[i].kind, 6);
        for (int k = 0; k < t.m->params.n; k++)
            toy_check_gradient(&t, &b.b, &t.m->params.item[k], 1e-2);
        toy_model_close(&t);
    }
}

/* A part of a batch has the losses that it has in the whole one; in-batch labels are all of them.
 */
TEST(losses_of_parts_add_up) {
    if (test_on.p != PRECISION_F32) SKIP_TEST("sums of parts need float32");
    for (int i = 0; i < N_LOSSES; i++) {
        toy_model t;
        toy_batch b, part;
        double sum = 0, loss;
        model_step at = {5, 1, 1};
        open_loss(&t, i, 0.2, 2);
        if (losses[i].kind == TOY_RETRIEVAL && !losses[i].r.shares_negatives &&
            losses[i].r.loss != LOSS_FULL_SOFTMAX) { /* as many negatives as positions */
            toy_model_close(&t);
            continue;
        }
        toy_batch_make(&b, losses[i].kind, 8);
        double whole = toy_model_train(&t, &b.b, 1);
        for (int u = 0; u < TOY_USERS; u++) {
            toy_batch_take(&part, &b, u);
            CHECK_OK(pass_train_part(t.p, &part.b, &b.b, &at));
            CHECK_OK(pass_take_loss(t.p, &loss));
            sum += loss;
        }
        CHECK(whole > 0.1 && fabs(sum - whole) < 1e-5 * whole);
        toy_model_close(&t);
    }
}

/* Every item is drawn by its events, and the logarithms are those of the draws. */
TEST(negatives_by_popularity) {
    toy_model t;
    toy_batch b;
    int64_t n_drawn[TOY_ITEMS] = {0}, n = 0;
    open_loss(&t, 7, 0, 1);
    const loss_config *c = &t.m->retrieval.loss;
    CHECK_EQ(c->n_pool, 23 + 200 * (1 + 2 + 3) * 5 + 200 * (1 + 2));
    for (uint32_t seed = 0; seed < 40; seed++) {
        toy_batch_make(&b, losses[7].kind, seed);
        toy_model_train(&t, &b.b, seed);
        for (int64_t i = 0; i < (int64_t)t.p->plan.n_loss * 6; i++, n++)
            n_drawn[t.p->retrieval.loss.negative.device[i]]++;
    }
    for (int i = 0; i < TOY_ITEMS; i++) {
        double share = exp((double)c->host_log_q[i]) / 6;
        CHECK(fabs(share - (1 + i % 4 * 200) / (double)c->n_pool) < 1e-6);
        CHECK(fabs((double)n_drawn[i] / (double)n - share) < 0.02);
    }
    toy_model_close(&t);
    /* Counts beyond the pool are scaled, and no item with an event loses its place. */
    uint32_t counts[TOY_ITEMS] = {1, 1u << 31, 1u << 30};
    open_loss(&t, 7, 0, 1);
    CHECK_OK(model_set_counts(t.m, counts));
    c = &t.m->retrieval.loss;
    CHECK(c->n_pool < (1 << 20) && c->n_pool > (1 << 19) && c->pool[0] == 0 && c->pool[1] == 1);
    CHECK(fabs((double)(c->host_log_q[1] - c->host_log_q[2]) - log(2)) < 1e-4);
    memset(counts, 0, sizeof counts);
    CHECK_FAILS(model_set_counts(t.m, counts), ERR_CONFIG, "no item has a training event");
    toy_model_close(&t);
}

/* All labels of a batch, each with its number and its share of the events; and one draw for all. */
TEST(lists_of_losses) {
    toy_model t;
    toy_batch b;
    open_loss(&t, 5, 0, 1);
    toy_batch_make(&b, losses[5].kind, 4);
    toy_model_train(&t, &b.b, 1);
    const loss_acts *a = &t.p->retrieval.loss;
    double n = 0;
    for (int32_t c = 0; c < a->n_pool; c++) {
        int n_equal = 0;
        for (int32_t i = 0; i < t.p->plan.n_loss; i++)
            n_equal += t.p->plan.label.host[i] == a->pool.host[c];
        CHECK(n_equal > 0 && fabs((double)a->log_count.host[c] - log(n_equal)) < 1e-6);
        CHECK(a->log_q.host[c] == t.m->retrieval.loss.host_log_q[a->pool.host[c]]);
        n += n_equal;
    }
    CHECK(n == t.p->plan.n_loss && a->n_pool < t.p->plan.n_loss);
    toy_model_close(&t);
    open_loss(&t, 8, 0, 1);
    toy_batch_make(&b, losses[8].kind, 4);
    toy_model_train(&t, &b.b, 1);
    for (int64_t i = 6; i < (int64_t)t.p->plan.n_loss * 6; i++)
        CHECK_EQ(t.p->retrieval.loss.negative.device[i],
                 t.p->retrieval.loss.negative.device[i % 6]);
    toy_model_close(&t);
}

static const ops *ops_below;
static float seen_beta;

static status note_beta(backend *be, const sampled_softmax_args *a) {
    seen_beta = a->beta;
    return ops_below->sampled_softmax(be, a);
}

/* gSASRec's beta: 5 of 22 other items with t = .75; without calibration, and of BCE, 1. */
TEST(calibration_of_gbce) {
    static const double wanted[] = {5 / 22. * (.75 * (1 - 22 / 5.) + 22 / 5.), 1, 1};
    for (int i = 0; i < 3; i++) {
        toy_model t;
        toy_batch b;
        open_loss(&t, i < 2 ? 3 : 2, 0, 1);
        ops noting = *t.be->ops;
        ops_below = t.be->ops;
        noting.sampled_softmax = note_beta;
        t.be->ops = &noting;
        if (i == 1) t.m->retrieval.loss.calibration = 0;
        toy_batch_make(&b, losses[3].kind, 4);
        toy_model_train(&t, &b.b, 1);
        t.be->ops = ops_below;
        CHECK(fabs((double)seen_beta - wanted[i]) < 1e-6);
        toy_model_close(&t);
    }
}

/* Without marks every row moves; with them a softmax over the catalogue marks every item. */
TEST(full_softmax_marks_all_items) {
    toy_model t;
    toy_batch b;
    open_loss(&t, 1, 0, 1);
    toy_batch_make(&b, losses[1].kind, 4);
    toy_model_train(&t, &b.b, 1);
    const uint8_t *marks = t.m->input.item->marks;
    CHECK(marks != NULL);
    for (int row = 0; row <= TOY_ITEMS; row++)
        CHECK_EQ(marks[row], row > 0);
    toy_model_close(&t);
}
