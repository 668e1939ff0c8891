#include "base/log.h"
#include "data/read/sources.h"
#include "data/set/seq_file.h"
#include "oom.h"
#include "parquet_make.h"
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
    CHECK_CONTAINS(said, "items.csv: items id and their titles, item features genre\n");
    CHECK_CONTAINS(said, "  Described              2   items with events by items.csv\n");
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
    CHECK_STR(content_of(s, "10", "price"), "5");
    CHECK_STR(content_of(s, "10", "tags"), "1");
    CHECK_STR(content_of(s, "11", "tags"), "");
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

/* The id's column is called as among the events; a value for each user is told. */
TEST(users_by_the_name_of_the_events) {
    char *said;
    buf text = {0};
    put_file("in.csv", "Kunde,item,ts\n1,5,100\n2,6,200\n");
    CHECK_OK(buf_printf(&text, "Kunde,sex,born\n"));
    for (int i = 1; i <= 120; i++)
        CHECK_OK(buf_printf(&text, "%d,%s,%d\n", i, i % 2 ? "F" : "M", 1000 + i));
    put_file("users.csv", buf_str(&text));
    said = prep_ok("csv --input in.csv --user-col Kunde --users users.csv --out out");
    CHECK_CONTAINS(said, "users.csv: users Kunde, contextual features sex, born");
    CHECK_CONTAINS(said, "note: born has 120 values for 120 users, too many to learn from");
    CHECK(strstr(said, "note: sex") == NULL);
    buf_fini(&text);
}

static void check_bad(const char *options, int code, const char *reason) {
    char args[1024], *said;
    put_file("in.csv", EVENTS);
    run_shell(&said, "rm -rf out");
    snprintf(args, sizeof args, "csv --input in.csv --out out %s", options);
    prep_fails(args, code, reason);
}

/* Writes FOLDER/items.parquet: ids as floats (as pandas writes integers beside nulls), titles, of
 * which one is null, prices, lists of tags and an embedding. */
static void write_items(const char *third_title) {
    enum { N = 3 };
    made_column c[] = {
        {.name = "id", .type = PARQUET_DOUBLE, .converted = -1},
        {.name = "title", .type = PARQUET_BYTE_ARRAY, .converted = 0, .repetition = MADE_OPTIONAL},
        {.name = "price", .type = PARQUET_FLOAT, .converted = -1},
        {.name = "tags", .type = PARQUET_BYTE_ARRAY, .converted = 0, .is_list = true},
        {.name = "embedding", .type = PARQUET_FLOAT, .converted = -1, .is_list = true},
        {.name = "__index_level_0__", .type = PARQUET_INT64, .converted = -1}};
    static const double ids[] = {10, 11, 99};
    static const float prices[] = {2.5f, 0.1f, 7};
    buf b = {0}, levels = {0}, file;
    char path[4096];
    CHECK_OK(buf_append(&b, (const char *)ids, sizeof ids));
    make_page(&c[0], &(made_page){.n_values = N}, &b);
    buf_clear(&b);
    put_le(&b, 2, 4), put_packed(&b, (uint32_t[]){1, 0, 1}, N, 1);
    put_plain_text(&b, "Tea"), put_plain_text(&b, third_title);
    make_page(&c[1], &(made_page){.n_values = N}, &b);
    buf_clear(&b);
    CHECK_OK(buf_append(&b, (const char *)prices, sizeof prices));
    make_page(&c[2], &(made_page){.n_values = N}, &b);
    for (int i = 3; i < 5; i++) { /* [x, y], null, [x] */
        buf_clear(&b);
        buf_clear(&levels);
        put_packed(&levels, (uint32_t[]){0, 1, 0, 0}, 4, 1);
        put_le(&b, levels.n_bytes, 4);
        CHECK_OK(buf_append(&b, levels.data, levels.n_bytes));
        buf_clear(&levels);
        put_packed(&levels, (uint32_t[]){3, 3, 0, 3}, 4, 2);
        put_le(&b, levels.n_bytes, 4);
        CHECK_OK(buf_append(&b, levels.data, levels.n_bytes));
        if (i == 3)
            put_plain_text(&b, "x"), put_plain_text(&b, "y"), put_plain_text(&b, "x");
        else
            CHECK_OK(buf_append(&b, (const char *)prices, sizeof prices));
        make_page(&c[i], &(made_page){.n_values = 4}, &b);
    }
    buf_clear(&b);
    put_le(&b, 0, 8), put_le(&b, 1, 8), put_le(&b, 2, 8);
    make_page(&c[5], &(made_page){.n_values = N}, &b);
    make_file(&file, c, 6, N);
    snprintf(path, sizeof path, "%s/items.parquet", test_folder());
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(file.data, 1, file.n_bytes, f) == file.n_bytes && fclose(f) == 0);
    buf_fini(&b);
    buf_fini(&levels);
    buf_fini(&file);
}

