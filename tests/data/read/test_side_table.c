#include "base/log.h"
#include "data/read/sources.h"
#include "data/set/seq_file.h"
#include "oom.h"
#include "prep_test.h"

#define EVENTS "user_id,item_id,ts\n1,10,100\n2,11,101\n1,12,102\n"

static seq_file *open_data(void) {
    char path[4096];
    seq_file *s;
    snprintf(path, sizeof path, "%s/out", test_folder());
    CHECK_OK(seq_file_open(&s, path, NULL));
    return s;
}

/* The data that events and these options make; what was said. */
static seq_file *read_tables(const char *options, char **said) {
    char args[1024];
    put_file("in.csv", EVENTS);
    snprintf(args, sizeof args, "csv --input in.csv --out out %s", options);
    *said = prep_ok(args);
    return open_data();
}

static void check_title(const seq_file *s, const char *item, const char *title) {
    buf text = {0};
    CHECK_OK(seq_item_title(s, seq_find_item(s, item), &text));
    CHECK_STR(buf_str(&text), title);
    buf_fini(&text);
}

/* The value of a feature, by the names of both. */
static void check_feature(const seq_file *s, const char *user, const char *name,
                          const char *value) {
    for (int i = 0; i < s->n_context; i++) {
        const context_feature *f = &s->context[i];
        if (strcmp(f->name, name) != 0) continue;
        uint32_t v = f->value[seq_find_user(s, user)];
        size_t n = (size_t)(f->values.offsets[v + 1] - f->values.offsets[v]);
        CHECK_EQ(n, strlen(value));
        CHECK(memcmp(f->values.bytes + f->values.offsets[v], value, n) == 0);
        return;
    }
    FAIL_TEST("there is no feature %s", name);
}

TEST(titles_from_csv) {
    char *said;
    put_file("items.csv", "genre;id;title\r\ncomedy;10;\"Toy \"\"Story\"\"\nII\"\r\n"
                          "x;11;Jumanji\n;99;Unseen\n");
    seq_file *s = read_tables("--items items.csv", &said);
    CHECK_EQ(s->n_items, 4);
    check_title(s, "10", "Toy \"Story\"\nII");
    check_title(s, "11", "Jumanji");
    check_title(s, "12", "12");
    check_title(s, "99", "Unseen");
    seq_file_close(s);
    CHECK_CONTAINS(said, "items.csv: items id and their titles\n"
                         "note: models know items by their id: genre of items.csv are not used\n");
    CHECK_CONTAINS(said, "  Described              2   items by items.csv\n");
    /* Other columns, by name; and a filter also filters the catalogue. */
    s = read_tables("--items items.csv --items-id id --items-title genre --min-item-events 1",
                    &said);
    CHECK_EQ(s->n_items, 3);
    check_title(s, "10", "comedy");
    seq_file_close(s);
}

TEST(titles_and_features_from_json_lines) {
    char *said;
    put_file("items.jsonl", "{\"item_id\":10,\"title\":\"A\",\"price\":5,\"tags\":[1]}\n\n"
                            "{\"title\":null,\"item_id\":\"11\"}\n{\"item_id\":12}\n");
    put_file("users.ndjson", "{\"user_id\":1,\"country\":\"DE\",\"age group\":25}\n"
                             "{\"user_id\":2,\"country\":null,\"age group\":18}\n"
                             "{\"user_id\":7,\"country\":\"FR\",\"age group\":18}\n");
    seq_file *s = read_tables("--items items.jsonl --users users.ndjson", &said);
    check_title(s, "10", "A");
    check_title(s, "11", "11");
    CHECK_EQ(s->n_context, 2);
    check_feature(s, "1", "country", "DE");
    check_feature(s, "2", "country", "");
    check_feature(s, "1", "age_group", "25");
    check_feature(s, "2", "age_group", "18");
    seq_file_close(s);
    CHECK_CONTAINS(said, "users.ndjson: users user_id, contextual features country, age group\n");
    CHECK_CONTAINS(said, "  Described              2   users by users.ndjson\n");
}

TEST(features_by_name) {
    char *said;
    put_file("users.csv", "uid,name,sex,age\n1,ann,F,\n2,bob,M,30\n");
    seq_file *s = read_tables("--users users.csv --user-features age,sex", &said);
    CHECK_EQ(s->n_context, 2);
    check_feature(s, "1", "sex", "F");
    check_feature(s, "1", "age", "");
    check_feature(s, "2", "age", "30");
    seq_file_close(s);
}

