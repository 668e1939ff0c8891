/* hstu mask show: an attention mask as a picture (text or SVG; rows are queries, columns keys), its
 * density, and what it costs. */
#include "ops/mask.h"
#include "cli/cli.h"
#include "cli/machine/plan.h"
#include "cli/output.h"
#include "format/safetensors.h"
#include "ops/mask_rule.h"
#include "ops/mask_tiles.h"
#include "train/report/report.h"

/* A mask as a grid of cells, each of `side` x `side` pairs. */
typedef struct mask_grid {
    int32_t n, n_cells, side;
    float *share; /* (n_cells, n_cells): attended pairs of a cell / pairs that exist there */
} mask_grid;

enum { PICTURE = 512, MARGIN = 16, TITLE = 28 };

/* Adds the pairs of one row to its cells. */
static void add_row(mask_grid *g, int32_t i, const uint64_t *words) {
    float *cells = g->share + (int64_t)(i / g->side) * g->n_cells;
    for (int32_t j = 0; j < g->n; j++)
        if (words[j / 64] >> (j % 64) & 1) cells[j / g->side]++;
}

static int32_t cell_size(const mask_grid *g, int32_t cell) {
    int32_t left = g->n - cell * g->side;
    return left < g->side ? left : g->side;
}

/* At most max_cells cells a side.  mask_check must have passed. */
static status mask_grid_init(mask_grid *g, const mask *m, int64_t sequence, int32_t n,
                             int32_t max_cells) {
    int64_t n_words = (n + 63) / 64;
    uint64_t *words;
    *g = (mask_grid){.n = n, .side = (n + max_cells - 1) / max_cells};
    if (g->side < 1) g->side = 1;
    g->n_cells = (n + g->side - 1) / g->side;
    TRY(MEM_NEW(&words, (size_t)n_words));
    status st = MEM_NEW(&g->share, (size_t)g->n_cells * (size_t)g->n_cells);
    for (int32_t i = 0; i < n && st == OK; i++) {
        mask_fill_rows(m, sequence, n, i, 1, words, n_words);
        add_row(g, i, words);
    }
    for (int32_t c = 0; c < g->n_cells * g->n_cells && st == OK; c++)
        g->share[c] /= (float)cell_size(g, c / g->n_cells) * (float)cell_size(g, c % g->n_cells);
    mem_free(words);
    return st;
}

static void mask_grid_fini(mask_grid *g) {
    mem_free(g->share);
    g->share = NULL;
}

static float share_at(const mask_grid *g, int32_t row, int32_t key) {
    return row < g->n_cells ? g->share[(int64_t)row * g->n_cells + key] : 0;
}

/* What two cells, one above the other, look like. */
static const char *glyph_of(const mask_grid *g, float upper, float lower) {
    static const char *const halves[] = {"\xc2\xb7", "\xe2\x96\x84", "\xe2\x96\x80",
                                         "\xe2\x96\x88"}; /* a dot, lower, upper, both */
    static const char *const shades[] = {"\xe2\x96\x91", "\xe2\x96\x92", "\xe2\x96\x93"};
    float mean = (upper + lower) / 2;
    if (g->side == 1) return halves[(upper > 0 ? 2 : 0) + (lower > 0 ? 1 : 0)];
    if (mean <= 0) return halves[0];
    return mean >= 1 ? halves[3] : shades[(int)(mean * 3)];
}

