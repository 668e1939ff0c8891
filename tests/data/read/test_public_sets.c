#include "base/thread.h"
#include "data/set/seq_file.h"
#include "prep_test.h"

static seq_file *open_out(void) {
    char path[4096];
    seq_file *s;
    snprintf(path, sizeof path, "%s/out", test_folder());
    CHECK_OK(seq_file_open(&s, path, NULL));
    return s;
}

static const char *title_of(const seq_file *s, const char *id) {
    static char title[256];
    buf text = {0};
    CHECK_OK(seq_item_title(s, seq_find_item(s, id), &text));
    snprintf(title, sizeof title, "%s", buf_str(&text));
    buf_fini(&text);
    return title;
}

/* The text of a user's contextual feature. */
static const char *context_of(const seq_file *s, const char *user, const char *feature) {
    static char text[256];
    uint64_t u = seq_find_user(s, user);
    for (int i = 0; i < s->n_context; i++) {
        const context_feature *f = &s->context[i];
        if (strcmp(f->name, feature) != 0) continue;
        uint32_t v = f->value[u];
        int n = (int)(f->values.offsets[v + 1] - f->values.offsets[v]);
        snprintf(text, sizeof text, "%.*s", n, f->values.bytes + f->values.offsets[v]);
        return text;
    }
    return "no such feature";
}

TEST(ml_100k_small) {
    put_file("in/u.data", "7\t20\t5\t300\n3\t10\t1\t200\n7\t10\t3\t100\n");
    put_file("in/u.item", "10|Toy Story (1995)|x||y|1|0|0|1|0|1|0|0|0|0|0|0|0|0|0|0|0|0|0\n"
                          "20|Am\xe9lie (2001)|x||y|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|1\n"
                          "30|Never Rated||||||||||||||||||||||\n");
    put_file("in/u.user", "3|24|M|technician|85711\n9|1|F|none|0\n");
    char *out = prep_ok("ml-100k --input in --out out --json --emit-csv out.csv");
    CHECK_CONTAINS(out, "\"users\":2,\"items\":2,\"catalogue\":3,\"events\":3,\"max_len\":2,"
                        "\"first_time\":100,\"last_time\":300,");
    CHECK_STR(get_file("out.csv"), "user_id,movie_id,rating,unix_timestamp\n"
                                   "3,\"[10]\",\"[0]\",\"[200]\"\n"
                                   "7,\"[10, 20]\",\"[2, 4]\",\"[100, 300]\"\n");
    seq_file *s = open_out();
    CHECK_EQ(s->actions, ACTION_STARS);
    CHECK_EQ(s->time_per_second, 1);
    CHECK_STR(title_of(s, "10"), "Toy Story (1995)");
    CHECK_STR(title_of(s, "20"), "Am\xc3\xa9lie (2001)");
    CHECK_STR(title_of(s, "30"), "Never Rated");
    CHECK_STR(content_of(s, "10", "genre"), "Animation, Comedy");
    CHECK_STR(content_of(s, "20", "genre"), "Western");
    CHECK_STR(content_of(s, "30", "genre"), "");
    CHECK_STR(content_of(s, "20", "year"), "2001");
    CHECK_STR(content_of(s, "30", "year"), "");
    CHECK_EQ(s->n_context, 4);
    CHECK_STR(context_of(s, "3", "age"), "24");
    CHECK_STR(context_of(s, "3", "sex"), "M");
    CHECK_STR(context_of(s, "3", "occupation"), "technician");
    CHECK_STR(context_of(s, "3", "zip_code"), "85711");
    /* User 7 is in no side file: kept, with nothing known. */
    CHECK_STR(context_of(s, "7", "sex"), "");
    CHECK_CONTAINS(s->meta_json, "\"name\":\"ml-100k\",\"input\":\"in\"");
    seq_file_close(s);
}

TEST(ml_1m_small) {
    put_file("in/ratings.dat", "1::1193::5::978300760\r\n1::661::3::978300760\r\n");
    put_file("in/movies.dat", "661::James: The Peach (1996)::Animation|Musical\n"
                              "1193::Cuckoo\xc3\xa9 (1975)::Drama\n");
    put_file("in/users.dat", "1::F::1::10::48067\n");
    prep_ok("ml-1m --input in --out out --emit-csv out.csv");
    /* Equal times stay in the order of the file. */
    CHECK_CONTAINS(get_file("out.csv"), "1,\"[1193, 661]\",\"[4, 2]\",\"[978300760, 978300760]\"");
    seq_file *s = open_out();
    CHECK_STR(title_of(s, "661"), "James: The Peach (1996)");
    CHECK_STR(title_of(s, "1193"), "Cuckoo\xc3\xa9 (1975)");
    CHECK_STR(content_of(s, "661", "genre"), "Animation, Musical");
    CHECK_STR(content_of(s, "1193", "genre"), "Drama");
    CHECK(s->content[1].number[seq_find_item(s, "661")] == 1996);
    CHECK_STR(context_of(s, "1", "sex"), "F");
    CHECK_STR(context_of(s, "1", "age_group"), "1");
    CHECK_STR(context_of(s, "1", "occupation"), "10");
    CHECK_STR(context_of(s, "1", "zip_code"), "48067");
    seq_file_close(s);
}

