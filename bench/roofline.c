/* roofline ROWS.jsonl DIR: what `hstu bench attention --json` measured on an H200, as pictures
 * DIR/attention-D.svg, one for each head dim D of the field's table.
 *
 * A picture has two panels, forward and backward, on logarithmic axes: FLOPs for each byte that a
 * pass must move (every array once), and FLOP/s.  The two lines above are the roofs: what memory
 * and a large matrix product allow.  Points are ours and those of NVIDIA's two kernels, a column
 * for each length.  Replayed calls are drawn where all rows have them, else plain ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/bench/attention.h"
#include "format/json.h"

enum { MAX_ROWS = 256, MAX_FILE = 1 << 24, LONGEST = 4096, N_PEERS = PEER_AMPERE + 1 };

/* Measured on the same machine: a copy, and a large product in bfloat16. */
static const double ROOF_BYTES = 4.3e12, ROOF_FLOPS = 790e12;

/* The drawing, in its own units. */
enum { WIDTH = 900, HEIGHT = 430, PANEL = 440, TOP = 84, BOTTOM = 48, LEFT = 56, RIGHT = 14 };
static const double X_LOW = 5, X_HIGH = 2200, Y_LOW = 1, Y_HIGH = 1100;

static const char style[] =
    "<style>\n"
    "text{font:11px system-ui,-apple-system,'DejaVu Sans',sans-serif;fill:#66707c}\n"
    ".bg{fill:#fff;stroke:#e3e6ea}.title{font-size:14px;fill:#1c2128}.name{fill:#1c2128}\n"
    ".grid{stroke:#e3e6ea}.fine{stroke:#e3e6ea;opacity:.45}.guide{stroke:#98a2ae;stroke-dasharray:"
    "1 4}\n"
    ".roof{fill:none;stroke:#1c2128;stroke-width:1.5}.line{fill:none;stroke-width:1.5}\n"
    ".p0{fill:#1769c4;stroke:#1769c4}.p1{fill:#fff;stroke:#c4541b;stroke-width:1.5}\n"
    ".p2{fill:#fff;stroke:#2c8a4b;stroke-width:1.5}\n"
    ".l0{stroke:#1769c4}.l1{stroke:#c4541b;opacity:.45}.l2{stroke:#2c8a4b;opacity:.45}\n"
    ".value{fill:#1769c4;font-weight:600}.value,.note{paint-order:stroke;stroke:#fff;stroke-width:"
    "3px}"
    "\n"
    "@media(prefers-color-scheme:dark){text{fill:#98a2ae}.bg{fill:#14171b;stroke:#2c3238}\n"
    ".title,.name{fill:#e4e7eb}.grid,.fine{stroke:#2c3238}.guide{stroke:#66707c}.roof{stroke:"
    "#e4e7eb}\n"
    ".p0{fill:#6ab0ff;stroke:#6ab0ff}.p1{fill:#14171b;stroke:#ff9a62}.p2{fill:#14171b;stroke:"
    "#6fce8e}\n"
    ".l0{stroke:#6ab0ff}.l1{stroke:#ff9a62}.l2{stroke:#6fce8e}.value{fill:#6ab0ff}.value,.note{"
    "stroke:"
    "#14171b}}\n</style>\n";

typedef struct row {
    attn_shape shape;
    double intensity[N_PASSES];         /* FLOP a byte */
    double tflops[N_PASSES][N_TIMINGS]; /* NAN: not measured */
} row;

typedef struct rows {
    row item[MAX_ROWS];
    int n;
} rows;

/* Reading the results. */

static double number(const json_value *object, const char *key) {
    const json_value *v = json_member(object, key);
    return v != NULL && v->type == JSON_NUMBER ? v->number : NAN;
}

static bool is_text(const json_value *object, const char *key, const char *text) {
    const json_value *v = json_member(object, key);
    return v == NULL || (v->type == JSON_STRING && strcmp(v->string, text) == 0);
}

