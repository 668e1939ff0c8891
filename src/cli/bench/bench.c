/* hstu bench WHAT: the table of benches, and what they share. */
#include "cli/bench/bench.h"

#include "base/half.h"

enum { WARM_UPS = 3, MAX_CALLS = 30, REPLAYED = 20, MAX_PEERS_BYTES = 1 << 20 };

static const double ENOUGH_SECONDS = 0.3;

#define BENCH(name, summary) {#name, bench_##name, summary},
const command bench_commands[] = {BENCHES(BENCH){0}};

status cmd_bench(int argc, char **argv) {
    return run_subcommand("bench", "Benchmarks; each result is checked before it is timed.",
                          bench_commands, argc, argv);
}

status bench_run(const char *device, int act, bool is_deterministic, bench_fn run, void *ctx) {
    work w;
    TRY(work_open_as(&w, NULL, device, &(work_options){.is_deterministic = is_deterministic}));
    status st = w.be->ops->set_precision(w.be, (act_type)act, false);
    if (st == OK) st = run(ctx, &w);
    work_close(&w);
    return st;
}

const char *bench_device(const backend *be) {
    return be->card != NULL ? be->card : be->name;
}

json_writer *bench_json_open(const char *bench, const backend *be) {
    json_writer *w = json_line_open();
    json_key_string(w, "bench", bench);
    json_key_string(w, "device", be->name);
    if (be->card != NULL) json_key_string(w, "gpu", be->card);
    json_key_string(w, "dtype", work_dtypes[be->act]);
    return w;
}

void bench_print_cell(double x, const char *format) {
    if (isnan(x))
        printf(" %*s", atoi(format + strcspn(format, "%") + 1), "-");
    else
        printf(format, x);
}

void bench_put_act(act_type act, void *to, float x) {
    uint16_t half = act == ACT_BF16 ? half_bf16_from_float(x) : half_f16_from_float(x);
    memcpy(to, act == ACT_F32 ? (const void *)&x : (const void *)&half, act_bytes(act));
}

static double find_cell(const char *text, const char *key, int cell) {
    size_t n = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) != 0 || line[n] != ',') continue;
        const char *at = line + n, *end = line + strcspn(line, "\n");
        while (cell-- > 0 && at != NULL)
            at = memchr(at + 1, ',', (size_t)(end - at - 1));
        char *rest;
        double value = at != NULL ? strtod(at + 1, &rest) : NAN;
        return at != NULL && rest > at + 1 ? value : NAN;
    }
    return NAN;
}

double bench_peer(const char *name, const char *key, int cell) {
    char relative[80], path[CONFIG_PATH_BYTES], *text;
    size_t n;
    snprintf(relative, sizeof relative, "bench/results/peers/%s.csv", name);
    if (!work_find_file(relative, path)) return NAN;
    if (file_read_all(path, MAX_PEERS_BYTES, &text, &n) != OK) return NAN;
    double value = find_cell(text, key, cell);
    mem_free(text);
    return value;
}

bool bench_has_peers(const backend *be) {
    return be->act == ACT_BF16 && be->card != NULL && strstr(be->card, "H200") != NULL;
}

static status record_once(backend *be, uint64_t key, timing_fn fn, void *ctx) {
    record_state state;
    status st = OK;
    TRY(be->ops->record(be, key, &state));
    for (int i = 0; i < REPLAYED && state != RECORD_REPLAY && st == OK; i++)
        st = fn(ctx, i);
    status end = be->ops->record_end(be);
    return st != OK ? st : end;
}

/* n_warm turns, then the median time of at least three: of single calls, or of recordings. */
static status time_turns(backend *be, int n_warm, bool is_recorded, uint64_t key, timing_fn fn,
                         void *ctx, double *out) {
    double took[MAX_CALLS], sum = 0;
    int n = -n_warm;
    for (; n < MAX_CALLS && (n < 3 || sum < ENOUGH_SECONDS); n++) {
        if (n <= 0) TRY(be->ops->sync(be));
        uint64_t start = clock_ns();
        TRY(is_recorded ? record_once(be, key, fn, ctx) : fn(ctx, n_warm + n));
        if (n < 0) continue;
        TRY(be->ops->sync(be));
        took[n] = (double)(clock_ns() - start) / 1e9;
        sum += took[n];
    }
    *out = median(took, n);
    return OK;
}

status timing_plain(backend *be, timing_fn fn, void *ctx, double *out) {
    return time_turns(be, be->n_ahead > 0 ? WARM_UPS : 1, false, 0, fn, ctx, out);
}

/* The calls run once, are recorded, then replayed; only replays are timed. */
status timing_replay(backend *be, uint64_t key, timing_fn fn, void *ctx, double *out) {
    *out = NAN;
    if (be->token_bucket == 0) return OK;
    TRY(time_turns(be, WARM_UPS, true, key, fn, ctx, out));
    *out /= REPLAYED;
    return OK;
}