/* A contextual feature is a token; NVIDIA's preprocessing of the same data has these, in this
 * order, with the user's own id first. */
static void check_tokens(const seq_file *s, const char *user, const char *const *names,
                         const char *const *values, int n) {
    CHECK_EQ(s->n_context, n);
    for (int i = 0; i < n; i++) {
        CHECK_STR(s->context[i].name, names[i]);
        CHECK_STR(context_of(s, user, names[i]), values[i]);
    }
}

TEST(contextual_tokens_are_nvidias_in_their_order) {
    static const char *const names[] = {"user_id", "sex", "age_group", "occupation", "zip_code"};
    static const char *const second[] = {"10", "M", "56", "16", "70072"};
    static const char *const last[] = {"2000000000000", "", "", "", ""};
    put_file("in/ratings.dat", "10::1::5::1\n2::1::5::1\n2000000000000::1::4::2\n");
    put_file("in/users.dat", "2::F::1::10::48067\n10::M::56::16::70072\n11::M::25::1::1\n");
    prep_ok("ml-1m --input in --out out");
    seq_file *s = open_out();
    check_tokens(s, "10", names, second, 5);
    check_tokens(s, "2000000000000", names, last, 5); /* in no file of users */
    CHECK_EQ(s->context[0].values.n, 4);              /* users with events, and 0 */
    for (uint32_t u = 0; u < 3; u++)
        CHECK_EQ(s->context[0].value[u], u + 1);
    seq_file_close(s);
    put_file("in/ratings.csv", "userId,movieId,rating,timestamp\n7,2,3.5,1\n");
    prep_ok("ml-20m --input in --out out");
    s = open_out();
    check_tokens(s, "7", names, (const char *const[]){"7"}, 1);
    seq_file_close(s);
}

TEST(ml_20m_small) {
    put_file("in/ratings.csv", "userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n"
                               "1,29,0.5,1112484676\n\"2\",\"131262\",\"5.0\",\"7\"\n");
    put_file("in/movies.csv", "movieId,title,genres\n2,Jumanji (1995),Adventure\n"
                              "29,\"City, \"\"The\"\" (1995) \",(no genres listed)\n");
    char *out = prep_ok("ml-20m --input in --out out --json --emit-csv out.csv");
    CHECK_CONTAINS(out, "\"users\":2,\"items\":3,\"catalogue\":3,\"events\":3");
    CHECK_STR(get_file("out.csv"), "user_id,movie_id,rating,unix_timestamp\n"
                                   "1,\"[29, 2]\",\"[0, 6]\",\"[1112484676, 1112486027]\"\n"
                                   "2,\"[131262]\",\"[9]\",\"[7]\"\n");
    seq_file *s = open_out();
    CHECK_EQ(s->actions, ACTION_HALF_STARS);
    CHECK_STR(title_of(s, "29"), "City, \"The\" (1995) ");
    CHECK_STR(content_of(s, "29", "genre"), "");
    CHECK_STR(content_of(s, "29", "year"), "1995");
    CHECK_STR(content_of(s, "2", "genre"), "Adventure");
    CHECK_STR(title_of(s, "131262"), "131262");
    seq_file_close(s);
}

/* Reviews as they are published: members in this order, a rating with a decimal, other members of
 * any kind. */
#define REVIEW(user, item, rating, time)                                                           \
    "{\"reviewerID\": \"" user "\", \"asin\": \"" item "\", \"reviewerName\": \"Ann \\\"A\\\"\", " \
    "\"helpful\": [3, 4], \"reviewText\": \"So \\u00e9l\\u00e9gant, {asin}\", "                    \
    "\"overall\": " rating ", \"summary\": \"x\", \"unixReviewTime\": " time                       \
    ", \"reviewTime\": \"01 30, 2014\"}\n"

TEST(amazon_reviews) {
    static const char *const sources[][2] = {{"amzn-beauty", "reviews_Beauty_5.json"},
                                             {"amzn-sports", "reviews_Sports_and_Outdoors_5.json"},
                                             {"amzn-toys", "reviews_Toys_and_Games_5.json"}};
    char *out;
    for (int i = 0; i < 3; i++) {
        char path[128], command[256];
        snprintf(path, sizeof path, "in%d/%s", i, sources[i][1]);
        put_file(path, REVIEW("A1YJEY40YUW4SE", "7806397051", "1.0", "1391040000")
                           REVIEW("A60XNB876KYML", "7806397051", "3.0", "1397779200")
                               REVIEW("A1YJEY40YUW4SE", "B00004TMFE", "5.0", "1391039999"));
        snprintf(command, sizeof command, "%s --input in%d --out out%d --json --emit-csv out.csv",
                 sources[i][0], i, i);
        out = prep_ok(command);
        CHECK_CONTAINS(out, "\"users\":2,\"items\":2,\"catalogue\":2,\"events\":3,\"max_len\":2,"
                            "\"first_time\":1391039999,\"last_time\":1397779200,");
        CHECK_CONTAINS(get_file("out.csv"), "[4, 0]");
    }
#ifdef HSTU_HAS_ARCHIVE
    int code = run_shell(&out,
                         "cd %s && mkdir z && gzip -c in0/reviews_Beauty_5.json > "
                         "z/reviews_Beauty_5.json.gz",
                         test_folder());
    CHECK_EQ(code, 0);
    CHECK_CONTAINS(prep_ok("amzn-beauty --input z --out outz --json"), "\"events\":3");
#endif
}

