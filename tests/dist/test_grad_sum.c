/* Gradients that are summed during the backward pass: in which order, and when. */
#include "dist/grad_sum.h"
#include "dist/leaf_step.h"
#include "group_run.h"
#include "model/model_int.h"
#include "train_test.h"

enum { N_LAYERS = 3, MAX_SUMS = 16 };

/* A communicator that claims a second rank, whose gradients are 0, and notes the sums of dense
 * gradients: how many floats, and how many layers' gradients were still 0. */
typedef struct spy {
    model *m;
    int n_sums;
    int64_t first[MAX_SUMS], n[MAX_SUMS];
    int n_layers_left[MAX_SUMS];
} spy;

static bool is_zero(param_range r) {
    for (int64_t i = 0; i < r.n; i++)
        if (r.first[i] != 0) return false;
    return true;
}

static status note_sum(comm *c, const all_reduce_args *a) {
    spy *s = c->state;
    param_range all = model_dense_grads(s->m);
    const float *from = a->from;
    CHECK(a->from == a->to);
    if (a->type != COMM_F32 || from < all.first || from >= all.first + all.n) return OK;
    CHECK(s->n_sums < MAX_SUMS);
    s->first[s->n_sums] = from - all.first;
    s->n[s->n_sums] = a->n;
    for (int i = 0; i < N_LAYERS; i++)
        s->n_layers_left[s->n_sums] += is_zero(model_part_grads(s->m, i));
    s->n_sums++;
    return OK;
}

static const comm_ops spy_ops = {.all_reduce = note_sum};

/* One batch, whose gradients a rank of two sums. */
static void sum_batch(spy *s, int64_t early_bytes) {
    static const char *const set[] = {"NetworkArgs.num_layers=3"};
    bench_top top;
    batcher *batches;
    leaf_step *l;
    const batch *b;
    int64_t n;
    model_step at = {.seed = 5, .step = 2, .grad_scale = 0.25f};
    CHECK_OK(top_open(&top, ranking_gin, set, 1, 1));
    CHECK_OK(model_init(top.session.model, 5));
    batcher_config how =
        session_train_batches(&top.session, session_split(top.session.config, false), 1);
    CHECK_OK(batcher_create(&batches, top.session.data, &how));
    *s = (spy){.m = top.session.model};
    comm c = {.ops = &spy_ops, .be = top.be, .size = 2, .state = s};
    top.session.comm = &c;
    top.session.has_fixed_leaves = true;
    top.session.early_bytes = early_bytes;
    CHECK_OK(leaf_step_create(&l, &top.session));
    param_range all = model_dense_grads(s->m);
    int64_t sum = 0;
    for (int part = -1; part <= N_LAYERS; part++) {
        param_range own = model_part_grads(s->m, part);
        CHECK(own.first == all.first + sum && own.n > 0);
        sum += own.n;
    }
    CHECK_EQ(sum, all.n);
    CHECK_OK(batcher_next(batches, &b));
    CHECK_OK(leaf_step_train(l, b, &at, true, &n));
    sum = 0;
    for (int i = 0; i < s->n_sums; i++)
        sum += s->n[i];
    CHECK_EQ(sum, all.n); /* every gradient once */
    leaf_step_destroy(l);
    batcher_destroy(batches);
    top.session.comm = NULL;
    top_close(&top);
}

/* The gradients of a rank's earlier leaves are put aside, so that those of layers that the last
 * leaf has not reached are 0 in the model's memory. */
TEST(grad_early_sums_layers_while_others_are_computed) {
    spy s;
    sum_batch(&s, 1);
    CHECK_EQ(s.n_sums, N_LAYERS + 2); /* head, layers, input */
    for (int i = 0; i < s.n_sums; i++) {
        CHECK(i == 0 || s.first[i] + s.n[i] == s.first[i - 1]); /* from the last to the first */
        CHECK_EQ(s.n_layers_left[i], i < N_LAYERS ? N_LAYERS - i : 0);
    }
    CHECK_EQ(s.first[s.n_sums - 1], 0);
}

/* Small parts are summed together, the rest with the input. */
TEST(grad_early_buckets_have_a_least_size) {
    spy s;
    sum_batch(&s, 1);
    int64_t two = s.n[0] + s.n[1];
    sum_batch(&s, 4 * two);
    CHECK(s.n_sums > 1 && s.n_sums < N_LAYERS + 2);
    CHECK_EQ(s.n[0], two);
    sum_batch(&s, (int64_t)1 << 40);
    CHECK_EQ(s.n_sums, 1);
    sum_batch(&s, 0);
    CHECK_EQ(s.n_sums, 1); /* after the pass, at once */
}

/* What a pass says: the head's gradients when those of the layers are still 0, then layer after
 * layer. */
typedef struct told {
    model *m;
    int n;
} told;

