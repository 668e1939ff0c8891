#include "nn/batch_layout.h"
#include "test.h"
#include "toy_model.h"

/* One user with 4 events and 2 contextual values, through the plan of a toy model. */
static void make(toy_model *t, toy_batch *b, toy_kind kind, int n_targets, layout_purpose purpose,
                 const int32_t *start) {
    toy_model_open(t, kind, 0, 1);
    memset(b, 0, sizeof *b);
    toy_batch_make(b, kind, 1);
    b->b.n_users = 1;
    b->b.n_tokens = b->offsets[1] = 4;
    b->n_targets[0] = n_targets;
    b->users[0] = 42;
    for (int i = 0; i < 4; i++) {
        b->item[i] = 11 + (uint32_t)i;
        b->action[i] = (uint16_t)i;
        b->time[i] = 5000 + 1000 * i;
    }
    b->context[0] = 3;
    b->context[1] = 8;
    layout_request request = {.purpose = purpose, .grad_scale = 1, .start = start};
    CHECK_OK(batch_layout_build(&t->p->plan, t->be, &b->b, &request));
}

static void check_i32(const char *what, const int32_t *got, const int32_t *want, int n) {
    for (int i = 0; i < n; i++)
        if (got[i] != want[i]) FAIL_TEST("%s[%d] is %d, not %d", what, i, got[i], want[i]);
}

/* Rows of the bank: items 0..23, actions 24..31, feature 0 from 32, feature 1 from 36. */
TEST(plan_of_ranking_with_candidates) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_RANK_BITS, 2, LAYOUT_TRAIN, NULL);
    const batch_layout *p = &t.p->plan;
    CHECK_EQ(p->n_tokens, 10);
    check_i32("row", p->row.host, (int32_t[]){35, 44, 11, 24, 12, 25, 13, 26, 14, 27}, 10);
    /* All candidates share the position after the history. */
    check_i32("place", p->place.host, (int32_t[]){0, 1, 2, 3, 4, 5, 6, 6, 6, 6}, 10);
    CHECK_EQ(p->n_loss, 2);
    check_i32("loss_token", p->loss_token.host, (int32_t[]){6, 8}, 2);
    check_i32("label", p->label.host, (int32_t[]){2, 3}, 2);
    CHECK_EQ(p->n_targets.host[0], 4);
    CHECK_EQ(p->n_contexts.host[0], 2);
    CHECK_EQ(p->loss_user.host[1], 42);
    CHECK_EQ(p->max_len, 10);
    CHECK(batch_layout_sequences(p).n_contexts != NULL &&
          batch_layout_sequences(p).n_targets != NULL);
    toy_model_close(&t);
}

/* Rows of the bank: items 0..23, feature 0 from 24, feature 1 from 28; actions are a table of their
 * own.  Contextual tokens have no action and the time of the first event. */
