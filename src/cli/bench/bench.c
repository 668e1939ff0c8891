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

status bench_run(bench *b, status (*run)(void *ctx), void *ctx) {
    work w;
    TRY(work_open_as(&w, NULL, b->device,
                     &(work_options){.is_deterministic = b->is_deterministic}));
    b->be = w.be;
    b->workers = w.workers;
    status st = w.be->ops->set_precision(w.be, (act_type)b->act, false);
    b->dtype = work_dtypes[w.be->act];
    if (b->seed == 0) b->seed = (int64_t)clock_ns();
    if (st == OK) st = run(ctx);
    work_close(&w);
    return st;
}

const char *bench_device(const backend *be) {
    return be->card != NULL ? be->card : be->name;
}

static json_writer *open_line(const bench *b) {
    json_writer *w = json_line_open();
    json_key_string(w, "bench", b->name);
    json_key_string(w, "device", b->be->name);
    if (b->be->card != NULL) json_key_string(w, "gpu", b->be->card);
    json_key_string(w, "dtype", b->dtype);
    return w;
}

void bench_title(bench *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(b->title, sizeof b->title, format, args);
    va_end(args);
}

static bool is_unknown(const json_field *f) {
    return (f->kind == FIELD_DOUBLE || f->kind == FIELD_KNOWN) && isnan(f->number);
}

static void print_cell(const bench_cell *c, bool is_head) {
    const json_field *f = &c->value;
    int indent = (int)strspn(c->format, " "), width = atoi(c->format);
    bool is_text = is_head || is_unknown(f) || f->kind == FIELD_TEXT;
    bool is_double = f->kind == FIELD_DOUBLE || f->kind == FIELD_KNOWN;
    const char *number = is_double ? show_printf(show_printf("%%%s", c->format + indent), f->number)
                                   : show_printf("%" PRId64, f->integer);
    const char *text = is_head ? c->head : is_unknown(f) ? "-" : f->text;
    printf("%*s%*s", indent, "", width, is_text ? text : number);
}

static void print_cells(const bench_cell *cells, size_t n, bool is_head) {
    for (size_t i = 0; i < n; i++)
        if (cells[i].head != NULL) print_cell(&cells[i], is_head);
}

static void print_row(bench *b, const bench_cell *cells, size_t n) {
    show_style style = show_stdout_style();
    if (!b->has_head) {
        b->has_head = true;
        printf("%s\n\n%s", b->title, style.bold);
        print_cells(cells, n, true);
        printf("%s\n", style.plain);
    }
    print_cells(cells, n, false);
    printf("\n");
    (void)fflush(stdout);
}

void bench_put(bench *table, json_writer *w, const bench_cell *cells, size_t n) {
    if (table != NULL) print_row(table, cells, n);
    for (size_t i = 0; w != NULL && i < n; i++)
        if (cells[i].value.key != NULL && !is_unknown(&cells[i].value))
            json_fields(w, &cells[i].value, 1);
}

status bench_row(bench *b, const bench_cell *cells, size_t n) {
    bench_put(b->is_json ? NULL : b, b->is_json ? open_line(b) : NULL, cells, n);
    return b->is_json ? json_line_print() : OK;
}

void bench_put_act(act_type act, void *to, float x) {
    uint16_t half = act == ACT_BF16 ? half_bf16_from_float(x) : half_f16_from_float(x);
    memcpy(to, act == ACT_F32 ? (const void *)&x : (const void *)&half, act_bytes(act));
}

status bench_draw(nn_memory *memory, rng_key key, uint64_t what, int64_t n, float **out) {
    TRY(NN_NEW_HOST(memory, out, n + 4));
    for (int64_t at = 0; at < n; at += 4) {
        rng_block drawn = rng_draw64(key, (uint64_t)at, what);
        for (int i = 0; i < 4; i++)
            (*out)[at + i] = (float)(drawn.word[i] >> 24) / 128 - 1;
    }
    return OK;
}

