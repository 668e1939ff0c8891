#include <sys/wait.h>
#include <unistd.h>

#include "data/build/builder.h"
#include "hstu.h"
#include "test.h"

static void make_data(void) {
    builder_options options = {.actions = ACTION_STARS, .time_per_second = 1000};
    builder *b;
    builder_stats stats;
    CHECK_OK(builder_create(&b, &options, NULL));
    builder_sink *s = builder_get_sink(b, 0);
    CHECK_OK(sink_begin_block(s, 0, 100));
    for (int i = 0; i < 100; i++)
        CHECK_OK(sink_add(s, 100 + i % 10, 1 + i % 7, (uint16_t)(i % 5), i));
    CHECK_OK(sink_end_block(s));
    CHECK_OK(builder_add_item(b, "3", 1, "Three", 5));
    CHECK_OK(builder_write(b, test_folder(), "{}", &stats));
    builder_destroy(b);
}

TEST(api_reads_data) {
    hstu_data *data;
    hstu_data_info info;
    hstu_history history;
    char text[32], small[3];
    uint64_t user;
    uint32_t item;
    make_data();
    CHECK(hstu_data_open(&data, test_folder()) == HSTU_OK);
    hstu_data_get_info(data, &info);
    CHECK_EQ(info.users, 10);
    CHECK_EQ(info.catalogue, 7);
    CHECK_EQ(info.events, 100);
    CHECK(info.time_per_second == 1000 && info.contextual_features == 0);
    CHECK(!info.has_text_users && !info.has_text_items);
    CHECK(hstu_data_find_user(data, "103", &user) == HSTU_OK);
    CHECK_EQ(user, 3);
    CHECK(hstu_data_history(data, user, &history) == HSTU_OK);
    CHECK_EQ(history.length, 10);
    CHECK_EQ(history.time[1], 13);
    CHECK_EQ(history.item[0], 4);
    int64_t times[10];
    CHECK(hstu_data_copy_history(data, user, 10, NULL, NULL, times) == HSTU_OK);
    CHECK_EQ(memcmp(times, history.time, sizeof times), 0);
    CHECK(hstu_data_copy_history(data, user, 11, NULL, NULL, times) == HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "user 3 has 10 events, not 11");
    CHECK(hstu_data_item_title(data, 3, text, sizeof text) == HSTU_OK);
    CHECK_STR(text, "Three");
    CHECK(hstu_data_item_title(data, 3, small, sizeof small) == HSTU_OK);
    CHECK_STR(small, "Th");
    CHECK(hstu_data_item_id(data, 3, text, sizeof text) == HSTU_OK);
    CHECK_STR(text, "3");
    CHECK(hstu_data_user_id(data, 0, text, sizeof text) == HSTU_OK);
    CHECK_STR(text, "100");
    CHECK(hstu_data_find_item(data, "99", &item) == HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "'99'");
    CHECK(hstu_data_history(data, 10, &history) == HSTU_ERR_USAGE);
    CHECK(hstu_data_item_id(data, 8, text, sizeof text) == HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "item 8 is out of range: there are 7");
    CHECK(hstu_data_item_id(data, 0, text, sizeof text) == HSTU_ERR_USAGE);
    CHECK(hstu_data_item_title(data, 0, text, sizeof text) == HSTU_ERR_USAGE);
    CHECK(hstu_data_user_id(data, 10, text, sizeof text) == HSTU_ERR_USAGE);
    hstu_data_close(data);
    CHECK(hstu_data_open(&data, "/no/such") == HSTU_ERR_IO);
    CHECK(data == NULL);
    hstu_data_close(NULL);
}

TEST(api_batches) {
    hstu_data *data;
    hstu_batcher *batcher;
    hstu_batcher_config config;
    hstu_batch batch;
    make_data();
    CHECK(hstu_data_open(&data, test_folder()) == HSTU_OK);
    hstu_batcher_defaults(&config);
    config.batch_size = 4;
    config.max_history = 5;
    CHECK(hstu_batcher_create(&batcher, data, &config) == HSTU_OK);
    CHECK_EQ(hstu_batcher_n_batches(batcher), 3);
    CHECK_EQ(hstu_batcher_max_tokens(batcher), 24);
    int seen[10] = {0};
    for (int i = 0; i < 3; i++) {
        CHECK(hstu_batcher_next(batcher, &batch) == HSTU_OK);
        CHECK_EQ(batch.is_last, i == 2);
        for (int b = 0; b < batch.n_users; b++) {
            seen[batch.users[b]]++;
            CHECK_EQ(batch.offsets[b + 1] - batch.offsets[b], 6);
            CHECK_EQ(batch.n_targets[b], 1);
        }
    }
    for (int u = 0; u < 10; u++)
        CHECK_EQ(seen[u], 1);
    hstu_batcher_destroy(batcher);
    config.batch_size = 0;
    CHECK(hstu_batcher_create(&batcher, data, &config) == HSTU_ERR_CONFIG);
    CHECK(batcher == NULL);
    hstu_data_close(data);
}

