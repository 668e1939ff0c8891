/* plan_draw of fusion_plan.h: the chain as a row of boxes, with a frame around each kernel. */
#include <stdio.h>

#include "tune/fusion_plan.h"

enum { BOX = 74, GAP = 6, STEP = BOX + GAP, HEIGHT = 52, TOP = 58, MARGIN = 16 };

static int left_of(int op) {
    return MARGIN + op * STEP;
}

static status draw_operator(const chain_op *op, int index, buf *out) {
    int x = left_of(index), middle = x + BOX / 2;
    TRY(buf_printf(
        out, "<rect class=\"op %s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n",
        op_class_name(op->bound), x, TOP, BOX, HEIGHT));
    TRY(buf_printf(out, "<text class=\"name\" x=\"%d\" y=\"%d\">%s</text>\n", middle, TOP + 23,
                   op->name));
    return buf_printf(out, "<text class=\"class\" x=\"%d\" y=\"%d\">%d %s</text>\n", middle,
                      TOP + 40, index + 1, op_class_name(op->bound));
}

static status draw_kernel(const plan_kernel *k, int number, buf *out) {
    int x = left_of(k->first) - 4, width = (k->last - k->first) * STEP + BOX + 8;
    const char *kind = k->from == TEMPLATE_HAND_WRITTEN ? "kernel hand" : "kernel";
    TRY(buf_printf(out,
                   "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"9\"/>\n",
                   kind, x, TOP - 6, width, HEIGHT + 12));
    TRY(buf_printf(out, "<text class=\"number\" x=\"%d\" y=\"%d\">kernel %d</text>\n",
                   x + width / 2, TOP - 14, number));
    TRY(buf_printf(out, "<text class=\"template\" x=\"%d\" y=\"%d\">%s</text>\n", x + width / 2,
                   TOP + HEIGHT + 24,
                   k->from == TEMPLATE_HAND_WRITTEN || k->last > k->first ? template_name(k->from)
                                                                          : ""));
    if (k->why[0] == '\0') return OK;
    return buf_printf(out, "<line class=\"split\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n",
                      x + width - 1, TOP - 22, x + width - 1, TOP + HEIGHT + 22);
}

status plan_draw(const chain *c, const plan_program *p, buf *out) {
    int width = 2 * MARGIN + CHAIN_OPS * STEP - GAP, height = TOP + HEIGHT + 42;
    char bits[PLAN_BITS + 1];
    plan_bits(p->plan.value, bits);
    TRY(buf_printf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                   "font-family=\"sans-serif\">\n",
                   width, height));
    TRY(buf_text(out,
                 "<style>\n"
                 "text { fill: #222; text-anchor: middle; font-size: 11px }\n"
                 ".title { text-anchor: start; font-size: 13px }\n"
                 ".name { font-weight: bold; font-size: 12px }\n"
                 ".class { font-size: 10px; opacity: .75 }\n"
                 ".op { stroke: #8886 } .compute { fill: #f6c89f } .memory { fill: #bcd9f5 }\n"
                 ".reduction { fill: #c9e7c1 } .layout { fill: #e4d3f0 }\n"
                 ".kernel { fill: none; stroke: #667; stroke-width: 1.5 }\n"
                 ".hand { stroke: #b3261e; stroke-width: 2.5 }\n"
                 ".split { stroke: #b3261e; stroke-dasharray: 4 3; stroke-width: 1.5 }\n"
                 "@media (prefers-color-scheme: dark) { .title, .number, .template { fill: #ddd } "
                 ".kernel { stroke: #aab } .hand { stroke: #ff8a80 } }\n"
                 "</style>\n"));
    TRY(buf_printf(
        out, "<text class=\"title\" x=\"%d\" y=\"20\">%s, plan %d = %s: %d kernel%s</text>\n",
        (int)MARGIN, c->name, p->plan.value, bits, p->n_kernels, p->n_kernels > 1 ? "s" : ""));
    for (int i = 0; i < CHAIN_OPS; i++)
        TRY(draw_operator(&c->op[i], i, out));
    for (int i = 0; i < p->n_kernels; i++)
        TRY(draw_kernel(&p->kernel[i], i + 1, out));
    return buf_text(out, "</svg>\n");
}
