#include "data/set/batcher.h"

#include <stdatomic.h>

#include "base/mem.h"
#include "oom.h"
#include "toy_data.h"

enum { USERS = 300 };

static void open_users(seq_file *data, uint64_t seed) {
    uint32_t lengths[USERS];
    toy_zipf_lengths(lengths, USERS, 90, seed);
    for (int u = 0; u < USERS; u += 37)
        lengths[u] = (uint32_t)u / 37 % 3; /* too short for some part, or empty */
    toy_open(data, lengths, USERS);
}

static batcher_config small_config(void) {
    batcher_config c = batcher_config_default();
    c.batch_size = 16;
    c.max_history = 20;
    c.seed = 5;
    c.n_slots = 4;
    return c;
}

/* Checks every value of a batch against its definition. */
static void check_content(const seq_file *data, const batcher_config *c, const batch *b) {
    split s = split_make(data, c->split, c->split_seed);
    CHECK_EQ(b->offsets[0], 0);
    CHECK_EQ(b->offsets[b->n_users], b->n_tokens);
    CHECK_EQ(b->n_context, TOY_CONTEXT);
    for (int32_t i = 0; i < b->n_users; i++) {
        event_range r;
        CHECK(split_range(&s, c->part, b->users[i], &r));
        int64_t length = (int64_t)(r.end - r.begin), may = (int64_t)(r.end - r.target_begin);
        int64_t n_targets = may < c->max_targets ? may : c->max_targets;
        int64_t n = length < c->max_history + n_targets ? length : c->max_history + n_targets;
        CHECK_EQ(b->n_targets[i], n_targets);
        CHECK_EQ(b->offsets[i + 1] - b->offsets[i], n);
        for (int64_t k = 0; k < n; k++) {
            uint64_t row = r.end - (uint64_t)n + (uint64_t)k;
            int32_t at = b->offsets[i] + (int32_t)k;
            CHECK(b->item[at] == toy_item(row) && b->action[at] == toy_action(row));
            CHECK(b->time[at] == toy_time(row));
        }
        for (int f = 0; f < TOY_CONTEXT; f++)
            CHECK_EQ(b->context[i * TOY_CONTEXT + f], toy_context(b->users[i], f));
    }
}

/* A running hash of everything in a batch, to compare streams. */
static uint64_t add_bytes(uint64_t h, const void *bytes, size_t n) {
    for (const unsigned char *p = bytes; n > 0; n--, p++)
        h = (h ^ *p) * 1099511628211u;
    return h;
}

static uint64_t digest(const batch *b) {
    uint64_t h = 14695981039346656037u;
    size_t n_users = (size_t)b->n_users, n_tokens = (size_t)b->n_tokens;
    h = add_bytes(h, &b->epoch, sizeof b->epoch);
    h = add_bytes(h, &b->index, sizeof b->index);
    h = add_bytes(h, &b->is_last, sizeof b->is_last);
    h = add_bytes(h, b->offsets, (n_users + 1) * sizeof *b->offsets);
    h = add_bytes(h, b->users, n_users * sizeof *b->users);
    h = add_bytes(h, b->n_targets, n_users * sizeof *b->n_targets);
    h = add_bytes(h, b->item, n_tokens * sizeof *b->item);
    h = add_bytes(h, b->action, n_tokens * sizeof *b->action);
    h = add_bytes(h, b->time, n_tokens * sizeof *b->time);
    return add_bytes(h, b->context, n_users * (size_t)b->n_context * sizeof *b->context);
}

static void read_digests(batcher *b, uint64_t *out, int n) {
    for (int i = 0; i < n; i++) {
        const batch *view;
        CHECK_OK(batcher_next(b, &view));
        out[i] = digest(view);
    }
}

