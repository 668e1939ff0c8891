/* The public data sets, in the layouts that their publishers use.
 *
 * MovieLens 100K, 1M and 20M (GroupLens).  Ratings are 1..5 stored 0..4, and .5..5 stored 0..9 in
 * 20M; ids are kept as they are.  Movies that nobody rated belong to the catalogue too: an
 * evaluation ranks all of them. */
#include "data/read/jsonl.h"
#include "data/read/source_job.h"

/* All three files, and that of Amazon, have the columns user, item, rating, time. */
static const csv_column by_position[] = {
    {ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_ACTION, "3"}, {ROLE_TIME, "4"}};
static const csv_column by_name[] = {{ROLE_USER, "userId"},
                                     {ROLE_ITEM, "movieId"},
                                     {ROLE_ACTION, "rating"},
                                     {ROLE_TIME, "timestamp"}};
static const char *const first_three[] = {"1", "2", "3"};
static const content_spec movie_content[] = {{"genre", CONTENT_LIST, "|", false},
                                             {"year", CONTENT_NUMBER, "", false}};

status read_ml_100k(source_job *job) {
    static const char *const user_columns[] = {"1", "2", "3", "4", "5"};
    static const char *const features[] = {"age", "sex", "occupation", "zip_code"};
    /* A column of 0 or 1 for each genre; the first one, 6, is "unknown". */
    static const char *const item_columns[] = {"1",  "2",  "7",  "8",  "9",  "10", "11",
                                               "12", "13", "14", "15", "16", "17", "18",
                                               "19", "20", "21", "22", "23", "24"};
    static const side_file items = {"u.item", {"|", false},  false, item_columns,
                                    20,       movie_content, 2,     true};
    static const side_file users = {"u.user", {"|", false}, false, user_columns, 5, NULL, 0, false};
    csv_layout t;
    job_layout(job, &t, "\t", false);
    TRY(job_read_member(job, "u.data", &t, false, by_position, 4));
    TRY(job_read_side(job, &items, NULL));
    return job_read_side(job, &users, features);
}

status read_ml_1m(source_job *job) {
    static const char *const user_columns[] = {"1", "2", "3", "4", "5"};
    static const char *const features[] = {"sex", "age_group", "occupation", "zip_code"};
    static const side_file items = {
        "movies.dat", {"::", false}, false, first_three, 3, movie_content, 2, true};
    static const side_file users = {"users.dat", {"::", false}, false, user_columns,
                                    5,           NULL,          0,     false};
    csv_layout t;
    job_layout(job, &t, "::", false);
    TRY(job_read_member(job, "ratings.dat", &t, false, by_position, 4));
    TRY(job_read_side(job, &items, NULL));
    return job_read_side(job, &users, features);
}

status read_ml_20m(source_job *job) {
    static const char *const item_columns[] = {"movieId", "title", "genres"};
    static const side_file items = {"movies.csv",  {",", true}, true, item_columns, 3,
                                    movie_content, 2,           true};
    csv_layout t;
    job_layout(job, &t, ",", true);
    TRY(job_read_member(job, "ratings.csv", &t, true, by_name, 4));
    return job_read_side(job, &items, NULL);
}

/* KuaiRand Pure, 1K and 27K: logs of a video app, columns found by name.
 *
 * The standard logs of both periods are read one after the other, so that users who are in only one
 * of them are kept (the reference joins the logs and loses them).  The logs of randomly exposed
 * videos are left out, as in the reference, unless --random-logs asks for them.  The action is the
 * mask of the eight feedback signals. */

static const csv_column kuairand_columns[] = {{ROLE_USER, "user_id"},
                                              {ROLE_ITEM, "video_id"},
                                              {ROLE_TIME, "time_ms"},
                                              {ROLE_BIT0 + 0, "is_click"},
                                              {ROLE_BIT0 + 1, "is_like"},
                                              {ROLE_BIT0 + 2, "is_follow"},
                                              {ROLE_BIT0 + 3, "is_comment"},
                                              {ROLE_BIT0 + 4, "is_forward"},
                                              {ROLE_BIT0 + 5, "is_hate"},
                                              {ROLE_BIT0 + 6, "long_view"},
                                              {ROLE_BIT0 + 7, "is_profile_enter"}};
enum { N_WANTED = sizeof kuairand_columns / sizeof kuairand_columns[0] };

static const char *const user_columns[] = {
    "user_id",
    "user_active_degree",
    "follow_user_num_range",
    "fans_user_num_range",
    "friend_user_num_range",
    "register_days_range",
};
static const char *const video_columns[] = {"video_id", "video_type", "upload_type",
                                            "video_duration", "tag"};
static const content_spec video_content[] = {{"video_type", CONTENT_CATEGORY, "", false},
                                             {"upload_type", CONTENT_CATEGORY, "", false},
                                             {"video_duration", CONTENT_NUMBER, "", false},
                                             {"tag", CONTENT_LIST, ",", false}};