TEST(amazon_reviews_that_are_none) {
    static const char *const rows[][2] = {
        {"{'reviewerID': 'A1'}\n", "reviews_Toys_and_Games_5.json:2: "},
        {"A1,B1,5.0,7\n", "reviews_Toys_and_Games_5.json:2: "},
        {REVIEW("A1", "B1", "5.5", "7"), "reviews_Toys_and_Games_5.json:2: overall"},
        {REVIEW("A1", "B1", "6.0", "7"), "reviews_Toys_and_Games_5.json:2: overall"},
        {REVIEW("A1", "B1", "5.0", "\"soon\""), "reviews_Toys_and_Games_5.json:2: unixReviewTime"},
        {REVIEW("", "B1", "5.0", "7"), "reviews_Toys_and_Games_5.json:2: reviewerID"},
        {"{\"reviewerID\": \"A1\", \"overall\": 5.0, \"unixReviewTime\": 7}\n",
         "reviews_Toys_and_Games_5.json:2: asin is missing"},
        {"{\"asin\": \"B1\", \"asin\": \"B2\", \"reviewerID\": \"A1\", \"overall\": 5.0, "
         "\"unixReviewTime\": 7}\n",
         "reviews_Toys_and_Games_5.json:2: "}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[2048];
        snprintf(text, sizeof text, "%s%s", REVIEW("A1", "B1", "5.0", "7"), rows[i][0]);
        put_file("in/reviews_Toys_and_Games_5.json", text);
        prep_fails("amzn-toys --input in --out out", 1, rows[i][1]);
    }
    prep_fails("amzn-toys --input in --out out --user-col x", 2, "has its own layout");
    prep_fails("amzn-beauty --input nowhere --out out", 1, "nowhere");
}

TEST(side_files_may_be_missing_and_are_noted) {
    put_file("in/ratings.dat", "1::1::5::1\n");
    char *out = prep_ok("ml-1m --input in --out out");
    CHECK_CONTAINS(out, "movies.dat is missing");
    CHECK_CONTAINS(out, "users.dat is missing");
    seq_file *s = open_out();
    CHECK_EQ(s->n_context, 1); /* user_id needs no file of users */
    CHECK_EQ(s->title.n, 0);
    seq_file_close(s);
}

/* A single file answers to any name; it must not be taken for its own side files. */
TEST(the_events_file_alone_will_do) {
    put_file("in/ratings.dat", "1::1::5::1\n");
    char *out = prep_ok("ml-1m --input in/ratings.dat --out out --json");
    CHECK_CONTAINS(out, "\"users\":1,\"items\":1,\"catalogue\":1,\"events\":1");
}

TEST(broken_side_files_are_errors) {
    put_file("in/ratings.dat", "1::1::5::1\n");
    put_file("in/movies.dat", "1::Toy Story::x\n2\n");
    prep_fails("ml-1m --input in --out out", 1,
               "movies.dat:2: the line has 1 fields, but 3 are needed");
    put_file("in/movies.dat", "x::Toy Story::x\n");
    prep_fails("ml-1m --input in --out out", 1, "movies.dat:1: ");
}

/* The real data is kept as .xz: a build without libarchive cannot read it. */
static void find_real(const char *name, char *path) {
#ifndef HSTU_HAS_ARCHIVE
    SKIP_TEST("built without libarchive");
#endif
    CHECK(realpath(test_shared(name), path) != NULL);
}

TEST(ml_1m_real_counts_and_content) {
    char *out, *differences;
    char data[4096];
    find_real("data/ml-1m", data);
    int code = run_shell(&out, "%s prep ml-1m --input %s --out out --emit-csv out.csv --json",
                         test_program(), data);
    if (code != 0) FAIL_TEST("%s", out);
    CHECK_CONTAINS(out, "\"users\":6040,\"items\":3706,\"catalogue\":3883,\"events\":1000209,"
                        "\"max_len\":2314,");
    /* The same lists by other means: sort by user, time and place, then group with awk. */
    code = run_shell(&differences,
                     "xz -dc %s/ratings.dat.xz | awk -F:: '{print $1,$4,NR,$2,$3-1}' | "
                     "LC_ALL=C sort -n -k1,1 -k2,2 -k3,3 | awk '"
                     "function end() { if (u != \"\") "
                     "print u \",\\\"[\" i \"]\\\",\\\"[\" r \"]\\\",\\\"[\" t \"]\\\"\" } "
                     "BEGIN { print \"user_id,movie_id,rating,unix_timestamp\" } "
                     "$1 != u { end(); u = $1; i = $4; r = $5; t = $2; next } "
                     "{ i = i \", \" $4; r = r \", \" $5; t = t \", \" $2 } END { end() }' | "
                     "cmp - out.csv",
                     data);
    if (code != 0) FAIL_TEST("the csv differs from sort and awk: %s", differences);
    seq_file *s = open_out();
    CHECK_STR(title_of(s, "1"), "Toy Story (1995)");
    CHECK_STR(context_of(s, "6040", "zip_code"), "11106");
    seq_file_close(s);
}

