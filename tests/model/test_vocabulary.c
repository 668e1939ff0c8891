#include "model/vocabulary.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/set/split.h"
#include "model/trained.h"
#include "oom.h"
#include "train_test.h"
#include "world.h"

static const char *path_in(const char *name) {
    static char path[4][512];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", test_folder(), name);
    return p;
}

static ino_t inode(const char *path) {
    struct stat s;
    CHECK(stat(path, &s) == 0);
    return s.st_ino;
}

static const world plain = {.folder = "plain", .has_context = true};
static const world grown = {.folder = "grown",
                            .has_new_item = true,
                            .has_new_user = true,
                            .has_context = true,
                            .has_new_values = true};

TEST(vocabulary_file_has_ids_titles_values_and_actions) {
    static const world texts = {
        .folder = "texts", .has_text = true, .prefix = "sku-", .has_context = true, .ticks = 1000};
    seq_file *data = world_open(&texts), *v;
    buf name = {0};
    CHECK_FAILS(vocabulary_open(&v, test_folder(), NULL), ERR_IO, "vocabulary.seq");
    CHECK_OK(vocabulary_save(path_in("vocabulary.seq"), NULL, data, 5, NULL));
    CHECK_OK(vocabulary_open(&v, test_folder(), NULL));
    CHECK(v->n_users == 0 && v->n_events == 0 && v->n_items == WORLD_ITEMS);
    CHECK(v->has_text_items && v->actions == ACTION_STARS && v->n_actions == 5);
    CHECK_EQ(v->time_per_second, 1000);
    CHECK_OK(seq_item_name(v, 7, &name));
    CHECK_STR(buf_str(&name), "sku-1070");
    CHECK_OK(seq_item_title(v, 7, &name));
    CHECK_STR(buf_str(&name), "title of 7");
    CHECK_EQ(seq_find_item(v, "sku-1400"), 40);
    CHECK(v->n_context == 2 && strcmp(v->context[0].name, "age") == 0);
    CHECK(v->context[0].values.n == 4 && memcmp(v->context[0].values.bytes, "182535", 6) == 0);
    CHECK(vocabulary_has_same_items(v, data) && vocabulary_has_same_context(v, data) &&
          vocabulary_has_same_titles(v, data));
    seq_file_close(v);
    seq_file_close(data);
    buf_fini(&name);
    /* A data set is no vocabulary. */
    CHECK(rename(path_in("texts/data.seq"), path_in("vocabulary.seq")) == 0);
    CHECK_FAILS(vocabulary_open(&v, test_folder(), NULL), ERR_FORMAT, "a vocabulary has none");
    CHECK(v == NULL);
}

/* Only a file that holds the same is linked; a damaged one is not. */
TEST(vocabulary_is_linked_where_it_is_the_same) {
    static const world retitled = {.folder = "retitled", .title = "name", .has_context = true};
    seq_file *data = world_open(&plain), *other = world_open(&grown);
    seq_file *names = world_open(&retitled);
    const char *a = path_in("a"), *b = path_in("b");
    CHECK_OK(vocabulary_save(a, path_in("none"), data, 5, NULL));
    CHECK_OK(vocabulary_save(b, a, data, 5, NULL));
    CHECK(inode(a) == inode(b));
    CHECK(unlink(b) == 0);
    CHECK_OK(vocabulary_save(b, a, data, 6, NULL));
    CHECK(inode(a) != inode(b));
    CHECK(unlink(b) == 0);
    CHECK_OK(vocabulary_save(b, a, other, 5, NULL));
    CHECK(inode(a) != inode(b));
    CHECK(unlink(b) == 0);
    CHECK_OK(vocabulary_save(b, a, names, 5, NULL));
    CHECK(inode(a) != inode(b));
    CHECK(unlink(b) == 0);
    FILE *f = fopen(a, "r+b");
    CHECK(f != NULL && fseek(f, -3, SEEK_END) == 0 && fputc('?', f) == '?' && fclose(f) == 0);
    CHECK_OK(vocabulary_save(b, a, data, 5, NULL));
    CHECK(inode(a) != inode(b));
    seq_file_close(data);
    seq_file_close(other);
    seq_file_close(names);
}