TEST(titles_and_features_from_parquet) {
    char *said;
    write_items("Milk");
    seq_file *s = read_tables("--items items.parquet", &said);
    CHECK_EQ(s->n_items, 4);
    check_title(s, "10", "Tea");
    check_title(s, "11", "11");
    check_title(s, "99", "Milk");
    CHECK_EQ(s->n_content, 2);
    CHECK_STR(content_of(s, "10", "tags"), "x, y");
    CHECK_STR(content_of(s, "11", "tags"), "");
    CHECK_STR(content_of(s, "99", "tags"), "x");
    CHECK(s->content[0].number[seq_find_item(s, "10")] == 2.5);
    CHECK(fabs(s->content[0].number[seq_find_item(s, "11")] - 0.1) < 1e-9);
    seq_file_close(s);
    CHECK_CONTAINS(said, "items.parquet: items id and their titles, item features price, tags\n");
    CHECK_CONTAINS(said, "embedding has lists of floats (vectors are for --item-vectors)");
    /* The same table as one of users: no lists; the name of the file does not count. */
    run_shell(&said, "rm -rf out && mv items.parquet users.csv");
    s = read_tables("--users users.csv --user-features price,title", &said);
    CHECK_EQ(s->n_context, 2);
    seq_file_close(s);
    CHECK_CONTAINS(said, "tags has lists and is left out");
    write_items("Mil\xff");
    check_bad("--items items.parquet", 1, "items.parquet: row 3: title: the value is not UTF-8");
    check_bad("--items items.parquet --items-id tags", 1, "tags has lists, not values");
    check_bad("--items items.parquet --items-id no", 1,
              "items.parquet: there is no column 'no'; the columns are id, title, price, tags");
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
              "users.csv: there is no column 'id'; the columns are who, sex; choose with "
              "--users-id");
    check_bad("--users users.csv --users-id ho", 1,
              "users.csv: there is no column 'ho' (did you mean 'who'?); the columns are who, sex");
    check_bad("--users users.csv --users-id who --user-features who", 2, "is given two roles");
    check_bad("--users users.csv --users-id who --user-features a,b", 1,
              "there is no column 'a'; the columns are who, sex; choose with --user-features");
    put_file("users.csv", "uid\n1\n");
    check_bad("--users users.csv", 1, "users.csv has no column of features besides the id");
    put_file("empty.csv", "");
    check_bad("--items empty.csv", 1, "empty.csv: the file has no header");
    put_file("bad.jsonl", "[1]\n");
    check_bad("--items bad.jsonl", 1, "bad.jsonl: the first lines are not objects");
    put_file("bad.jsonl", "{\"item_id\":1,\"title\":[1]}\n{\"item_id\":1,\"title\":\"x\"}\n");
    check_bad("--items bad.jsonl", 1, "bad.jsonl:1: title is an object or an array");
    check_bad("--items nowhere.csv", 1, "nowhere.csv cannot be opened");
    check_bad("--items-id x", 2, "--items-id, --items-title and --item-features need --items");
    check_bad("--item-features x", 2, "--item-features need --items");
    check_bad("--item-vector-ids x", 2, "--item-vector-ids needs --item-vectors");
    check_bad("--user-features x", 2, "--users-id and --user-features need --users");
    prep_fails("ml-1m --input in.csv --out out --items x", 2, "--items is for tables");
    put_file("users.csv", "uid,sex\n8,F\n9,M\n");
    seq_file_close(read_tables("--users users.csv", &said));
    CHECK_CONTAINS(said, "warning: no user of users.csv is among the events; is --users-id the "
                         "right column?");
}

