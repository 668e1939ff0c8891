#include "data/synth/synth.h"

#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/set/seq_file.h"
#include "data/synth/synth_model.h"
#include "format/json.h"
#include "oom.h"
#include "test.h"

static synth_config small_config(void) {
    return (synth_config){.n_users = 700, .n_items = 400, .mean_len = 20, .seed = 3};
}

static void write_data(const synth_config *c, const char *folder, int n_threads,
                       synth_report *report) {
    pool *p;
    CHECK_OK(pool_create(&p, n_threads));
    CHECK_OK(synth_write(c, folder, p, report));
    pool_destroy(p);
}

static seq_file *open_data(const char *folder) {
    seq_file *s;
    CHECK_OK(seq_file_open(&s, folder, NULL));
    return s;
}

static const char *sub_folder(const char *name) {
    static char path[8][256];
    static int next;
    char *text = path[next++ % 8];
    snprintf(text, 256, "%s/%s", test_folder(), name);
    return text;
}

TEST(synth_gives_the_same_file_with_any_number_of_threads) {
    synth_config c = small_config();
    file_map wanted, got;
    synth_report report, again;
    write_data(&c, sub_folder("one"), 1, &report);
    CHECK_OK(file_map_open(&wanted, sub_folder("one/data.seq")));
    static const int threads[] = {2, 5};
    for (int i = 0; i < 2; i++) {
        write_data(&c, sub_folder("more"), threads[i], &again);
        CHECK_OK(file_map_open(&got, sub_folder("more/data.seq")));
        CHECK_EQ(got.n_bytes, wanted.n_bytes);
        CHECK(memcmp(got.bytes, wanted.bytes, wanted.n_bytes) == 0);
        CHECK(memcmp(&report, &again, sizeof report) == 0);
        file_map_close(&got);
    }
    c.seed = 4;
    write_data(&c, sub_folder("more"), 2, &again);
    CHECK(again.best_hr10 != report.best_hr10);
    file_map_close(&wanted);
}

TEST(synth_items_have_a_topic_and_tags) {
    synth_config c = small_config();
    synth_report report;
    write_data(&c, sub_folder("one"), 1, &report);
    seq_file *s = open_data(sub_folder("one"));
    CHECK(s->n_content == 2 && strcmp(s->content[0].name, "topic") == 0);
    CHECK_EQ(s->content[0].values.n, report.n_topics + 1);
    for (uint32_t i = 1; i <= s->n_items; i++) {
        const item_content *topic = &s->content[0], *tags = &s->content[1];
        CHECK_EQ(topic->offsets[i + 1] - topic->offsets[i], i % 10 != 0);
        CHECK_EQ(tags->offsets[i + 1] - tags->offsets[i], 2);
    }
    seq_file_close(s);
}

TEST(synth_data_is_as_promised) {
    synth_config c = small_config();
    synth_report report;
    write_data(&c, sub_folder("data"), 2, &report);
    seq_file *s = open_data(sub_folder("data"));
    CHECK_EQ(s->n_users, 700);
    CHECK_EQ(s->n_items, 400);
    CHECK_EQ(s->n_events, report.n_events);
    CHECK_EQ(s->actions, ACTION_STARS);
    CHECK_EQ(s->n_context, 2);
    CHECK_STR(s->context[0].name, "age_group");
    CHECK_STR(s->context[1].name, "country");
    CHECK(fabs((double)s->n_events / 700 / 20 - 1) < .15);
    uint64_t stars[5] = {0}, max_len = 0;
    for (uint64_t u = 0; u < s->n_users; u++) {
        uint8_t seen[401] = {0};
        uint64_t n = seq_length(s, u);
        max_len = n > max_len ? n : max_len;
        CHECK(n >= 3 && n <= 200);
        CHECK(s->context[0].value[u] >= 1 && s->context[0].value[u] <= SYNTH_AGES);
        CHECK(s->context[1].value[u] >= 1 && s->context[1].value[u] <= SYNTH_COUNTRIES);
        for (uint64_t i = s->offsets[u]; i < s->offsets[u + 1]; i++) {
            CHECK(!seen[s->item[i]]); /* nobody has an item twice */
            seen[s->item[i]] = 1;
            if (i > s->offsets[u]) CHECK(s->time[i] > s->time[i - 1]);
            stars[s->action[i]]++;
        }
    }
    CHECK_EQ(max_len, report.max_len);
    for (int i = 0; i < 5; i++)
        CHECK(stars[i] > s->n_events / 100 && stars[i] < s->n_events / 2);
    seq_file_close(s);
}

