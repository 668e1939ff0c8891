/* Pictures of a mask: for a terminal and as SVG.  Rows are queries, columns keys. */
#ifndef HSTU_CLI_MACHINE_MASK_DRAW_H
#define HSTU_CLI_MACHINE_MASK_DRAW_H

#include "base/text.h"
#include "ops/mask.h"

/* A mask as a grid of cells, each of `side` x `side` pairs. */
typedef struct mask_grid {
    int32_t n, n_cells, side;
    float *share; /* (n_cells, n_cells): attended pairs of a cell / pairs that exist there */
} mask_grid;

/* At most max_cells cells a side.  mask_check must have passed. */
status mask_grid_init(mask_grid *g, const mask *m, int64_t sequence, int32_t n, int32_t max_cells);
void mask_grid_fini(mask_grid *g);

/* Two rows of cells a line: half blocks where a cell is one pair, else shades. */
status mask_draw_text(const mask_grid *g, buf *out);

/* A square picture with a title; lines every MASK_TILE tokens show the tiles of the kernels. */
status mask_draw_svg(const mask_grid *g, const char *title, buf *out);

#endif