/* Names are cut to the caller's room, NUL included; nothing after it is written. */
TEST(api_cuts_names) {
    hstu_data *data;
    char text[8];
    make_data();
    CHECK(hstu_data_open(&data, test_folder()) == HSTU_OK);
    for (uint64_t n = 0; n <= 7; n++) {
        memset(text, '#', sizeof text);
        CHECK(hstu_data_item_title(data, 3, text, n) == HSTU_OK);
        if (n > 0) CHECK(strlen(text) == (n > 5 ? 5 : n - 1) && strncmp(text, "Three", n - 1) == 0);
        for (size_t i = n; i < sizeof text; i++)
            CHECK_EQ(text[i], '#');
    }
    hstu_data_close(data);
}

/* Each member of a config does what it says. */
TEST(api_batcher_follows_its_config) {
    static const struct {
        int32_t batch_size, n_ranks, rank, drops_last, max_targets, is_shuffled;
        int n_batches, n_users; /* of an epoch */
        int32_t n_targets;
    } cases[] = {
        {4, 1, 0, 0, 1, 0, 3, 10, 1}, {4, 1, 0, 1, 1, 0, 2, 8, 1}, {4, 1, 0, 0, 3, 0, 3, 10, 3},
        {5, 2, 0, 0, 1, 0, 1, 5, 1},  {5, 2, 1, 0, 1, 0, 1, 5, 1}, {10, 1, 0, 0, 1, 1, 1, 10, 1},
    };
    uint64_t order[6][2][10];
    hstu_data *data;
    make_data();
    CHECK(hstu_data_open(&data, test_folder()) == HSTU_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hstu_batcher *batcher;
        hstu_batcher_config config;
        hstu_batch batch;
        hstu_batcher_defaults(&config);
        config.batch_size = cases[i].batch_size;
        config.n_ranks = cases[i].n_ranks;
        config.rank = cases[i].rank;
        config.drops_last = cases[i].drops_last;
        config.max_targets = cases[i].max_targets;
        config.is_shuffled = cases[i].is_shuffled;
        CHECK(hstu_batcher_create(&batcher, data, &config) == HSTU_OK);
        CHECK_EQ(hstu_batcher_n_batches(batcher), cases[i].n_batches);
        for (int epoch = 0; epoch < 2; epoch++) {
            int n = 0;
            for (int k = 0; k < cases[i].n_batches; k++) {
                CHECK(hstu_batcher_next(batcher, &batch) == HSTU_OK);
                CHECK(batch.epoch == (uint64_t)epoch && batch.index == (uint64_t)k);
                CHECK_EQ(batch.is_last, k + 1 == cases[i].n_batches);
                CHECK_EQ(batch.offsets[batch.n_users], batch.n_tokens);
                for (int b = 0; b < batch.n_users; b++) {
                    CHECK_EQ(batch.n_targets[b], cases[i].n_targets);
                    order[i][epoch][n++] = batch.users[b];
                }
            }
            CHECK_EQ(n, cases[i].n_users);
        }
        hstu_batcher_destroy(batcher);
    }
    /* Without a shuffle in their order, each epoch; with one in others.  Ranks share the users. */
    int seen[10] = {0};
    bool is_moved = false;
    for (uint64_t u = 0; u < 10; u++) {
        CHECK(order[0][0][u] == u && order[0][1][u] == u && (u > 7 || order[1][0][u] == u));
        is_moved |= order[5][0][u] != u && order[5][0][u] != order[5][1][u];
        seen[order[3 + u % 2][0][u / 2]]++;
    }
    for (int u = 0; u < 10; u++)
        CHECK_EQ(seen[u], 1);
    CHECK(is_moved);
    hstu_data_close(data);
}

