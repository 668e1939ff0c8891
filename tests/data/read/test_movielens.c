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
    buf text;
    buf_init(&text);
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
    put_file("in/u.item", "10|Toy Story (1995)|x||y|0\n20|Am\xe9lie (2001)|x\n30|Never Rated|\n");
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
    CHECK_STR(context_of(s, "1", "sex"), "F");
    CHECK_STR(context_of(s, "1", "age_group"), "1");
    CHECK_STR(context_of(s, "1", "occupation"), "10");
    CHECK_STR(context_of(s, "1", "zip_code"), "48067");
    seq_file_close(s);
}

TEST(ml_20m_small) {
    put_file("in/ratings.csv", "userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n"
                               "1,29,0.5,1112484676\n\"2\",\"131262\",\"5.0\",\"7\"\n");
    put_file("in/movies.csv", "movieId,title,genres\n2,Jumanji (1995),Adventure\n"
                              "29,\"City, \"\"The\"\" (1995)\",Drama\n");
    char *out = prep_ok("ml-20m --input in --out out --json --emit-csv out.csv");
    CHECK_CONTAINS(out, "\"users\":2,\"items\":3,\"catalogue\":3,\"events\":3");
    CHECK_STR(get_file("out.csv"), "user_id,movie_id,rating,unix_timestamp\n"
                                   "1,\"[29, 2]\",\"[0, 6]\",\"[1112484676, 1112486027]\"\n"
                                   "2,\"[131262]\",\"[9]\",\"[7]\"\n");
    seq_file *s = open_out();
    CHECK_EQ(s->actions, ACTION_HALF_STARS);
    CHECK_STR(title_of(s, "29"), "City, \"The\" (1995)");
    CHECK_STR(title_of(s, "131262"), "131262");
    seq_file_close(s);
}

TEST(side_files_may_be_missing_and_are_noted) {
    put_file("in/ratings.dat", "1::1::5::1\n");
    char *out = prep_ok("ml-1m --input in --out out");
    CHECK_CONTAINS(out, "movies.dat is missing");
    CHECK_CONTAINS(out, "users.dat is missing");
    seq_file *s = open_out();
    CHECK_EQ(s->n_context, 0);
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
               "movies.dat:2: the line has 1 fields, but 2 are needed");
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
