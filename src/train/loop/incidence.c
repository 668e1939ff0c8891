#include "train/loop/incidence.h"

#include <string.h>

#include "base/mem.h"
#include "model/pass.h"

static uint64_t n_training_events(const split *s, uint64_t user, uint64_t max_events,
                                  event_range *range) {
    if (!split_range(s, PART_TRAIN, user, range)) return 0;
    uint64_t n = range->end - range->begin;
    return n < max_events ? n : max_events;
}

static status collect_items(incidence *in, const split *s, uint64_t stride, uint64_t max_events) {
    event_range range = {0};
    uint64_t n = 0;
    for (uint64_t user = 0; user < in->n_users; user++)
        n += n_training_events(s, user * stride, max_events, &range);
    TRY(MEM_NEW(&in->user_begin, (size_t)in->n_users + 1));
    TRY(MEM_NEW_RAW(&in->item, (size_t)n));
    for (uint64_t user = 0; user < in->n_users; user++) {
        uint32_t *item = in->item + in->user_begin[user];
        n = n_training_events(s, user * stride, max_events, &range);
        if (n > 0) memcpy(item, s->data->item + range.end - n, (size_t)n * sizeof *item);
        in->user_begin[user + 1] =
            in->user_begin[user] + (uint64_t)pass_distinct_rows((int32_t *)item, (int32_t)n);
    }
    return OK;
}

static status collect_users(incidence *in) {
    uint64_t n = in->user_begin[in->n_users];
    TRY(MEM_NEW(&in->item_begin, (size_t)in->n_items + 2));
    TRY(MEM_NEW_RAW(&in->user, (size_t)n));
    for (uint64_t i = 0; i < n; i++)
        in->item_begin[in->item[i] + 1]++;
    for (uint64_t i = 0; i <= in->n_items; i++)
        in->item_begin[i + 1] += in->item_begin[i];
    for (uint64_t user = 0; user < in->n_users; user++) {
        for (uint64_t i = in->user_begin[user]; i < in->user_begin[user + 1]; i++)
            in->user[in->item_begin[in->item[i]]++] = (uint32_t)user;
    }
    /* Each begin has advanced to its end, which is the begin of the next. */
    memmove(in->item_begin + 1, in->item_begin, ((size_t)in->n_items + 1) * sizeof *in->item_begin);
    in->item_begin[0] = 0;
    return OK;
}

void incidence_fini(incidence *in) {
    mem_free(in->user_begin);
    mem_free(in->item);
    mem_free(in->item_begin);
    mem_free(in->user);
    *in = (incidence){0};
}

status incidence_init(incidence *in, const split *s, uint64_t stride, uint64_t max_events) {
    *in = (incidence){.n_users = (s->data->n_users + stride - 1) / stride,
                      .n_items = s->data->n_items};
    TRY(collect_items(in, s, stride, max_events));
    return collect_users(in);
}
