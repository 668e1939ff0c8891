#include "profile/utilization.h"

/* Registers are given to warps in units of 256, shared memory to blocks in units of 128 bytes with
 * 1 KiB that the system keeps for itself; since SM 8.0. */
enum { WARP = 32, REGISTER_UNIT = 256, SHARED_UNIT = 128, SHARED_RESERVED = 1024 };

/* A warp's registers come from one of four parts of the multiprocessor. */
enum { PARTS = 4 };

static uint64_t round_up(uint64_t n, uint64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static uint32_t blocks_by_registers(const gpu_facts *g, const span_launch *l, uint32_t warps) {
    if (l->registers == 0) return UINT32_MAX;
    uint64_t of_warp = round_up((uint64_t)l->registers * WARP, REGISTER_UNIT);
    uint64_t fit = g->max_registers / PARTS / of_warp * PARTS;
    return (uint32_t)(fit / warps);
}

static uint32_t blocks_by_shared(const gpu_facts *g, const span_launch *l) {
    uint64_t reserved = g->sm >= 80 ? SHARED_RESERVED : 0;
    uint64_t bytes =
        round_up((uint64_t)l->static_shared + l->dynamic_shared + reserved, SHARED_UNIT);
    return bytes == 0 ? UINT32_MAX : (uint32_t)(g->max_shared / bytes);
}

static uint64_t product(const int32_t v[3]) {
    uint64_t n = 1;
    for (int i = 0; i < 3; i++)
        n *= v[i] > 0 ? (uint64_t)v[i] : 1;
    return n;
}

occupancy occupancy_find(const gpu_facts *g, const span_launch *l) {
    occupancy o = {.limit = LIMIT_TOO_LARGE};
    uint64_t warps = round_up(product(l->block), WARP) / WARP;
    if (g->max_warps == 0 || warps > g->max_warps) return o;
    const uint32_t by[] = {g->max_warps / (uint32_t)warps, g->max_blocks,
                           blocks_by_registers(g, l, (uint32_t)warps), blocks_by_shared(g, l)};
    static const occupancy_limit why[] = {LIMIT_BLOCK, LIMIT_BLOCKS, LIMIT_REGISTERS, LIMIT_SHARED};
    int least = 0;
    for (int i = 1; i < 4; i++)
        if (by[i] < by[least]) least = i;
    if (by[least] == 0) return o;
    o.blocks = by[least];
    o.warps = o.blocks * (uint32_t)warps;
    o.share = (double)o.warps / g->max_warps;
    o.limit = o.warps == g->max_warps ? LIMIT_NONE : why[least];
    if (g->n_multiprocessors > 0)
        o.waves = (double)product(l->grid) / ((double)o.blocks * g->n_multiprocessors);
    return o;
}

const char *occupancy_limit_name(occupancy_limit l) {
    static const char *const names[] = {"none",   "registers",  "shared memory",
                                        "blocks", "block size", "unknown"};
    return names[l];
}

static const profile_column launch_columns[] = {{"Time (%)", COLUMN_PERCENT, LAUNCH_SHARE},
                                                {"Instances", COLUMN_COUNT, LAUNCH_COUNT},
                                                {"Avg (ns)", COLUMN_NS, LAUNCH_AVERAGE},
                                                {"Grid", COLUMN_TEXT, LAUNCH_GRID},
                                                {"Block", COLUMN_TEXT, LAUNCH_BLOCK},
                                                {"Reg/Trd", COLUMN_COUNT, LAUNCH_REGISTERS},
                                                {"StcSMem (B)", COLUMN_COUNT, LAUNCH_STATIC},
                                                {"DymSMem (B)", COLUMN_COUNT, LAUNCH_DYNAMIC},
                                                {"Local (B)", COLUMN_COUNT, LAUNCH_LOCAL},
                                                {"Warps/SM", COLUMN_COUNT, LAUNCH_WARPS},
                                                {"Occup (%)", COLUMN_PERCENT, LAUNCH_OCCUPANCY},
                                                {"Waves", COLUMN_NUMBER, LAUNCH_WAVES},
                                                {"Limited by", COLUMN_TEXT, LAUNCH_LIMIT},
                                                {"Name", COLUMN_NAME, 0}};

static void put_triple(char out[36], const int32_t v[3]) {
    snprintf(out, 36, "%d,%d,%d", v[0], v[1], v[2]);
}

static void describe_launch(profile_row *row, const span_launch *l, const gpu_facts *g) {
    put_triple(row->text[LAUNCH_GRID], l->grid);
    put_triple(row->text[LAUNCH_BLOCK], l->block);
    row->value[LAUNCH_REGISTERS] = l->registers;
    row->value[LAUNCH_STATIC] = l->static_shared;
    row->value[LAUNCH_DYNAMIC] = l->dynamic_shared;
    row->value[LAUNCH_LOCAL] = l->local;
    occupancy o = {.limit = LIMIT_TOO_LARGE};
    if (g != NULL) o = occupancy_find(g, l);
    row->value[LAUNCH_WARPS] = o.warps;
    row->value[LAUNCH_OCCUPANCY] = 100 * o.share;
    row->value[LAUNCH_WAVES] = o.waves;
    snprintf(row->text[LAUNCH_LIMIT], sizeof row->text[0], "%s", occupancy_limit_name(o.limit));
}

status launches_fill(profile_table *t, const recorder *r) {
    const span **longest;
    double total = 0;
    t->columns = launch_columns;
    t->n_columns = (int)(sizeof launch_columns / sizeof *launch_columns);
    TRY(mem_alloc((void **)&longest, r->names.n + 1, sizeof *longest));
    status st = mem_alloc((void **)&t->rows, r->names.n + 1, sizeof *t->rows);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->kind != SPAN_KERNEL || s->end_ns == 0 || s->launch < 0) continue;
        const span **best = &longest[s->name];
        if (*best == NULL || s->end_ns - s->start_ns > (*best)->end_ns - (*best)->start_ns)
            *best = s;
        t->rows[s->name].value[LAUNCH_TOTAL] += (double)(s->end_ns - s->start_ns);
        t->rows[s->name].value[LAUNCH_COUNT]++;
        total += (double)(s->end_ns - s->start_ns);
    }
    for (size_t i = 0; st == OK && i < r->names.n; i++) {
        if (longest[i] == NULL) continue;
        profile_row row = t->rows[i];
        row.name = recorder_text(r, i);
        row.value[LAUNCH_SHARE] = 100 * row.value[LAUNCH_TOTAL] / total;
        row.value[LAUNCH_AVERAGE] = row.value[LAUNCH_TOTAL] / row.value[LAUNCH_COUNT];
        describe_launch(&row, &r->launches[longest[i]->launch],
                        recorder_gpu(r, longest[i]->device));
        t->rows[t->n_rows++] = row;
    }
    mem_free(longest);
    return st;
}