/* Two rows of cells a line: half blocks where a cell is one pair, else shades. */
static status mask_draw_text(const mask_grid *g, buf *out) {
    for (int32_t row = 0; row < g->n_cells; row += 2) {
        TRY(buf_text(out, "  "));
        for (int32_t key = 0; key < g->n_cells; key++) {
            float lower = share_at(g, row + 1, key), upper = share_at(g, row, key);
            if (row + 1 >= g->n_cells && g->side > 1) lower = upper;
            TRY(buf_text(out, glyph_of(g, upper, lower)));
        }
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

/* Runs of equal cells in a row become one rectangle. */
static status draw_cells(const mask_grid *g, double size, buf *out) {
    for (int32_t row = 0; row < g->n_cells; row++)
        for (int32_t first = 0, end; first < g->n_cells; first = end) {
            float share = share_at(g, row, first);
            for (end = first + 1; end < g->n_cells && share_at(g, row, end) == share;)
                end++;
            if (share <= 0) continue;
            TRY(buf_printf(out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"",
                           MARGIN + first * size, MARGIN + TITLE + row * size, (end - first) * size,
                           size));
            if (share < 1) TRY(buf_printf(out, " opacity=\"%.3f\"", 0.15 + 0.85 * (double)share));
            TRY(buf_text(out, "/>\n"));
        }
    return OK;
}

static status draw_tiles(const mask_grid *g, buf *out) {
    double step = (double)PICTURE * MASK_TILE / g->n;
    TRY(buf_text(out, "<path stroke=\"#c44\" stroke-width=\"0.5\" fill=\"none\" d=\""));
    for (int32_t t = 1; t * MASK_TILE < g->n && step >= 4; t++)
        TRY(buf_printf(out, "M%.2f %dv%dM%d %.2fh%d", MARGIN + t * step, MARGIN + TITLE, PICTURE,
                       MARGIN, MARGIN + TITLE + t * step, PICTURE));
    return buf_text(out, "\"/>\n");
}

/* A square picture with a title; lines every MASK_TILE tokens show the tiles of the kernels. */
static status mask_draw_svg(const mask_grid *g, const char *title, buf *out) {
    int width = PICTURE + 2 * MARGIN, height = width + TITLE;
    TRY(buf_printf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                   "height=\"%d\">\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
                   "<text x=\"%d\" y=\"%d\" font-family=\"sans-serif\" font-size=\"15\" "
                   "fill=\"#222\">",
                   width, height, width, height, width, height, MARGIN, MARGIN + 12));
    TRY(html_printf(out, "%s</text>\n<g fill=\"#2b6cb0\" shape-rendering=\"crispEdges\">\n",
                    title));
    TRY(draw_cells(g, (double)PICTURE / g->n_cells, out));
    TRY(buf_text(out, "</g>\n"));
    TRY(draw_tiles(g, out));
    return buf_printf(out,
                      "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" "
                      "stroke=\"#888\"/>\n</svg>\n",
                      MARGIN, MARGIN + TITLE, PICTURE, PICTURE);
}

enum {
    TERMINAL_CELLS = 64,
    SVG_CELLS = 256,
    DEFAULT_N = 64,
    MAX_N = 1 << 17,
    MAX_BITS_N = 1 << 15
};

typedef struct show_args {
    const char *svg, *bits;
    int64_t n, sequence;
    bool is_json;
} show_args;

/* What is printed about a mask. */
typedef struct mask_facts {
    char text[MASK_TEXT_MAX];
    int32_t n;
    int64_t n_pairs, n_empty_rows;
    int32_t least, most;               /* keys of a row */
    double n_tiles, n_full, n_partial; /* of MASK_TILE x MASK_TILE */
    double n_blocks;                   /* blocks of 16 x 16 with a pair */
    double tile_pairs;                 /* of a listed tile, in the mean */
    bool by_rows, by_rows_backward;    /* see mask_rule.h */
    bool shares, shares_three;
    double rho, tau; /* of STOF's rule; tau is NAN where it has none */
} mask_facts;

static void count_rows(mask_facts *f, const mask *m, int64_t sequence, uint64_t *words) {
    int64_t n_words = (f->n + 63) / 64;
    f->least = f->n;
    for (int32_t i = 0; i < f->n; i++) {
        int32_t n_keys = 0;
        mask_fill_rows(m, sequence, f->n, i, 1, words, n_words);
        for (int64_t w = 0; w < n_words; w++)
            n_keys += __builtin_popcountll(words[w]);
        f->least = n_keys < f->least ? n_keys : f->least;
        f->most = n_keys > f->most ? n_keys : f->most;
        f->n_empty_rows += n_keys == 0;
    }
}

/* STOF's choice of a kernel: block-wise if the share of 16 x 16 blocks that have a pair, rho, is at
 * least tau = 1.2 / log2(n / 16)^2. */
static void apply_stof(mask_facts *f) {
    double side = ceil(f->n / 16.0), log_side = log2(side);
    f->rho = f->n_blocks / (side * side);
    f->tau = side >= 2 ? 1.2 / (log_side * log_side) : NAN;
}

static status find_facts(mask_facts *f, const mask *m, int64_t sequence, int32_t n) {
    mask_tiles *p;
    uint64_t *words;
    *f = (mask_facts){.n = n};
    mask_rule_text(mask_rule_of(m), f->text, sizeof f->text);
    TRY(mask_tiles_create(&p, m, sequence, n));
    f->n_pairs = p->n_pairs;
    f->n_tiles = (double)p->n_tiles * p->n_tiles;
    f->n_full = (double)p->n_full;
    f->n_partial = (double)(p->n_listed - p->n_full);
    f->n_blocks = (double)mask_tiles_count(p, 16);
    f->tile_pairs = p->n_listed > 0 ? (double)p->n_pairs / (double)p->n_listed : 0;
    bool is_span = mask_rule_is_span(mask_rule_of(m));
    f->by_rows = !is_span && mask_choice_by_rows(p->n_pairs, p->n_listed, false);
    f->by_rows_backward = !is_span && mask_choice_by_rows(p->n_pairs, p->n_listed, true);
    f->shares = mask_choice_shares(mask_rule_of(m), p->n_listed, p->n_tiles + 1, n);
    f->shares_three = mask_choice_is_span(mask_rule_of(m), n);
    apply_stof(f);
    mask_tiles_destroy(p);
    TRY(MEM_NEW(&words, (size_t)(n + 63) / 64));
    count_rows(f, m, sequence, words);
    mem_free(words);
    return OK;
}

static double density(const mask_facts *f) {
    return (double)f->n_pairs / ((double)f->n * f->n);
}

/* Pairs that the kernels compute: they skip blocks of 16 x 16 without a pair. */
static double computed(const mask_facts *f) {
    return fmin(256 * f->n_blocks, (double)f->n * f->n);
}

static const char *stof_choice(const mask_facts *f) {
    return isnan(f->tau) ? "no choice" : f->rho >= f->tau ? "block-wise" : "row-wise";
}

static status print_json(const mask_facts *f) {
    return JSON_LINE(
        FIELD("mask", f->text), FIELD("tokens", f->n), FIELD("pairs", f->n_pairs),
        FIELD("density", density(f)), FIELD("least_keys", f->least), FIELD("most_keys", f->most),
        FIELD("rows_without_keys", f->n_empty_rows), FIELD("full_tiles", f->n_full / f->n_tiles),
        FIELD("partial_tiles", f->n_partial / f->n_tiles),
        FIELD("empty_tiles", 1 - (f->n_full + f->n_partial) / f->n_tiles),
        FIELD("computed_pairs", computed(f)), FIELD("pairs_a_tile", f->tile_pairs),
        FIELD("kernel", f->by_rows ? "row-wise" : "block-wise"),
        FIELD("backward_kernel", f->by_rows_backward ? "row-wise" : "block-wise"),
        FIELD("hopper_block", f->shares_three ? "three row tiles"
                              : f->shares     ? "two row tiles"
                                              : "one row tile"),
        FIELD("stof_rho", f->rho), KNOWN("stof_tau", f->tau), FIELD("stof_kernel", stof_choice(f)));
}

static void print_kernel(const mask_facts *f) {
    printf("  %s      ", show_bold("kernel"));
    if (f->by_rows)
        printf("row-wise on a GPU, in 16 bits with heads of 64 or 128: a listed tile has %.1f "
               "pairs,\n              fewer than %d, so each row reads the keys it sees "
               "(backward: fewer than %d, %s-wise);\n              elsewhere ",
               f->tile_pairs, MASK_ROWS_PAIRS, MASK_ROWS_PAIRS_BACKWARD,
               f->by_rows_backward ? "row" : "block");
    printf("block-wise: it lists the tiles that are not empty and skips empty 16 x 16 blocks\n"
           "              in them, so it computes %.2f pairs for each attended one\n",
           f->n_pairs > 0 ? computed(f) / (double)f->n_pairs : 0);
    if (f->by_rows) return;
    printf("              on Hopper, in 16 bits: %s\n",
           f->shares_three
               ? "rows are one long span, so with heads of 64 three row tiles share the keys"
           : f->shares ? "rows see many tiles, so two row tiles share the keys they load"
                       : "a row tile alone, with the tiles of its own list");
}

static void print_facts(const mask_facts *f) {
    double n_empty = f->n_tiles - f->n_full - f->n_partial;
    printf("\n  %s        %s, %d tokens\n", show_bold("mask"), f->text, f->n);
    printf("  %s       %s of %s: density %.4f, sparsity %.1f %%\n", show_bold("pairs"),
           show_count((uint64_t)f->n_pairs), show_count((uint64_t)f->n * (uint64_t)f->n),
           density(f), 100 - 100 * density(f));
    printf("  %s  %d to %d, mean %.1f", show_bold("keys a row"), f->least, f->most,
           (double)f->n_pairs / f->n);
    if (f->n_empty_rows > 0)
        printf("; %lld rows have none and give zeros", (long long)f->n_empty_rows);
    printf("\n  %s       of 64 x 64: %.1f %% full, %.1f %% partial, %.1f %% empty\n",
           show_bold("tiles"), 100 * f->n_full / f->n_tiles, 100 * f->n_partial / f->n_tiles,
           100 * n_empty / f->n_tiles);
    print_kernel(f);
    if (isnan(f->tau))
        printf("  %s has no threshold for 16 tokens or fewer\n", show_bold("STOF's rule"));
    else
        printf("  %s rho %.4f %s tau %.4f: %s\n", show_bold("STOF's rule"), f->rho,
               f->rho >= f->tau ? ">=" : "<", f->tau, stof_choice(f));
}

static status print_text(const mask_facts *f, const mask *m, int64_t sequence) {
    mask_grid g;
    buf picture = {0};
    status st = mask_grid_init(&g, m, sequence, f->n, TERMINAL_CELLS);
    if (st == OK) st = mask_draw_text(&g, &picture);
    if (st == OK) {
        printf("%s", buf_str(&picture));
        if (g.side > 1) printf("  (a character is %d x %d pairs)\n", 2 * g.side, g.side);
        print_facts(f);
    }
    mask_grid_fini(&g);
    buf_fini(&picture);
    return st;
}

static status save_svg(const mask_facts *f, const mask *m, int64_t sequence, const char *path) {
    mask_grid g;
    buf svg = {0};
    sink s;
    const char *title = show_printf("%s, n = %d, density %.3f", f->text, f->n, density(f));
    status st = mask_grid_init(&g, m, sequence, f->n, SVG_CELLS);
    if (st == OK) st = mask_draw_svg(&g, title, &svg);
    if (st == OK) st = sink_open(&s, path);
    if (st == OK) st = sink_close(&s, sink_write(&s, buf_str(&svg), svg.n_bytes));
    mask_grid_fini(&g);
    buf_fini(&svg);
    return st;
}

/* The mask as a tensor of bytes, for other programs. */
static status save_bits(const mask *m, int64_t sequence, int32_t n, const char *path) {
    st_tensor t = {.name = "mask", .dtype = ST_U8, .n_dims = 2, .shape = {n, n}};
    int64_t n_words = (n + 63) / 64;
    uint64_t *words = NULL;
    uint8_t *row = NULL;
    out_file *f = NULL;
    if (n > MAX_BITS_N)
        return fail(ERR_USAGE, "--bits: a mask of %d tokens would be large; at most %d", n,
                    MAX_BITS_N);
    t.n = (int64_t)n * n;
    status st = MEM_NEW(&words, (size_t)n_words);
    if (st == OK) st = MEM_NEW(&row, (size_t)n);
    if (st == OK) st = st_begin(&f, path, &t, 1, NULL, 0);
    for (int32_t i = 0; i < n && st == OK; i++) {
        mask_fill_rows(m, sequence, n, i, 1, words, n_words);
        for (int32_t j = 0; j < n; j++)
            row[j] = words[j / 64] >> (j % 64) & 1;
        st = out_file_write(f, row, (size_t)n);
    }
    st = out_file_end(f, st);
    MEM_FREE(words, row);
    return st;
}

static status show_mask(const show_args *a, const mask *m) {
    int64_t n = a->n != 0 ? a->n : mask_length(m, a->sequence);
    mask_facts f;
    if (n == 0 && mask_rule_of(m)->kind != MASK_BITS) n = DEFAULT_N;
    TRY(mask_check(m, a->sequence, n));
    if (n < 1 || n > MAX_N)
        return fail(ERR_USAGE, "mask show: %lld tokens; 1 to %d can be shown (--n)", (long long)n,
                    MAX_N);
    TRY(find_facts(&f, m, a->sequence, (int32_t)n));
    if (a->bits != NULL) TRY(save_bits(m, a->sequence, f.n, a->bits));
    if (a->svg != NULL) TRY(save_svg(&f, m, a->sequence, a->svg));
    if (a->svg != NULL && strcmp(a->svg, "-") == 0) return OK;
    return a->is_json ? print_json(&f) : print_text(&f, m, a->sequence);
}

static status mask_show(int argc, char **argv) {
    show_args a = {0};
    const char *text;
    const arg_option options[] = {
        OPT_INT("--n", &a.n, "N", 1, MAX_N,
                "Tokens of the sequence (default 64, or as many as the file has)."),
        OPT_INT("--sequence", &a.sequence, "B", 0, INT32_MAX,
                "Sequence to show, for a file with a mask per sequence (default 0)."),
        OPT_TEXT("--svg", &a.svg, "FILE",
                 "Write an SVG picture; - is stdout, without other output."),
        OPT_TEXT("--bits", &a.bits, "FILE",
                 "Write the mask as safetensors, tensor 'mask' (N, N), for other programs and for "
                 "bits:FILE."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu mask show KIND[,window=W][,global=G][,...] [options]",
        .summary = "Show an attention mask: a picture (rows are queries, columns are keys), its "
                   "density and its cost.",
        .options = options,
        .min_positional = 1,
        .notes = "Kinds: " MASK_HELP "; ',causal' after any.  docs/masks.md explains them."};
    ARGS_PARSE(&spec, &text, NULL);
    TRY(sink_check_file("--bits", a.bits));
    TRY(sink_check_two("--svg", a.svg, "--bits", a.bits));
    mask *m;
    TRY(mask_create(&m, text));
    status st = show_mask(&a, m);
    mask_destroy(m);
    return st;
}

const command mask_commands[] = {
    {"show", mask_show, "show a mask: picture, density, cost"},
    {0},
};

status cmd_mask(int argc, char **argv) {
    return run_subcommand("mask",
                          "Attention masks, as 'hstu encode' and 'hstu bench masks' take them.",
                          mask_commands, argc, argv);
}
