/* Users one after the other, in batches, each with an answer: the loop of the commands that ask a
 * model about users (recommend, score), with a progress bar where it is not in the way. */
#ifndef HSTU_CLI_MODEL_USER_SERVICE_H
#define HSTU_CLI_MODEL_USER_SERVICE_H

#include "cli/model/user_list.h"
#include "dist/transport.h"
#include "model/histories.h"

/* What is done with users.  A batch is what was added since the last clear. */
typedef struct user_service {
    const char *doing;   /* of the progress bar: "recommending" */
    const char *unknown; /* what became of users that the data does not have */
    bool (*fits)(void *ctx, const user_events *u); /* whether the batch has room for one more */
    status (*add)(void *ctx, const user_events *u);
    status (*run)(void *ctx);
    status (*answer)(void *ctx, int32_t i, const answer_subject *who); /* user i of the batch */
    void (*clear)(void *ctx);
} user_service;

/* Serves all users of a choice; `out` is where the answers go.  ranks NULL: this process serves
 * all; else the ranks divide them, and the answers come in the order of the users from rank 0.
 * ERR_FORMAT: there is no user. */
status user_service_run(const user_service *s, void *ctx, const user_choice *users,
                        const seq_file *data, answers *out, transport *ranks);

#endif