TEST(ml_100k_real_counts) {
    char data[4096], *out;
    find_real("data/ml-100k", data);
    int code = run_shell(&out, "%s prep ml-100k --input %s --out out --json", test_program(), data);
    if (code != 0) FAIL_TEST("%s", out);
    CHECK_CONTAINS(out, "\"users\":943,\"items\":1682,\"catalogue\":1682,\"events\":100000,");
}

#ifdef HSTU_HAS_ARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

#define LOG_HEADER                                                                                 \
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,"      \
    "is_hate,long_view,play_time_ms,duration_ms,profile_stay_time,comment_stay_time,"              \
    "is_profile_enter,is_rand,tab\n"
#define USER_HEADER                                                                                \
    "user_id,user_active_degree,is_lowactive_period,is_live_streamer,is_video_author,"             \
    "follow_user_num,follow_user_num_range,fans_user_num,fans_user_num_range,friend_user_num,"     \
    "friend_user_num_range,register_days,register_days_range,onehot_feat0\n"
#define VIDEO_HEADER                                                                               \
    "video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,"           \
    "server_width,server_height,music_id,music_type,tag\n"

/* User 1 is in both periods, 2 in the first only, 3 in the second only: the reference's join of the
 * logs would lose 2 and 3.  Every signal is set alone once.  Any field of any file may have quotes.
 */
static const char first_log[] =
    LOG_HEADER "1,100,20220408,400,1649400000005,1,0,0,0,0,0,0,5,9,0,0,0,0,1\n"
               "1,101,20220408,400,1649400000001,0,1,0,0,0,0,0,5,9,0,0,0,0,1\n"
               "2,102,20220408,400,1649400000002,0,0,1,0,0,0,0,5,9,0,0,0,0,1\n"
               "2,103,20220408,400,1649400000003,0,0,0,1,0,0,0,5,9,0,0,0,0,1\n";
static const char second_log[] =
    LOG_HEADER "1,104,20220422,400,1650600000000,0,0,0,0,1,0,0,5,9,0,0,0,0,1\n"
               "\"3\",\"105\",20220422,400,\"1650600000001\",0,0,0,0,0,1,0,5,9,0,0,0,0,1\n"
               "3,106,20220422,400,1650600000002,0,0,0,0,0,0,1,5,9,0,0,0,0,1\n"
               "3,107,20220422,400,1650600000003,0,0,0,0,0,0,0,5,9,0,0,1,0,14\n"
               "3,108,20220422,400,1650600000004,1,1,1,1,1,1,1,5,9,0,0,1,0,1\n";
static const char random_log[] =
    LOG_HEADER "1,900,20220422,400,1650600000009,0,0,0,0,0,0,0,5,9,0,0,0,1,1\n";
static const char users[] =
    USER_HEADER "1,full_active,0,0,1,5,\"(0,10]\",312,\"[100,1k)\",0,0,3624,730+,1\n"
                "\"3\",UNKNOWN,0,0,1,5,0,312,0,0,\"[1,5)\",3624,15-30,1\n";
static const char videos[] =
    VIDEO_HEADER "100,5,NORMAL,2022-01-01,ShortImport,1.0,10400.0,720,1280,3,9.0,12\n"
                 "\"999\",5,NORMAL,2022-01-01,ShortImport,,,720,1280,3,9.0,\"12,65\"\n";

static const char wanted_csv[] =
    "user_id,video_id,rating,unix_timestamp\n"
    "1,\"[101, 100, 104]\",\"[2, 1, 16]\",\"[1649400000001, 1649400000005, 1650600000000]\"\n"
    "2,\"[102, 103]\",\"[4, 8]\",\"[1649400000002, 1649400000003]\"\n"
    "3,\"[105, 106, 107, 108]\",\"[32, 64, 128, 255]\","
    "\"[1650600000001, 1650600000002, 1650600000003, 1650600000004]\"\n";

static void put_pure(void) {
    put_file("KuaiRand-Pure/data/log_standard_4_08_to_4_21_pure.csv", first_log);
    put_file("KuaiRand-Pure/data/log_standard_4_22_to_5_08_pure.csv", second_log);
    put_file("KuaiRand-Pure/data/log_random_4_22_to_5_08_pure.csv", random_log);
    put_file("KuaiRand-Pure/data/user_features_pure.csv", users);
    put_file("KuaiRand-Pure/data/video_features_basic_pure.csv", videos);
    put_file("KuaiRand-Pure/load_data_pure.py", "print('hello')\n");
}

