#include "tune/fusion_plan.h"

enum { LABELS = (1 << CHAIN_OPS) - 1, HAND_WRITTEN = 1 << CHAIN_OPS };

static int label_of(uint16_t value, int op) {
    return value >> (CHAIN_OPS - 1 - op) & 1;
}

void plan_decode(uint16_t value, fusion_plan *out) {
    *out = (fusion_plan){.value = value, .wants_hand_written = (value & HAND_WRITTEN) != 0};
    for (int first = 0, last; first < CHAIN_OPS; first = last + 1) {
        last = first;
        while (last + 1 < CHAIN_OPS && label_of(value, last + 1) == label_of(value, first))
            last++;
        if (last > first) out->segment[out->n_segments++] = (plan_segment){first, last};
    }
}

status plan_parse(const char *text, fusion_plan *out) {
    size_t n = strlen(text);
    bool is_value = n <= 5 && (n < 2 || text[0] != '0'); /* of zeros and ones, it may be either */
    if (n > 0 && strspn(text, "01") == n && !is_value) {
        if (n != PLAN_BITS)
            return fail(ERR_USAGE,
                        "plan '%.40s' has %zu bits; a plan has %d: the hand-written attention and "
                        "15 operators",
                        text, n, (int)PLAN_BITS);
        plan_decode((uint16_t)strtoul(text, NULL, 2), out);
        return OK;
    }
    if (n == 0 || strspn(text, "0123456789") != n)
        return fail(ERR_USAGE, "plan '%.40s' is neither a value from 0 to 65535 nor %d bits", text,
                    (int)PLAN_BITS);
    unsigned long value = n > 5 ? PLAN_CODES : strtoul(text, NULL, 10);
    if (value >= PLAN_CODES) return fail(ERR_USAGE, "plan '%.40s' is beyond 65535", text);
    plan_decode((uint16_t)value, out);
    return OK;
}

void plan_bits(uint16_t value, char text[PLAN_BITS + 1]) {
    for (int i = 0; i < PLAN_BITS; i++)
        text[i] = (char)('0' + (value >> (PLAN_BITS - 1 - i) & 1));
    text[PLAN_BITS] = '\0';
}

/* Reads "3-4" at *at; moves *at to the character after it. */
static status read_segment(const char *whole, const char **at, plan_segment *out) {
    long place[2];
    for (int i = 0; i < 2; i++) {
        char *end;
        place[i] = **at >= '0' && **at <= '9' ? strtol(*at, &end, 10) : 0;
        bool is_end = place[i] > 0 && (i == 1 || *end == '-');
        if (!is_end || place[i] > CHAIN_OPS)
            return fail(ERR_USAGE,
                        "--segments %.60s: write them as 1-2,3-4, with operators from 1 to %d",
                        whole, (int)CHAIN_OPS);
        *at = end + (i == 0);
    }
    *out = (plan_segment){(int)place[0] - 1, (int)place[1] - 1};
    return OK;
}

status plan_from_segments(const char *text, bool wants_hand_written, uint16_t *out) {
    bool is_joined[CHAIN_OPS] = {false}; /* with the operator before it */
    int after = -1;
    for (const char *at = text; after < 0 || *at != '\0';) {
        plan_segment s = {0};
        if (after >= 0 && *at++ != ',')
            return fail(ERR_USAGE, "--segments %.60s: separate segments by commas", text);
        TRY(read_segment(text, &at, &s));
        if (s.last <= s.first || s.first <= after)
            return fail(ERR_USAGE,
                        "--segments %.60s: segments must ascend without overlap and have at least "
                        "two operators each",
                        text);
        for (int op = s.first + 1; op <= s.last; op++)
            is_joined[op] = true;
        after = s.last;
    }
    unsigned value = 0, label = 0;
    for (int op = 0; op < CHAIN_OPS; op++) {
        if (op > 0 && !is_joined[op]) label = !label;
        value = value << 1 | label;
    }
    *out = (uint16_t)(value | (wants_hand_written ? HAND_WRITTEN : 0));
    return OK;
}

