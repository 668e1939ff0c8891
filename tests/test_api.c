#include "data/prep/builder.h"
#include "hstu.h"
#include "test.h"

static void make_data(void) {
    builder_options options = {.actions = ACTION_STARS, .time_per_second = 1};
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
    CHECK(hstu_data_find_user(data, "103", &user) == HSTU_OK);
    CHECK_EQ(user, 3);
    CHECK(hstu_data_history(data, user, &history) == HSTU_OK);
    CHECK_EQ(history.length, 10);
    CHECK_EQ(history.time[1], 13);
    CHECK_EQ(history.item[0], 4);
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
    CHECK(hstu_data_item_id(data, 8, text, sizeof text) != HSTU_OK);
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