TEST(plan_of_added_actions) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_OWN, 1, LAYOUT_TRAIN, NULL);
    batch_layout *p = &t.p->plan;
    layout_request encode = {.purpose = LAYOUT_ENCODE};
    CHECK_EQ(p->n_tokens, 5);
    check_i32("row", p->row.host, (int32_t[]){27, 36, 11, 12, 13}, 5);
    check_i32("place", p->place.host, (int32_t[]){0, 1, 2, 3, 4}, 5);
    check_i32("added", p->added_action.host, (int32_t[]){-1, -1, 0, 1, 2}, 5);
    /* The last contextual token predicts the first item, in a place of its own for the draws. */
    check_i32("label", p->label.host, (int32_t[]){10, 11, 12, 13}, 4);
    check_i32("loss_token", p->loss_token.host, (int32_t[]){1, 2, 3, 4}, 4);
    CHECK_EQ(p->loss_position.host[0], 4);
    CHECK_EQ(batch_layout_count_loss(&p->config, &b.b), 4);
    sort_pair listed[4];
    CHECK_EQ(batch_layout_list_labels(&p->config, &b.b, NULL, listed), 4);
    CHECK(listed[0].key == 10 && listed[3].key == 13);
    /* Only events of actions 1 and 3 are labels. */
    p->config.target_actions = 1 << 1 | 1 << 3;
    CHECK_OK(batch_layout_build(p, t.be, &b.b,
                                &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}));
    CHECK_EQ(p->n_loss, 2);
    CHECK(p->label.host[0] == 11 && p->loss_token.host[0] == 2);
    CHECK(p->label.host[1] == 13 && p->loss_token.host[1] == 4);
    CHECK_EQ(batch_layout_count_loss(&p->config, &b.b), 2);
    CHECK_EQ(batch_layout_list_labels(&p->config, &b.b, NULL, listed), 2);
    p->config.target_actions = 0;
    static const int64_t keys[] = {5, 5, 5, 6, 7}, queries[] = {5, 5, 6, 7, 8};
    CHECK(memcmp(p->key_time.host, keys, sizeof keys) == 0);
    CHECK(memcmp(p->query_time.host, queries, sizeof queries) == 0);
    int32_t n_events = b.offsets[1];
    b.offsets[1] = b.b.n_targets[0]; /* the target alone: features are encoded */
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &encode));
    CHECK(p->n_tokens == 2 && p->n_loss == 1 && p->loss_token.host[0] == 1 && p->takes_last);
    b.offsets[1] = n_events;
    b.action[0] = ACTION_UNKNOWN;
    b.action[1] = TOY_ACTIONS;
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &encode));
    check_i32("added", p->added_action.host, (int32_t[]){-1, -1, -1, -1, 2}, 5);
    /* Without times events are laid out by put_plain. */
    t.c.network.has_relative_bias = false;
    model_limits limits = toy_model_limits(TOY_OWN);
    toy_model_remake(&t, &limits, 1);
    p = &t.p->plan;
    CHECK(!p->config.has_times);
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &encode));
    check_i32("added", p->added_action.host, (int32_t[]){-1, -1, -1, -1, 2}, 5);
    toy_model_close(&t);
}

/* An unknown action is a token of zeros, and no label of training. */
TEST(plan_of_unknown_actions) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_RANK_BITS, 2, LAYOUT_TRAIN, NULL);
    batch_layout *p = &t.p->plan;
    layout_request request = {.purpose = LAYOUT_TRAIN, .grad_scale = 1};
    b.action[0] = b.action[2] = ACTION_UNKNOWN;
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &request));
    check_i32("row", p->row.host, (int32_t[]){35, 44, 11, -1, 12, 25, 13, -1, 14, 27}, 10);
    CHECK_EQ(p->n_loss, 1);
    CHECK_EQ(p->loss_token.host[0], 8);
    CHECK_EQ(p->label.host[0], 3);
    CHECK_EQ(batch_layout_count_loss(&p->config, &b.b), 1);
    request.purpose = LAYOUT_SCORE;
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &request));
    check_i32("row", p->row.host, (int32_t[]){35, 44, 11, -1, 12, 25, 13, 14}, 8);
    CHECK_EQ(p->n_loss, 2);
    toy_model_close(&t);
    make(&t, &b, TOY_RANK_CLASSES, 0, LAYOUT_TRAIN, NULL);
    p = &t.p->plan;
    b.action[1] = ACTION_UNKNOWN;
    request.purpose = LAYOUT_TRAIN;
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &request));
    check_i32("label", p->label.host, (int32_t[]){0, 2, 3}, 3);
    CHECK_EQ(batch_layout_count_loss(&p->config, &b.b), 3);
    toy_model_close(&t);
}

/* Items are left out of training's input by user, item and step, at the rate; labels stay, and so
 * does what is encoded. */
TEST(plan_of_item_dropout) {
    enum { STEPS = 200 };
    toy_model t;
    toy_batch b;
    int n = 0, n_dropped = 0;
    toy_batch_make(&b, TOY_RETRIEVAL, 6);
    toy_model_open(&t, TOY_RETRIEVAL, 0, 1);
    batch_layout *p = &t.p->plan;
    layout_request request = {.purpose = LAYOUT_TRAIN, .grad_scale = 1, .seed = 4};
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &request));
    int32_t n_tokens = p->n_tokens, n_loss = p->n_loss, plain[200], labels[200];
    CHECK(n_tokens < 200 && n_loss < 200);
    memcpy(plain, p->row.host, (size_t)n_tokens * sizeof *plain);
    memcpy(labels, p->label.host, (size_t)n_loss * sizeof *labels);
    p->config.item_dropout = .25f;
    for (request.step = 0; request.step < STEPS; request.step++) {
        CHECK_OK(batch_layout_build(p, t.be, &b.b, &request));
        check_i32("label", p->label.host, labels, n_loss);
        for (int32_t i = 0; i < n_tokens; i++) {
            bool is_item = plain[i] <= TOY_ITEMS, is_dropped = p->row.host[i] == -1;
            CHECK(is_dropped ? is_item : p->row.host[i] == plain[i]);
            n += is_item;
            n_dropped += is_dropped;
            for (int32_t k = 0; k < i; k++) /* the same item of the same user */
                if (plain[k] == plain[i] && p->user.host[k] == p->user.host[i])
                    CHECK(p->row.host[k] == p->row.host[i]);
        }
    }
    CHECK(fabs((double)n_dropped / n - .25) < .03);
    request.purpose = LAYOUT_ENCODE;
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &request));
    for (int32_t i = 0; i < p->n_tokens; i++)
        CHECK(p->row.host[i] >= 0);
    toy_model_close(&t);
}