static double number_of(const seq_file *s, const char *item, int feature) {
    return s->content[feature].number[seq_find_item(s, item)];
}

TEST(content_kinds_are_found) {
    char *said;
    put_file("items.csv", "id,genre,year,brand,store_id,py,when\n"
                          "10,Drama|Crime|Drama,1995,b,7,\"['x', \"\"y\"\"]\",1.5\n"
                          "11, Crime ,2001,a,8,[],NA\n12,,n/a,a,,[z],-2e3\n"
                          "13,Am\xe9lie|,1990,,7,\"['\xe9', b]\",\n10,War,3,c,9,[q],7\n");
    seq_file *s = read_tables("--items items.csv", &said);
    CHECK_EQ(s->n_items, 4); /* item 13 has no event, and content all the same */
    CHECK_EQ(s->n_content, 6);
    /* Several rows of an item: of lists all count, else the first. */
    CHECK_STR(content_of(s, "10", "genre"), "Crime, Drama, War");
    CHECK_STR(content_of(s, "11", "genre"), "Crime");
    CHECK_STR(content_of(s, "12", "genre"), "");
    CHECK_STR(content_of(s, "13", "genre"), "Am\xc3\xa9lie");
    CHECK_STR(content_of(s, "10", "brand"), "b");
    CHECK_STR(content_of(s, "13", "brand"), "");
    CHECK_STR(content_of(s, "10", "py"), "q, x, y");
    CHECK_STR(content_of(s, "11", "py"), "");
    CHECK_STR(content_of(s, "12", "py"), "z");
    CHECK_STR(content_of(s, "13", "py"), "b, \xc3\xa9");
    /* Numbers have buckets; those of a name that ends in "id" are categories. */
    CHECK_STR(s->content[1].name, "year");
    CHECK(number_of(s, "10", 1) == 1995 && number_of(s, "13", 1) == 1990);
    CHECK(number_of(s, "12", 1) != number_of(s, "12", 1));
    CHECK_STR(content_of(s, "10", "year"), "1995");
    CHECK_STR(content_of(s, "12", "year"), "");
    CHECK_STR(s->content[3].name, "store_id");
    CHECK(s->content[3].number == NULL && s->content[0].number == NULL);
    CHECK(number_of(s, "12", 5) == -2000 && number_of(s, "10", 5) == 1.5);
    seq_file_close(s);
    CHECK_CONTAINS(
        said, "  Feature                3   items of the catalogue have genre: list, 4 values\n");
    CHECK_CONTAINS(
        said, "  Feature                3   items of the catalogue have year: number, 3 values\n");
    CHECK(strstr(said, "is not read as numbers") == NULL);
    /* A filter renumbers items, and their content follows. */
    s = read_tables("--items items.csv --min-item-events 1", &said);
    CHECK_EQ(s->n_items, 3);
    CHECK_STR(content_of(s, "10", "genre"), "Crime, Drama, War");
    CHECK_STR(content_of(s, "12", "brand"), "a");
    CHECK_EQ(s->content[0].values.n, 4);
    seq_file_close(s);
}

