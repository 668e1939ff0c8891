/* Any bytes as times of plans: what is read prints and reads again as the same plans. */
#include <stdlib.h>

#include "tune/plan_times.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    plan_times t = {0}, again = {0};
    buf text = {0};
    if (plan_times_parse(&t, "times", (const char *)data, n) == OK) {
        for (size_t i = 0; i < t.n; i++)
            if (plan_time_line(t.item[i].value, t.item[i].ms, &text) != OK) abort();
        if (plan_times_parse(&again, "again", buf_str(&text), text.n_bytes) != OK || again.n != t.n)
            abort();
        for (size_t i = 0; i < t.n; i++)
            if (again.item[i].value != t.item[i].value) abort();
    }
    plan_times_fini(&t);
    plan_times_fini(&again);
    buf_fini(&text);
    return 0;
}