/* Forward moves q, k, v and out; backward q, k, v, dout, dq, dk and dv. */
static void read_row(rows *all, const json_value *v) {
    static const char *const plain[] = {"fwd_tflops", "bwd_tflops"};
    static const char *const replay[] = {"fwd_replay_tflops", "bwd_replay_tflops"};
    static const double arrays[] = {4, 7}, factor[] = {1, 2.5};
    const json_value *jagged = json_member(v, "jagged"), *any = json_member(v, "any_card");
    row r = {.shape = {.n_heads = (int32_t)number(v, "heads"),
                       .dim = (int32_t)number(v, "dim"),
                       .n_sequences = (int32_t)number(v, "sequences"),
                       .max_len = (int32_t)number(v, "length"),
                       .is_jagged = jagged != NULL && jagged->boolean}};
    if (!is_text(v, "mask", "causal") || !is_text(v, "bias", "none") || all->n == MAX_ROWS) return;
    if (!is_text(v, "dtype", "bfloat16") || (any != NULL && any->boolean)) return;
    double flops = number(v, "fwd_tflops") * number(v, "fwd_ms") * 1e9;
    double array_bytes = number(v, "tokens") * r.shape.n_heads * r.shape.dim * 2;
    for (int pass = 0; pass < N_PASSES; pass++) {
        r.intensity[pass] = factor[pass] * flops / (arrays[pass] * array_bytes);
        r.tflops[pass][TIMED_PLAIN] = number(v, plain[pass]);
        r.tflops[pass][TIMED_REPLAY] = number(v, replay[pass]);
    }
    if (r.shape.max_len <= LONGEST && r.intensity[0] > 0) all->item[all->n++] = r;
}

static int compare_rows(const void *a, const void *b) {
    double x = ((const row *)a)->intensity[0], y = ((const row *)b)->intensity[0];
    return (x > y) - (x < y);
}

static status read_rows(rows *all, const char *path) {
    char *text = NULL;
    size_t n = 0;
    arena memory;
    arena_init(&memory, 1 << 16);
    status st = file_read_all(path, MAX_FILE, &text, &n);
    for (char *line = text; st == OK && line != NULL && *line != '\0';) {
        size_t length = strcspn(line, "\n");
        const json_value *v = NULL;
        if (length > 0) st = json_parse(&memory, path, line, length, &v);
        if (st == OK && v != NULL) read_row(all, v);
        line += length + (line[length] == '\n');
    }
    qsort(all->item, (size_t)all->n, sizeof *all->item, compare_rows);
    arena_fini(&memory);
    mem_free(text);
    return st;
}

/* Drawing the picture. */

static double place(double value, double low, double high, double from, double to) {
    return from + log(value / low) / log(high / low) * (to - from);
}

static double place_x(double x) {
    return place(x, X_LOW, X_HIGH, LEFT, PANEL - RIGHT);
}

static double place_y(double y) {
    return place(y, Y_LOW, Y_HIGH, HEIGHT - BOTTOM, TOP);
}

static status draw_grid(buf *out, bench_pass pass) {
    static const char *const names[] = {"forward", "backward"};
    double bottom = HEIGHT - BOTTOM, right = PANEL - RIGHT;
    for (double decade = 1; decade < Y_HIGH; decade *= 10)
        for (int k = 1; k < 10 && k * decade <= Y_HIGH; k += k == 1 ? 1 : k == 2 ? 3 : 5) {
            double y = place_y(k * decade);
            TRY(buf_printf(out,
                           "<line class=\"%s\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                           k == 1 ? "grid" : "fine", LEFT, right, y, y));
            if (k == 1)
                TRY(buf_printf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                               LEFT - 6, y + 4, decade));
        }
    for (double x = 10; x < X_HIGH; x *= 10)
        TRY(buf_printf(out,
                       "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.1f\"/>"
                       "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n",
                       place_x(x), place_x(x), TOP, bottom, place_x(x), bottom + 16, x));
    TRY(buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"end\">FLOP / byte</text>\n", right,
                   HEIGHT - 14));
    return buf_printf(out,
                      "<text class=\"name\" x=\"%d\" y=\"%d\">%s</text>"
                      "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">TFLOP/s</text>\n",
                      LEFT, TOP - 10, names[pass], LEFT - 6, TOP - 10);
}

