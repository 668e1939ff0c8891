/* The parts of hstu recommend: recommend.c reads the options and serves users, recommend_similar.c
 * lists the neighbours of items, recommend_text.c shows a history. */
#ifndef HSTU_CLI_MODEL_RECOMMEND_H
#define HSTU_CLI_MODEL_RECOMMEND_H

#include "cli/model/answers.h"
#include "cli/model/user_list.h"
#include "dist/transport.h"
#include "model/histories.h"

typedef struct recommend_args {
    const char *path, *checkpoint, *data, *history, *allow, *deny, *device, *format_name, *out;
    user_choice users;
    arg_list similar;
    int64_t k, n_ranks;
    transport *ranks; /* this process is one of them; or NULL */
    bool is_json, keeps_seen;
    answer_format format;
} recommend_args;

/* The neighbours of each item of --similar. */
status recommend_similar(const recommend_args *a, session *s, const uint8_t *is_allowed);

/* The newest events of a user, for the table.  has_dates: their times are real. */
status recommend_show_history(answers *out, const user_events *u, bool has_dates);

#endif