/* One sentence a kernel, the worst first; local memory is where spilled registers go. */
static status advise(const profile_row *row, buf *out) {
    const double *v = row->value;
    if (v[LAUNCH_WAVES] > 0 && v[LAUNCH_WAVES] < .5)
        return buf_printf(out,
                          "%s (%.0f %% of the time) fills %.0f %% of the GPU once: its grid is "
                          "%s blocks. More rows at a time, or more blocks a row, would fill it.\n",
                          row->name, v[LAUNCH_SHARE], 100 * v[LAUNCH_WAVES],
                          row->text[LAUNCH_GRID]);
    if (v[LAUNCH_LOCAL] > 0)
        return buf_printf(out,
                          "%s (%.0f %% of the time) uses %.0f bytes of local memory a thread: "
                          "registers may be spilled to memory.\n",
                          row->name, v[LAUNCH_SHARE], v[LAUNCH_LOCAL]);
    if (v[LAUNCH_OCCUPANCY] > 0 && v[LAUNCH_OCCUPANCY] < 10)
        return buf_printf(out,
                          "%s (%.0f %% of the time) has an occupancy of %.0f %%, limited by %s.\n",
                          row->name, v[LAUNCH_SHARE], v[LAUNCH_OCCUPANCY], row->text[LAUNCH_LIMIT]);
    return OK;
}