static void check_bad(const char *options, int code, const char *reason) {
    char args[1024];
    put_file("in.csv", EVENTS);
    snprintf(args, sizeof args, "csv --input in.csv --out out %s", options);
    prep_fails(args, code, reason);
}

TEST(side_files_that_do_not_fit) {
    char *said;
    put_file("users.csv", "uid,sex\n1,F\nx,M\n");
    check_bad("--users users.csv", 1, "users.csv:3: 'x' is not a whole number");
    put_file("users.csv", "uid,sex\n1,F\n02,M\n");
    check_bad("--users users.csv", 1, "users.csv:3: '02' is not a whole number as one is written");
    put_file("users.csv", "uid,sex\n1,F\n,M\n");
    check_bad("--users users.csv", 1, "users.csv:3: the id of the user is empty");
    put_file("users.csv", "uid,sex\n1,\"F\n\"\n2\n");
    check_bad("--users users.csv", 1, "users.csv:4: the line has 1 fields, but 2 are needed");
    put_file("users.csv", "sex,uid,age\nF,1,25\nM,2\n");
    check_bad("--users users.csv", 1, "users.csv:3: the line has 2 fields, but 3 are needed");
    check_bad("--users users.csv --user-features age", 1,
              "the line has 2 fields, but 3 are needed");
    put_file("users.csv", "who,sex\n1,F\n");
    check_bad("--users users.csv", 1,
              "users.csv: there is no column of ids; the columns are who, sex; choose with "
              "--users-id");
    check_bad("--users users.csv --users-id me", 1, "users.csv: there is no such column");
    check_bad("--users users.csv --users-id who --user-features who", 2, "is given two roles");
    check_bad("--users users.csv --users-id who --user-features a,b", 1,
              "choose with --user-features");
    put_file("users.csv", "uid\n1\n");
    check_bad("--users users.csv", 1, "users.csv has no column of features besides the id");
    put_file("empty.csv", "");
    check_bad("--items empty.csv", 1, "empty.csv: the file has no header");
    put_file("bad.jsonl", "[1]\n");
    check_bad("--items bad.jsonl", 1, "bad.jsonl: the first lines are not objects");
    put_file("bad.jsonl", "{\"item_id\":1,\"title\":[1]}\n{\"item_id\":1,\"title\":\"x\"}\n");
    check_bad("--items bad.jsonl", 1, "bad.jsonl:1: title is an object or an array");
    check_bad("--items nowhere.csv", 1, "nowhere.csv cannot be opened");
    check_bad("--items-id x", 2, "--items-id and --items-title need --items");
    check_bad("--user-features x", 2, "--users-id and --user-features need --users");
    prep_fails("ml-1m --input in.csv --out out --items x", 2, "--items is for tables");
    put_file("users.csv", "uid,sex\n8,F\n9,M\n");
    seq_file_close(read_tables("--users users.csv", &said));
    CHECK_CONTAINS(said, "warning: no user of users.csv is among the events; is --users-id the "
                         "right column?");
}

typedef struct read_job {
    char events[4096], items[4096], users[4096], folder[4096];
    pool *p;
} read_job;

static status read_and_write(void *ctx) {
    read_job *job = ctx;
    const source_request request = {.items = job->items, .users = job->users};
    const char *inputs[] = {job->events};
    const source *csv;
    source_result r;
    builder_stats stats;
    TRY(source_find("csv", &csv));
    TRY(source_read(csv, &request, inputs, 1, job->p, &r));
    status st = builder_write(r.build, job->folder, "{}", &stats);
    if (st == OK) CHECK_EQ(stats.n_described_users, 1);
    if (st == OK) CHECK_EQ(stats.n_described_items, 1);
    source_result_fini(&r);
    return st;
}

TEST(memory_that_runs_out_anywhere_is_reported) {
    read_job job;
    put_file("in.csv", EVENTS);
    put_file("items.csv", "id,title\n10,A\n99,B\n");
    put_file("users.jsonl", "{\"uid\":1,\"sex\":\"F\"}\n{\"uid\":5,\"sex\":\"M\"}\n");
    snprintf(job.events, sizeof job.events, "%s/in.csv", test_folder());
    snprintf(job.items, sizeof job.items, "%s/items.csv", test_folder());
    snprintf(job.users, sizeof job.users, "%s/users.jsonl", test_folder());
    snprintf(job.folder, sizeof job.folder, "%s/out", test_folder());
    CHECK_OK(pool_create(&job.p, 1));
    log_set_level(LOG_QUIET);
    CHECK(oom_at_each_allocation(read_and_write, &job) > 20);
    pool_destroy(job.p);
}