TEST(plan_of_scoring_leaves_candidates_actions_out) {
    toy_model t;
    toy_batch b;
    int32_t start[1] = {5};
    make(&t, &b, TOY_RANK_BITS, 2, LAYOUT_SCORE, start);
    const batch_layout *p = &t.p->plan;
    CHECK_EQ(p->n_tokens, 8);
    check_i32("row", p->row.host, (int32_t[]){35, 44, 11, 24, 12, 25, 13, 14}, 8);
    check_i32("place", p->place.host, (int32_t[]){5, 6, 7, 8, 9, 10, 11, 11}, 8);
    check_i32("loss_token", p->loss_token.host, (int32_t[]){6, 7}, 2);
    CHECK_EQ(p->n_targets.host[0], 2);
    toy_model_close(&t);
}

/* Without candidates every event is a loss position, and nothing hides the future but causality. */
/* A plan like the toy's, with pages: two contextual values, two events, two candidates. */
typedef struct paged {
    toy_model t;
    toy_batch b;
    nn_memory memory;
    batch_layout p;
} paged;

static status build_for(paged *x, bool is_training, int32_t max_pages, int32_t n_reused,
                        int32_t n_stored) {
    static const int32_t pages[] = {7, 4, 9, 5};
    const int32_t *page[] = {pages};
    make(&x->t, &x->b, TOY_RANK_BITS, 2, LAYOUT_SCORE, NULL);
    layout_config c = x->t.p->plan.config;
    c.is_training = is_training;
    c.max_pages = max_pages;
    c.page_len = 2;
    nn_memory_init(&x->memory, x->t.be);
    memset(&x->p, 0, sizeof x->p);
    CHECK_OK(batch_layout_alloc(&x->p, &c, &x->memory));
    x->p.key_offsets.host[0] = 77; /* what an earlier batch may leave */
    layout_cache cache = {&n_reused, &n_stored, page};
    layout_request request = {.purpose = LAYOUT_SCORE, .grad_scale = 1, .cache = &cache};
    return batch_layout_build(&x->p, x->t.be, &x->b.b, &request);
}

static status build_with_pages(paged *x, int32_t max_pages, int32_t n_reused, int32_t n_stored) {
    return build_for(x, true, max_pages, n_reused, n_stored);
}

static void end(paged *x) {
    nn_memory_fini(&x->memory);
    toy_model_close(&x->t);
}

TEST(plan_with_pages_lays_out_what_is_not_stored) {
    paged x;
    const batch_layout *p = &x.p;
    CHECK_OK(build_with_pages(&x, 3, 3, 6));
    CHECK_EQ(p->n_tokens, 5);
    check_i32("row", p->row.host, (int32_t[]){24, 12, 25, 13, 14}, 5);
    check_i32("page_table", p->page_table.host, (int32_t[]){7, 4, 9}, 3);
    check_i32("key_offsets", p->key_offsets.host, (int32_t[]){0, 8}, 2);
    check_i32("slot", p->slot.host, (int32_t[]){9, 18, 19, -1, -1}, 5);
    CHECK_EQ(p->max_keys, 8);
    CHECK_EQ(p->max_len, 5);
    end(&x);
    CHECK_OK(build_with_pages(&x, 3, 0, 4)); /* pages that no token needs are not named */
    check_i32("page_table", p->page_table.host, (int32_t[]){7, 4, 0}, 3);
    end(&x);
    CHECK_OK(build_with_pages(&x, 2, 4, 4));
    end(&x);
}