status launches_advice(const recorder *r, buf *out) {
    profile_table t;
    TRY(profile_table_make(&t, r, REPORT_LAUNCHES));
    status st = OK;
    for (size_t i = 0; st == OK && i < t.n_rows; i++)
        if (t.rows[i].value[LAUNCH_SHARE] >= 5) st = advise(&t.rows[i], out);
    profile_table_fini(&t);
    return st;
}

static const profile_column roofline_columns[] = {
    {"Time (%)", COLUMN_PERCENT, ROOF_SHARE},
    {"Total Time (ns)", COLUMN_NS, ROOF_TOTAL},
    {"Count", COLUMN_COUNT, ROOF_COUNT},
    {"TFLOP/s", COLUMN_NUMBER, ROOF_FLOP},
    {"GB/s", COLUMN_NUMBER, ROOF_BYTES},
    {"FLOP/B", COLUMN_NUMBER, ROOF_INTENSITY},
    {"of FLOP peak (%)", COLUMN_PERCENT, ROOF_OF_FLOP},
    {"of memory peak (%)", COLUMN_PERCENT, ROOF_OF_BYTES},
    {"Name", COLUMN_NAME, 0}};

/* What is summed by name. */
typedef struct work_sum {
    double flop, bytes, host_ns, gpu_ns, count;
} work_sum;

/* The name that what the GPU ran belongs to; -1: nobody's. */
static int32_t owner_of(const recorder *r, const span *s) {
    if (s->graph_op > 0) return s->graph_op - 1;
    return s->op >= 0 && r->spans[s->op].kind == SPAN_OP ? r->spans[s->op].name : -1;
}

/* Calls whose work is not known are left out, with their time. */
static bool is_counted(const recorder *r, const span *s) {
    if (!span_is_on_gpu(s)) return s->kind == SPAN_OP && s->has_work;
    return s->graph_op > 0 ? s->has_work : s->op >= 0 && r->spans[s->op].has_work;
}

static bool sum_up(work_sum *sums, const recorder *r) {
    bool has_gpu = false;
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->end_ns == 0) continue;
        has_gpu = has_gpu || span_is_on_gpu(s);
        int32_t owner = span_is_on_gpu(s) ? owner_of(r, s) : s->name;
        if (owner < 0 || !is_counted(r, s)) continue;
        double ns = (double)(s->end_ns - s->start_ns);
        work_sum *w = &sums[owner];
        w->flop += s->flop;
        w->bytes += s->moved;
        if (span_is_on_gpu(s))
            w->gpu_ns += ns;
        else
            w->host_ns += ns - (double)s->child_ns;
        w->count += span_is_on_gpu(s) ? s->is_first : 1;
    }
    return has_gpu;
}

static void describe_work(double *v, const work_sum *w, double ns, const recorder *r) {
    v[ROOF_TOTAL] = ns;
    v[ROOF_COUNT] = w->count;
    v[ROOF_FLOP] = w->flop / ns / 1e3;
    v[ROOF_BYTES] = w->bytes / ns;
    v[ROOF_INTENSITY] = w->bytes > 0 ? w->flop / w->bytes : 0;
    v[ROOF_OF_FLOP] = r->peak_flop > 0 ? 100 * w->flop * 1e9 / ns / r->peak_flop : 0;
    v[ROOF_OF_BYTES] = r->peak_bytes > 0 ? 100 * w->bytes * 1e9 / ns / r->peak_bytes : 0;
}

