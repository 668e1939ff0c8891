/* MovieLens 100K, 1M and 20M, in the layouts GroupLens publishes.
 *
 * Ratings are 1..5 stored 0..4, and .5..5 stored 0..9 in 20M; ids are kept as they are.  Movies
 * that nobody rated belong to the catalogue too: an evaluation ranks all of them. */
#include "data/read/source_job.h"

/* All three files have the columns user, item, rating, time. */
static const csv_column by_position[] = {
    {ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_ACTION, "3"}, {ROLE_TIME, "4"}};
static const csv_column by_name[] = {{ROLE_USER, "userId"},
                                     {ROLE_ITEM, "movieId"},
                                     {ROLE_ACTION, "rating"},
                                     {ROLE_TIME, "timestamp"}};
static const char *const first_two[] = {"1", "2"};

status read_ml_100k(source_job *job) {
    static const char *const user_columns[] = {"1", "2", "3", "4", "5"};
    static const char *const features[] = {"age", "sex", "occupation", "zip_code"};
    static const side_file items = {"u.item", {"|", false}, false, first_two, 2};
    static const side_file users = {"u.user", {"|", false}, false, user_columns, 5};
    csv_layout t;
    job_layout(job, &t, "\t", false);
    TRY(job_read_member(job, "u.data", &t, false, by_position, 4));
    TRY(job_read_items(job, &items));
    return job_read_context(job, &users, features);
}

status read_ml_1m(source_job *job) {
    static const char *const user_columns[] = {"1", "2", "3", "4", "5"};
    static const char *const features[] = {"sex", "age_group", "occupation", "zip_code"};
    static const side_file items = {"movies.dat", {"::", false}, false, first_two, 2};
    static const side_file users = {"users.dat", {"::", false}, false, user_columns, 5};
    csv_layout t;
    job_layout(job, &t, "::", false);
    TRY(job_read_member(job, "ratings.dat", &t, false, by_position, 4));
    TRY(job_read_items(job, &items));
    return job_read_context(job, &users, features);
}

status read_ml_20m(source_job *job) {
    static const char *const item_columns[] = {"movieId", "title"};
    static const side_file items = {"movies.csv", {",", true}, true, item_columns, 2};
    csv_layout t;
    job_layout(job, &t, ",", true);
    TRY(job_read_member(job, "ratings.csv", &t, true, by_name, 4));
    return job_read_items(job, &items);
}