/* A batcher reads the mapped file long after its caller has closed the data. */
TEST(api_batcher_keeps_its_data) {
    hstu_data *data;
    hstu_batcher *batcher;
    hstu_batcher_config config;
    hstu_batch batch;
    make_data();
    CHECK(hstu_data_open(&data, test_folder()) == HSTU_OK);
    hstu_batcher_defaults(&config);
    config.batch_size = 10;
    CHECK(hstu_batcher_create(&batcher, data, &config) == HSTU_OK);
    hstu_data_close(data);
    CHECK(hstu_batcher_next(batcher, &batch) == HSTU_OK);
    CHECK_EQ(batch.n_users, 10);
    hstu_batcher_destroy(batcher);
    CHECK(hstu_batcher_create(&batcher, data, &config) == HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "the data set is closed");
}

/* Calls a function with a handle that must be refused. */
#define REFUSED(call)                                                                              \
    do {                                                                                           \
        (void)fail(ERR_IO, "of the call before");                                                  \
        CHECK_EQ(call, HSTU_ERR_USAGE);                                                            \
        CHECK_CONTAINS(hstu_error(), reason);                                                      \
    } while (0)

/* Every function that takes a handle, in the order of hstu.h. */
static void refuse_data(const hstu_data *data, const char *reason) {
    hstu_data_info info;
    hstu_history history;
    hstu_batcher *batcher;
    hstu_batcher_config config;
    char text[8];
    uint64_t user;
    uint32_t item;
    REFUSED(hstu_data_get_info(data, &info));
    REFUSED(hstu_data_history(data, 0, &history));
    REFUSED(hstu_data_copy_history(data, 0, 0, NULL, NULL, NULL));
    REFUSED(hstu_data_find_user(data, "1", &user));
    REFUSED(hstu_data_find_item(data, "1", &item));
    REFUSED(hstu_data_item_id(data, 1, text, sizeof text));
    REFUSED(hstu_data_item_title(data, 1, text, sizeof text));
    REFUSED(hstu_data_user_id(data, 0, text, sizeof text));
    hstu_batcher_defaults(&config);
    REFUSED(hstu_batcher_create(&batcher, data, &config));
    CHECK(batcher == NULL && info.users == 0 && history.length == 0);
}

static void refuse_batcher(hstu_batcher *batcher, const char *reason) {
    hstu_batch batch;
    REFUSED(hstu_batcher_next(batcher, &batch));
    CHECK(batch.n_users == 0 && hstu_batcher_n_batches(batcher) == 0);
    CHECK(hstu_batcher_max_tokens(batcher) == 0);
}

static void refuse_model(hstu_model *m, const char *reason) {
    const uint64_t user = 0;
    uint32_t item = 1;
    float score;
    hstu_model_info info;
    hstu_history history = {.length = 1, .item = &item};
    REFUSED(hstu_model_get_info(m, &info));
    CHECK(hstu_model_data(m) == NULL && hstu_model_score_name(m, 0) == NULL && info.items == 0);
    REFUSED(hstu_model_recommend(m, &user, 1, 1, 0, &item, &score));
    REFUSED(hstu_model_recommend_history(m, &history, 1, 0, &item, &score));
    REFUSED(hstu_model_score(m, &user, 1, &item, 1, &score));
    REFUSED(hstu_model_encode(m, &user, 1, &score));
    REFUSED(hstu_model_item_embeddings(m, &score));
    REFUSED(hstu_model_similar(m, 1, 1, &item, &score));
}

static void refuse_table(hstu_table *t, const char *reason) {
    const uint64_t id = 1;
    float row[4] = {0};
    int64_t n;
    hstu_table_step step;
    const hstu_bags bags = {0};
    const hstu_table_request request = {.table = t};
    hstu_table_step_defaults(&step);
    REFUSED(hstu_table_size(t, &n));
    REFUSED(hstu_table_find(t, 1, &id, row, NULL));
    REFUSED(hstu_table_lookup(t, 1, &id, row));
    REFUSED(hstu_table_insert(t, 1, &id, row, NULL));
    REFUSED(hstu_table_update(t, 1, &id, row, &step));
    REFUSED(hstu_table_lookup_pooled(t, &bags, row));
    REFUSED(hstu_table_update_pooled(t, &bags, row, &step));
    REFUSED(hstu_table_weight_gradients(t, &bags, row, row));
    REFUSED(hstu_tables_lookup_pooled(1, &request));
    REFUSED(hstu_table_erase(t, 1, &id, NULL));
    REFUSED(hstu_table_save(t, "x"));
    REFUSED(hstu_table_load(t, "x", NULL));
}