TEST(synth_titles_are_all_different) {
    synth_config c = {.n_users = 50, .n_items = 5000, .mean_len = 5, .seed = 1};
    synth_world *w;
    CHECK_OK(synth_world_create(&w, &c));
    char(*title)[128] = calloc(c.n_items, sizeof *title);
    for (uint32_t i = 0; i < c.n_items; i++)
        synth_item_title(w, i + 1, title[i], 128);
    qsort(title, c.n_items, sizeof *title, (int (*)(const void *, const void *))strcmp);
    for (uint32_t i = 1; i < c.n_items; i++)
        if (strcmp(title[i - 1], title[i]) == 0) FAIL_TEST("'%s' comes twice", title[i]);
    free(title);
    synth_world_destroy(w);
}

/* If the oracle's probabilities are those the events are drawn from, it is right as often as it
 * expects to be: within four standard deviations. */
TEST(synth_oracle_is_right_as_often_as_it_expects) {
    static const synth_config configs[] = {{20000, 2000, 12, 1},
                                           {20000, 60, 15, 2}, /* much of the catalogue is seen */
                                           {20000, 20, 5, 3},
                                           {4000, 2000, 60, 4}};
    for (int k = 0; k < 4; k++) {
        synth_world *w;
        synth_user u;
        double expected = 0, variance = 0;
        int n_right = 0;
        CHECK_OK(synth_world_create(&w, &configs[k]));
        CHECK_OK(synth_user_init(&u, w));
        for (uint64_t user = 0; user < configs[k].n_users; user++) {
            synth_user_make(w, user, &u);
            CHECK(u.best_hr >= 0 && u.best_hr < 1 + 1e-9);
            CHECK(u.best_ndcg <= u.best_hr + 1e-12);
            expected += u.best_hr;
            variance += u.best_hr * (1 - u.best_hr);
            n_right += u.is_foretold;
        }
        if (fabs(n_right - expected) > 4 * sqrt(variance) + 1e-6)
            FAIL_TEST("world %d: right %d times, expected %.1f +- %.1f", k, n_right, expected,
                      sqrt(variance));
        synth_user_fini(&u);
        synth_world_destroy(w);
    }
}

/* Popularity, counted from the file. */
static double popularity_hr10(const seq_file *s, const uint64_t *count) {
    uint64_t n_hits = 0;
    for (uint64_t u = 0; u < s->n_users; u++) {
        uint32_t target = s->item[s->offsets[u + 1] - 1];
        int n_better = 0;
        for (uint32_t i = 1; i <= s->n_items; i++)
            n_better += count[i] > count[target] || (count[i] == count[target] && i < target);
        for (uint64_t k = s->offsets[u]; k + 1 < s->offsets[u + 1]; k++) {
            uint32_t i = s->item[k];
            n_better -= count[i] > count[target] || (count[i] == count[target] && i < target);
        }
        n_hits += n_better < 10;
    }
    return (double)n_hits / (double)s->n_users;
}

/* First-order Markov chain: the ten items that most often came next after the last one. */
static double markov_hr10(const seq_file *s) {
    size_t width = s->n_items + 1;
    uint16_t *next = calloc(width * width, sizeof *next);
    uint8_t *seen = calloc(width, 1);
    uint64_t n_hits = 0;
    for (uint64_t u = 0; u < s->n_users; u++)
        for (uint64_t k = s->offsets[u]; k + 2 < s->offsets[u + 1]; k++)
            next[s->item[k] * width + s->item[k + 1]]++;
    for (uint64_t u = 0; u < s->n_users; u++) {
        uint64_t begin = s->offsets[u], end = s->offsets[u + 1] - 1;
        const uint16_t *row = next + s->item[end - 1] * width;
        memset(seen, 0, width);
        for (uint64_t k = begin; k < end; k++)
            seen[s->item[k]] = 1;
        int n_better = 0;
        for (uint32_t i = 1; i < width; i++)
            n_better += !seen[i] && row[i] >= row[s->item[end]] && i != s->item[end];
        n_hits += n_better < 10;
    }
    free(next);
    free(seen);
    return (double)n_hits / (double)s->n_users;
}

TEST(synth_defaults_reward_a_sequential_model) {
    synth_config c = synth_config_default();
    synth_report report;
    write_data(&c, sub_folder("data"), 2, &report);
    CHECK(report.best_hr10 > .4 && report.best_hr10 < .6);
    CHECK(report.popularity_hr10 > .05 && report.popularity_hr10 < .1);
    CHECK(report.best_ndcg10 > .25 && report.best_ndcg10 < report.best_hr10);
    seq_file *s = open_data(sub_folder("data"));
    uint64_t *count = calloc(s->n_items + 1, sizeof *count);
    for (uint64_t u = 0; u < s->n_users; u++)
        for (uint64_t k = s->offsets[u]; k + 1 < s->offsets[u + 1]; k++)
            count[s->item[k]]++;
    CHECK(fabs(popularity_hr10(s, count) - report.popularity_hr10) < 1e-12);
    double markov = markov_hr10(s);
    CHECK(markov > 4 * report.popularity_hr10);
    CHECK(markov < report.best_hr10);
    free(count);
    seq_file_close(s);
}