/* One epoch of every rank: each user of the part exactly once, contents right. */
static void check_epoch(const seq_file *data, batcher_config c, uint64_t epoch) {
    uint8_t seen[USERS] = {0};
    uint64_t n_seen = 0, n_users = 0;
    for (c.rank = 0; c.rank < c.n_ranks; c.rank++) {
        batcher *b;
        CHECK_OK(batcher_create(&b, data, &c));
        uint64_t n = batcher_n_batches(b);
        n_users = batcher_n_users(b);
        for (uint64_t i = 0; i < n * (epoch + 1); i++) {
            const batch *view;
            CHECK_OK(batcher_next(b, &view));
            CHECK_EQ(view->epoch, i / n);
            CHECK_EQ(view->index, i % n);
            CHECK_EQ(view->is_last, i % n == n - 1);
            CHECK(view->n_users <= c.batch_size && view->n_tokens <= batcher_max_tokens(b));
            if (!view->is_last && c.n_micro == 1) CHECK_EQ(view->n_users, c.batch_size);
            check_content(data, &c, view);
            if (view->epoch != epoch) continue;
            for (int32_t k = 0; k < view->n_users; k++) {
                CHECK(!seen[view->users[k]]);
                seen[view->users[k]] = 1;
                n_seen++;
            }
        }
        batcher_destroy(b);
    }
    CHECK_EQ(n_seen, n_users);
}

TEST(batcher_visits_everyone_once_in_an_epoch) {
    seq_file data;
    open_users(&data, 1);
    batcher_config c = small_config();
    for (int kind = 0; kind < 3; kind++) {
        for (int part = 0; part < 3; part++) {
            if (part == PART_VALIDATION && kind != SPLIT_LEAVE_TWO_OUT) continue;
            c.split = split_rule_of((split_kind)kind), c.part = (split_part)part;
            c.max_targets = 1 + 4 * (part % 2);
            check_epoch(&data, c, 1);
        }
    }
    toy_close(&data);
}

TEST(batcher_divides_a_step_over_ranks_and_micro_batches) {
    seq_file data;
    open_users(&data, 2);
    batcher_config c = small_config();
    for (int k = 0; k < 16; k++) {
        c.n_ranks = 1 + k % 4, c.n_micro = 1 + k / 4 % 2;
        c.is_balanced = k >= 8;
        c.drops_last = k % 3 == 0;
        c.batch_size = k % 2 == 0 ? 16 : 7;
        check_epoch(&data, c, 0);
    }
    toy_close(&data);
}

/* More ranks than users in the last step: some get an empty batch, and all still take part. */
TEST(batcher_gives_empty_batches_where_users_run_out) {
    seq_file data;
    uint32_t lengths[9] = {4, 4, 4, 4, 4, 4, 4, 4, 4};
    toy_open(&data, lengths, 9);
    batcher_config c = small_config();
    c.batch_size = 1;
    c.n_ranks = 8;
    for (int is_balanced = 0; is_balanced < 2; is_balanced++) {
        c.is_balanced = is_balanced == 1;
        int n_last = 0;
        for (c.rank = 0; c.rank < 8; c.rank++) {
            batcher *b;
            const batch *view;
            CHECK_OK(batcher_create(&b, &data, &c));
            CHECK_EQ(batcher_n_batches(b), 2);
            CHECK_OK(batcher_next(b, &view));
            CHECK_EQ(view->n_users, 1);
            CHECK_OK(batcher_next(b, &view));
            CHECK_EQ(view->offsets[view->n_users], view->n_tokens);
            n_last += view->n_users;
            batcher_destroy(b);
        }
        CHECK_EQ(n_last, 1);
    }
    toy_close(&data);
}

TEST(batcher_balances_the_work_of_ranks) {
    seq_file data;
    enum { N = 8 * 64 };
    uint32_t lengths[N];
    double most[2] = {0}, total[2] = {0};
    toy_zipf_lengths(lengths, N, 200, 3);
    toy_open(&data, lengths, N);
    batcher_config c = small_config();
    c.max_history = 30, c.n_ranks = 8, c.drops_last = true, c.batch_size = 32;
    for (int is_balanced = 0; is_balanced < 2; is_balanced++) {
        c.is_balanced = is_balanced == 1;
        for (c.rank = 0; c.rank < 8; c.rank++) {
            batcher *b;
            const batch *view;
            double work = 0;
            CHECK_OK(batcher_create(&b, &data, &c));
            CHECK_OK(batcher_next(b, &view));
            for (int i = 0; i < view->n_users; i++)
                work += pow(view->offsets[i + 1] - view->offsets[i], 2);
            total[is_balanced] += work;
            most[is_balanced] = work > most[is_balanced] ? work : most[is_balanced];
            batcher_destroy(b);
        }
    }
    CHECK(total[0] == total[1]); /* the same users, divided otherwise */
    CHECK(most[1] < 1.01 * total[1] / 8);
    CHECK(most[0] > 1.2 * total[0] / 8);
    toy_close(&data);
}

