/* Any bytes as the text of a plan and as a list of segments: what is accepted prints as itself. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tune/fusion_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_plan(const char *text) {
    fusion_plan p, again;
    char bits[PLAN_BITS + 1];
    if (plan_parse(text, &p) != OK) return;
    plan_bits(p.value, bits);
    if (plan_parse(bits, &again) != OK || memcmp(&p, &again, sizeof p) != 0) abort();
}

static void check_segments(const char *text) {
    uint16_t value;
    fusion_plan p;
    if (plan_from_segments(text, false, &value) != OK) return;
    plan_decode(value, &p);
    if (p.n_segments < 1 || plan_canonical(chain_of(CHAIN_BERT), value) != value) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *text;
    if (mem_alloc((void **)&text, n + 1, 1) != OK) return 0;
    memcpy(text, data, n);
    check_plan(text);
    check_segments(text);
    mem_free(text);
    return 0;
}
