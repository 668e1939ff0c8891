/* Sample recommendations: what a few users of a part would get, with titles, for people who look at
 * a report. */
#ifndef HSTU_TRAIN_REPORT_SAMPLES_H
#define HSTU_TRAIN_REPORT_SAMPLES_H

#include "format/json.h"
#include "model/session.h"

/* Writes the member "users" of an open object: for up to three users spread over the first batch of
 * the part the newest events before the target, the best items, the target and its rank.  Retrieval
 * only.  Where the session trains, activations of s->train are overwritten. */
status samples_write(session *s, split_rule rule, split_part part, json_writer *w);

#endif