TEST(kuairand_pure_keeps_every_user_and_every_signal) {
    char path[4096];
    put_pure();
    char *out = prep_ok("kuairand-pure --input KuaiRand-Pure --out out --emit-csv out.csv --json");
    CHECK_CONTAINS(out, "\"users\":3,\"items\":9,\"catalogue\":10,\"events\":9,\"max_len\":4,"
                        "\"first_time\":1649400000001,\"last_time\":1650600000004,");
    CHECK_STR(get_file("out.csv"), wanted_csv);
    seq_file *s;
    snprintf(path, sizeof path, "%s/out", test_folder());
    CHECK_OK(seq_file_open(&s, path, NULL));
    CHECK_EQ(s->title.n, 0); /* videos have none */
    CHECK_EQ(s->actions, ACTION_BITS);
    CHECK_EQ(s->time_per_second, 1000);
    static const char *const names[] = {"user_id",
                                        "user_active_degree",
                                        "follow_user_num_range",
                                        "fans_user_num_range",
                                        "friend_user_num_range",
                                        "register_days_range"};
    static const char *const first[] = {"1", "full_active", "(0,10]", "[100,1k)", "0", "730+"};
    static const char *const second[] = {"2", "", "", "", "", ""};
    check_tokens(s, "1", names, first, 6);
    check_tokens(s, "2", names, second, 6);
    CHECK_STR(context_of(s, "3", "friend_user_num_range"), "[1,5)");
    CHECK(seq_find_item(s, "999") != 0);
    CHECK_STR(content_of(s, "999", "tag"), "12, 65");
    CHECK_STR(content_of(s, "100", "video_duration"), "10400");
    CHECK_STR(content_of(s, "100", "upload_type"), "ShortImport");
    CHECK_CONTAINS(s->meta_json, "\"profile_enter\"");
    seq_file_close(s);
}

/* NVIDIA's preprocessing, restated: the log's events in a stable order of time, a list for each
 * user; a rating counts from 0, KuaiRand's signals are bits; then the user's columns, in their
 * order.  Random logs: few users and times, so that times are equal and orders matter. */
enum { RULE_EVENTS = 60, RULE_USERS = 5, RULE_SIGNALS = 8 };
typedef struct rule_event {
    int user, item, action, time;
} rule_event;

static void draw_events(uint32_t seed, rule_event *e) {
    for (int i = 0; i < RULE_EVENTS; i++) {
        uint32_t x[4];
        for (int k = 0; k < 4; k++)
            x[k] = (seed = seed * 1664525u + 1013904223u) >> 9;
        e[i] = (rule_event){.user = (int)(x[0] % RULE_USERS) * 7 + 3,
                            .item = (int)(x[1] % 40) + 1,
                            .action = (int)x[2],
                            .time = (int)(x[3] % 12) + 1};
    }
}

static void check_lists(const rule_event *e, const char *csv) {
    rule_event s[RULE_EVENTS];
    int n_lines = 0;
    memcpy(s, e, sizeof s);
    for (int i = 1; i < RULE_EVENTS; i++) { /* insertion: stable */
        rule_event x = s[i];
        int at = i;
        for (; at > 0 && s[at - 1].time > x.time; at--)
            s[at] = s[at - 1];
        s[at] = x;
    }
    for (int u = 0; u < RULE_USERS; u++) {
        char list[3][RULE_EVENTS * 8] = {"", "", ""}, line[RULE_EVENTS * 32];
        for (int i = 0; i < RULE_EVENTS; i++) {
            int cells[] = {s[i].item, s[i].action, s[i].time};
            if (s[i].user != u * 7 + 3) continue;
            for (int k = 0; k < 3; k++)
                snprintf(list[k] + strlen(list[k]), sizeof *list - strlen(list[k]), "%s%d",
                         list[k][0] != '\0' ? ", " : "", cells[k]);
        }
        snprintf(line, sizeof line, "\n%d,\"[%s]\",\"[%s]\",\"[%s]\"\n", u * 7 + 3, list[0],
                 list[1], list[2]);
        CHECK_CONTAINS(csv, line);
    }
    for (const char *c = csv; *c != '\0'; c++)
        n_lines += *c == '\n';
    CHECK_EQ(n_lines, 1 + RULE_USERS);
}