TEST(content_kinds_are_given) {
    char *said;
    put_file("items.csv", "id;genre;a:b;year;text\n10;Drama, Crime;1;07;x|y\n11;Crime;2;08;x\n");
    seq_file *s = read_tables("--items items.csv --item-features "
                              "genre:list:comma,a:b,year:category,text:category",
                              &said);
    CHECK_EQ(s->n_content, 4);
    CHECK_STR(content_of(s, "10", "genre"), "Crime, Drama");
    CHECK_STR(content_of(s, "11", "a_b"), "2");
    CHECK_STR(content_of(s, "10", "year"), "07");
    CHECK_STR(content_of(s, "10", "text"), "x|y");
    CHECK(s->content[1].number != NULL && s->content[2].number == NULL);
    seq_file_close(s);
    s = read_tables("--items items.csv --item-features none", &said);
    CHECK_EQ(s->n_content, 0);
    seq_file_close(s);
    check_bad("--items items.csv --item-features genres:list", 1,
              "there is no column 'genres' (did you mean 'genre'?)");
    check_bad("--items items.csv --item-features id", 2, "is given two roles");
    check_bad("--items items.csv --item-features genre:lost", 2, "'lost' of genre is not a kind");
    check_bad("--items items.csv --item-features genre:number:x", 2, "is not a kind");
    check_bad("--items items.csv --item-features genre:number", 1,
              "items.csv:2: genre: 'Drama, Crime' is not a number");
    put_file("items.csv", "id;Größe;price\n10;groß;5,50\n11;klein;7\n12;;-1,25e1\n");
    s = read_tables("--items items.csv", &said);
    CHECK_STR(content_of(s, "10", "Größe"), "groß");
    CHECK_STR(content_of(s, "10", "price"), "5,50");
    CHECK_CONTAINS(said, "items.csv: items id, item features Größe, price\n");
    CHECK_CONTAINS(said, "note: price is not read as numbers; if its commas are decimal: "
                         "--item-features price:number:comma");
    seq_file_close(s);
    s = read_tables("--items items.csv --item-features price:number:comma", &said);
    CHECK(number_of(s, "10", 0) == 5.5 && number_of(s, "11", 0) == 7 &&
          number_of(s, "12", 0) == -12.5);
    CHECK(strstr(said, "note: price") == NULL);
    seq_file_close(s);
    check_bad("--items items.csv --item-features price:number", 1,
              "items.csv:2: price: '5,50' is not a number; for decimal commas give "
              "price:number:comma");
    put_file("items.csv", "id;price\n10;1.005,50\n11;-12.345.678,9\n12;,5\n");
    s = read_tables("--items items.csv --item-features price:number:comma", &said);
    CHECK(number_of(s, "10", 0) == 1005.5 && number_of(s, "11", 0) == -12345678.9 &&
          number_of(s, "12", 0) == .5);
    seq_file_close(s);
    static const char *const wrong[] = {"1.005", "1.05,5", "1005.005,5", ".005,5", "1.005,50.5"};
    for (int i = 0; i < 5; i++) {
        char row[64], says[64];
        snprintf(row, sizeof row, "id;price\n10;%s\n", wrong[i]);
        snprintf(says, sizeof says, "'%s' is not a", wrong[i]);
        put_file("items.csv", row);
        check_bad("--items items.csv --item-features price:number:comma", 1, says);
    }
    put_file("items.jsonl", "{\"item_id\":10,\"tags\":[\"a\\\"|\",null,7]}\n"
                            "{\"item_id\":11,\"tags\":[]}\n");
    s = read_tables("--items items.jsonl", &said);
    CHECK_STR(content_of(s, "10", "tags"), "7, a\"|");
    seq_file_close(s);
    /* What cannot be a feature is one only where it is asked for. */
    put_file("images.jsonl", "{\"item_id\":10,\"a\":[{\"u\":1}],\"b\":{\"c\":\"x\"}}\n");
    s = read_tables("--items images.jsonl", &said);
    CHECK_STR(content_of(s, "10", "a"), "?");
    CHECK_STR(content_of(s, "10", "b_c"), "x");
    CHECK_CONTAINS(said, "note: a is no feature: 0 values");
    seq_file_close(s);
    check_bad("--items images.jsonl --item-features a", 1, "a is an object or an array");
    check_bad("--items items.jsonl --item-features tags:category", 1,
              "items.jsonl:1: tags is a list; give tags:list");
}