TEST(batcher_keeps_file_order_when_not_shuffled) {
    seq_file data;
    open_users(&data, 4);
    batcher_config c = small_config();
    c.is_shuffled = false;
    batcher *b;
    CHECK_OK(batcher_create(&b, &data, &c));
    CHECK(batcher_n_users(b) < data.n_users); /* some are too short */
    uint64_t last = 0, n = batcher_n_batches(b), n_seen = 0;
    for (uint64_t i = 0; i < 2 * n; i++) {
        const batch *view;
        CHECK_OK(batcher_next(b, &view));
        for (int32_t k = 0; k < view->n_users; k++, n_seen++) {
            if (view->index > 0 || k > 0) CHECK(view->users[k] > last);
            last = view->users[k];
        }
    }
    CHECK_EQ(n_seen, 2 * batcher_n_users(b));
    batcher_destroy(b);
    toy_close(&data);
}

TEST(batcher_shuffles_by_seed_and_epoch) {
    seq_file data;
    open_users(&data, 4);
    batcher_config c = small_config();
    uint64_t first[3][40];
    for (int k = 0; k < 3; k++) {
        batcher *b;
        c.seed = k == 2 ? 6 : 5;
        CHECK_OK(batcher_create(&b, &data, &c));
        CHECK(2 * batcher_n_batches(b) <= 40);
        read_digests(b, first[k], 40);
        if (k == 0) CHECK(first[0][0] != first[0][batcher_n_batches(b)]);
        batcher_destroy(b);
    }
    CHECK(memcmp(first[0], first[1], sizeof first[0]) == 0);
    CHECK(first[0][0] != first[2][0]);
    toy_close(&data);
}

TEST(batcher_gives_the_same_stream_with_any_number_of_threads) {
    seq_file data;
    static const int threads[] = {0, 1, 2, 5};
    open_users(&data, 6);
    for (int is_balanced = 0; is_balanced < 2; is_balanced++) {
        uint64_t wanted[100], got[100];
        for (int k = 0; k < 4; k++) {
            batcher *b;
            batcher_config c = small_config();
            c.n_threads = threads[k];
            c.n_slots = 2 + 3 * k;
            c.n_ranks = 2;
            c.is_balanced = is_balanced == 1;
            CHECK_OK(batcher_create(&b, &data, &c));
            read_digests(b, k == 0 ? wanted : got, 100);
            if (k > 0) CHECK(memcmp(wanted, got, sizeof got) == 0);
            batcher_destroy(b);
        }
    }
    toy_close(&data);
}

/* A state written to text and read back. */
static void through_json(batcher_state *state) {
    buf text = {0};
    json_writer w;
    arena a;
    const json_value *root;
    batcher_state back;
    arena_init(&a, 4096);
    json_begin(&w, &text, 0);
    batcher_state_write(state, &w);
    CHECK_OK(json_finish(&w));
    CHECK_OK(json_parse(&a, "state", buf_str(&text), text.n_bytes, &root));
    CHECK_OK(batcher_state_read(&back, root));
    CHECK_EQ(back.seed, state->seed);
    CHECK_EQ(back.epoch, state->epoch);
    CHECK_EQ(back.next_batch, state->next_batch);
    CHECK_EQ(back.data, state->data);
    CHECK_STR(back.settings, state->settings);
    *state = back;
    arena_fini(&a);
    buf_fini(&text);
}

