#include "cli/machine/mask_draw.h"

#include <string.h>

#include "base/mem.h"

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

status mask_grid_init(mask_grid *g, const mask *m, int64_t sequence, int32_t n, int32_t max_cells) {
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

void mask_grid_fini(mask_grid *g) {
    mem_free(g->share);
    g->share = NULL;
}

static float share_at(const mask_grid *g, int32_t row, int32_t column) {
    return row < g->n_cells ? g->share[(int64_t)row * g->n_cells + column] : 0;
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

status mask_draw_text(const mask_grid *g, buf *out) {
    for (int32_t row = 0; row < g->n_cells; row += 2) {
        TRY(buf_text(out, "  "));
        for (int32_t column = 0; column < g->n_cells; column++) {
            float lower = share_at(g, row + 1, column), upper = share_at(g, row, column);
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

static status draw_title(const char *title, buf *out) {
    for (; *title != '\0'; title++) {
        const char *escape = *title == '<' ? "&lt;" : *title == '&' ? "&amp;" : NULL;
        if (escape != NULL)
            TRY(buf_text(out, escape));
        else
            TRY(buf_char(out, *title));
    }
    return OK;
}

status mask_draw_svg(const mask_grid *g, const char *title, buf *out) {
    int width = PICTURE + 2 * MARGIN, height = width + TITLE;
    TRY(buf_printf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                   "height=\"%d\">\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
                   "<text x=\"%d\" y=\"%d\" font-family=\"sans-serif\" font-size=\"15\" "
                   "fill=\"#222\">",
                   width, height, width, height, width, height, MARGIN, MARGIN + 12));
    TRY(draw_title(title, out));
    TRY(buf_text(out, "</text>\n<g fill=\"#2b6cb0\" shape-rendering=\"crispEdges\">\n"));
    TRY(draw_cells(g, (double)PICTURE / g->n_cells, out));
    TRY(buf_text(out, "</g>\n"));
    TRY(draw_tiles(g, out));
    return buf_printf(out,
                      "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" "
                      "stroke=\"#888\"/>\n</svg>\n",
                      MARGIN, MARGIN + TITLE, PICTURE, PICTURE);
}
