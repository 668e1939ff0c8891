#include "train/report/protocol.h"

#include <inttypes.h>
#include <stdio.h>

enum { TEXT_BYTES = 160 };

/* What the model has to predict. */
static const char *target_text(const protocol *p, char text[TEXT_BYTES]) {
    bool is_test = p->part == PART_TEST, is_ranking = p->session->config->task == TASK_RANKING;
    int32_t n = p->session->max_targets;
    switch (p->rule.kind) {
    case SPLIT_LEAVE_ONE_OUT:
    case SPLIT_LEAVE_TWO_OUT:
        return is_test ? "the last event of each user" : "the event before the last of each user";
    case SPLIT_TIME:
        return is_test ? "each user's first event at or after the cut"
                       : "each user's last event before the cut";
    case SPLIT_TEST_FILE:
        return is_test ? "each user's first event in the test file"
                       : "each user's last event in the data";
    default:
        break;
    }
    if (is_ranking && n == 0) return "every event of each held-out user";
    if (!is_ranking || n == 1) return "the last event of each held-out user";
    snprintf(text, TEXT_BYTES, "the last %d events of each held-out user", n);
    return text;
}

static const char *seen_text(const protocol *p, char text[TEXT_BYTES]) {
    bool keeps_seen = p->result != NULL ? p->result->keeps_seen : p->keeps_seen;
    if (keeps_seen) return "none, items of the history stay in the ranking";
    snprintf(text, TEXT_BYTES, "items of the last %d events before the target",
             p->session->max_history);
    return text;
}

static const char *const rank_ties = "of equal scores the item with the smaller number comes first";
static const char *const score_ties = "equal scores count half";

static int32_t n_candidates(const protocol *p) {
    return p->result != NULL ? p->result->n_items_ranked : p->session->limits.n_items;
}

void protocol_write(const protocol *p, json_writer *w) {
    char text[TEXT_BYTES], rule[SPLIT_TEXT_BYTES];
    bool is_retrieval = p->session->config->task == TASK_RETRIEVAL;
    json_key(w, "protocol");
    json_object_open(w);
    json_key_string(w, "split", split_rule_text(&p->rule, rule));
    json_key_string(w, "part", split_part_name(p->part));
    json_key_string(w, "target", target_text(p, text));
    if (is_retrieval) {
        json_key_int(w, "candidates", n_candidates(p));
        json_key_int(w, "catalogue", p->session->limits.n_items);
        json_key_string(w, "left_out", seen_text(p, text));
        if (p->result != NULL) json_key_int(w, "repeated_targets", p->result->n_repeated);
    }
    json_key_string(w, "ties", is_retrieval ? rank_ties : score_ties);
    json_object_close(w);
}

static status describe_ranks(const protocol *p, buf *out) {
    char text[TEXT_BYTES];
    int32_t n = n_candidates(p), n_items = p->session->limits.n_items;
    const eval_result *r = p->result;
    TRY(buf_printf(out,
                   n == n_items ? "  Ranked    all %d items of the catalogue\n"
                                : "  Ranked    %d of the catalogue's %d items\n",
                   n, n_items));
    TRY(buf_printf(out, "  Left out  %s\n", seen_text(p, text)));
    TRY(buf_printf(out, "  Ties      %s\n", rank_ties));
    if (r == NULL || r->n_users == 0) return OK;
    return buf_printf(out,
                      "  Repeated  %" PRId64 " of %" PRId64 " targets (%.2f %%) are in that "
                      "history: %s\n",
                      r->n_repeated, r->n_users, 100.0 * (double)r->n_repeated / (double)r->n_users,
                      r->keeps_seen ? "ranked like any other" : "never found");
}

status protocol_describe(const protocol *p, buf *out) {
    char text[TEXT_BYTES], rule[SPLIT_TEXT_BYTES];
    TRY(buf_printf(out, "  Split     %s, %s part\n", split_rule_text(&p->rule, rule),
                   split_part_name(p->part)));
    TRY(buf_printf(out, "  Target    %s\n", target_text(p, text)));
    if (p->session->config->task == TASK_RETRIEVAL) return describe_ranks(p, out);
    return buf_printf(out, "  Ties      %s\n", score_ties);
}
