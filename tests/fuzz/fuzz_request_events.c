/* Any bytes as the body of /v1/events: what is accepted has users with events of items. */
#include <stdint.h>
#include <stdlib.h>

#include "serve/http/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    request_events r;
    arena a;
    arena_init(&a, 1024);
    if (request_events_read(&a, (const char *)bytes, n, &r) == OK) {
        if (r.n_users == 0) abort();
        for (size_t u = 0; u < r.n_users; u++) {
            if (r.users[u].n_events == 0) abort();
            for (size_t i = 0; i < r.users[u].n_events; i++) {
                const engine_event *e = &r.users[u].events[i];
                if (e->item.text != NULL && (e->item.n == 0 || e->item.n > ENGINE_ID_BYTES))
                    abort();
                if ((e->id.n > 0) != (e->id.text != NULL)) abort();
            }
        }
    }
    arena_fini(&a);
    return 0;
}