/* Reads one log.  A bundle of one file opens under any name, so its own name is checked first. */
static status read_log(source_job *job, const char *name) {
    bool is_there;
    csv_layout t;
    TRY(bundle_has(job->in, name, &is_there));
    if (!is_there)
        return fail(ERR_IO, "%s: %s is missing; give the folder or the archive with all its logs",
                    job->src->name, name);
    job_layout(job, &t, ",", true);
    return job_read_member(job, name, &t, true, kuairand_columns, N_WANTED);
}

static status read_logs(source_job *job, const char *version, const char *const *parts,
                        int n_parts) {
    static const char *const periods[] = {"4_08_to_4_21", "4_22_to_5_08"};
    char name[96];
    for (int period = 0; period < 2; period++) {
        for (int i = 0; i < n_parts; i++) {
            snprintf(name, sizeof name, "log_standard_%s_%s%s.csv", periods[period], version,
                     parts[i]);
            TRY(read_log(job, name));
        }
    }
    if (!job->request->has_random_logs) return OK;
    snprintf(name, sizeof name, "log_random_4_22_to_5_08_%s.csv", version);
    return read_log(job, name);
}

/* The version is in the source's name; that of 27K has its logs in two parts each. */
status read_kuairand(source_job *job) {
    static const char *const whole[] = {""}, *const halves[] = {"_part1", "_part2"};
    const char *version = job->src->name + strlen("kuairand-");
    bool is_halved = strcmp(version, "27k") == 0;
    char users_name[96], videos_name[96];
    snprintf(users_name, sizeof users_name, "user_features_%s.csv", version);
    snprintf(videos_name, sizeof videos_name, "video_features_basic_%s.csv", version);
    side_file users = {users_name, {",", true}, true, user_columns, 6, NULL, 0, false};
    side_file videos = {videos_name, {",", true}, true, video_columns, 5, video_content, 4, false};
    TRY(read_logs(job, version, is_halved ? halves : whole, is_halved ? 2 : 1));
    TRY(job_read_side(job, &users, user_columns + 1));
    return job_read_side(job, &videos, NULL);
}

/* KuaiRec: the log of all users, big_matrix.csv, and their features.  Times are seconds with a
 * fraction.  How much of a video somebody watched is not an action, and is not read. */
status read_kuairec(source_job *job) {
    static const csv_column columns[] = {
        {ROLE_USER, "user_id"}, {ROLE_ITEM, "video_id"}, {ROLE_TIME, "timestamp"}};
    static const side_file users = {
        "user_features.csv", {",", true}, true, user_columns, 6, NULL, 0, false};
    csv_layout t;
    job_layout(job, &t, ",", true);
    time_plan_set(&t.times, TIME_NUMBER, UNIT_S, true);
    TRY(job_read_member(job, "big_matrix.csv", &t, true, columns, 3));
    return job_read_side(job, &users, user_columns + 1);
}

/* Amazon Books (2014): ratings_Books.csv, "user,item,rating,time" without a header, ids are
 * strings. The builder keeps items and users with at least five ratings (sources.c).  Ids sorted by
 * bytes and numbered from 1 are the reference's categorical codes + 1. */

status read_amazon_books(source_job *job) {
    csv_layout t;
    job_layout(job, &t, ",", true);
    return job_read_member(job, "ratings_Books.csv", &t, false, by_position, 4);
}

/* Amazon reviews (2014), the 5-cores of three categories: reviews_CATEGORY_5.json[.gz], one review
 * per line as an object, of which four members are read. */

static status read_reviews(source_job *job, blocks *b, void *ctx) {
    return job_read_blocks(job, b, ctx, jsonl_parse_block);
}

status read_amazon_reviews(source_job *job) {
    static const csv_column members[] = {{ROLE_USER, "reviewerID"},
                                         {ROLE_ITEM, "asin"},
                                         {ROLE_ACTION, "overall"},
                                         {ROLE_TIME, "unixReviewTime"}};
    const char *name = job->src->name;
    const char *file = strcmp(name, "amzn-beauty") == 0   ? "reviews_Beauty_5.json"
                       : strcmp(name, "amzn-sports") == 0 ? "reviews_Sports_and_Outdoors_5.json"
                                                          : "reviews_Toys_and_Games_5.json";
    json_paths paths = {0};
    csv_layout t;
    input *in;
    job_layout(job, &t, ",", false);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        TRY(json_paths_add(&paths, members[i].column, members[i].role));
        snprintf(t.name[members[i].role], CSV_NAME_BYTES, "%s", members[i].column);
    }
    t.paths = &paths;
    TRY(job_open(job, file, true, &in));
    status st = job_with_blocks(job, in, BLOCKS_DEFAULT_LINE_BYTES, read_reviews, &t);
    input_close(in);
    return st;
}