status plan_line(const fusion_plan *p, buf *out) {
    TRY(buf_printf(out, "%d %d %d", p->value, p->wants_hand_written, p->n_segments));
    for (int i = 0; i < p->n_segments; i++)
        TRY(buf_printf(out, " %d %d", p->segment[i].first + 1, p->segment[i].last + 1));
    return OK;
}

bool plan_uses_hand_written(const chain *c, uint16_t value) {
    fusion_plan p;
    plan_decode(value, &p);
    for (int i = 0; i < p.n_segments; i++)
        if (p.segment[i].first == c->attention_first && p.segment[i].last == c->attention_last)
            return p.wants_hand_written;
    return false;
}

uint16_t plan_canonical(const chain *c, uint16_t value) {
    uint16_t labels = value & LABELS;
    if (label_of(value, 0) == 1) labels ^= LABELS;
    return (uint16_t)(labels | (plan_uses_hand_written(c, value) ? HAND_WRITTEN : 0));
}

const char *template_name(kernel_template t) {
    static const char *const names[] = {
        "none",      "elementwise", "product",      "product + reduction",
        "reduction", "attention",   "two products", "hand-written attention"};
    return names[t];
}

/* Where the matching of templates has got to. */
typedef struct match {
    const chain *c;
    const chain_shape *shape;
    int at, last;
} match;

static op_kind kind_at(const match *m) {
    return m->c->op[m->at].kind;
}

static void pass_elementwise(match *m) {
    while (m->at <= m->last && op_is_elementwise(kind_at(m)))
        m->at++;
}

static bool is_done(const match *m) {
    return m->at > m->last;
}

/* Columns of the output of an operator per row. */
static int32_t row_of(const match *m, int op) {
    const chain_tensor *t = &m->c->tensor[m->c->op[op].out[0]];
    return t->layout == LAYOUT_SCORES ? m->shape->max_len : chain_columns(m->shape, t->width);
}

static bool has_reduction(const match *m) {
    return kind_at(m) == OP_NORM || kind_at(m) == OP_SOFTMAX;
}

/* After the scores: elementwise, then nothing, or a softmax over whole rows, or all of the
 * attention. */
static kernel_template match_scores(match *m) {
    bool fits = row_of(m, m->at) <= PLAN_MAX_ROW;
    m->at++;
    pass_elementwise(m);
    if (is_done(m)) return TEMPLATE_PRODUCT;
    bool has_softmax = kind_at(m) == OP_SOFTMAX;
    if (has_softmax && m->at == m->last) return fits ? TEMPLATE_PRODUCT_NORM : TEMPLATE_NONE;
    if (has_softmax) m->at++;
    if (kind_at(m) != OP_WEIGHTED || m->shape->dim_head > PLAN_MAX_HEAD_DIM) return TEMPLATE_NONE;
    m->at++;
    pass_elementwise(m);
    return is_done(m) ? TEMPLATE_ATTENTION : TEMPLATE_NONE;
}

static kernel_template match_product(match *m) {
    m->at++;
    pass_elementwise(m);
    if (is_done(m)) return TEMPLATE_PRODUCT;
    kernel_template t = kind_at(m) == OP_NORM      ? TEMPLATE_PRODUCT_NORM
                        : kind_at(m) == OP_PRODUCT ? TEMPLATE_TWO_PRODUCTS
                                                   : TEMPLATE_NONE;
    if (t == TEMPLATE_NONE || row_of(m, m->at) > PLAN_MAX_ROW) return TEMPLATE_NONE;
    m->at++;
    pass_elementwise(m);
    return is_done(m) ? t : TEMPLATE_NONE;
}