TEST(batcher_restores_at_every_position) {
    enum { TAKEN = 45, AFTER = 25 };
    seq_file data;
    open_users(&data, 7);
    batcher_config c = small_config();
    c.seed = UINT64_MAX - 3;
    c.is_balanced = true;
    c.n_ranks = 2;
    uint64_t wanted[TAKEN + AFTER], got[AFTER];
    batcher_state states[TAKEN + 1];
    batcher *b, *other;
    CHECK_OK(batcher_create(&b, &data, &c));
    CHECK(batcher_n_batches(b) < TAKEN / 2);
    for (int i = 0; i <= TAKEN; i++) {
        batcher_save(b, &states[i]);
        through_json(&states[i]);
        read_digests(b, wanted + i, 1);
    }
    read_digests(b, wanted + TAKEN + 1, AFTER - 1);
    c.n_threads = 3;
    CHECK_OK(batcher_create(&other, &data, &c));
    for (int i = TAKEN; i >= 0; i--) {
        batcher_state again;
        CHECK_OK(batcher_restore(other, &states[i]));
        batcher_save(other, &again);
        CHECK_EQ(again.epoch * batcher_n_batches(b) + again.next_batch, i);
        read_digests(other, got, AFTER);
        CHECK(memcmp(got, wanted + i, sizeof got) == 0);
    }
    batcher_destroy(b);
    batcher_destroy(other);
    toy_close(&data);
}

TEST(batcher_refuses_the_state_of_another_stream) {
    seq_file data, other_data;
    batcher *b, *other;
    batcher_state state, bad;
    open_users(&data, 7);
    open_users(&other_data, 8);
    batcher_config c = small_config();
    CHECK_OK(batcher_create(&b, &data, &c));
    batcher_save(b, &state);
    bad = state;
    bad.seed = 6;
    CHECK_FAILS(batcher_restore(b, &bad), ERR_CONFIG, "seed 6, but this run has 5");
    bad = state;
    bad.next_batch = batcher_n_batches(b);
    CHECK_FAILS(batcher_restore(b, &bad), ERR_CONFIG, "does not exist");
    bad = state;
    bad.epoch = UINT64_MAX / 2;
    CHECK_FAILS(batcher_restore(b, &bad), ERR_CONFIG, "does not exist");
    CHECK_OK(batcher_create(&other, &other_data, &c));
    CHECK_FAILS(batcher_restore(other, &state), ERR_CONFIG, "other data");
    batcher_destroy(other);
    c.batch_size = 8;
    CHECK_OK(batcher_create(&other, &data, &c));
    CHECK_FAILS(batcher_restore(other, &state), ERR_CONFIG, "16 users x (20 + 1) events");
    batcher_destroy(other);
    batcher_destroy(b);
    toy_close(&data);
    toy_close(&other_data);
}

static status read_state(const char *text) {
    arena a;
    const json_value *root;
    batcher_state state;
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "state", text, strlen(text), &root));
    status st = batcher_state_read(&state, root);
    arena_fini(&a);
    return st;
}

TEST(batcher_state_reads_only_what_is_whole) {
    CHECK_OK(read_state("{\"seed\":\"18446744073709551615\",\"epoch\":0,\"next_batch\":1,"
                        "\"data\":\"00ff\",\"settings\":\"x\"}"));
    CHECK_FAILS(read_state("[]"), ERR_FORMAT, "not a JSON object");
    CHECK_FAILS(read_state("{}"), ERR_FORMAT, "seed");
    CHECK_FAILS(read_state("{\"seed\":\"-1\",\"epoch\":0,\"next_batch\":1,\"data\":\"0\","
                           "\"settings\":\"x\"}"),
                ERR_FORMAT, "'seed' is \"-1\"");
    CHECK_FAILS(read_state("{\"seed\":\"1\",\"epoch\":-2,\"next_batch\":1,\"data\":\"0\","
                           "\"settings\":\"x\"}"),
                ERR_FORMAT, "'epoch' is -2");
    CHECK_FAILS(read_state("{\"seed\":\"1\",\"epoch\":2,\"next_batch\":1,\"data\":\"0g\","
                           "\"settings\":\"x\"}"),
                ERR_FORMAT, "'data'");
}

