/* The protocol of an evaluation in words: what is held out, what is ranked, what is left out, which
 * of equal scores comes first.  It accompanies every figure, because figures of different protocols
 * cannot be compared (docs/evaluation.md). */
#ifndef HSTU_TRAIN_REPORT_PROTOCOL_H
#define HSTU_TRAIN_REPORT_PROTOCOL_H

#include "base/text.h"
#include "format/json.h"
#include "train/loop/evaluate.h"

typedef struct protocol {
    const session *session;
    split_rule rule;
    split_part part;
    const eval_result *result; /* its counts; NULL: nothing was evaluated yet */
    bool keeps_seen;           /* where there is no result */
} protocol;

/* As the member "protocol" of an open object. */
void protocol_write(const protocol *p, json_writer *w);

/* A few lines, "  Ranked    ...". */
status protocol_describe(const protocol *p, buf *out);

#endif