static void check_sent(const paged *x, const char *what, const void *host, const void *device,
                       size_t bytes) {
    char got[256];
    const batch_layout *p = &x->p;
    ptrdiff_t at = (const char *)device - p->block.device;
    if (at < 0 || at + bytes > 24 * 64) FAIL_TEST("%s is %td bytes from the others", what, at);
    CHECK(bytes > 0 && bytes <= sizeof got);
    CHECK_OK(x->t.be->ops->copy_out(x->t.be, got, device, bytes));
    if (memcmp(got, host, bytes) != 0) FAIL_TEST("%s did not come to the device", what);
}

/* What a batch has of each array comes to the device, close to each other. */
TEST(plan_sends_what_the_batch_has) {
    paged x;
    const batch_layout *p = &x.p;
    for (int round = 0; round < 2; round++) {
        CHECK_OK(build_with_pages(&x, 3, 3, 6 - round));
        size_t n = (size_t)p->n_tokens * 4, n_loss = (size_t)p->n_loss * 4;
        check_sent(&x, "offsets", p->offsets.host, p->offsets.device, 8);
        check_sent(&x, "context_row", p->context_row.host, p->context_row.device, 8);
        check_sent(&x, "n_contexts", p->n_contexts.host, p->n_contexts.device, 4);
        check_sent(&x, "n_targets", p->n_targets.host, p->n_targets.device, 4);
        check_sent(&x, "page_table", p->page_table.host, p->page_table.device, 12);
        check_sent(&x, "key_offsets", p->key_offsets.host, p->key_offsets.device, 8);
        check_sent(&x, "row", p->row.host, p->row.device, n);
        check_sent(&x, "place", p->place.host, p->place.device, n);
        check_sent(&x, "user", p->user.host, p->user.device, n);
        check_sent(&x, "position", p->position.host, p->position.device, n);
        check_sent(&x, "slot", p->slot.host, p->slot.device, n);
        check_sent(&x, "loss_token", p->loss_token.host, p->loss_token.device, n_loss);
        check_sent(&x, "label", p->label.host, p->label.device, n_loss);
        check_sent(&x, "loss_user", p->loss_user.host, p->loss_user.device, n_loss);
        check_sent(&x, "loss_position", p->loss_position.host, p->loss_position.device, n_loss);
        CHECK(batch_layout_sequences(p).kv.table == p->page_table.device);
        end(&x);
    }
}

/* Without training nothing is sent that only training reads. */
TEST(plan_sends_no_labels_without_training) {
    paged x;
    const batch_layout *p = &x.p;
    CHECK_OK(build_for(&x, false, 3, 3, 6));
    size_t n = (size_t)p->n_tokens * 4, n_loss = (size_t)p->n_loss * 4;
    check_sent(&x, "row", p->row.host, p->row.device, n);
    check_sent(&x, "place", p->place.host, p->place.device, n);
    check_sent(&x, "slot", p->slot.host, p->slot.device, n);
    check_sent(&x, "loss_token", p->loss_token.host, p->loss_token.device, n_loss);
    CHECK((const void *)p->user.device == (const void *)p->slot.device);
    CHECK((const void *)p->label.device == (const void *)p->loss_position.device);
    end(&x);
}

/* What is staged is copied to the device in every step. */
TEST(plan_without_pages_stages_nothing_for_them) {
    toy_model t;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    const batch_layout *p = &t.p->plan;
    CHECK((const void *)p->key_offsets.host == (const void *)p->row.host);
    CHECK((const void *)p->slot.host == (const void *)p->loss_token.host);
    toy_model_close(&t);
}

TEST(plan_fills_up_to_whole_buckets) {
    layout_config c = {.max_users = 4, .max_events = 6, .is_training = true, .bucket = 8};
    CHECK_EQ(batch_layout_max_loss(&c), 24);
    c.bucket = 7;
    CHECK_EQ(batch_layout_max_loss(&c), 28);
    c.bucket = 0;
    CHECK_EQ(batch_layout_max_loss(&c), 24);
}

TEST(plan_refuses_pages_that_do_not_fit) {
    static const int32_t bad[][3] = {
        {3, -1, 4}, {3, 4, 3}, {4, 3, 7}, {2, 3, 5}, {2, 4, 5},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        paged x;
        CHECK_FAILS(build_with_pages(&x, bad[i][0], bad[i][1], bad[i][2]), ERR_CONFIG,
                    "such a cache does not fit");
        end(&x);
    }
}

