/* KuaiRand Pure, 1K and 27K: logs of a video app, columns found by name.
 *
 * The standard logs of both periods are read one after the other, so that users who are in only one
 * of them are kept (the reference joins the logs and loses them).  The logs of randomly exposed
 * videos are left out, as in the reference, unless --random-logs asks for them.  The action is the
 * mask of the eight feedback signals. */
#include <stdio.h>

#include "data/read/source_job.h"

static const csv_column wanted[] = {{ROLE_USER, "user_id"},
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
enum { N_WANTED = sizeof wanted / sizeof wanted[0] };

static const char *const user_columns[] = {
    "user_id",
    "user_active_degree",
    "follow_user_num_range",
    "fans_user_num_range",
    "friend_user_num_range",
    "register_days_range",
};
static const char *const video_columns[] = {"video_id"};

/* Reads one log.  A bundle of one file opens under any name, so its own name is checked first. */
static status read_log(source_job *job, const char *name) {
    bool is_there;
    csv_layout t;
    TRY(bundle_has(job->in, name, &is_there));
    if (!is_there)
        return fail(ERR_IO, "%s: %s is missing; give the folder or the archive with all its logs",
                    job->src->name, name);
    job_layout(job, &t, ",", true);
    return job_read_member(job, name, &t, true, wanted, N_WANTED);
}

static status read_logs(source_job *job, const char *version, const char *const *parts,
                        int n_parts) {
    static const char *const periods[] = {"4_08_to_4_21", "4_22_to_5_08"};
    char name[96];
    for (int period = 0; period < 2; period++) {
        for (int part = 0; part < n_parts; part++) {
            snprintf(name, sizeof name, "log_standard_%s_%s%s.csv", periods[period], version,
                     parts[part]);
            TRY(read_log(job, name));
        }
    }
    if (!job->request->has_random_logs) return OK;
    snprintf(name, sizeof name, "log_random_4_22_to_5_08_%s.csv", version);
    return read_log(job, name);
}

static status read_kuairand(source_job *job, const char *version, const char *const *parts,
                            int n_parts) {
    char users_name[96], videos_name[96];
    snprintf(users_name, sizeof users_name, "user_features_%s.csv", version);
    snprintf(videos_name, sizeof videos_name, "video_features_basic_%s.csv", version);
    side_file users = {users_name, {",", true}, true, user_columns, 6};
    side_file videos = {videos_name, {",", true}, true, video_columns, 1};
    TRY(read_logs(job, version, parts, n_parts));
    TRY(job_read_context(job, &users, user_columns + 1));
    return job_read_items(job, &videos);
}

static const char *const whole[] = {""};
static const char *const halves[] = {"_part1", "_part2"};

status read_kuairand_pure(source_job *job) {
    return read_kuairand(job, "pure", whole, 1);
}

status read_kuairand_1k(source_job *job) {
    return read_kuairand(job, "1k", whole, 1);
}

status read_kuairand_27k(source_job *job) {
    return read_kuairand(job, "27k", halves, 2);
}
