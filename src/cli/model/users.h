/* Users and items that a command line names, and the loop of the commands that ask a model about
 * users (recommend, score): one user after the other, in batches, each with an answer, and a
 * progress bar where it is not in the way. */
#pragma once

#include "cli/cli.h"
#include "cli/model/answers.h"
#include "data/set/seq_file.h"
#include "dist/transport.h"
#include "format/input.h"
#include "model/user_group.h"

enum { ID_LINE_MAX = 4096 };

/* Ids from a file, one a line: users to serve, items to allow.  Plain or compressed; "-" is stdin.
 * Line ends may be those of Windows; empty lines are skipped; the rest of a line is the id, as it
 * is.  Reads a block at a time, so that the file may be of any size. */
typedef struct id_lines {
    input_lines lines;
    const char *path;
} id_lines;

status id_lines_open(id_lines *l, const char *path);
void id_lines_close(id_lines *l); /* a failed open too */

/* The next id, NUL-terminated and valid until the next call; *out = NULL after the last. ERR_FORMAT
 * names the line that holds a NUL byte or is too long to be an id. */
status id_lines_next(id_lines *l, const char **out);

/* What a list of ids was found to hold. */
typedef struct id_count {
    uint64_t n, n_unknown;
    char first_unknown[64];
} id_count;

/* Items by their ids: is_there[item] = value for each of the file; is_there: (n_items + 1). */
status id_lines_mark(const char *path, const seq_file *data, uint8_t value, uint8_t *is_there,
                     id_count *count);

/* Counts an id, and remembers the first unknown one. */
void id_count_add(id_count *c, const char *id, bool is_known);

/* Says on stderr how many ids were unknown, if any; `where` is the option or file. */
void id_count_tell(const id_count *c, const char *where);

/* Which users a command is about: --user ID (several times), --users FILE or --all-users. */
typedef struct user_choice {
    arg_list users;
    const char *file;
    bool is_all;
} user_choice;

/* Three options of a command's table. */
#define USER_OPTIONS(c)                                                                            \
    OPT_LIST("--user", &(c)->users, "ID",                                                          \
             "A user, by id, which may have commas; may be repeated."),                            \
        OPT_TEXT("--users", &(c)->file, "FILE", "A file of user ids, one per line; - is stdin."),  \
        OPT_FLAG("--all-users", &(c)->is_all, "All users of the data.")

/* One more, for one user: --history TEXT or @FILE. */
#define HISTORY_OPTION(text)                                                                       \
    OPT_TEXT("--history", text, "EVENTS",                                                          \
             "A user who is not in the data: item ids, oldest first (12,99,7), or JSON with "      \
             "optional times and actions: [{\"item\": 12, \"time\": 1900000000, \"action\": "      \
             "1}, ...]; @FILE reads a file.")

/* The text (n) of an option that is a text or @FILE, whose content the caller frees; NULL stays. */
status text_option_read(const char **text, size_t *n, char **content);

/* Reads the value of HISTORY_OPTION; given_history_fini must follow in any case. */
status history_option_read(given_history *out, const session *s, const char *text);

/* How many of the three ways were given. */
int user_choice_n(const user_choice *c);

/* What is done with users, who are run in batches by a group. */
typedef struct user_service {
    const char *doing;   /* of the progress bar: "recommending" */
    const char *unknown; /* what became of users that the data does not have */
    user_group *group;
    status (*answer)(void *ctx, int32_t i, const answer_subject *who); /* user i of the batch */
    status (*show)(void *ctx, const user_events *u); /* before a user is added; or NULL */
} user_service;

/* Serves all users of a choice; `out` is where the answers go.  ranks NULL: this process serves
 * all; else the ranks divide them, and the answers come in the order of the users from rank 0.
 * ERR_FORMAT: there is no user. */
status user_service_run(const user_service *s, void *ctx, const user_choice *users,
                        const seq_file *data, answers *out, transport *ranks);
