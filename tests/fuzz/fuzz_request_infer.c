/* Any bytes as a KServe v2 request: the first two are the header Inference-Header-Content-Length
 * (65535: none).  What is accepted asks for a batch whose histories and candidates are in memory of
 * the request. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/http/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static size_t touch(const engine_id *id) {
    return id->text != NULL ? strnlen(id->text, id->n) : (size_t)id->number % 7;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    request_infer q;
    char header[24];
    arena a;
    volatile size_t sum = 0;
    if (n < 2) return 0;
    unsigned length = bytes[0] | (unsigned)bytes[1] << 8;
    snprintf(header, sizeof header, "%u", length);
    arena_init(&a, 1024);
    if (request_infer_read(&a, (const char *)bytes + 2, n - 2, length == 65535 ? NULL : header,
                           &q) == OK) {
        if (q.n == 0 || q.n > INFER_MAX_BATCH) abort();
        for (size_t i = 0; i < q.n; i++) {
            for (size_t k = 0; k < q.ask[i].n_candidates; k++)
                sum += touch(&q.ask[i].candidates[k]);
            for (size_t k = 0; k < q.ask[i].n_history; k++)
                sum += touch(&q.ask[i].history[k].item);
        }
    }
    (void)sum;
    arena_fini(&a);
    return 0;
}