static void refuse_attn(hstu_attn *attn, hstu_softmax_attn *softmax, hstu_graph_attn *graph,
                        const char *reason) {
    const int32_t length = 1;
    hstu_attn_varlen_args a;
    hstu_softmax_attn_varlen_args b;
    hstu_attn_varlen_defaults(&a);
    hstu_softmax_attn_varlen_defaults(&b);
    REFUSED(hstu_attn_varlen_fwd(attn, &a, NULL));
    REFUSED(hstu_attn_varlen_bwd(attn, &a, NULL));
    REFUSED(hstu_attn_wait(attn, NULL));
    REFUSED(hstu_softmax_attn_set_lengths(softmax, 0, &length, 1, NULL));
    REFUSED(hstu_softmax_attn_varlen_fwd(softmax, &b, NULL));
    REFUSED(hstu_softmax_attn_varlen_bwd(softmax, &b, NULL));
    hstu_graph_attn_args c;
    hstu_graph_attn_defaults(&c);
    REFUSED(hstu_graph_attn_fwd(graph, &c, NULL));
    REFUSED(hstu_graph_attn_bwd(graph, &c, NULL));
}

typedef struct objects {
    hstu_data *data;
    hstu_batcher *batcher;
    hstu_table *table;
    hstu_attn *attn;
    hstu_softmax_attn *softmax;
    hstu_graph_attn *graph;
} objects;

static objects open_all(void) {
    objects o;
    hstu_batcher_config config;
    hstu_table_config c;
    make_data();
    hstu_batcher_defaults(&config);
    hstu_table_defaults(&c);
    c.dim = 4;
    c.device = "cpu";
    CHECK_EQ(hstu_data_open(&o.data, test_folder()), HSTU_OK);
    CHECK_EQ(hstu_batcher_create(&o.batcher, o.data, &config), HSTU_OK);
    CHECK_EQ(hstu_table_create(&o.table, &c), HSTU_OK);
    CHECK_EQ(hstu_attn_create(&o.attn, HSTU_ATTN_CPU), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_create(&o.softmax, -1, "causal"), HSTU_OK);
    const int32_t indptr[] = {0, 1};
    CHECK_EQ(hstu_graph_attn_create(&o.graph, -1, 1, 1, indptr, indptr), HSTU_OK);
    return o;
}

static void close_all(const objects *o) {
    hstu_batcher_destroy(o->batcher);
    hstu_data_close(o->data);
    hstu_table_destroy(o->table);
    hstu_attn_destroy(o->attn);
    hstu_softmax_attn_destroy(o->softmax);
    hstu_graph_attn_destroy(o->graph);
}

TEST(api_refuses_null_and_closed_handles) {
    refuse_data(NULL, "the data set is NULL");
    refuse_batcher(NULL, "the batcher is NULL");
    refuse_model(NULL, "the model is NULL");
    refuse_table(NULL, "the table is NULL");
    refuse_attn(NULL, NULL, NULL, "attn is NULL");
    objects o = open_all();
    refuse_data((const hstu_data *)o.table, "is closed, or this is not a data set");
    refuse_model((hstu_model *)o.data, "is closed, or this is not a model");
    close_all(&o);
    close_all(&o); /* once more does nothing */
    refuse_data(o.data, "the data set is closed");
    refuse_batcher(o.batcher, "the batcher is closed");
    refuse_table(o.table, "the table is closed");
    refuse_attn(o.attn, o.softmax, o.graph, "attn is closed");
}