TEST(batcher_refuses_settings_that_cannot_be) {
    seq_file data;
    batcher *b;
    open_users(&data, 1);
    batcher_config c = small_config();
    c.batch_size = 0;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "the batch size is 0");
    CHECK(b == NULL);
    c = small_config(), c.rank = 1;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "the rank is 1");
    c = small_config(), c.max_history = 0;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "history is 0");
    c = small_config(), c.max_targets = -1;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "the number of targets is -1");
    c = small_config(), c.n_ranks = 0;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "the number of ranks is 0");
    c = small_config(), c.n_micro = 0;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "micro-batches is 0");
    for (int n = 1; n <= 1025; n += 1024) {
        c = small_config(), c.n_slots = n;
        CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "to prefetch is");
    }
    c = small_config(), c.batch_size = 1 << 20, c.max_history = 4000;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "does not fit 32-bit offsets");
    c = small_config(), c.max_history = INT32_MAX, c.max_targets = INT32_MAX, c.batch_size = 1;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "does not fit 32-bit offsets");
    c = small_config(), c.n_ranks = 1 << 16, c.n_micro = 1 << 14;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "is too large");
    c = small_config(), c.drops_last = true, c.batch_size = 1000;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_CONFIG, "do not fill one step of 1000");
    c = small_config(), c.part = PART_VALIDATION;
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_USAGE, "leave-two-out");
    toy_close(&data);
    toy_open(&data, (uint32_t[]){1, 2, 0}, 3);
    c = small_config();
    CHECK_FAILS(batcher_create(&b, &data, &c), ERR_FORMAT, "3 are too short");
    toy_close(&data);
}

/* Destroyed right after creation, or with batches taken and others in flight. */
TEST(batcher_shuts_down_at_any_moment) {
    seq_file data;
    open_users(&data, 9);
    for (int k = 0; k < 60; k++) {
        batcher *b;
        batcher_config c = small_config();
        c.n_threads = k % 6;
        CHECK_OK(batcher_create(&b, &data, &c));
        for (int i = 0; i < k % 7; i++) {
            const batch *view;
            CHECK_OK(batcher_next(b, &view));
        }
        batcher_destroy(b);
    }
    batcher_destroy(NULL);
    toy_close(&data);
}

/* An allocator that fails at the k-th call and counts blocks that were not freed. */
typedef struct failing {
    int n_left;
    _Atomic int n_live;
} failing;

static void *failing_alloc(void *ctx, size_t bytes) {
    failing *f = ctx;
    void *block = NULL;
    if (f->n_left-- <= 0 || posix_memalign(&block, 64, bytes) != 0) return NULL;
    f->n_live++;
    return block;
}

static void *failing_resize(void *ctx, void *block, size_t bytes) {
    failing *f = ctx;
    if (f->n_left-- <= 0) return NULL;
    if (block == NULL) f->n_live++;
    return (realloc)(block, bytes);
}

static void failing_release(void *ctx, void *block) {
    ((failing *)ctx)->n_live--;
    (free)(block);
}

static status create_and_destroy(void *ctx) {
    batcher_config c = small_config();
    batcher *b;
    c.is_balanced = true;
    TRY(batcher_create(&b, ctx, &c));
    batcher_destroy(b);
    return OK;
}

TEST(batcher_survives_every_failed_allocation) {
    seq_file data;
    batcher_config c = small_config();
    open_users(&data, 9);
    c.is_balanced = true;
    status st = ERR_NOMEM;
    int k = 0;
    for (; st != OK; k++) {
        failing f = {.n_left = k};
        mem_set_allocator(&(mem_allocator){failing_alloc, failing_resize, failing_release, &f});
        batcher *b;
        const batch *view;
        st = batcher_create(&b, &data, &c);
        CHECK(st == OK || (st == ERR_NOMEM && b == NULL));
        int n_left = f.n_left;
        for (int i = 0; st == OK && i < 50; i++)
            CHECK_OK(batcher_next(b, &view));
        if (st == OK) CHECK_EQ(f.n_left, n_left); /* the loop allocates nothing */
        batcher_destroy(b);
        CHECK_EQ(f.n_live, 0);
        mem_set_allocator(NULL);
    }
    CHECK(k > 4 * 10); /* each slot has its own memory */
    CHECK_EQ(oom_at_each_allocation(create_and_destroy, &data), k - 1);
    toy_close(&data);
}