/* Tastes drift and depend on age group and country: users of one country share more than others
 * do. */
TEST(synth_context_tells_of_the_taste) {
    synth_config c = {.n_users = 4000, .n_items = 2000, .mean_len = 12, .seed = 1};
    synth_world *w;
    synth_user u;
    CHECK_OK(synth_world_create(&w, &c));
    CHECK_OK(synth_user_init(&u, w));
    double *count = calloc((size_t)w->n_topics * SYNTH_COUNTRIES, sizeof *count), chi2 = 0;
    double topic_total[64] = {0}, country_total[SYNTH_COUNTRIES] = {0}, total = 0;
    for (uint64_t user = 0; user < c.n_users; user++) {
        synth_user_make(w, user, &u);
        uint32_t topic = w->topic_of[w->slot_of[u.item[0]]];
        count[topic * SYNTH_COUNTRIES + (uint32_t)u.profile.country]++;
        topic_total[topic]++, country_total[u.profile.country]++, total++;
    }
    for (uint32_t t = 0; t < w->n_topics; t++) {
        for (int k = 0; k < SYNTH_COUNTRIES; k++) {
            double expected = topic_total[t] * country_total[k] / total;
            double d = count[t * SYNTH_COUNTRIES + (uint32_t)k] - expected;
            if (expected > 0) chi2 += d * d / expected;
        }
    }
    CHECK(chi2 > 3 * (double)(w->n_topics - 1) * (SYNTH_COUNTRIES - 1));
    free(count);
    synth_user_fini(&u);
    synth_world_destroy(w);
}

TEST(synth_says_in_the_file_what_can_be_reached) {
    synth_config c = small_config();
    synth_report report;
    arena a;
    const json_value *root;
    double value;
    write_data(&c, sub_folder("data"), 2, &report);
    seq_file *s = open_data(sub_folder("data"));
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "meta", s->meta_json, s->meta_bytes, &root));
    const json_value *synth = json_member(json_member(root, "source"), "synth");
    CHECK(synth != NULL);
    CHECK_OK(json_member_double(synth, "best_hr10", &value));
    CHECK(value == report.best_hr10);
    CHECK_OK(json_member_double(synth, "popularity_hr10", &value));
    CHECK(value == report.popularity_hr10);
    arena_fini(&a);
    seq_file_close(s);
}

TEST(synth_refuses_impossible_sizes) {
    synth_report report;
    synth_config c = small_config();
    c.n_users = 0;
    CHECK_FAILS(synth_write(&c, sub_folder("x"), NULL, &report), ERR_USAGE, "0 users");
    c = small_config(), c.n_items = 19;
    CHECK_FAILS(synth_write(&c, sub_folder("x"), NULL, &report), ERR_USAGE, "19 items");
    c = small_config(), c.mean_len = 101;
    CHECK_FAILS(synth_write(&c, sub_folder("x"), NULL, &report), ERR_USAGE, "a quarter");
    c = small_config(), c.mean_len = NAN;
    CHECK_FAILS(synth_write(&c, sub_folder("x"), NULL, &report), ERR_USAGE, "a quarter");
    CHECK(!folder_exists(sub_folder("x")));
    c = small_config();
    CHECK_FAILS(synth_write(&c, "/proc/nowhere", NULL, &report), ERR_IO, "/proc/nowhere");
}

/* The smallest world there is. */
TEST(synth_makes_a_tiny_world) {
    synth_config c = {.n_users = 1, .n_items = 20, .mean_len = 3, .seed = 0};
    synth_report report;
    CHECK_OK(synth_write(&c, sub_folder("tiny"), NULL, &report));
    seq_file *s = open_data(sub_folder("tiny"));
    CHECK_EQ(s->n_users, 1);
    CHECK_EQ(s->n_items, 20);
    seq_file_close(s);
}

static status make_tiny(void *ctx) {
    synth_config c = {.n_users = 3, .n_items = 50, .mean_len = 5, .seed = 0};
    synth_report report;
    return synth_write(&c, ctx, NULL, &report);
}

TEST(synth_survives_every_failed_allocation) {
    CHECK(oom_at_each_allocation(make_tiny, (void *)sub_folder("tiny")) > 20);
    seq_file_close(open_data(sub_folder("tiny")));
}