status roofline_fill(profile_table *t, const recorder *r) {
    work_sum *sums;
    double total = 0;
    t->columns = roofline_columns;
    t->n_columns = (int)(sizeof roofline_columns / sizeof *roofline_columns);
    TRY(mem_alloc((void **)&sums, r->names.n + 1, sizeof *sums));
    status st = mem_alloc((void **)&t->rows, r->names.n + 1, sizeof *t->rows);
    bool has_gpu = st == OK && sum_up(sums, r);
    for (size_t i = 0; st == OK && i < r->names.n; i++) {
        double ns = has_gpu ? sums[i].gpu_ns : sums[i].host_ns;
        if (ns <= 0 || (sums[i].flop <= 0 && sums[i].bytes <= 0)) continue;
        profile_row *row = &t->rows[t->n_rows++];
        row->name = recorder_text(r, i);
        describe_work(row->value, &sums[i], ns, r);
        total += ns;
    }
    for (size_t i = 0; st == OK && i < t->n_rows; i++)
        t->rows[i].value[ROOF_SHARE] = 100 * t->rows[i].value[ROOF_TOTAL] / total;
    mem_free(sums);
    return st;
}

/* The picture: both axes are logarithms, x FLOP a byte, y FLOP a second. */
enum { WIDTH = 720, HEIGHT = 380, LEFT = 70, BOTTOM = 40, TOP = 16, RIGHT = 40 };

typedef struct roof {
    double x0, x1, y0, y1; /* log10 of the edges */
} roof;

static double at_x(const roof *f, double intensity) {
    return LEFT + (log10(intensity) - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const roof *f, double flop) {
    return HEIGHT - BOTTOM - (log10(flop) - f->y0) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM);
}

static bool is_drawn(const profile_row *row) {
    return row->value[ROOF_FLOP] > 0 && row->value[ROOF_INTENSITY] > 0;
}

static roof fit(const profile_table *t, const recorder *r) {
    roof f = {0, 3, log10(r->peak_flop) - 3, log10(r->peak_flop) + .3};
    for (size_t i = 0; i < t->n_rows; i++) {
        const double *v = t->rows[i].value;
        if (!is_drawn(&t->rows[i])) continue;
        f.x0 = fmin(f.x0, floor(log10(v[ROOF_INTENSITY])));
        f.x1 = fmax(f.x1, ceil(log10(v[ROOF_INTENSITY])));
        f.y0 = fmin(f.y0, floor(log10(v[ROOF_FLOP] * 1e12)));
        f.y1 = fmax(f.y1, log10(v[ROOF_FLOP] * 1e12) + .2); /* above the roof: out of a cache */
    }
    return f;
}

static status put_axes(const roof *f, buf *out) {
    for (double x = ceil(f->x0); x <= f->x1; x++)
        TRY(buf_printf(
            out, "<line class=grid x1=%.1f x2=%.1f y1=%d y2=%d /><text x=%.1f y=%d>%g</text>\n",
            at_x(f, pow(10, x)), at_x(f, pow(10, x)), TOP, HEIGHT - BOTTOM, at_x(f, pow(10, x)) - 8,
            HEIGHT - BOTTOM + 16, pow(10, x)));
    for (double y = ceil(f->y0); y <= f->y1; y++)
        TRY(buf_printf(out,
                       "<line class=grid x1=%d x2=%d y1=%.1f y2=%.1f /><text x=2 y=%.1f>%g GFLOP/s"
                       "</text>\n",
                       LEFT, WIDTH - RIGHT, at_y(f, pow(10, y)), at_y(f, pow(10, y)),
                       at_y(f, pow(10, y)) - 3, pow(10, y - 9)));
    return buf_printf(out, "<text x=%d y=%d>FLOP a byte</text>\n", WIDTH / 2, HEIGHT - 6);
}

