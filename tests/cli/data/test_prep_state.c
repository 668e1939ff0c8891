/* The night: what a server has acknowledged, exported and made data again. */
#include "base/mem.h"
#include "serve/engine/engine.h"
#include "serve/state/state.h"
#include "serve_process.h"

static void need_state(void) {
    if (state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
}

static seq_file *open_data(const char *name) {
    seq_file *s;
    CHECK_OK(seq_file_open(&s, run_path(name), NULL));
    return s;
}

/* Events of a user; -1: there is no such user. */
static int n_events(const seq_file *s, const char *user) {
    uint64_t u = seq_find_user(s, user);
    return u == UINT64_MAX ? -1 : (int)seq_length(s, u);
}

static void check_same(const char *a, const char *b) {
    char line[600];
    snprintf(line, sizeof line, "cmp %s %s", a, b);
    free(shell(0, line));
}

static void check_text(const char *command, int code, const char *part) {
    char *text = shell(code, command);
    CHECK_CONTAINS(text, part);
    free(text);
}

/* Acknowledged over HTTP, in the middle of which the server is killed: all of it is exported, once,
 * and prepared; erased users stay erased, also in the data; a second time changes nothing. */
TEST(the_night_loses_nothing_and_counts_once) {
    served s;
    char body[512];
    need_state();
    serve_start(&s, "run --state st", "out");
    seq_file *data = open_data("data");
    /* An event that the data has is a duplicate, and not of the state. */
    uint64_t row = data->offsets[4] + 1;
    snprintf(body, sizeof body,
             "{\"user\":%lld,\"events\":[{\"item\":%lld,\"time\":%lld,\"action\":%d}]}",
             (long long)data->user_id[4], (long long)data->item_id[data->item[row]],
             (long long)(data->time[row] / data->time_per_second), data->action[row]);
    ask(&s, "POST", "/v1/events", body, 200, "\"duplicates\":1");
    ask(&s, "POST", "/v1/events",
        "{\"users\":[{\"user\":5,\"events\":[{\"item\":7,\"time\":1900000000},{\"item\":7,\"time\":"
        "1900000000},"
        "{\"item\":61,\"time\":1900000005,\"action\":3}]},{\"user\":900,\"events\":[{\"item\":7,"
        "\"time\":-5}]},"
        "{\"user\":901,\"events\":[{\"item\":8}]}]}",
        200, "\"added\":3");
    ask(&s, "DELETE", "/v1/users/6", "", 200, "erased");
    ask(&s, "DELETE", "/v1/users/901", "", 200, "erased");
    ask(&s, "DELETE", "/v1/users/9", "", 200, "erased");
    ask(&s, "POST", "/v1/events", "{\"user\":9,\"events\":[{\"item\":3,\"time\":1900000009}]}", 200,
        "\"events\":1}"); /* who came back: nothing of the data counts */
    free(shell(0, "./hstu export st --what events --out running.csv"));
    CHECK_EQ(kill(s.pid, SIGKILL), 0);
    CHECK(waitpid(s.pid, NULL, 0) == s.pid);
    check_text(
        "./hstu export st --what events", 0,
        "user_id,item_id,timestamp,action\n5,7,1900000000,\n5,7,1900000000,\n5,61,1900000005,3\n"
        "900,7,-5,\n9,3,1900000009,\n");
    free(shell(0, "./hstu export st --what events --out - >killed.csv"));
    check_same("running.csv", "killed.csv");
    free(shell(
        0, "./hstu export st --what events --format jsonl --out e.jsonl && ./hstu prep "
           "--from-state st --out alone "
           "--emit-csv alone.csv && ./hstu prep csv --input killed.csv --time-unit s --out c "
           "--emit-csv c.csv && ./hstu prep jsonl --input e.jsonl --time-unit s --out j --emit-csv "
           "j.csv"));
    check_same("alone.csv", "c.csv");
    check_same("alone.csv", "j.csv");
    free(shell(0, "for i in 1 2; do ./hstu prep --from-state st --with data --out new$i; done; "
                  "./hstu prep --from-state st --with new1 --out new3"));
    check_same("new1/data.seq", "new2/data.seq");
    check_same("new1/data.seq", "new3/data.seq");
    seq_file *fresh = open_data("new1");
    CHECK_EQ(fresh->n_users, data->n_users - 1 + 1); /* without 6, with 900 */
    CHECK_EQ(fresh->n_items, data->n_items + 1);
    CHECK_EQ(n_events(fresh, "5"), n_events(data, "5") + 3);
    CHECK_EQ(n_events(fresh, "4"), n_events(data, "4"));
    CHECK(n_events(fresh, "6") == -1 && n_events(fresh, "901") == -1);
    CHECK(n_events(fresh, "900") == 1 && n_events(fresh, "9") == 1);
    CHECK_EQ(fresh->n_events,
             data->n_events + 5 - (uint64_t)n_events(data, "6") - (uint64_t)n_events(data, "9"));
    CHECK(fresh->time_per_second == data->time_per_second && fresh->actions == data->actions);
    for (uint32_t i = 1; i <= data->n_items; i++) {
        buf a = {0}, b = {0};
        CHECK(fresh->item_id[i] == data->item_id[i]);
        CHECK_OK(seq_item_title(data, i, &a));
        CHECK_OK(seq_item_title(fresh, i, &b));
        CHECK_STR(buf_str(&a), buf_str(&b));
        buf_fini(&a);
        buf_fini(&b);
    }
    seq_file_close(fresh);
    /* A server on the new data has every event once. */
    snprintf(body, sizeof body, "\"total\":%d,", n_events(data, "5") + 3);
    seq_file_close(data);
    serve_start(&s, "run --state st --data new1", "out");
    ask(&s, "GET", "/v1/users/5", "", 200, body);
    ask(&s, "GET", "/v1/users/9", "", 200, "\"total\":1,");
    ask(&s, "GET", "/v1/users/6", "", 404, "no user");
    CHECK_EQ(kill(s.pid, SIGTERM), 0);
    CHECK_EQ(serve_end(&s), 0);
}

/* Ids as hostile as they can be come back as they were, through both formats. */
TEST(exported_ids_are_read_back) {
    served s;
    need_state();
    free(shell(0, "true"));
    serve_start(&s, "run --state st", "out");
    ask(&s, "POST", "/v1/events",
        "{\"users\":[{\"user\":\"a,b\",\"events\":[{\"item\":\"x \\\"y\\\"\",\"time\":100.25},"
        "{\"item\":\"two\\nlines\",\"time\":1900000000},{\"item\":\"07\",\"time\":1900000001}]},"
        "{\"user\":\" 7 \",\"events\":[{\"item\":7,\"time\":1900000002,\"action\":4}]},"
        "{\"user\":7,\"events\":[{\"item\":\"=1;2\\t|\",\"time\":1900000003}]}]}",
        200, "\"added\":3");
    CHECK_EQ(kill(s.pid, SIGTERM), 0);
    CHECK_EQ(serve_end(&s), 0);
    char *text = shell(0, "HSTU_LOG=info ./hstu export st --what events --out e.csv");
    CHECK_CONTAINS(text,
                   "5 events of 3 users; to read them: hstu prep csv --input FILE --time-unit s "
                   "--string-ids --out DIR");
    free(text);
    free(shell(
        0,
        "./hstu export st --what events --format jsonl --out e; ./hstu prep --from-state st --out "
        "alone "
        "--emit-csv alone.csv && ./hstu prep csv --input e.csv --time-unit s --string-ids --out c "
        "--emit-csv c.csv && ./hstu prep jsonl --input e --time-unit s --string-ids --out j "
        "--emit-csv "
        "j.csv"));
    check_same("alone.csv", "c.csv");
    check_same("alone.csv", "j.csv");
    /* Ids of the data are numbers: strings are not made of them in silence. */
    check_text(
        "./hstu prep --from-state st --with data --out new", 0,
        "warning: 5 events of st are left out, as their ids are strings and those of the data "
        "are numbers; --string-ids");
    seq_file *data = open_data("data"), *fresh = open_data("new");
    CHECK_EQ(fresh->n_events, data->n_events);
    seq_file_close(fresh);
    free(shell(0, "./hstu prep --from-state st --with data --out new --string-ids"));
    fresh = open_data("new");
    CHECK(fresh->n_events == data->n_events + 5 && fresh->has_text_items && fresh->has_text_users);
    CHECK(fresh->actions == ACTION_STARS);
    CHECK(n_events(fresh, "a,b") == 3 && n_events(fresh, "7") == n_events(data, "7") + 1);
    seq_file_close(fresh);
    seq_file_close(data);
}

/* Without data times keep their fractions, before 1970 too; the ticks are as fine as they need. */
TEST(times_of_a_state_keep_their_fractions) {
    engine *e;
    engine_added added;
    engine_config c = {.device = "cpu", .state = run_path("st")};
    engine_event events[] = {
        {.item = {.number = 3}, .has_time = true, .time = -1, .time_ns = 250000000},
        {.item = {.number = 4}, .has_time = true, .time = -2, .time_ns = 250000000},
        {.item = {.number = 5}, .has_time = true, .time = 1900000000, .time_ns = 1000}};
    need_state();
    CHECK_OK(engine_create(&e, &c));
    CHECK_OK(engine_add_events(e, (engine_id){.number = 7}, events, 3, &added));
    check_text(
        "./hstu export st --what events", 0, /* while it is open */
        "timestamp,action\n7,3,-0.750000000,0\n7,4,-1.750000000,0\n7,5,1900000000.000001000,0\n");
    engine_destroy(e);
    free(shell(
        0, "./hstu export st --what events --out e.csv && ./hstu prep --from-state st --out alone "
           "--emit-csv alone.csv && ./hstu prep csv --input e.csv --time-unit s --out c --emit-csv "
           "c.csv"));
    check_same("alone.csv", "c.csv");
    seq_file *s = open_data("alone");
    CHECK(s->time_per_second == 1000000 && s->time[0] == -1750000 && !s->has_text_items);
    seq_file_close(s);
}

/* Features of users stay; of the feature user_id new users have values, too. */
TEST(prep_from_a_state_keeps_features) {
    served s;
    need_state();
    free(shell(0, "true"));
    write_text("seqs.csv", "user_id,movie_id,rating,unix_timestamp,city\n"
                           "1,\"[3, 4]\",\"[3, 4]\",\"[100, 200]\",Rome\n"
                           "2,\"[4]\",\"[0]\",\"[150]\",Oslo\n3,\"[5]\",\"[1]\",\"[160]\",\n");
    free(shell(0, "./hstu prep processed-seqs --input seqs.csv --out seqs"));
    serve_start(&s, "run --state st --data seqs", "out");
    ask(&s, "POST", "/v1/events", "{\"user\":77,\"events\":[{\"item\":4,\"action\":2}]}", 200,
        "\"added\":1");
    ask(&s, "DELETE", "/v1/users/2", "", 200, "erased");
    CHECK_EQ(kill(s.pid, SIGTERM), 0);
    CHECK_EQ(serve_end(&s), 0);
    free(shell(0, "./hstu prep --from-state st --with seqs --out new --emit-csv new.csv"));
    check_text("head -1 new.csv", 0, "user_id,item_id,rating,unix_timestamp\n");
    seq_file *data = open_data("seqs"), *fresh = open_data("new");
    CHECK(data->n_context == 2 && fresh->n_context == 2 && fresh->actions == data->actions);
    CHECK_STR(fresh->context[0].name, "user_id");
    CHECK_STR(fresh->context[1].name, "city");
    CHECK(fresh->n_users == 3 && fresh->n_items == data->n_items);
    for (uint32_t u = 0; u < 3; u++)
        CHECK_EQ(fresh->context[0].value[u], u + 1);
    CHECK(fresh->context[1].value[0] == 1 && fresh->context[1].value[1] == 0 &&
          fresh->context[1].value[2] == 0);
    CHECK_EQ(fresh->context[1].values.n, 2); /* Oslo went with who lived there */
    seq_file_close(fresh);
    seq_file_close(data);
}

/* Features and vectors of items stay, to the bit; a new item has none. */
TEST(prep_from_a_state_keeps_content) {
    static const float vectors[3][2] = {{1, .1F}, {0, 0}, {-3, 1e-30F}};
    char head[128];
    engine *e;
    engine_added added;
    engine_event event = {.item = {.number = 9}, .has_time = true, .action = ACTION_UNKNOWN};
    need_state();
    free(shell(0, "true"));
    write_text("e.csv", "user_id,item_id,timestamp\n1,5,100\n1,6,200\n2,7,300\n");
    write_text("i.csv", "item_id,title,genre,year\n5,Five,a b|c,1999.1\n6,Six,c,\n7,Seven,,2001\n");
    int n = snprintf(head, sizeof head,
                     "%cNUMPY%c%cv%c{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2)}",
                     0x93, 1, 0, 0);
    memset(head + n, ' ', sizeof head - (size_t)n);
    head[127] = '\n';
    FILE *f = fopen(run_path("v.npy"), "wb");
    CHECK(fwrite(head, 1, 128, f) == 128 &&
          fwrite(vectors, 1, sizeof vectors, f) == sizeof vectors);
    CHECK_EQ(fclose(f), 0);
    free(shell(0,
               "./hstu prep csv --input e.csv --items i.csv --item-features genre:list,year:number "
               "--item-vectors v.npy --out d"));
    CHECK_OK(engine_create(&e, &(engine_config){.device = "cpu", .state = run_path("st")}));
    CHECK_OK(engine_add_events(e, (engine_id){.number = 1}, &event, 1, &added));
    engine_destroy(e);
    free(shell(
        0,
        "./hstu prep --from-state st --with d --out new && ./hstu prep --from-state st --with new "
        "--out again && cmp new/data.seq again/data.seq"));
    seq_file *data = open_data("d"), *fresh = open_data("new");
    CHECK(fresh->n_items == 4 && fresh->n_events == 4 && fresh->actions == ACTION_NONE);
    CHECK(data->n_content == 2 && fresh->n_content == 2 && fresh->item_vector_dim == 2);
    CHECK_EQ(fresh->action[0], 0); /* of data without actions */
    for (int k = 0; k < 2; k++) {
        const item_content *a = &data->content[k], *b = &fresh->content[k];
        CHECK_STR(a->name, b->name);
        CHECK(a->values.n == b->values.n && a->offsets[4] == b->offsets[4] &&
              b->offsets[5] == a->offsets[4]);
        CHECK(memcmp(a->offsets, b->offsets, 5 * sizeof *a->offsets) == 0);
        CHECK(memcmp(a->value, b->value, a->offsets[4] * sizeof *a->value) == 0);
        CHECK(memcmp(a->values.bytes, b->values.bytes, a->values.offsets[a->values.n]) == 0);
        CHECK((a->number == NULL) == (b->number == NULL));
    }
    CHECK(data->content[1].number != NULL && fresh->content[1].number[1] == 1999.1);
    CHECK(memcmp(fresh->item_vector, data->item_vector, 8 * sizeof(float)) == 0);
    CHECK(fresh->item_vector[8] == 0 && fresh->item_vector[2] == 1);
    seq_file_close(fresh);
    seq_file_close(data);
}

static void check_content(const seq_file *s, const char *item, const char *feature,
                          const char *want) {
    char text[100] = "";
    for (int f = 0; f < s->n_content; f++) {
        const item_content *c = &s->content[f];
        uint32_t i = seq_find_item(s, item);
        for (uint64_t k = c->offsets[i]; k < c->offsets[i + 1] && strcmp(c->name, feature) == 0;
             k++)
            escape_list_add(text, sizeof text, c->values.bytes + c->values.offsets[c->value[k]],
                            c->values.offsets[c->value[k] + 1] - c->values.offsets[c->value[k]]);
    }
    CHECK_STR(text, want);
}

/* Side files count before what the data say; what they leave out stays. */
TEST(prep_from_a_state_takes_side_files) {
    engine *e;
    engine_added added;
    engine_event event = {.item = {.number = 9}, .has_time = true, .action = ACTION_UNKNOWN};
    need_state();
    free(shell(0, "true"));
    write_text("e.csv", "user_id,item_id,timestamp\n1,5,100\n1,6,200\n2,7,300\n3,7,300\n");
    write_text("i.csv",
               "item_id,title,tags,year\n5,Five,a|b,1999\n6,Six,c|d,2000\n7,Seven,a,2001\n");
    write_text("u.csv", "user_id,city,plan\n1,Rome,x\n2,Oslo,y\n");
    write_text("i2.csv", "item_id,title,tags,size\n9,Nine,e,big\n5,New five,b,small\n");
    write_text("u2.csv", "user_id,city\n1,Paris\n3,Bonn\n4,Nowhere\n");
    free(shell(0,
               "./hstu prep csv --input e.csv --items i.csv --item-features tags:list,year:number "
               "--users u.csv --out d"));
    CHECK_OK(engine_create(&e, &(engine_config){.device = "cpu", .state = run_path("st")}));
    CHECK_OK(engine_add_events(e, (engine_id){.number = 1}, &event, 1, &added));
    engine_destroy(e);
    free(shell(
        0,
        "./hstu prep --from-state st --with d --items i2.csv --out new && "
        "./hstu prep --from-state st --with new --out again && cmp new/data.seq "
        "again/data.seq && ./hstu prep --from-state st --items i2.csv --out alone && ./hstu prep "
        "--from-state st --with d --items i2.csv --users u2.csv --out new"));
    seq_file *s = open_data("new");
    CHECK(s->n_items == 4 && s->n_users == 3 && s->n_content == 3 && s->n_context == 2);
    check_content(s, "5", "tags", "b"); /* not a: as the new file has it */
    check_content(s, "6", "tags", "c, d");
    check_content(s, "9", "tags", "e");
    check_content(s, "5", "year", "1999"); /* which the new file does not have */
    check_content(s, "9", "year", "");
    check_content(s, "9", "size", "big");
    check_content(s, "6", "size", "");
    static const char *const titles[] = {"New five", "Six", "Seven", "Nine"};
    for (uint32_t i = 1; i <= 4; i++) {
        buf title = {0};
        CHECK_OK(seq_item_title(s, i, &title));
        CHECK_STR(buf_str(&title), titles[i - 1]);
        buf_fini(&title);
    }
    CHECK_STR(s->context[0].name, "city");
    static const char *const cities[] = {"Paris", "Oslo", "Bonn"};
    for (int i = 0; i < 3; i++) {
        const context_feature *f = &s->context[0];
        size_t from = f->values.offsets[f->value[i]];
        CHECK(strncmp(f->values.bytes + from, cities[i], strlen(cities[i])) == 0);
    }
    CHECK(s->context[1].value[0] == 1 && s->context[1].value[2] == 0);
    seq_file_close(s);
    s = open_data("alone");
    CHECK(s->n_items == 2 && s->n_content == 2);
    seq_file_close(s);
    check_text("./hstu prep --from-state st --with d --items-id x --out new", 2, "need --items");
    /* Kinds stay: a code that looks like a number is a category, one tag of many a list. */
    write_text("i3.csv", "item_id,title,tags,year,code\n9,Nine,e,1980,30\n");
    free(shell(0,
               "sed 's/$/,7/; 1s/7$/code/' i.csv > i4.csv; ./hstu prep csv --input e.csv --items "
               "i4.csv --item-features tags:list,year:number,code:category --out d; ./hstu prep "
               "--from-state st --with d --items i3.csv --out new"));
    s = open_data("new");
    CHECK(s->n_content == 3 && s->content[1].number != NULL && s->content[2].number == NULL);
    check_content(s, "9", "code", "30");
    check_content(s, "6", "tags", "c, d");
    seq_file_close(s);
    write_text("i3.csv", "item_id,title,year\n9,Nine,old\n");
    check_text("./hstu prep --from-state st --with d --items i3.csv --out new", 1,
               "year: 'old' is not a number");
}

TEST(states_are_refused_in_words) {
    need_state();
    check_text("./hstu prep --from-state nix --out new", 1, "nix: ");
    check_text("mkdir empty; ./hstu export empty --what events", 1,
               "state.db does not exist; 'hstu serve --state DIR' creates it");
    check_text("./hstu prep --from-state st --out new --time-unit s", 2, "no options but");
    check_text("./hstu prep --from-state st --out new --drop-duplicates", 2, "no options but");
    check_text("./hstu prep csv --from-state st --out new", 2, "takes no source");
    check_text("./hstu prep --with data --out new", 2, "--with needs --from-state");
    check_text("./hstu export st --what events --format npz", 2, "must be csv or jsonl for events");
    check_text("./hstu export st --what events --data data", 2,
               "--data, --layout and --checkpoint are not for events");
    check_text("./hstu export run --what items", 2, "--out is needed");
}
