/* Ranks of a group take one rank's gradients of what all of them have. */
#include "dist/grad_sum.h"
#include "group_run.h"

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
    if (st == OK) st = grad_sum_create(&g, s->model, s->be, NULL, 1);
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