status bench_send(nn_memory *memory, const void *from, int64_t n, size_t size, void *out) {
    TRY(nn_new(memory, out, n, size));
    return memory->be->ops->copy_in(memory->be, *(void **)out, from, (size_t)n * size);
}

status bench_pool_init(bench_pool *p, nn_memory *memory, rng_key key) {
    *p = (bench_pool){.memory = memory, .key = key};
    TRY(bench_draw(memory, key, 0, BENCH_POOL, &p->host));
    return bench_send(memory, p->host, BENCH_POOL, sizeof(float), &p->device);
}

status bench_pool_draw(const bench_pool *p, uint64_t what, int64_t n, int64_t dim, int32_t **out) {
    TRY(NN_NEW_HOST(p->memory, out, n + 4));
    for (int64_t at = 0; at < n; at += 4) {
        rng_block drawn = rng_draw64(p->key, (uint64_t)at, what);
        for (int i = 0; i < 4; i++)
            (*out)[at + i] = (int32_t)rng_below(drawn.word[i], (uint32_t)(BENCH_POOL / dim));
    }
    return OK;
}

status bench_pool_rows(const bench_pool *p, const int32_t *index, int64_t n, int64_t dim,
                       float scale, void *out) {
    TRY(nn_new_act(p->memory, out, n, dim));
    gather_args a = {.n = n, .dim = (int32_t)dim, .index = index, .scale = scale};
    a.table = p->device;
    a.y = *(void **)out;
    return p->memory->be->ops->gather(p->memory->be, &a);
}

void bench_pool_copy(const bench_pool *p, const int32_t *index, int32_t n_rows, int64_t dim,
                     int64_t first, int32_t n, float *to) {
    for (int64_t i = 0; i < n_rows; i++)
        memcpy(to + i * n, p->host + index[i] * dim + first, (size_t)n * sizeof *to);
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
    char path[CONFIG_PATH_BYTES], *text;
    size_t n;
    if (!work_find_file(show_printf("bench/results/peers/%s.csv", name), path)) return NAN;
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

static double cpu_seconds(void) {
    struct timespec t;
    bool is_known = clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0;
    return is_known ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0;
}

/* n_warm turns, then at least three: single calls, or recordings. */
static status time_turns(backend *be, int n_warm, int most, double seconds, bool is_recorded,
                         uint64_t key, timing_fn fn, void *ctx, timing *out) {
    double took[TIMING_MAX], sum = 0, cpu = 0;
    int n = -n_warm;
    for (; n < most && (n < 3 || sum < seconds); n++) {
        if (n <= 0) TRY(be->ops->sync(be));
        if (n == 0) cpu = cpu_seconds();
        uint64_t start = clock_ns();
        TRY(is_recorded ? record_once(be, key, fn, ctx) : fn(ctx, n_warm + n));
        if (n < 0) continue;
        TRY(be->ops->sync(be));
        took[n] = (double)(clock_ns() - start) / 1e9;
        sum += took[n];
    }
    out->cpu = (cpu_seconds() - cpu) / n;
    out->n = n;
    out->median = median(took, n);
    out->fastest = took[0]; /* sorted by now */
    return OK;
}

status timing_calls(backend *be, double seconds, timing_fn fn, void *ctx, timing *out) {
    return time_turns(be, WARM_UPS, TIMING_MAX, seconds, false, 0, fn, ctx, out);
}

status timing_plain(backend *be, timing_fn fn, void *ctx, double *out) {
    timing t;
    TRY(time_turns(be, be->n_ahead > 0 ? WARM_UPS : 1, MAX_CALLS, ENOUGH_SECONDS, false, 0, fn, ctx,
                   &t));
    *out = t.median;
    return OK;
}

/* The calls run once, are recorded, then replayed; only replays are timed. */
status timing_replay(backend *be, uint64_t key, timing_fn fn, void *ctx, double *out) {
    timing t = {.median = NAN};
    if (be->token_bucket != 0)
        TRY(time_turns(be, WARM_UPS, MAX_CALLS, ENOUGH_SECONDS, true, key, fn, ctx, &t));
    *out = t.median / REPLAYED;
    return OK;
}