/* The same events as ml-1m, as ml-20m and as KuaiRand, whose two logs are of two periods. */
static void write_events(const rule_event *e) {
    buf dat = {0}, csv = {0}, log[2] = {{0}, {0}};
    CHECK_OK(buf_text(&csv, "userId,movieId,rating,timestamp\n"));
    for (int k = 0; k < 2; k++)
        CHECK_OK(buf_text(&log[k], LOG_HEADER));
    for (int i = 0; i < RULE_EVENTS; i++) {
        const rule_event *x = &e[i];
        buf *to = &log[x->time > 6];
        CHECK_OK(
            buf_printf(&dat, "%d::%d::%d::%d\n", x->user, x->item, x->action % 5 + 1, x->time));
        CHECK_OK(buf_printf(&csv, "%d,%d,%.1f,%d\n", x->user, x->item, (x->action % 10 + 1) / 2.0,
                            x->time));
        CHECK_OK(buf_printf(to, "%d,%d,20220408,400,%d", x->user, x->item, x->time));
        for (int b = 0; b < RULE_SIGNALS - 1; b++)
            CHECK_OK(buf_printf(to, ",%d", x->action >> b & 1));
        CHECK_OK(buf_printf(to, ",5,9,0,0,%d,0,1\n", x->action >> 7 & 1));
    }
    put_file("in/ratings.dat", buf_str(&dat));
    put_file("in/ratings.csv", buf_str(&csv));
    put_file("k/log_standard_4_08_to_4_21_pure.csv", buf_str(&log[0]));
    put_file("k/log_standard_4_22_to_5_08_pure.csv", buf_str(&log[1]));
    buf *all[] = {&dat, &csv, &log[0], &log[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_fini(all[i]);
}

TEST(nvidias_rules_give_the_same_tokens) {
    static const char *const commands[] = {"ml-1m --input in --out out --emit-csv out.csv",
                                           "ml-20m --input in --out out --emit-csv out.csv",
                                           "kuairand-pure --input k --out out --emit-csv out.csv"};
    static const int n_actions[] = {5, 10, 256}, n_context[] = {5, 1, 6};
    static const char *const names[][6] = {
        {"user_id", "sex", "age_group", "occupation", "zip_code"},
        {"user_id"},
        {"user_id", "user_active_degree", "follow_user_num_range", "fans_user_num_range",
         "friend_user_num_range", "register_days_range"}};
    static const char *const values[][RULE_USERS][6] = {{{"3", "M", "0", "0", "00000"},
                                                         {"10", "F", "25", "1", "48067"},
                                                         {"17", "M", "56", "2", "48067"},
                                                         {"24", "F", "25", "0", "1-2"},
                                                         {"31", "M", "1", "1", "02138"}},
                                                        {{"3"}, {"10"}, {"17"}, {"24"}, {"31"}},
                                                        {{"3", "a0", "f0", "n0", "r0", "d0"},
                                                         {"10", "a1", "f1", "n1", "r1", "d1"},
                                                         {"17", "a0", "f2", "n2", "r2", "d2"},
                                                         {"24", "a1", "f0", "n3", "r3", "d3"},
                                                         {"31", "a0", "f1", "n4", "r0", "d4"}}};
    put_file("in/users.dat", "3::M::0::0::00000\n10::F::25::1::48067\n17::M::56::2::48067\n"
                             "24::F::25::0::1-2\n31::M::1::1::02138\n");
    put_file("k/user_features_pure.csv", USER_HEADER "3,a0,0,0,1,5,f0,312,n0,0,r0,3624,d0,1\n"
                                                     "10,a1,0,0,1,5,f1,312,n1,0,r1,3624,d1,1\n"
                                                     "17,a0,0,0,1,5,f2,312,n2,0,r2,3624,d2,1\n"
                                                     "24,a1,0,0,1,5,f0,312,n3,0,r3,3624,d3,1\n"
                                                     "31,a0,0,0,1,5,f1,312,n4,0,r0,3624,d4,1\n");
    for (uint32_t seed = 1; seed <= 5; seed++) {
        rule_event e[RULE_EVENTS], want[RULE_EVENTS];
        draw_events(seed, e);
        write_events(e);
        for (int set = 0; set < 3; set++) {
            prep_ok(commands[set]);
            memcpy(want, e, sizeof want);
            for (int i = 0; i < RULE_EVENTS; i++)
                want[i].action %= n_actions[set];
            check_lists(want, get_file("out.csv"));
            seq_file *s = open_out();
            for (int u = 0; u < RULE_USERS; u++)
                check_tokens(s, values[set][u][0], names[set], values[set][u], n_context[set]);
            seq_file_close(s);
        }
    }
}

TEST(kuairand_random_logs_only_when_asked_for) {
    put_pure();
    char *out = prep_ok("kuairand-pure --input KuaiRand-Pure/data --out out --random-logs --json");
    CHECK_CONTAINS(out, "\"users\":3,\"items\":10,\"catalogue\":11,\"events\":10,");
}

TEST(kuairand_1k_and_27k_have_their_own_file_names) {
    put_file("k1/log_standard_4_08_to_4_21_1k.csv", first_log);
    put_file("k1/log_standard_4_22_to_5_08_1k.csv", second_log);
    prep_ok("kuairand-1k --input k1 --out out1 --emit-csv out1.csv");
    CHECK_STR(get_file("out1.csv"), wanted_csv);
    put_file("k27/log_standard_4_08_to_4_21_27k_part1.csv", first_log);
    put_file("k27/log_standard_4_08_to_4_21_27k_part2.csv", LOG_HEADER);
    put_file("k27/log_standard_4_22_to_5_08_27k_part1.csv", LOG_HEADER);
    put_file("k27/log_standard_4_22_to_5_08_27k_part2.csv", second_log);
    put_file("k27/user_features_27k.csv", users);
    prep_ok("kuairand-27k --input k27 --out out27 --emit-csv out27.csv");
    CHECK_STR(get_file("out27.csv"), wanted_csv);
}

/* Times are seconds with a fraction; other columns are not read. */
#define KUAIREC "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"
TEST(kuairec) {
    put_file("bad/big_matrix.csv", KUAIREC "7,149,1,2,,20200705,,0.8\n");
    prep_fails("kuairec --input bad --out out", 1, "big_matrix.csv:2: timestamp");
    put_file("bad/big_matrix.csv", "user_id,video_id\n7,149\n");
    prep_fails("kuairec --input bad --out out", 1, "timestamp");
    prep_fails("kuairec --input nowhere --out out", 1, "nowhere");
    put_file("rec/data/big_matrix.csv",
             KUAIREC "7,149,6067,7068,2020-07-05 05:27:48.378,20200705,1593898068.378,0.85838\n"
                     "7,30,13838,10867,2020-07-05 00:08:23.438,20200705,1593878903.438,1.27340\n"
                     "0,149,100,7068,2020-07-06 00:00:00,20200706,1593964800,0.0141\n");
    put_file("rec/data/user_features.csv",
             "user_id,user_active_degree,is_lowactive_period,follow_user_num,follow_user_num_range,"
             "fans_user_num_range,friend_user_num_range,register_days,register_days_range\n"
             "7,high_active,0,5,\"(0,10]\",0,0,107,61-90\n0,full_active,0,0,0,0,0,327,181-365\n");
    char *out = prep_ok("kuairec --input rec --out out --json --emit-csv out.csv");
    CHECK_CONTAINS(out, "\"users\":2,\"items\":2,\"catalogue\":2,\"events\":3,\"max_len\":2,"
                        "\"first_time\":1593878903438,\"last_time\":1593964800000,");
    CHECK_CONTAINS(get_file("out.csv"), "[30, 149]");
    char path[4096];
    seq_file *s;
    snprintf(path, sizeof path, "%s/out", test_folder());
    CHECK_OK(seq_file_open(&s, path, NULL));
    CHECK_EQ(s->actions, ACTION_NONE);
    CHECK_EQ(s->time_per_second, 1000);
    seq_file_close(s);
}

TEST(kuairand_missing_and_damaged_logs) {
    put_file("k/log_standard_4_08_to_4_21_pure.csv", first_log);
    prep_fails("kuairand-pure --input k --out out", 1,
               "log_standard_4_22_to_5_08_pure.csv is missing");
    prep_fails("kuairand-pure --input k/log_standard_4_08_to_4_21_pure.csv --out out", 1,
               "log_standard_4_22_to_5_08_pure.csv is missing");
    put_file("k/log_standard_4_22_to_5_08_pure.csv", "user_id,video_id,time_ms\n1,2,3\n");
    prep_fails("kuairand-pure --input k --out out", 1,
               "log_standard_4_22_to_5_08_pure.csv:1: there is no column 'is_click'; the header "
               "has user_id, video_id, time_ms");
    put_file("k/log_standard_4_22_to_5_08_pure.csv",
             LOG_HEADER "1,2,20220422,400,1650600000000,0,0,maybe,0,1,0,0,5,9,0,0,0,0,1\n");
    prep_fails("kuairand-pure --input k --out out", 1,
               "log_standard_4_22_to_5_08_pure.csv:2: is_follow: 'maybe' is not a whole number");
}

TEST(kuairand_from_the_original_archive) {
#ifdef HSTU_HAS_ARCHIVE
    char *out;
    put_pure();
    CHECK_EQ(run_shell(&out, "tar czf KuaiRand-Pure.tar.gz KuaiRand-Pure"), 0);
    out = prep_ok("kuairand-pure --input KuaiRand-Pure.tar.gz --out out --emit-csv out.csv --json");
    CHECK_STR(get_file("out.csv"), wanted_csv);
    CHECK_CONTAINS(out, "\"catalogue\":10,");
    /* The second half of the archive is gone. */
    CHECK_EQ(run_shell(&out, "rm -r out out.csv && n=$(stat -c %%s KuaiRand-Pure.tar.gz) && "
                             "head -c $((n / 2)) KuaiRand-Pure.tar.gz > cut.tar.gz"),
             0);
    prep_fails("kuairand-pure --input cut.tar.gz --out out", 1, "cut.tar.gz");
#else
    SKIP_TEST("built without libarchive");
#endif
}

#ifdef HSTU_HAS_ARCHIVE
static void zip_one(const char *path, const char *name, const char *text) {
    struct archive *a = archive_write_new();
    struct archive_entry *e = archive_entry_new();
    CHECK(archive_write_set_format_zip(a) == ARCHIVE_OK);
    CHECK(archive_write_open_filename(a, path) == ARCHIVE_OK);
    archive_entry_set_pathname(e, name);
    archive_entry_set_size(e, (la_int64_t)strlen(text));
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0644);
    CHECK(archive_write_header(a, e) == ARCHIVE_OK);
    CHECK(archive_write_data(a, text, strlen(text)) == (la_ssize_t)strlen(text));
    archive_entry_free(e);
    CHECK(archive_write_close(a) == ARCHIVE_OK);
    archive_write_free(a);
}
#endif

TEST(movielens_from_a_zip_and_a_damaged_one) {
#ifdef HSTU_HAS_ARCHIVE
    char path[4096], *out;
    static char text[60000];
    size_t n = (size_t)sprintf(text, "userId,movieId,rating,timestamp\n");
    for (int i = 0; i < 2000; i++)
        n += (size_t)sprintf(text + n, "%d,%d,3.5,%d\n", i / 7, i * 7919 % 1000, i);
    snprintf(path, sizeof path, "%s/ml-20m.zip", test_folder());
    zip_one(path, "ml-20m/ratings.csv", text);
    out = prep_ok("ml-20m --input ml-20m.zip --out zipped --json");
    CHECK_CONTAINS(out, "\"users\":286,\"items\":1000,\"catalogue\":1000,\"events\":2000,");
    /* One byte in the middle is another one. */
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, 4000, SEEK_SET) == 0);
    int byte = fgetc(f);
    CHECK(fseek(f, 4000, SEEK_SET) == 0 && fputc(byte ^ 0x55, f) != EOF && fclose(f) == 0);
    prep_fails("ml-20m --input ml-20m.zip --out out", 1, "ml-20m.zip");