/* y = min(bytes/s x, FLOP/s); the slope is one decade by one, whatever the units are. */
static status draw_roof(buf *out) {
    double ridge = ROOF_FLOPS / ROOF_BYTES, flat = ROOF_FLOPS / 1e12;
    double left = X_LOW * ROOF_BYTES / 1e12, at = 16;
    double angle = atan2(place_y(10) - place_y(100), place_x(100) - place_x(10)) * 180 / acos(-1);
    TRY(buf_printf(out, "<path class=\"roof\" d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1f\"/>\n",
                   place_x(X_LOW), place_y(left), place_x(ridge), place_y(flat), place_x(X_HIGH),
                   place_y(flat)));
    TRY(buf_printf(out,
                   "<text class=\"note\" transform=\"translate(%.1f %.1f) rotate(%.1f)\">memory, "
                   "%.1f TB/s</text>\n",
                   place_x(at) - 5, place_y(at * ROOF_BYTES / 1e12) - 5, -angle,
                   ROOF_BYTES / 1e12));
    return buf_printf(out,
                      "<text class=\"note\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">a large "
                      "product, %.0f</text>\n",
                      PANEL - RIGHT, place_y(flat) - 6, flat);
}

/* A circle, a triangle or a square. */
static status draw_mark(buf *out, int series, double x, double y) {
    if (series == 0)
        return buf_printf(out, "<circle class=\"p0\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", x, y);
    if (series == 1)
        return buf_printf(out, "<path class=\"p1\" d=\"M%.1f %.1fl4.5 8h-9z\"/>\n", x, y - 5);
    return buf_printf(out, "<rect class=\"p2\" x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"/>\n",
                      x - 3.5, y - 3.5);
}

/* What a series has at a row: ours, the Hopper kernel's, the Ampere kernel's. */
static double value_of(const row *r, int series, bench_pass pass, bench_timing how) {
    return series == 0 ? r->tflops[pass][how]
                       : attn_peer_tflops(&r->shape, (attn_peer)(series - 1), how, pass);
}

static status draw_line(buf *out, const row *r, int n, int series, bench_pass pass,
                        bench_timing how) {
    bool is_first = true;
    TRY(buf_printf(out, "<path class=\"line l%d\" d=\"", series));
    for (int i = 0; i < n; i++) {
        double y = value_of(&r[i], series, pass, how);
        if (isnan(y)) continue;
        TRY(buf_printf(out, "%s%.1f %.1f", is_first ? "M" : "L", place_x(r[i].intensity[pass]),
                       place_y(y)));
        is_first = false;
    }
    return buf_text(out, "\"/>\n");
}

/* Where our figure stands: below our mark, else above it, wherever no other mark and no roof is;
 * else below all marks. */
static double place_figure(const row *r, bench_pass pass, bench_timing how) {
    static const double offsets[] = {17, -9};
    double ours = place_y(value_of(r, 0, pass, how)), lowest = ours;
    double roof = fmin(r->intensity[pass] * ROOF_BYTES, ROOF_FLOPS) / 1e12;
    for (int k = 0; k < 2; k++) {
        double base = ours + offsets[k];
        bool is_free = base - 14 > place_y(roof);
        for (int series = 1; series <= N_PEERS; series++) {
            double y = place_y(value_of(r, series, pass, how));
            if (y > base - 15 && y < base + 6) is_free = false;
            if (y > lowest) lowest = y;
        }
        if (is_free) return base;
    }
    return lowest + 17;
}

/* A column: its length at the bottom (a step higher where the last one is near), its marks and our
 * figure (a step to the right there). */