/* Events all of whose tokens are in pages need not be in the batch; all others are checked. */
TEST(plan_checks_the_events_that_it_reads) {
    static const int32_t pages[] = {7, 4, 9, 5};
    static const struct {
        int32_t n_reused, event;
        bool is_read;
    } tries[] = {{0, 0, true}, {3, 0, true}, {4, 0, false}, {4, 1, true}, {5, 2, true}};
    const int32_t *page[] = {pages};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        paged x;
        int32_t n_reused = tries[i].n_reused, n_stored = 6;
        layout_cache cache = {&n_reused, &n_stored, page};
        layout_request request = {.purpose = LAYOUT_SCORE, .grad_scale = 1, .cache = &cache};
        CHECK_OK(build_with_pages(&x, 3, 3, 6));
        CHECK_EQ(batch_layout_n_skipped(&x.p, n_reused), n_reused >= 4);
        x.b.item[tries[i].event] = 0;
        status st = batch_layout_build(&x.p, x.t.be, &x.b.b, &request);
        CHECK_EQ(st, tries[i].is_read ? ERR_FORMAT : OK);
        end(&x);
    }
}

TEST(plan_of_ranking_without_candidates) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_RANK_CLASSES, 0, LAYOUT_TRAIN, NULL);
    const batch_layout *p = &t.p->plan;
    check_i32("loss_token", p->loss_token.host, (int32_t[]){2, 4, 6, 8}, 4);
    check_i32("label", p->label.host, (int32_t[]){0, 1, 2, 3}, 4);
    check_i32("place", p->place.host, (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10);
    CHECK(batch_layout_sequences(p).n_contexts == NULL &&
          batch_layout_sequences(p).n_targets == NULL);
    CHECK_EQ(model_count_loss(t.m, &b.b), 4);
    toy_model_close(&t);
}

/* Tables of other widths: events in order, contextual tokens numbered after them. */
TEST(plan_of_parts) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_RANK_MLP, 2, LAYOUT_TRAIN, NULL);
    const batch_layout *p = &t.p->plan;
    CHECK_EQ(p->n_events, 8);
    check_i32("event_row", p->event_row.host, (int32_t[]){11, 24, 12, 25, 13, 26, 14, 27}, 8);
    check_i32("context_row", p->context_row.host, (int32_t[]){3, 12}, 2);
    check_i32("row", p->row.host, (int32_t[]){8, 9, 0, 1, 2, 3, 4, 5, 6, 7}, 10);
    toy_model_close(&t);
}

/* The target is a label; a token's query time is the next event's, in whole seconds. */
TEST(plan_of_research_retrieval) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_HSTU_RESEARCH, 1, LAYOUT_TRAIN, NULL);
    const batch_layout *p = &t.p->plan;
    CHECK_EQ(p->n_tokens, 3);
    check_i32("row", p->row.host, (int32_t[]){11, 12, 13}, 3);
    check_i32("label", p->label.host, (int32_t[]){11, 12, 13}, 3);
    check_i32("loss_token", p->loss_token.host, (int32_t[]){0, 1, 2}, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(p->key_time.host[i], 5 + i);
        CHECK_EQ(p->query_time.host[i], 6 + i);
    }
    CHECK_OK(batch_layout_build(&t.p->plan, t.be, &b.b,
                                &(layout_request){.purpose = LAYOUT_ENCODE, .grad_scale = 1}));
    CHECK_EQ(p->n_loss, 1);
    CHECK_EQ(p->loss_token.host[0], 2);
    toy_model_close(&t);
}

/* Times before 1970 and parts of seconds are cut downwards, so that differences stay right. */
/* The second and the last event have no row: they are no labels, but they predict others. */
TEST(plan_leaves_out_labels_without_a_row) {
    toy_model t;
    toy_batch b;
    uint8_t has_no_row[TOY_ITEMS] = {[11] = 1, [13] = 1};
    layout_request request = {.purpose = LAYOUT_TRAIN, .grad_scale = 1, .has_no_row = has_no_row};
    make(&t, &b, TOY_HSTU_RESEARCH, 1, LAYOUT_TRAIN, NULL);
    batch_layout *p = &t.p->plan;
    CHECK(p->n_loss == 3 && p->n_unlabelled == 0);
    CHECK_OK(batch_layout_build(p, t.be, &b.b, &request));
    CHECK(p->n_loss == 1 && p->n_unlabelled == 2 && p->n_tokens == 3);
    CHECK(p->label.host[0] == 12 && p->loss_token.host[0] == 1);
    toy_model_close(&t);
}

