/* Which users a command is about: --user ID (several times), --users FILE or --all-users; one after
 * the other, for any number of them. */
#ifndef HSTU_CLI_MODEL_USER_LIST_H
#define HSTU_CLI_MODEL_USER_LIST_H

#include "cli/cli.h"
#include "cli/model/answers.h"
#include "cli/model/id_lines.h"

typedef struct user_choice {
    arg_list users;
    const char *file;
    bool is_all;
} user_choice;

/* Three options of a command's table. */
#define USER_OPTIONS(c)                                                                            \
    {"--user",                                                                                     \
     ARG_LIST,                                                                                     \
     &(c)->users,                                                                                  \
     "ID",                                                                                         \
     "A user of the data, by its id there; may be given several times.",                           \
     0,                                                                                            \
     0},                                                                                           \
        {"--users", ARG_TEXT, &(c)->file, "FILE", "Users by their ids, one a line; - is stdin.",   \
         0,         0},                                                                            \
    {                                                                                              \
        "--all-users", ARG_FLAG, &(c)->is_all, NULL, "Every user of the data.", 0, 0               \
    }

/* How many of the three ways were given. */
int user_choice_n(const user_choice *c);

typedef struct user_list {
    const user_choice *choice;
    const seq_file *data;
    id_lines lines;
    uint64_t next;
    id_count count;
} user_list;

status user_list_open(user_list *l, const user_choice *c, const seq_file *data);
void user_list_close(user_list *l); /* a failed open too */

/* The number of users; 0: not known beforehand. */
uint64_t user_list_total(const user_list *l);

/* The next user: *user is its number, or n_users where the data does not have it; *id is then the
 * id as given, valid until the next call, else NULL.  *is_end after the last. */
status user_list_next(user_list *l, uint64_t *user, const char **id, bool *is_end);

/* Says on stderr how many users the data did not have, if any, and what became of them. */
void user_list_tell(const user_list *l, const char *what);

/* Users that wait for their answers: numbers, and ids that the data does not have. */
typedef struct waiting_users {
    uint64_t *user;
    size_t *id; /* offset in ids, or SIZE_MAX */
    size_t n, user_capacity, id_capacity;
    buf ids;
} waiting_users;

void waiting_users_fini(waiting_users *w); /* {0} is an empty one */
void waiting_users_clear(waiting_users *w);
status waiting_users_add(waiting_users *w, uint64_t user, const char *id);
answer_subject waiting_users_at(const waiting_users *w, size_t i);

#endif