static status draw_column(buf *out, const row *r, bench_pass pass, bench_timing how, double *last) {
    double x = place_x(r->intensity[pass]), bottom = HEIGHT - BOTTOM, highest = Y_LOW;
    double ours = value_of(r, 0, pass, how);
    char length[24];
    snprintf(length, sizeof length, r->shape.is_jagged ? "1-%d" : "%d", r->shape.max_len);
    double half = 3.2 * (double)strlen(length) + 2;
    bool is_raised = x - half < *last;
    *last = is_raised ? *last : x + half;
    for (int series = 0; series <= N_PEERS; series++)
        highest = fmax(highest, value_of(r, series, pass, how));
    TRY(buf_printf(out, "<line class=\"guide\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                   x, x, bottom - (is_raised ? 30 : 18), place_y(highest)));
    TRY(buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x,
                   bottom - (is_raised ? 18 : 6), length));
    for (int series = N_PEERS; series >= 0; series--) {
        double y = value_of(r, series, pass, how);
        if (!isnan(y)) TRY(draw_mark(out, series, x, place_y(y)));
    }
    return buf_printf(
        out, "<text class=\"value\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.*f</text>\n",
        x + (is_raised ? 9 : 0), place_figure(r, pass, how), ours < 10 ? 1 : 0, ours);
}

static status draw_panel(buf *out, const row *r, int n, bench_pass pass, bench_timing how) {
    double last = 0;
    TRY(buf_printf(out, "<g transform=\"translate(%d 0)\">\n", 10 + (int)pass * PANEL));
    TRY(draw_grid(out, pass));
    TRY(draw_roof(out));
    for (int series = N_PEERS; series >= 0; series--)
        TRY(draw_line(out, r, n, series, pass, how));
    for (int i = 0; i < n; i++)
        TRY(draw_column(out, &r[i], pass, how, &last));
    return buf_text(out, "</g>\n");
}

static status draw_head(buf *out, int32_t dim, bench_timing how) {
    static const char *const names[] = {"hstu.c", "NVIDIA, for Hopper", "NVIDIA, for Ampere"};
    static const int at[] = {66, 130, 262};
    TRY(buf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\">\n%s"
        "<rect class=\"bg\" x=\".5\" y=\".5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n"
        "<text class=\"title\" x=\"%d\" y=\"28\">HSTU attention, head dimension %d, "
        "bfloat16, H200, %s; columns: lengths of sequences</text>\n",
        WIDTH, HEIGHT, style, WIDTH - 1, HEIGHT - 1, LEFT + 10, dim,
        how == TIMED_REPLAY ? "replayed calls" : "plain calls"));
    for (int series = 0; series <= N_PEERS; series++) {
        TRY(draw_mark(out, series, at[series] + 4, 50));
        TRY(buf_printf(out, "<text x=\"%d\" y=\"54\">%s</text>\n", at[series] + 14, names[series]));
    }
    return OK;
}

static status write_picture(const char *folder, int32_t dim, const buf *text) {
    char name[64], path[4096];
    out_file *f;
    snprintf(name, sizeof name, "attention-%d.svg", dim);
    TRY(path_join(path, sizeof path, folder, name));
    TRY(out_file_create(&f, path));
    status st = out_file_write(f, buf_str(text), text->n_bytes);
    if (st != OK) {
        out_file_abandon(f);
        return st;
    }
    printf("%s\n", path);
    return out_file_commit(f);
}

/* The rows of one head dim; nothing where there are none. */
static status draw_dim(const rows *all, int32_t dim, const char *folder) {
    static rows of;
    bench_timing how = TIMED_REPLAY;
    buf text = {0};
    of.n = 0;
    for (int i = 0; i < all->n; i++) {
        if (all->item[i].shape.dim != dim) continue;
        of.item[of.n++] = all->item[i];
        if (isnan(all->item[i].tflops[PASS_FORWARD][TIMED_REPLAY])) how = TIMED_PLAIN;
    }
    if (of.n == 0) return OK;
    status st = draw_head(&text, dim, how);
    for (int pass = 0; pass < N_PASSES && st == OK; pass++)
        st = draw_panel(&text, of.item, of.n, (bench_pass)pass, how);
    if (st == OK) st = buf_text(&text, "</svg>\n");
    if (st == OK) st = write_picture(folder, dim, &text);
    buf_fini(&text);
    return st;
}

int main(int argc, char **argv) {
    static rows all;
    if (argc != 3) {
        fprintf(stderr, "usage: roofline ROWS.jsonl DIR\n");
        return 2;
    }
    status st = read_rows(&all, argv[1]);
    for (int32_t dim = 32; dim <= 256 && st == OK; dim *= 2)
        st = draw_dim(&all, dim, argv[2]);
    if (st == OK) return 0;
    fprintf(stderr, "roofline: %s\n", status_reason());
    return 1;
}