/* Every byte is under a checksum. */
TEST(vocabulary_finds_flipped_bytes) {
    seq_file *data = world_open(&plain), *v;
    const char *path = path_in("vocabulary.seq");
    CHECK_OK(vocabulary_save(path, NULL, data, 5, NULL));
    struct stat found;
    CHECK(stat(path, &found) == 0 && found.st_size > 1000);
    for (long i = 0; i < found.st_size; i++) {
        FILE *f = fopen(path, "r+b");
        CHECK(f != NULL && fseek(f, i, SEEK_SET) == 0);
        int byte = fgetc(f);
        CHECK(fseek(f, i, SEEK_SET) == 0 && fputc(byte ^ 4, f) >= 0 && fclose(f) == 0);
        if (vocabulary_open(&v, test_folder(), NULL) == OK) FAIL_TEST("byte %ld", i);
        f = fopen(path, "r+b");
        CHECK(f != NULL && fseek(f, i, SEEK_SET) == 0 && fputc(byte, f) >= 0 && fclose(f) == 0);
    }
    CHECK_OK(vocabulary_open(&v, test_folder(), NULL));
    seq_file_close(v);
    seq_file_close(data);
}

/* The names of an item and of a user's value, in a view and in the data, are the same. */
static void check_events(const vocabulary_view *v, const seq_file *data) {
    const seq_file *s = v->data;
    buf here = {0}, there = {0};
    uint64_t row = 0, n_left = 0;
    CHECK_EQ(s->n_users, data->n_users);
    for (uint64_t u = 0; u < data->n_users; u++) {
        CHECK_EQ(s->offsets[u], row);
        CHECK_EQ(seq_whole_begin(s, u), data->offsets[u]);
        for (uint64_t i = data->offsets[u]; i < data->offsets[u + 1]; i++) {
            CHECK_OK(seq_item_name(data, data->item[i], &there));
            CHECK_EQ(seq_row(s, i), row);
            if (seq_find_item(s, buf_str(&there)) == 0) {
                n_left++;
                continue;
            }
            CHECK_OK(seq_item_name(s, s->item[row], &here));
            CHECK_STR(buf_str(&here), buf_str(&there));
            CHECK(s->action[row] == data->action[i] && s->time[row] == data->time[i]);
            row++;
        }
    }
    CHECK(row == s->n_events && row == s->offsets[s->n_users]);
    CHECK_EQ(n_left, v->losses.n_events);
    CHECK((s->gaps == NULL) == (n_left == 0));
    buf_fini(&here);
    buf_fini(&there);
}

/* The vocabulary of one world and a view of another. */
typedef struct meeting {
    seq_file *of, *data, *vocabulary;
    vocabulary_view view;
} meeting;

static void meeting_open(meeting *m, const world *of, const world *with, int32_t n_actions) {
    *m = (meeting){.of = world_open(of), .data = world_open(with)};
    CHECK_OK(vocabulary_save(path_in("vocabulary.seq"), NULL, m->of, n_actions, NULL));
    CHECK_OK(vocabulary_open(&m->vocabulary, test_folder(), NULL));
}

static void meeting_close(meeting *m) {
    vocabulary_view_fini(&m->view);
    seq_file_close(m->vocabulary);
    seq_file_close(m->data);
    seq_file_close(m->of);
}

static status look(meeting *m, bool reads_actions, bool reads_context) {
    vocabulary_view_fini(&m->view);
    return vocabulary_view_init(&m->view, m->vocabulary, m->data, reads_actions, reads_context,
                                NULL);
}

TEST(vocabulary_view_of_the_same_data_is_the_data) {
    meeting m;
    meeting_open(&m, &plain, &plain, 5);
    CHECK_OK(look(&m, true, true));
    CHECK(m.view.data == m.data);
    meeting_close(&m);
}