static status put_roof(const roof *f, const recorder *r, buf *out) {
    double ridge = r->peak_flop / r->peak_bytes, from = pow(10, f->x0);
    double low = from * r->peak_bytes;
    if (low < pow(10, f->y0)) from = pow(10, f->y0) / r->peak_bytes, low = pow(10, f->y0);
    return buf_printf(out,
                      "<path fill=none stroke=currentColor stroke-width=2 d=\"M%.1f %.1fL%.1f "
                      "%.1fL%d %.1f\"/>\n",
                      at_x(f, from), at_y(f, low), at_x(f, ridge), at_y(f, r->peak_flop),
                      WIDTH - RIGHT, at_y(f, r->peak_flop));
}

/* Names are ours: letters, brackets and numbers, nothing that HTML would take for its own. */
static status put_ops(const roof *f, const profile_table *t, buf *out) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const double *v = t->rows[i].value;
        if (!is_drawn(&t->rows[i])) continue;
        double x = at_x(f, v[ROOF_INTENSITY]), y = at_y(f, v[ROOF_FLOP] * 1e12);
        TRY(buf_printf(
            out,
            "<circle cx=%.1f cy=%.1f r=%.1f fill=\"var(--c%zu)\"><title>%s: %.3g TFLOP/s, "
            "%.3g GB/s, %.1f %% of the time</title></circle><text x=%.1f y=%.1f>%s</text>"
            "\n",
            x, y, 3 + sqrt(v[ROOF_SHARE]), i % 8, t->rows[i].name, v[ROOF_FLOP], v[ROOF_BYTES],
            v[ROOF_SHARE], x + 5 + sqrt(v[ROOF_SHARE]), y + 4, t->rows[i].name));
    }
    return OK;
}

static status put_svg(const profile_table *t, const recorder *r, buf *out) {
    bool has_any = false;
    for (size_t i = 0; i < t->n_rows; i++)
        has_any = has_any || is_drawn(&t->rows[i]);
    if (!has_any || r->peak_flop <= 0 || r->peak_bytes <= 0) return OK;
    roof f = fit(t, r);
    TRY(buf_printf(out,
                   "<svg viewBox=\"0 0 %d %d\" role=img aria-label=Roofline font-size=11 "
                   "fill=currentColor style=\"max-width:%dpx\">\n<style>.grid{stroke:currentColor;"
                   "opacity:.15}</style>\n",
                   WIDTH, HEIGHT, WIDTH + 200));
    TRY(put_axes(&f, out));
    TRY(put_roof(&f, r, out));
    TRY(put_ops(&f, t, out));
    return buf_text(out, "</svg>\n");
}

status roofline_svg(const recorder *r, buf *out) {
    profile_table t;
    TRY(profile_table_make(&t, r, REPORT_WORK));
    status st = put_svg(&t, r, out);
    profile_table_fini(&t);
    return st;
}

/* Far: less than a third of the better of the two peaks. */
status roofline_advice(const recorder *r, buf *out) {
    profile_table t;
    TRY(profile_table_make(&t, r, REPORT_WORK));
    status st = OK;
    for (size_t i = 0; st == OK && i < t.n_rows; i++) {
        const double *v = t.rows[i].value;
        double best = fmax(v[ROOF_OF_FLOP], v[ROOF_OF_BYTES]);
        if (v[ROOF_SHARE] < 10 || best <= 0 || best > 33) continue;
        st = buf_printf(
            out,
            "%s takes %.0f %% of the time of ops at %.0f %% of the arithmetic and %.0f %% "
            "of the memory bandwidth of this device: neither limits it, so it waits, for "
            "launches or because its arrays are small. Larger batches help.\n",
            t.rows[i].name, v[ROOF_SHARE], v[ROOF_OF_FLOP], v[ROOF_OF_BYTES]);
    }
    profile_table_fini(&t);
    return st;
}