static kernel_template match_template(match *m) {
    if (kind_at(m) == OP_SCORES) return match_scores(m);
    bool is_weighted = kind_at(m) == OP_WEIGHTED;
    if (op_is_product(kind_at(m)) && !is_weighted) return match_product(m);
    m->at += is_weighted;
    pass_elementwise(m);
    if (is_done(m)) return is_weighted ? TEMPLATE_PRODUCT : TEMPLATE_ELEMENTWISE;
    if (is_weighted || !has_reduction(m)) return TEMPLATE_NONE;
    m->at++;
    pass_elementwise(m);
    return is_done(m) ? TEMPLATE_REDUCTION : TEMPLATE_NONE;
}

/* The operator that the templates stop at cannot join. */
static void explain(const match *m, int first, char why[PLAN_WHY_BYTES]) {
    const chain_op *op = &m->c->op[m->at], *begin = &m->c->op[first];
    int32_t row = row_of(m, m->at);
    if (begin->kind == OP_WEIGHTED && op->kind == OP_NORM)
        snprintf(why, PLAN_WHY_BYTES,
                 "%s needs rows of %d columns, and a block of %s has those of one head, %d",
                 op->name, row, begin->name, m->shape->dim_head);
    else if (op_is_product(begin->kind) && (has_reduction(m) || kind_at(m) == OP_PRODUCT) &&
             row > PLAN_MAX_ROW)
        snprintf(why, PLAN_WHY_BYTES, "%s needs whole rows of %d columns, and a block can keep %d",
                 op->name, row, (int)PLAN_MAX_ROW);
    else if (begin->kind == OP_SCORES && m->shape->dim_head > PLAN_MAX_HEAD_DIM)
        snprintf(why, PLAN_WHY_BYTES,
                 "head dimension %d is beyond %d, the most that fused attention can keep",
                 m->shape->dim_head, (int)PLAN_MAX_HEAD_DIM);
    else if (op_is_product(op->kind))
        snprintf(why, PLAN_WHY_BYTES,
                 "%s is a product: it begins a kernel, or is the second product of a template",
                 op->name);
    else
        snprintf(why, PLAN_WHY_BYTES,
                 "%s reduces whole rows, which blocks of this kernel do not have", op->name);
}

kernel_template plan_template(const chain *c, const chain_shape *shape, int first, int last,
                              char why[PLAN_WHY_BYTES]) {
    match m = {c, shape, first, last};
    kernel_template t = match_template(&m);
    if (why != NULL) {
        why[0] = '\0';
        if (t == TEMPLATE_NONE) explain(&m, first, why);
    }
    return t;
}

/* Appends the kernels of operators first..last: one, or several where no template has all. */
static void lower_segment(plan_program *p, const chain *c, const chain_shape *shape, int segment,
                          int first, int last) {
    while (first <= last) {
        plan_kernel *k = &p->kernel[p->n_kernels++];
        *k = (plan_kernel){.first = first, .last = last, .segment = segment};
        while ((k->from = plan_template(c, shape, first, k->last, NULL)) == TEMPLATE_NONE)
            k->last--;
        if (k->last < last) plan_template(c, shape, first, k->last + 1, k->why);
        first = k->last + 1;
    }
}

void plan_lower(const chain *c, const chain_shape *shape, uint16_t value, plan_program *out) {
    fusion_plan *p = &out->plan;
    int next = 0;
    out->n_kernels = 0;
    plan_decode(value, p);
    for (int op = 0; op < CHAIN_OPS;) {
        bool is_fused = next < p->n_segments && p->segment[next].first == op;
        int last = is_fused ? p->segment[next].last : op;
        lower_segment(out, c, shape, is_fused ? next : -1, op, last);
        next += is_fused;
        op = last + 1;
    }
    for (int i = 0; i < out->n_kernels; i++) {
        plan_kernel *k = &out->kernel[i];
        bool is_attention = k->first == c->attention_first && k->last == c->attention_last;
        if (is_attention && plan_uses_hand_written(c, value)) k->from = TEMPLATE_HAND_WRITTEN;
    }
}

/* plan_draw of fusion_plan.h: the chain as a row of boxes, with a frame around each kernel. */

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
