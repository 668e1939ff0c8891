#include "data/set/seq_file.h"
#include "prep_test.h"

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
 * logs would lose 2 and 3.  Every signal is set alone once. */
static const char first_log[] =
    LOG_HEADER "1,100,20220408,400,1649400000005,1,0,0,0,0,0,0,5,9,0,0,0,0,1\n"
               "1,101,20220408,400,1649400000001,0,1,0,0,0,0,0,5,9,0,0,0,0,1\n"
               "2,102,20220408,400,1649400000002,0,0,1,0,0,0,0,5,9,0,0,0,0,1\n"
               "2,103,20220408,400,1649400000003,0,0,0,1,0,0,0,5,9,0,0,0,0,1\n";
static const char second_log[] =
    LOG_HEADER "1,104,20220422,400,1650600000000,0,0,0,0,1,0,0,5,9,0,0,0,0,1\n"
               "3,105,20220422,400,1650600000001,0,0,0,0,0,1,0,5,9,0,0,0,0,1\n"
               "3,106,20220422,400,1650600000002,0,0,0,0,0,0,1,5,9,0,0,0,0,1\n"
               "3,107,20220422,400,1650600000003,0,0,0,0,0,0,0,5,9,0,0,1,0,14\n"
               "3,108,20220422,400,1650600000004,1,1,1,1,1,1,1,5,9,0,0,1,0,1\n";
static const char random_log[] =
    LOG_HEADER "1,900,20220422,400,1650600000009,0,0,0,0,0,0,0,5,9,0,0,0,1,1\n";
static const char users[] =
    USER_HEADER "1,full_active,0,0,1,5,\"(0,10]\",312,\"[100,1k)\",0,0,3624,730+,1\n"
                "3,UNKNOWN,0,0,1,5,0,312,0,0,\"[1,5)\",3624,15-30,1\n";
static const char videos[] =
    VIDEO_HEADER "100,5,NORMAL,2022-01-01,ShortImport,1.0,10400.0,720,1280,3,9.0,12\n"
                 "999,5,NORMAL,2022-01-01,ShortImport,,,720,1280,3,9.0,\"12,65\"\n";

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

static const char *context_of(const seq_file *s, const char *user, int feature) {
    static char text[64];
    const context_feature *f = &s->context[feature];
    uint32_t v = f->value[seq_find_user(s, user)];
    snprintf(text, sizeof text, "%.*s", (int)(f->values.offsets[v + 1] - f->values.offsets[v]),
             f->values.bytes + f->values.offsets[v]);
    return text;
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
    CHECK_EQ(s->n_context, 5);
    static const char *const names[] = {"user_active_degree", "follow_user_num_range",
                                        "fans_user_num_range", "friend_user_num_range",
                                        "register_days_range"};
    static const char *const first[] = {"full_active", "(0,10]", "[100,1k)", "0", "730+"};
    for (int i = 0; i < 5; i++) {
        CHECK_STR(s->context[i].name, names[i]);
        CHECK_STR(context_of(s, "1", i), first[i]);
        CHECK_STR(context_of(s, "2", i), "");
    }
    CHECK_STR(context_of(s, "3", 3), "[1,5)");
    CHECK(seq_find_item(s, "999") != 0);
    CHECK_CONTAINS(s->meta_json, "\"profile_enter\"");
    seq_file_close(s);
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
