/* hstu sweep: from texts of ranges to trials. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cli/model/sweep.h"

static status bad(const char *text, const char *why) {
    return fail(ERR_USAGE,
                "--set-range %.200s: %s; it is NAME=V1,V2,... or NAME=LO..HI:N or "
                "NAME=log:LO..HI:N",
                text, why);
}

static status check_characters(const char *text) {
    for (const char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return bad("?", "it has control characters");
    return OK;
}

static status add_value(sweep *s, sweep_range *r, const char *text, const char *from, size_t n) {
    char *value;
    while (n > 0 && *from == ' ')
        from++, n--;
    while (n > 0 && from[n - 1] == ' ')
        n--;
    if (n == 0) return bad(text, "a value is empty");
    if (r->n == SWEEP_VALUES) return bad(text, "it has more than 256 values");
    TRY(ARENA_NEW(&s->memory, &value, n + 1));
    memcpy(value, from, n);
    value[n] = '\0';
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->value[i], value) == 0) return bad(text, "a value is given twice");
    r->value[r->n++] = value;
    return OK;
}

/* Commas in brackets and quotes belong to a value: [8, 5] is one. */
static status split_values(sweep *s, sweep_range *r, const char *text, const char *list) {
    int depth = 0;
    char quote = '\0';
    const char *from = list;
    for (const char *c = list;; c++) {
        if (*c == '\0' || (*c == ',' && depth == 0 && quote == '\0')) {
            if (*c == '\0' && (depth != 0 || quote != '\0'))
                return bad(text, "a bracket or quote is open");
            TRY(add_value(s, r, text, from, (size_t)(c - from)));
            if (*c == '\0') return OK;
            from = c + 1;
        } else if (quote != '\0') {
            if (*c == quote) quote = '\0';
        } else if (*c == '\'' || *c == '"') {
            quote = *c;
        } else if (*c == '[' || *c == '(') {
            depth++;
        } else if (*c == ']' || *c == ')') {
            if (--depth < 0) return bad(text, "a bracket is closed that was not open");
        }
    }
}

/* LO..HI:N; integers stay integers where they are even steps. */
static status spread_values(sweep *s, sweep_range *r, const char *text, const char *list) {
    const char *points = strstr(list, "..");
    char first[64], *end;
    size_t n_first = points != NULL ? (size_t)(points - list) : 0;
    if (n_first == 0 || n_first >= sizeof first) return bad(text, "LO is no number");
    memcpy(first, list, n_first); /* alone: "2..8" would begin with the number "2." */
    first[n_first] = '\0';
    double low = strtod(first, &end);
    if (end != first + n_first) return bad(text, "LO is no number");
    const char *second = points + 2;
    double high = strtod(second, &end);
    if (end == second || *end != ':') return bad(text, "HI is no number");
    const char *third = end + 1;
    long n = strtol(third, &end, 10);
    if (end == third || *end != '\0' || n < 2 || n > SWEEP_VALUES)
        return bad(text, "N is not 2..256");
    if (!isfinite(low) || !isfinite(high) || !(low < high)) return bad(text, "LO is not below HI");
    if (r->is_log && low <= 0) return bad(text, "a log range starts above 0");
    bool is_whole = !r->is_log && low == floor(low) && high == floor(high) && fabs(low) < 1e15 &&
                    fabs(high) < 1e15 && strpbrk(list, "eE") == NULL &&
                    fmod(high - low, (double)(n - 1)) == 0;
    for (long i = 0; i < n; i++) {
        char value[40];
        double share = (double)i / (double)(n - 1);
        double x = r->is_log ? low * pow(high / low, share) : low + share * (high - low);
        if (i == n - 1) x = high;
        if (is_whole)
            snprintf(value, sizeof value, "%.0f", x);
        else
            snprintf(value, sizeof value, "%.6g", x);
        TRY(add_value(s, r, text, value, strlen(value)));
    }
    return OK;
}

/* The list begins with a number, two points and another: no value of a config looks like that. */
static bool is_spread(const char *list) {
    const char *points = strstr(list, "..");
    return points != NULL && strchr(points, ':') != NULL && strchr(list, ',') == NULL &&
           strpbrk(list, "'\"[") == NULL;
}

status sweep_add_range(sweep *s, const char *text) {
    const char *is = strchr(text, '=');
    sweep_range r = {0};
    char *name;
    TRY(check_characters(text));
    if (is == NULL || is == text) return bad(text, "there is no NAME=");
    if (s->n_ranges == SWEEP_RANGES) return bad(text, "there are 16 ranges already");
    size_t n = (size_t)(is - text);
    TRY(ARENA_NEW(&s->memory, &name, n + 1));
    memcpy(name, text, n);
    name[n] = '\0';
    for (int i = 0; i < s->n_ranges; i++)
        if (strcmp(s->range[i].name, name) == 0) return bad(text, "its NAME has a range already");
    r.name = name;
    TRY(ARENA_NEW(&s->memory, &r.value, SWEEP_VALUES));
    const char *list = is + 1;
    if (strncmp(list, "log:", 4) == 0) {
        r.is_log = true;
        list += 4;
    }
    if (r.is_log || is_spread(list))
        TRY(spread_values(s, &r, text, list));
    else
        TRY(split_values(s, &r, text, list));
    s->range[s->n_ranges++] = r;
    return OK;
}

static void set_trial(const sweep *s, sweep_trial *t, uint64_t number) {
    *t = (sweep_trial){.metric = NAN};
    for (int i = s->n_ranges - 1; i >= 0; i--) { /* the last range changes first */
        t->at[i] = (int)(number % (uint64_t)s->range[i].n);
        number /= (uint64_t)s->range[i].n;
    }
}

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* n different numbers below `total`, ascending. */
static void draw(uint64_t *out, int n, uint64_t total, uint64_t seed) {
    rng_key key = rng_make_key(seed, RNG_TEST);
    uint64_t k = 0;
    for (int i = 0; i < n;) {
        rng_block b = rng_draw64(key, k++, 0);
        uint64_t x = ((uint64_t)b.word[0] << 32 | b.word[1]) % total;
        bool is_new = true;
        for (int j = 0; j < i && is_new; j++)
            is_new = out[j] != x;
        if (is_new) out[i++] = x;
    }
    qsort(out, (size_t)n, sizeof *out, by_number);
}

status sweep_make_trials(sweep *s, int64_t n_random, uint64_t seed) {
    uint64_t total = 1, *number;
    for (int i = 0; i < s->n_ranges; i++) {
        if (total > UINT64_MAX / 4 / (uint64_t)s->range[i].n)
            return fail(ERR_USAGE, "the ranges have more than 2^62 combinations");
        total *= (uint64_t)s->range[i].n;
    }
    bool is_drawn = n_random > 0 && (uint64_t)n_random < total;
    uint64_t n = is_drawn ? (uint64_t)n_random : total;
    if (n > SWEEP_TRIALS)
        return fail(ERR_USAGE,
                    "the ranges have %" PRIu64 " combinations, and %d can be tried; --random N "
                    "draws some of them",
                    total, (int)SWEEP_TRIALS);
    TRY(ARENA_NEW(&s->memory, &s->trial, n));
    TRY(ARENA_NEW(&s->memory, &number, n));
    if (is_drawn)
        draw(number, (int)n, total, seed);
    else
        for (uint64_t i = 0; i < n; i++)
            number[i] = i;
    s->n_trials = (int)n;
    for (uint64_t i = 0; i < n; i++)
        set_trial(s, &s->trial[i], number[i]);
    return OK;
}