#else
    SKIP_TEST("built without libarchive");
#endif
}

/* u1 has five ratings of items with five ratings; u2 has five, but one of a rare item; u3 has four;
 * i5 is rated five times, two of them by users that are dropped. */
static const char ratings[] = "u1,i1,5.0,10\nu1,i2,4.0,9\nu1,i3,3.0,8\nu1,i4,2.0,7\nu1,i5,1.0,6\n"
                              "u2,i1,5.0,1\nu2,i2,5.0,2\nu2,i3,5.0,3\nu2,i4,5.0,4\nu2,rare,5.0,5\n"
                              "u3,i1,5.0,1\nu3,i2,5.0,2\nu3,i3,5.0,3\nu3,i4,5.0,4\n"
                              "u4,i1,5.0,1\nu4,i2,5.0,2\nu4,i3,5.0,3\nu4,i4,5.0,4\nu4,i5,5.0,5\n"
                              "u5,i1,5.0,1\nu5,i2,5.0,2\nu5,i3,5.0,3\nu5,i4,5.0,4\nu5,i5,5.0,5\n"
                              "u6,i5,1.0,1\nu7,i5,1.0,1\n";

TEST(amazon_counts_once_on_the_raw_data) {
    put_file("ratings_Books.csv", ratings);
    char *out = prep_ok("amzn-books --input ratings_Books.csv --out out --emit-csv out.csv --json");
    CHECK_CONTAINS(out, "\"users\":3,\"items\":5,\"catalogue\":5,\"events\":15,\"max_len\":5,");
    CHECK_CONTAINS(out, "\"filtered\":11,");
    /* JSON texts inside a quoted field: quotes are doubled. */
    CHECK_STR(get_file("out.csv"),
              "user_id,item_id,rating,unix_timestamp\n"
              "u1,\"[\"\"i5\"\", \"\"i4\"\", \"\"i3\"\", \"\"i2\"\", \"\"i1\"\"]\","
              "\"[0, 1, 2, 3, 4]\",\"[6, 7, 8, 9, 10]\"\n"
              "u4,\"[\"\"i1\"\", \"\"i2\"\", \"\"i3\"\", \"\"i4\"\", \"\"i5\"\"]\","
              "\"[4, 4, 4, 4, 4]\",\"[1, 2, 3, 4, 5]\"\n"
              "u5,\"[\"\"i1\"\", \"\"i2\"\", \"\"i3\"\", \"\"i4\"\", \"\"i5\"\"]\","
              "\"[4, 4, 4, 4, 4]\",\"[1, 2, 3, 4, 5]\"\n");
}