/* Sixteen buckets with as many items each; free text is left out unless it is asked for. */
TEST(content_of_a_large_catalogue) {
    char *said;
    static char text[1 << 16];
    int n = sprintf(text, "id,price,about,code\n");
    for (int i = 0; i < 1600; i++)
        n += sprintf(text + n, "%d,%d,text %d,c%d\n", i + 10, i * i, i, i % 40);
    put_file("items.csv", text);
    seq_file *s = read_tables("--items items.csv", &said);
    CHECK_EQ(s->n_content, 2);
    const item_content *price = &s->content[0];
    uint64_t count[17] = {0};
    CHECK_EQ(price->values.n, 17);
    for (uint64_t i = 1; i <= s->n_items; i++)
        for (uint64_t k = price->offsets[i]; k < price->offsets[i + 1]; k++)
            count[price->value[k]]++;
    for (int k = 1; k <= 16; k++)
        CHECK_EQ(count[k], 100);
    CHECK_STR(content_of(s, "109", "price"), "0"); /* 99 * 99 */
    CHECK_STR(content_of(s, "110", "price"), "10000");
    CHECK_CONTAINS(said, "note: about is no feature: 1600 values, hardly any of two items");
    seq_file_close(s);
    s = read_tables("--items items.csv --item-features about", &said);
    CHECK_STR(content_of(s, "12", "about"), "text 2");
    seq_file_close(s);
}

/* Of more values than fit the rarest go, all of them that occur equally often. */
TEST(rare_values_are_left_out) {
    char *said, path[4096];
    snprintf(path, sizeof path, "%s/items.csv", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs("id,tag\n10,z|often\n11,often\n", f) >= 0);
    for (int i = 0; i < 65600; i++)
        fprintf(f, "%d,t%d\n", i + 100, i);
    CHECK(fclose(f) == 0);
    seq_file *s = read_tables("--items items.csv --item-features tag:list", &said);
    CHECK_EQ(s->content[0].values.n, 2);
    CHECK_STR(content_of(s, "10", "tag"), "often");
    CHECK_STR(content_of(s, "100", "tag"), "");
    seq_file_close(s);
    CHECK_CONTAINS(said, "note: the 65601 rarest values of tag are left out");
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
    if (st == OK) CHECK(stats.n_described_items > 0);
    source_result_fini(&r);
    return st;
}

TEST(memory_that_runs_out_anywhere_is_reported) {
    read_job job;
    put_file("in.csv", EVENTS);
    put_file("items.csv", "id,title,genre,year\n10,A,x|y,5\n99,B,[z],6\n");
    put_file("users.jsonl", "{\"uid\":1,\"sex\":\"F\"}\n{\"uid\":5,\"sex\":\"M\"}\n");
    write_items("Milk");
    snprintf(job.events, sizeof job.events, "%s/in.csv", test_folder());
    snprintf(job.items, sizeof job.items, "%s/items.csv", test_folder());
    snprintf(job.users, sizeof job.users, "%s/users.jsonl", test_folder());
    snprintf(job.folder, sizeof job.folder, "%s/out", test_folder());
    CHECK_OK(pool_create(&job.p, 1));
    log_set_level(LOG_QUIET);
    CHECK(oom_at_each_allocation(read_and_write, &job) > 20);
    snprintf(job.items, sizeof job.items, "%s/items.parquet", test_folder());
    CHECK(oom_at_each_allocation(read_and_write, &job) > 20);
    pool_destroy(job.p);
}