static status check_part(void *ctx, int part) {
    told *t = ctx;
    CHECK_EQ(part, N_LAYERS - t->n++);
    for (int i = 0; i < N_LAYERS; i++)
        CHECK(is_zero(model_part_grads(t->m, i)) == (i < part));
    CHECK(!is_zero(model_part_grads(t->m, N_LAYERS)));
    return part == 1 ? fail(ERR_IO, "the ranks lost each other") : OK;
}

TEST(grad_early_passes_tell_what_is_complete) {
    static const char *const set[] = {"NetworkArgs.num_layers=3"};
    bench_top top;
    batcher *batches;
    const batch *b;
    model_step at = {.seed = 5, .step = 2, .grad_scale = 0.25f};
    CHECK_OK(top_open(&top, ranking_gin, set, 1, 1));
    CHECK_OK(model_init(top.session.model, 5));
    batcher_config how =
        session_train_batches(&top.session, session_split(top.session.config, false), 1);
    CHECK_OK(batcher_create(&batches, top.session.data, &how));
    told t = {.m = top.session.model};
    CHECK_OK(batcher_next(batches, &b));
    pass_watch_grads(top.session.train, check_part, &t);
    CHECK_FAILS(pass_train(top.session.train, b, &at, NULL), ERR_IO, "lost each other");
    CHECK_EQ(t.n, 3);
    pass_watch_grads(top.session.train, NULL, NULL);
    CHECK_OK(pass_train(top.session.train, b, &at, NULL));
    CHECK_EQ(t.n, 3);
    batcher_destroy(batches);
    top_close(&top);
}

/* Ranks of a group take one rank's gradients of what all of them have. */

static const char ranking[] = NETWORK "DatasetArgs.max_num_candidates = 3\n"
                                      "RankingArgs.prediction_head_arch = [8, 5]\n"
                                      "RankingArgs.num_tasks = 1\n";

static bool is_layer(const param *p) {
    return strstr(p->name, "attention_layers") != NULL || strstr(p->name, "._hstu.") != NULL;
}

/* Element i of a parameter is i + 1 times its rank's number, from 1; then the first rank's values
 * are wherever both ranks have the whole, and nowhere else. */
static status check_share(transport *t, bool is_sequence) {
    place p;
    grad_sum *g = NULL;
    int n_shared = 0, n_own = 0;
    status st = place_open(&p, ranking, NULL, t, 2, is_sequence);
    session *s = &p.top.session;
    if (st == OK) st = model_alloc_grads(s->model);
    if (st == OK) st = grad_sum_create(&g, s->model, s->be, NULL, 1, NULL);
    for (int i = 0; i < s->n_params && st == OK; i++)
        for (int64_t k = 0; k < s->params[i].n; k++)
            s->params[i].grad[k] = (float)((k + 1) * (t->rank + 1));
    if (st == OK) st = grad_sum_share(g, s->model, session_group(s));
    for (int i = 0; i < s->n_params && st == OK; i++) {
        const param *x = &s->params[i];
        bool is_shared = is_sequence ? !is_layer(x) : x->cut.n_parts == 0;
        n_shared += is_shared;
        n_own += !is_shared;
        for (int64_t k = 0; k < x->n && st == OK; k++)
            if (x->grad[k] != (float)((k + 1) * (is_shared ? 1 : t->rank + 1)))
                st = fail(ERR_NUMERIC, "%s, element %lld: %g", x->name, (long long)k, x->grad[k]);
    }
    if (st == OK && (n_shared < 4 || n_own < 4))
        st = fail(ERR_NUMERIC, "%d parameters shared, %d not", n_shared, n_own);
    grad_sum_destroy(g);
    place_close(&p);
    return st;
}

static status share_on_two(bool is_sequence) {
    transport *t;
    (void)synth_folder();
    status st = ranks_fork(&t, 2, 500);
    if (t == NULL) return st;
    st = ranks_leave(t, st == OK ? check_share(t, is_sequence) : st);
    if (st != OK && status_reason()[0] != '\0') fprintf(stderr, "said: %s\n", status_reason());
    _exit(status_exit_code(st));
}

TEST(grad_group_takes_the_first_ranks) {
    CHECK_OK(share_on_two(false));
    CHECK_OK(share_on_two(true));
}

/* On the CPU all ranks of a group have the same gradients: sharing them changes nothing. */
TEST(grad_group_changes_nothing_on_the_cpu) {
    for (int is_sequence = 0; is_sequence < 2; is_sequence++) {
        job j = {.gin = ranking, .n_steps = 4, .is_sequence = is_sequence};
        j.run = is_sequence ? "s" : "t";
        CHECK_OK(train_on(&j, 4, 2));
        j.run = is_sequence ? "s-shared" : "t-shared";
        j.shares_grads = true;
        CHECK_OK(train_on(&j, 4, 2));
        CHECK(same_run(is_sequence ? "s" : "t", j.run));
        j.run = is_sequence ? "s-pair" : "t-pair"; /* one group: nobody divides the users */
        CHECK_OK(train_on(&j, 2, 2));
        CHECK(same_run(is_sequence ? "s" : "t", j.run));
    }
}
