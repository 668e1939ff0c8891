/* Users who come back with longer histories. */
#include <math.h>
#include <string.h>

#include "cli/bench/serve_growing.h"
#include "test.h"

enum { USERS = 3, REQUESTS = 4, EVENTS = 10, MAX_BODY = 4096 };

/* Answers take one ms for each event of the longest history, twice as long in every other repeat;
 * remembers histories. */
typedef struct slow_target {
    load_target target;
    int n_rounds;
    bool refuses;
    uint32_t n_events[64];
    char body[USERS][MAX_BODY];
    bool are_prefixes;
} slow_target;

/* The events of a body: what comes before the bracket that closes the history. */
static size_t history_bytes(const char *body) {
    return (size_t)(strchr(body, ']') - body);
}

static status run_slowly(load_target *t, const load_set *s, const load_plan *p, const uint64_t *at,
                         load_outcome *out) {
    slow_target *own = (slow_target *)t;
    int repeat = own->n_rounds / REQUESTS;
    bool is_first = own->n_rounds % REQUESTS == 0;
    (void)p;
    CHECK(at == NULL && s->n == USERS && own->n_rounds < 64);
    own->n_events[own->n_rounds++] = s->item[0].n_events;
    for (size_t i = 0; i < s->n; i++) {
        const load_request *r = &s->item[i];
        CHECK(r->n_bytes < MAX_BODY && r->is_timed);
        if (!is_first && strncmp(r->body, own->body[i], history_bytes(own->body[i])) != 0)
            own->are_prefixes = false;
        memcpy(own->body[i], r->body, r->n_bytes);
        own->body[i][r->n_bytes] = '\0';
        out[i] = (load_outcome){.intended_ns = 1000,
                                .sent_ns = 1000,
                                .done_ns = 1000 + r->n_events * 1000000u * (repeat % 2 + 1),
                                .kind = own->refuses && i == 1 ? LOAD_REFUSED : LOAD_OK,
                                .tokens_reused = 2,
                                .tokens_computed = 5,
                                .is_timed = true};
    }
    return OK;
}

static growing_plan some_plan(void) {
    return (growing_plan){.items = {NULL, 100},
                          .n_users = USERS,
                          .n_requests = REQUESTS,
                          .n_events = EVENTS,
                          .n_candidates = 5,
                          .top_k = 3,
                          .n_warmup = 1,
                          .n_repeats = 3,
                          .seed = 5};
}

TEST(growing_histories_continue_and_times_add_up) {
    slow_target slow = {.target = {.run = run_slowly}, .are_prefixes = true};
    growing_plan p = some_plan();
    growing_report r;
    CHECK_OK(serve_growing(&slow.target, &p, &r));
    CHECK(slow.n_rounds == 4 * REQUESTS && slow.are_prefixes);
    for (int i = 0; i < slow.n_rounds; i++) { /* 2, 5, 7, 10 of 10 */
        static const uint32_t want[REQUESTS] = {2, 5, 7, 10};
        CHECK(slow.n_events[i] == want[i % REQUESTS]);
    }
    /* Repeats after the warm-up take 48, 24 and 48 ms. */
    CHECK(fabs(r.total_ms - 48) < 1e-6 && fabs(r.least_ms - 24) < 1e-6);
    CHECK(fabs(r.most_ms - 48) < 1e-6 && fabs(r.round_ms[3] - 20) < 1e-6);
    CHECK(r.tokens_reused == 2 * USERS * REQUESTS && r.tokens_computed == 5 * USERS * REQUESTS);
}

TEST(growing_says_what_was_not_answered) {
    slow_target slow = {.target = {.run = run_slowly}, .refuses = true};
    growing_plan p = some_plan();
    growing_report r;
    CHECK_FAILS(serve_growing(&slow.target, &p, &r), ERR_IO, "1 of 3 requests");
    p.n_requests = EVENTS + 1;
    CHECK_FAILS(serve_growing(&slow.target, &p, &r), ERR_USAGE, "growing requests");
    p = some_plan();
    p.n_repeats = 0;
    CHECK_FAILS(serve_growing(&slow.target, &p, &r), ERR_USAGE, "0 times");
}

TEST(growing_knows_the_figures_of_an_l20) {
    CHECK(growing_l20_ms(1, true) == 70.6 && growing_l20_ms(8, false) == 411.6);
    CHECK(growing_l20_ms(4, true) == 110.8 && isnan(growing_l20_ms(3, true)));
}