/* Numbers to numbers, strings to strings, and numbers to strings: matched by their text. */
TEST(vocabulary_view_numbers_by_id) {
    static const world texts = {.folder = "texts", .has_text = true};
    static const world more_texts = {.folder = "more", .has_text = true, .has_new_item = true};
    static const world few = {.folder = "few", .n_gone = 7};
    static const struct {
        const world *of, *with;
        uint64_t n_lost;
    } cases[] = {{&plain, &grown, 4},      {&grown, &plain, 0},      {&texts, &more_texts, 2},
                 {&more_texts, &texts, 0}, {&plain, &more_texts, 2}, {&texts, &grown, 4},
                 {&plain, &few, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        meeting m;
        meeting_open(&m, cases[i].of, cases[i].with, 5);
        CHECK_OK(look(&m, true, false));
        CHECK(m.view.data != m.data && m.view.data->n_items == m.of->n_items);
        check_events(&m.view, m.data);
        CHECK_EQ(m.view.losses.n_events, cases[i].n_lost);
        CHECK_EQ(m.view.losses.n_items, cases[i].n_lost > 0);
        CHECK_EQ(m.view.losses.n_bad_actions, 0);
        /* Titles are the model's. */
        CHECK(m.view.data->title.bytes == m.vocabulary->title.bytes);
        meeting_close(&m);
    }
    /* What was left out of "few" comes back as unknown. */
    meeting m;
    meeting_open(&m, &few, &plain, 5);
    CHECK_OK(look(&m, true, false));
    check_events(&m.view, m.data);
    CHECK(m.view.losses.n_items > 3 && m.view.losses.n_items <= 7);
    meeting_close(&m);
}

/* The content of item i in the numbering of a world: features by name, and the vector. */
static void check_content(const seq_file *s, int i, int content) {
    char id[16];
    snprintf(id, sizeof id, "%d", 1000 + 10 * i);
    uint32_t item = seq_find_item(s, id);
    CHECK(s->n_content == 2 && s->item_vector_dim == 2);
    const item_content *kind = &s->content[0], *year = &s->content[1];
    uint64_t k = kind->offsets[item];
    CHECK_EQ(kind->offsets[item + 1] - k, 2);
    for (int v = 0; v < 2; v++) { /* "all" and a letter, in order */
        uint64_t name = kind->values.offsets[kind->value[k + (uint64_t)v]];
        uint64_t n = kind->values.offsets[kind->value[k + (uint64_t)v] + 1] - name;
        CHECK(n == 1 ? kind->values.bytes[name] == 'a' + i % (content + 2) : n == 3);
    }
    CHECK(year->number[item] == 1900 + i * content);
    CHECK(s->item_vector[2 * item] == (float)i && s->item_vector[2 * item + 1] == (float)content);
}

/* Checkpoints carry the content of items, and a view has the model's: values and items are numbered
 * as the model knows them, whatever the data say. */
TEST(vocabulary_view_has_the_models_content) {
    static const world one = {.folder = "one", .content = 1};
    static const world two = {.folder = "two", .content = 2};
    static const world more = {.folder = "more", .content = 2, .has_new_item = true};
    static const world none = {.folder = "none"};
    static const struct {
        const world *of, *with;
        int content; /* that is seen */
    } cases[] = {{&one, &one, 1},  {&one, &two, 1},  {&one, &none, 1}, {&one, &more, 1},
                 {&more, &two, 2}, {&none, &two, 2}, {&none, &more, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        meeting m;
        meeting_open(&m, cases[i].of, cases[i].with, 5);
        CHECK_OK(look(&m, true, false));
        const seq_file *s = m.view.data;
        if (cases[i].content > 0)
            for (int k = 1; k <= WORLD_ITEMS; k++)
                check_content(s, k, cases[i].content);
        else
            CHECK(s->n_content == 0 && s->item_vector == NULL && s->item_vector_dim == 0);
        CHECK_EQ(m.view.data == m.data, cases[i].of == cases[i].with || i == 5);
        meeting_close(&m);
    }
    /* Another content is another vocabulary: no hard link. */
    seq_file *a = world_open(&one), *b = world_open(&two);
    CHECK_OK(vocabulary_save(path_in("a"), NULL, a, 5, NULL));
    CHECK_OK(vocabulary_save(path_in("b"), path_in("a"), b, 5, NULL));
    CHECK_OK(vocabulary_save(path_in("c"), path_in("b"), b, 5, NULL));
    CHECK(inode(path_in("a")) != inode(path_in("b")) && inode(path_in("b")) == inode(path_in("c")));
    seq_file_close(a);
    seq_file_close(b);
}

/* "007" and 7 are different ids. */
TEST(vocabulary_numbers_match_text_only_as_written) {
    static const char text[] = "007110203010x";
    static const uint64_t offsets[] = {0, 0, 3, 4, 8, 13};
    static const int64_t ids[] = {0, 7, 1020, 1030};
    seq_file texts = {.n_items = 4,
                      .has_text_items = true,
                      .item_text = {.offsets = offsets, .bytes = text, .n = 5}};
    seq_file numbers = {.n_items = 3, .item_id = ids};
    vocabulary_map m;
    CHECK_OK(vocabulary_map_init(&m, &numbers, &texts, NULL));
    CHECK(m.n_items == 1 && m.item[1] == 0 && m.item[2] == 0 && m.item[3] == 2 && m.item[4] == 0);
    vocabulary_map_fini(&m);
    CHECK_OK(vocabulary_map_init(&m, &texts, &numbers, NULL));
    CHECK(m.n_items == 1 && m.item[1] == 0 && m.item[2] == 3 && m.item[3] == 0);
    vocabulary_map_fini(&m);
    /* Item 0 is none, even where "0" is an id. */
    texts.n_items = 2;
    texts.item_text =
        (text_column){.offsets = (const uint64_t[]){0, 0, 1, 2}, .bytes = "07", .n = 3};
    CHECK_OK(vocabulary_map_init(&m, &texts, &numbers, NULL));
    CHECK(m.n_items == 1 && m.item[0] == 0 && m.item[1] == 2);
    vocabulary_map_fini(&m);
}

TEST(vocabulary_without_a_common_id_is_refused) {
    static const world other = {.folder = "other", .has_text = true, .prefix = "B"};
    meeting m;
    meeting_open(&m, &plain, &other, 5);
    CHECK_FAILS(look(&m, true, true), ERR_CONFIG,
                "none of its 40 items is among the 40 that the model knows. Its ids begin with "
                "'B1010', 'B1020', 'B1030'; those of the model with '1010', '1020', '1030'");
    meeting_close(&m);
}

/* Values by their names: another order, new ones, features that only one side has. */
TEST(vocabulary_view_has_the_models_values) {
    static const world bare = {.folder = "bare", .has_new_item = true};
    meeting m;
    meeting_open(&m, &plain, &grown, 5);
    CHECK_OK(look(&m, true, true));
    const seq_file *s = m.view.data;
    CHECK(s->n_context == 2 && strcmp(s->context[1].name, "sex") == 0);
    for (uint64_t u = 0; u < s->n_users; u++) {
        int64_t id = s->user_id[u];
        uint32_t age = id == 0 || id == 9 ? 0 : (uint32_t)(id % 3) + 1;
        CHECK_EQ(s->context[0].value[u], age);
        CHECK_EQ(s->context[1].value[u], id == 0 ? 0 : id % 2 + 1);
    }
    meeting_close(&m);
    meeting_open(&m, &plain, &bare, 5);
    log_set_level(LOG_QUIET);
    CHECK_OK(look(&m, true, true));
    CHECK_EQ(m.view.data->n_context, 2);
    for (uint64_t u = 0; u < m.data->n_users; u++)
        CHECK(m.view.data->context[0].value[u] == 0 && m.view.data->context[1].value[u] == 0);
    meeting_close(&m);
}

/* A ranking model reads actions: of the same kind, and codes that it knows. */
TEST(vocabulary_view_checks_actions) {
    static const world half = {.folder = "half", .has_half_stars = true};
    static const world few = {.folder = "few", .n_codes = 4};
    static const world many = {.folder = "many", .n_codes = 6};
    meeting m;
    meeting_open(&m, &plain, &half, 5);
    CHECK_FAILS(look(&m, true, true), ERR_CONFIG,
                "its actions are ratings of half stars, but the model learnt from ratings of 1 to "
                "5 stars");
    CHECK_OK(look(&m, false, false));
    CHECK(m.view.data == m.data); /* a retrieval model reads none */
    meeting_close(&m);
    meeting_open(&m, &few, &many, 4);
    CHECK_OK(look(&m, true, true));
    CHECK(m.view.losses.n_bad_actions > 0 && m.view.losses.n_items == 0);
    CHECK_EQ(m.view.data->n_actions, 4);
    for (uint64_t i = 0; i < m.view.data->n_events; i++)
        CHECK(m.view.data->action[i] < 4);
    /* An event without an action stays. */
    uint16_t *action = calloc(m.data->n_events, sizeof *action);
    uint64_t n_kept = m.view.data->n_events, n_more = 0;
    for (uint64_t i = 0; i < m.data->n_events; i++) {
        bool is_new = m.data->action[i] == 5;
        n_more += is_new;
        action[i] = is_new ? ACTION_UNKNOWN : m.data->action[i];
    }
    ((seq_file *)(uintptr_t)m.data)->action = action;
    CHECK_OK(look(&m, true, true));
    CHECK_EQ(m.view.data->n_events, n_kept + n_more);
    free(action);
    CHECK_OK(look(&m, false, true));
    CHECK(m.view.data == m.data);
    meeting_close(&m);
}

static status look_again(void *ctx) {
    meeting *m = ctx;
    status st = look(m, true, true);
    vocabulary_view_fini(&m->view);
    return st;
}

TEST(vocabulary_view_out_of_memory) {
    meeting m;
    meeting_open(&m, &plain, &grown, 5);
    log_set_level(LOG_QUIET);
    CHECK(oom_at_each_allocation(look_again, &m) > 8);
    meeting_close(&m);
}

static status save_again(void *ctx) {
    (void)unlink(path_in("again"));
    return vocabulary_save(path_in("again"), NULL, ctx, 5, NULL);
}

TEST(vocabulary_save_out_of_memory) {
    seq_file *data = world_open(&plain);
    CHECK(oom_at_each_allocation(save_again, data) > 2);
    seq_file_close(data);
}

/* The held-out event of a user is the last one of the data.  User 3's is unknown: it is lost, and
 * not replaced by the event before. */
TEST(vocabulary_gaps_do_not_move_the_split) {
    meeting m;
    meeting_open(&m, &plain, &grown, 5);
    CHECK_OK(look(&m, false, false));
    const seq_file *s = m.view.data;
    uint64_t u3 = seq_find_user(s, "3"), u4 = seq_find_user(s, "4");
    split sp = split_make(s, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    event_range r;
    CHECK(split_range(&sp, PART_TEST, u3, &r));
    CHECK(r.target_begin == r.end && r.end - r.begin == WORLD_EVENTS);
    CHECK_EQ(split_first_target(&sp, &r, 1), r.end);
    CHECK(split_range(&sp, PART_TEST, u4, &r));
    CHECK(r.end - r.target_begin == 1 && r.end - r.begin == WORLD_EVENTS);
    split_users users;
    CHECK_OK(split_users_init(&users, &sp, PART_TEST));
    CHECK_EQ(users.n, WORLD_USERS + 1);
    CHECK_OK(split_users_check(&users, &sp, PART_TEST, 1));
    CHECK(users.n == WORLD_USERS && users.n_lost == 1 && users.n_lost_targets == 1);
    for (uint64_t i = 0; i < users.n; i++)
        CHECK(users.user[i] != u3);
    split_users_fini(&users);
    /* With two candidates a user loses one of them. */
    sp = split_make(s, split_rule_of(SPLIT_BY_USER), 0);
    for (int part = PART_TRAIN; part <= PART_TEST; part += PART_TEST) {
        if (!split_range(&sp, (split_part)part, u3, &r)) continue;
        CHECK_EQ(split_first_target(&sp, &r, 2), r.end - 1);
    }
    meeting_close(&m);
}

/* A model that knows few items: users are lost with their target, or too short without history. */
TEST(vocabulary_users_without_history_are_counted) {
    static const world few = {.folder = "few", .n_gone = 34};
    meeting m;
    split_users users;
    uint64_t n_lost = 0, n_short = 0;
    meeting_open(&m, &few, &plain, 5);
    log_set_level(LOG_QUIET);
    CHECK_OK(look(&m, false, false));
    for (int u = 1; u <= WORLD_USERS; u++) {
        int n_known = 0;
        for (int e = 0; e < WORLD_EVENTS - 1; e++)
            n_known += world_item(u, e) > few.n_gone;
        bool is_lost = world_item(u, WORLD_EVENTS - 1) <= few.n_gone;
        n_lost += is_lost;
        n_short += !is_lost && n_known == 0;
    }
    CHECK(n_lost > 10 && n_short > 0);
    split sp = split_make(m.view.data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    CHECK_OK(split_users_init(&users, &sp, PART_TEST));
    CHECK_OK(split_users_check(&users, &sp, PART_TEST, 1));
    CHECK_EQ(users.n_lost, n_lost);
    CHECK_EQ(users.n_too_short, n_short);
    CHECK_EQ(users.n, WORLD_USERS - n_lost - n_short);
    split_users_fini(&users);
    meeting_close(&m);
}