/* NULL in place of every other pointer that must be there. */
TEST(api_refuses_null_arguments) {
    const char *reason = " is NULL";
    const uint64_t id = 1;
    float row[4] = {0};
    hstu_table_step step;
    objects o = open_all();
    hstu_data *data;
    REFUSED(hstu_data_open(&data, NULL));
    REFUSED(hstu_data_open(NULL, test_folder()));
    REFUSED(hstu_data_get_info(o.data, NULL));
    REFUSED(hstu_data_history(o.data, 0, NULL));
    REFUSED(hstu_data_find_user(o.data, NULL, NULL));
    REFUSED(hstu_data_find_user(o.data, "100", NULL));
    REFUSED(hstu_data_find_item(o.data, NULL, NULL));
    REFUSED(hstu_data_find_item(o.data, "1", NULL));
    uint16_t action;
    REFUSED(hstu_data_find_action(o.data, NULL, &action));
    REFUSED(hstu_data_find_action(o.data, "view", NULL));
    REFUSED(hstu_data_item_id(o.data, 1, NULL, 9));
    REFUSED(hstu_data_item_title(o.data, 1, NULL, 9));
    REFUSED(hstu_data_user_id(o.data, 1, NULL, 9));
    CHECK_EQ(hstu_data_user_id(o.data, 1, NULL, 0), HSTU_OK);
    REFUSED(hstu_batcher_create(NULL, o.data, NULL));
    hstu_batcher *batcher;
    REFUSED(hstu_batcher_create(&batcher, o.data, NULL));
    REFUSED(hstu_batcher_next(o.batcher, NULL));
    REFUSED(hstu_model_open(NULL, "x", NULL, "cpu"));
    hstu_model *m;
    REFUSED(hstu_model_open(&m, NULL, NULL, "cpu"));
    CHECK(m == NULL);
    REFUSED(hstu_train(NULL));
    REFUSED(hstu_table_create(NULL, NULL));
    REFUSED(hstu_table_size(o.table, NULL));
    hstu_table_step_defaults(&step);
    reason = "are NULL";
    REFUSED(hstu_table_find(o.table, 1, &id, NULL, NULL));
    REFUSED(hstu_table_lookup(o.table, 1, NULL, row));
    REFUSED(hstu_table_insert(o.table, 1, &id, NULL, NULL));
    REFUSED(hstu_table_update(o.table, 1, NULL, row, &step));
    REFUSED(hstu_table_erase(o.table, 1, NULL, NULL));
    reason = "";
    REFUSED(hstu_table_update(o.table, 1, &id, row, NULL));
    reason = " is NULL";
    REFUSED(hstu_table_save(o.table, NULL));
    REFUSED(hstu_table_load(o.table, NULL, NULL));
    REFUSED(hstu_attn_create(NULL, HSTU_ATTN_CPU));
    REFUSED(hstu_attn_varlen_fwd(o.attn, NULL, NULL));
    REFUSED(hstu_attn_varlen_bwd(o.attn, NULL, NULL));
    REFUSED(hstu_softmax_attn_create(NULL, -1, NULL));
    REFUSED(hstu_softmax_attn_varlen_fwd(o.softmax, NULL, NULL));
    REFUSED(hstu_softmax_attn_varlen_bwd(o.softmax, NULL, NULL));
    REFUSED(hstu_softmax_attn_set_lengths(o.softmax, 0, NULL, 1, NULL));
    hstu_batcher_defaults(NULL);
    hstu_train_defaults(NULL);
    hstu_table_defaults(NULL);
    hstu_table_step_defaults(NULL);
    hstu_attn_varlen_defaults(NULL);
    hstu_softmax_attn_varlen_defaults(NULL);
    close_all(&o);
}

/* In a child of fork() data can be read; the rest is refused, and closing it does not wait for
 * threads that are not there. */
TEST(api_after_fork) {
    objects o = open_all();
    int result;
#ifdef __SANITIZE_ADDRESS__
    usleep(300000); /* a thread that fills batches may hold the sanitizer's lock, for ever in a
                       child */
#endif
    pid_t child = fork();
    if (child == 0) {
        hstu_history history;
        alarm(20);
        CHECK_EQ(hstu_data_history(o.data, 3, &history), HSTU_OK);
        CHECK_EQ(history.length, 10);
        refuse_batcher(o.batcher, "the batcher was opened before fork()");
        refuse_table(o.table, "the table was opened before fork()");
        refuse_attn(o.attn, o.softmax, o.graph, "attn was opened before fork()");
        close_all(&o);
        o = open_all();
        float row[4];
        CHECK_EQ(hstu_table_lookup(o.table, 1, &history.length, row), HSTU_OK);
        close_all(&o);
        _exit(33);
    }
    CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result));
    CHECK_EQ(WEXITSTATUS(result), 33);
    close_all(&o);
}