TEST(plan_cuts_times_downwards) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_HSTU_RESEARCH, 0, LAYOUT_TRAIN, NULL);
    b.time[0] = -1500, b.time[1] = -1000, b.time[2] = -1, b.time[3] = 999;
    CHECK_OK(batch_layout_build(&t.p->plan, t.be, &b.b,
                                &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}));
    const batch_layout *p = &t.p->plan;
    CHECK_EQ(p->key_time.host[0], -2);
    CHECK_EQ(p->key_time.host[1], -1);
    CHECK_EQ(p->key_time.host[2], -1);
    CHECK_EQ(p->key_time.host[3], 0);
    CHECK_EQ(p->query_time.host[3], 0); /* no event follows it */
    CHECK_EQ(p->n_loss, 3);
    toy_model_close(&t);
}

/* A user without history has no token to encode: a row of zeros. */
TEST(encode_without_history) {
    toy_model t;
    toy_batch b;
    const void *out;
    make(&t, &b, TOY_RETRIEVAL, 1, LAYOUT_TRAIN, NULL);
    b.offsets[1] = b.b.n_tokens = 1;
    CHECK_OK(pass_encode(t.p, &b.b, &out));
    for (int k = 0; k < 12; k++)
        CHECK(((const float *)out)[k] == 0);
    b.b.n_users = b.b.n_tokens = 0;
    CHECK_OK(pass_encode(t.p, &b.b, &out));
    double loss = 0;
    model_step at = {1, 1, 1};
    CHECK_OK(pass_train(t.p, &b.b, &at, NULL));
    CHECK_OK(pass_take_loss(t.p, &loss));
    CHECK(loss == 0);
    toy_model_close(&t);
}

TEST(plan_refuses_other_data) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_RANK_CLASSES, 0, LAYOUT_TRAIN, NULL);
    batch_layout *p = &t.p->plan;
    b.item[2] = TOY_ITEMS + 1;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_FORMAT, "user 42 of the data has item 24, but the model knows 0..23");
    b.item[2] = 0;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_FORMAT, "item 0");
    b.item[2] = 1;
    b.action[3] = TOY_ACTIONS;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_FORMAT, "action 8");
    b.action[3] = 0;
    p->config.n_labels = 3;
    b.action[3] = 3;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_FORMAT, "label 3, but the model knows 0..2");
    p->config.n_labels = TOY_ACTIONS;
    b.action[3] = 0;
    p->config.max_events = b.offsets[1] - 1;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_CONFIG, "events; the model was made for");
    p->config.max_events = TOY_EVENTS;
    b.n_targets[0] = -1;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_CONFIG, "events; the model was made for");
    b.n_targets[0] = b.offsets[1] + 1;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_CONFIG, "events; the model was made for");
    b.n_targets[0] = 0;
    CHECK_OK(batch_layout_build(p, t.be, &b.b,
                                &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}));
    b.context[1] = 9;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_FORMAT, "contextual value 9");
    b.context[1] = 0;
    b.context[0] = 99;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_FORMAT, "contextual value 99");
    b.context[0] = 0;
    b.b.n_context = 1;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_FORMAT, "1 contextual features");
    b.b.n_context = 2;
    b.b.n_users = TOY_USERS + 1;
    CHECK_FAILS(batch_layout_build(p, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_CONFIG, "a batch of 7 users");
    toy_model_close(&t);
}

TEST(plan_refuses_more_candidates_than_the_config) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_RANK_BITS, 3, LAYOUT_TRAIN, NULL);
    CHECK_EQ(t.p->plan.n_loss, 3);
    b.n_targets[0] = 4;
    CHECK_FAILS(batch_layout_build(&t.p->plan, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_CONFIG, "a user with 4 candidates; the model was made for 3");
    toy_model_close(&t);
}

/* The research models have a place for every event of max_history, and no more. */
TEST(plan_refuses_long_histories) {
    toy_model t;
    toy_batch b;
    make(&t, &b, TOY_HSTU_RESEARCH, 0, LAYOUT_TRAIN, NULL);
    t.p->plan.config.max_len = 3;
    CHECK_FAILS(batch_layout_build(&t.p->plan, t.be, &b.b,
                                   &(layout_request){.purpose = LAYOUT_TRAIN, .grad_scale = 1}),
                ERR_FORMAT, "a history of 4 events");
    toy_model_close(&t);
}