TEST(amazon_numbers_items_in_order_of_their_bytes) {
    char path[4096];
    seq_file *s;
    put_file("in/ratings_Books.csv", ratings);
    prep_ok("amzn-books --input in --out out");
    snprintf(path, sizeof path, "%s/out/data.seq", test_folder());
    CHECK_OK(seq_file_open(&s, path, NULL));
    CHECK(s->has_text_users && s->has_text_items);
    CHECK_EQ(seq_find_item(s, "i1"), 1);
    CHECK_EQ(seq_find_item(s, "i5"), 5);
    CHECK_EQ(seq_find_item(s, "rare"), 0);
    seq_file_close(s);
}

TEST(amazon_bad_rows) {
    put_file("ratings_Books.csv", "u1,i1,6.0,10\n");
    prep_fails("amzn-books --input ratings_Books.csv --out out", 1,
               "ratings_Books.csv:1: column 3: '6.0' is not a whole number from 1 to 5");
    put_file("ratings_Books.csv", "u1,i1,5.0,10\nu1,,5.0,10\n");
    prep_fails("amzn-books --input ratings_Books.csv --out out", 1,
               "ratings_Books.csv:2: column 2 is empty");
    put_file("ratings_Books.csv", "u1,i1,5.0,10\n");
    prep_fails("amzn-books --input ratings_Books.csv --out out", 1, "");
}
