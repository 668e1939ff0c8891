/* Any bytes as the body of /v1/recommend, /v1/rank and /rerank, by the length: what is accepted is
 * within its limits, and says whose it is. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/http/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void check_id(const engine_id *id) {
    if (id->text != NULL && (id->n == 0 || id->n > ENGINE_ID_BYTES)) abort();
}

static void check(const request_ask *r) {
    const engine_request *q = &r->ask;
    if (!q->has_user && !q->has_history) abort();
    if (q->has_user) check_id(&q->user);
    for (size_t i = 0; i < q->n_candidates; i++)
        check_id(&q->candidates[i]);
    for (size_t i = 0; i < q->n_history; i++) {
        check_id(&q->history[i].item);
        if (q->history[i].time_ns > 999999999u) abort();
    }
    if (q->top_k < 1 || (q->task == ENGINE_RECOMMEND && q->top_k > ENGINE_MAX_K)) abort();
    if (q->task == ENGINE_RANK && q->n_candidates == 0) abort();
    if (strlen(r->model) >= REQUEST_NAME_BYTES) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    static status (*const readers[])(arena *, const char *, size_t, request_ask *) = {
        request_recommend_read, request_rank_read, request_rerank_read, request_similar_read};
    for (int i = 0; i < 4; i++) {
        request_ask r;
        arena a;
        arena_init(&a, 1024);
        if (readers[i](&a, (const char *)bytes, n, &r) == OK) check(&r);
        arena_fini(&a);
    }
    return 0;
}
