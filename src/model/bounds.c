#include "model/bounds.h"

#include "model/model_int.h"
#include "ops/time_bucket.h"

/* A number at each place: centre, radius, and the error of the linear relaxation. */
typedef struct span {
    double *centre, *radius, *error;
} span;

/* The linear form of a LayerNorm around its centred row c0:
 *     y_i = y0_i + keep_i (mean free of dx_i * rstd + c0_i * along * (c0 . dx)) */
typedef struct norm_form {
    double *c0;   /* (dim) */
    double *keep; /* (dim): 1, or 0 where only the range of y_i is used */
    double rstd, along;
} norm_form;

typedef struct bounds_layer {
    const hstu_layer *from;
    double *uvqk, *proj; /* (E, W), (E, G) */
    double *pair_bias;   /* (T, T) of a head: position and time */
    norm_form *in, *mid; /* (T) each: of the norms */
    span normed;         /* (T, E) */
    span act;            /* (T, W) u, v, q, k after the silu */
    double *slope;       /* (T, W) of the silu */
    double *from_x;      /* (T, W, E): coefficients of the token's input in act */
    double *along;       /* (T): radius of c0 . x before the first norm, or infinite */
    double *rest;        /* (T, W): the part of act's radius that is not theirs */
    span weight;         /* (H, T, T): silu(score) / N; radius, error with that of the score */
    double *pair_slope;  /* (H, T, T) */
    span attn;           /* (T, G): error alone is used later */
    span mids;           /* (T, G): normed attn */
    double *gate_error;  /* (T, G) */
    int32_t first;       /* rows before it are not needed */
} bounds_layer;

struct bounds {
    const model *m;
    int32_t dim, width, gated, max_n, n; /* E, W, G; events */
    int n_layers;
    bounds_layer *layers;
    span *hidden;  /* (n_layers + 1) of (T, E) */
    double size;   /* how far numbers of a token move, */
    int32_t moved; /* from this token on; the enclosures of those before are points */
    double *room;  /* scratch of a token */
    arena memory;
    /* of bounds_relax */
    int32_t n_directions, max_directions;
    double *grad, *grad_act; /* (T, E, n), (T, W, n) */
    double *grad_room;       /* some rows of n */
    double *radius, *error;  /* (n) */
};

/* At most so many tokens that move get passes of their own for each layer. */
enum { TIGHT_TOKENS = 24 };

/* SiLU. */

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double silu(double x) {
    return x * sigmoid(x);
}

/* Its second derivative: even, .5 at 0, falling to DEEPEST, then rising to 0. */
static double bend(double x) {
    double s = sigmoid(x);
    return s * (1 - s) * (2 + x * (1 - 2 * s));
}

#define DIP_AT   -1.2784645427610738
#define DIP      -0.27846454276107380
#define DEEPEST  -0.0369144
#define BENDS_AT 2.3993
#define DEEPENS  3.4358

/* How far the curve can be above and below the chord from a to b: by the curvature. */
static void chord_gap(double a, double b, double *above, double *below) {
    double near = a > 0 ? a : b < 0 ? -b : 0, far = fmax(fabs(a), fabs(b));
    double most = near < BENDS_AT + 1e-4 ? bend(near) : 0;
    double least = near > DEEPENS + 1e-3 ? bend(near) : far > BENDS_AT ? DEEPEST : 0;
    double square = (b - a) * (b - a) / 8;
    *below = fmax(most, 0) * square;
    *above = fmax(-least, 0) * square;
}

silu_line bounds_silu(double low, double high) {
    enum { PIECES = 64 };
    double a = silu(low), b = silu(high), width = high - low;
    silu_line line = {.low = fmin(a, b), .high = fmax(a, b)};
    if (low <= DIP_AT && high >= DIP_AT) line.low = DIP;
    int n = width < 0.5 ? 1 : width < PIECES / 4 ? (int)(4 * width) + 1 : PIECES;
    double slope = width > 1e-9 ? (b - a) / width : sigmoid(low) * (1 + low * (1 - sigmoid(low)));
    double most = 0, least = 0, at = low, value = 0;
    for (int i = 0; i < n; i++) { /* the curve without the chord, piece by piece */
        double next = i + 1 == n ? high : low + width * (i + 1) / n, above, below;
        double end = silu(next) - a - slope * (next - low);
        chord_gap(at, next, &above, &below);
        most = fmax(most, fmax(value, end) + above);
        least = fmin(least, fmin(value, end) - below);
        at = next;
        value = end;
    }
    line.slope = slope;
    line.shift = a - slope * low + (most + least) / 2;
    line.error = (most - least) / 2 + 1e-15 * (fabs(a) + fabs(b));
    if (line.error < (line.high - line.low) / 2) return line;
    line.slope = 0; /* the range alone is better */
    line.shift = (line.high + line.low) / 2;
    line.error = (line.high - line.low) / 2;
    return line;
}

/* The silu of an interval, times scale: centre and radius; returns the slope. */
static double span_silu(double centre, double radius, double scale, double *to, double *to_radius,
                        double *error) {
    silu_line s = bounds_silu(centre - radius, centre + radius);
    double at = s.slope * centre + s.shift, range = fmax(s.high - at, at - s.low);
    *to = scale * at;
    *to_radius = scale * fmin(range, fabs(s.slope) * radius + s.error);
    *error = scale * s.error;
    return scale * s.slope;
}

/* LayerNorm. */

/* The range of y_i over the box of the centred row: y_i rises with c_i and falls with the sum of
 * the other squares, `others`, which is at least c_i^2 / (dim - 1) as the row sums to 0. */
static double norm_end(double c, double low_others, double high_others, int32_t dim, double eps) {
    double least = fmax(low_others, c * c / (dim > 1 ? dim - 1 : 1));
    double others = c > 0 ? least : fmax(high_others, least);
    return c / sqrt((c * c + others) / dim + eps);
}

/* A row before its norm, as a box: what norm_row needs of it. */
typedef struct norm_box {
    double low_sum, high_sum; /* of the squares of the centred row */
    double low, high;         /* mean square + eps */
    double at, q;             /* the same: at + (2 / dim) c0 . dx + from 0 to q */
} norm_box;

/* rc (dim): radii of the centred row; most_along: of c0 . dx, where more is known than the box. */
static norm_box norm_measure(const double *x, const double *rx, int32_t dim, double eps, double *c0,
                             double *rc, double most_along) {
    double mean = 0, sum_r = 0, squares = 0, length = 0, along = 0;
    norm_box b = {0};
    for (int32_t i = 0; i < dim; i++) {
        mean += x[i] / dim;
        sum_r += rx[i];
        squares += rx[i] * rx[i];
    }
    for (int32_t i = 0; i < dim; i++) {
        c0[i] = x[i] - mean;
        rc[i] = rx[i] * (1 - 2.0 / dim) + sum_r / dim;
        double low = fmax(fabs(c0[i]) - rc[i], 0), high = fabs(c0[i]) + rc[i];
        b.low_sum += low * low;
        b.high_sum += high * high;
        length += c0[i] * c0[i];
        along += fabs(c0[i]) * rx[i];
    }
    along = fmin(along, most_along);
    double shorter = fmax(sqrt(length) - sqrt(squares), 0);
    b.q = squares / dim;
    b.at = length / dim + eps;
    b.high = fmin(b.high_sum / dim + eps, b.at + 2 * along / dim + b.q);
    b.low = fmax(b.low_sum, fmax(shorter * shorter, length - 2 * along)) / dim + eps;
    return b;
}

/* One row: y and its form from x; most_along as above, rc: (dim). */
static void norm_row(const double *x, const double *rx, int32_t dim, double eps, double most_along,
                     norm_form *f, const span *y, double *rc) {
    norm_box b = norm_measure(x, rx, dim, eps, f->c0, rc, most_along);
    double r_low = 1 / sqrt(b.high), r_high = 1 / sqrt(b.low);
    double slope = -r_low * r_high * r_low * r_high / (r_low + r_high); /* of the chord, */
    double touch = cbrt(1 / (4 * slope * slope)); /* which is furthest from 1 / sqrt there */
    double gap = fmax(r_high + slope * (touch - b.low) - 1 / sqrt(touch), 0) + 1e-15 * r_high;
    double at = r_high + slope * (b.at + b.q / 2 - b.low) - gap / 2;
    double error = gap / 2 - slope * b.q / 2;
    f->rstd = (r_low + r_high) / 2;
    f->along = 2 * slope / dim;
    for (int32_t i = 0; i < dim; i++) {
        double c = f->c0[i], part = fmax(fabs(c) - rc[i], 0), most = fabs(c) + rc[i];
        double low = fmax(b.low_sum - part * part, 0), high = b.high_sum - most * most;
        double top = norm_end(c + rc[i], low, high, dim, eps);
        double bottom = -norm_end(rc[i] - c, low, high, dim, eps);
        double e = fabs(c) * error + rc[i] * (r_high - r_low) / 2;
        f->keep[i] = e < (top - bottom) / 2;
        y->centre[i] = f->keep[i] != 0 ? c * at : (top + bottom) / 2;
        y->error[i] = f->keep[i] != 0 ? e : (top - bottom) / 2;
        double linear = y->error[i], own = f->rstd * (1 - 1.0 / dim) + f->along * c * c;
        for (int32_t k = 0; k < dim && f->keep[i] != 0; k++)
            linear += rx[k] * fabs(k == i ? own : f->along * c * f->c0[k] - f->rstd / dim);
        double range = fmax(top - y->centre[i], y->centre[i] - bottom);
        y->radius[i] = f->keep[i] != 0 ? fmin(range, linear) : range;
    }
}

/* to (n, dim) = the coefficients of x in y w, w (dim, n). */
static void norm_through(const norm_form *f, int32_t dim, const double *w, int32_t n, double *to) {
    for (int32_t o = 0; o < n; o++) {
        double mean = 0, dot = 0, *row = to + (int64_t)o * dim;
        for (int32_t i = 0; i < dim; i++) {
            row[i] = f->keep[i] * w[(int64_t)i * n + o];
            mean += row[i] / dim;
            dot += row[i] * f->c0[i] * f->along;
        }
#pragma omp simd
        for (int32_t i = 0; i < dim; i++)
            row[i] = f->rstd * (row[i] - mean) + dot * f->c0[i];
    }
}

/* sum of |x_i| r_i */
static double reach(const double *x, const double *r, int32_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < n; i++)
        sum += fabs(x[i]) * r[i];
    return sum;
}

/* to (n) += by * from (n) */
static inline void add(double *to, double by, const double *from, int32_t n) {
#pragma omp simd
    for (int32_t s = 0; s < n; s++)
        to[s] += by * from[s];
}

/* dx (dim, n) += the gradient of x from that of y, dy (dim, n). room: 2 n. */
static void norm_back(const norm_form *f, int32_t dim, const double *dy, int32_t n, double *dx,
                      double *room) {
    double *mean = room, *dot = room + n;
    memset(room, 0, 2 * (size_t)n * sizeof *room);
    for (int32_t i = 0; i < dim; i++)
#pragma omp simd
        for (int32_t o = 0; o < n; o++) {
            mean[o] += f->keep[i] * dy[(int64_t)i * n + o] / dim;
            dot[o] += f->keep[i] * f->c0[i] * f->along * dy[(int64_t)i * n + o];
        }
    for (int32_t i = 0; i < dim; i++)
#pragma omp simd
        for (int32_t o = 0; o < n; o++)
            dx[(int64_t)i * n + o] +=
                f->rstd * (f->keep[i] * dy[(int64_t)i * n + o] - mean[o]) + dot[o] * f->c0[i];
}

/* Making one. */

static status span_alloc(arena *a, span *s, size_t n) {
    TRY(ARENA_NEW(a, &s->centre, n));
    TRY(ARENA_NEW(a, &s->radius, n));
    return ARENA_NEW(a, &s->error, n);
}

/* The numbers from `first` on. */
static span span_at(const span *s, int64_t first) {
    return (span){s->centre + first, s->radius + first, s->error + first};
}

static status check_layer(const hstu_layer_config *c) {
    if (c->is_fuxi || c->has_affine || c->has_uvqk_bias || !c->has_silu || !c->has_residual ||
        c->is_fp8 || c->tensor != NULL || c->sequence != NULL)
        return fail(ERR_UNSUPPORTED, "bounds are for HSTU layers of Meta's retrieval configs with "
                                     "hstu_encoder.linear_activation = \"silu\"; FuXi's, "
                                     "NVIDIA-style and other layers have none");
    return OK;
}

static status check_model(const model *m) {
    const input_config *in = &m->input.config;
    if (m->is_ranking)
        return fail(ERR_UNSUPPORTED, "bounds are for retrieval models; this one ranks candidates");
    if (m->layers[0].kind != &hstu_layer_kind)
        return fail(ERR_UNSUPPORTED, "bounds are for HSTU layers; this model has %s layers",
                    m->layers[0].kind->name);
    TRY(check_layer(&m->layers[0].hstu.config));
    if (m->retrieval.loss.mol != NULL || m->retrieval.has_layer_norm)
        return fail(ERR_UNSUPPORTED,
                    "bounds are for dot products of l2-normalised users; this "
                    "model has %s",
                    m->retrieval.loss.mol != NULL ? "a mixture of logits" : "a layer norm there");
    if (!m->input.is_merged || in->n_context > 0 || in->n_actions > 0 || in->has_dynamic_items ||
        m->content.item != NULL)
        return fail(ERR_UNSUPPORTED, "bounds are for histories of items in one table; this model "
                                     "also reads user features, actions, item content or a dynamic "
                                     "table");
    if (!m->be->is_host || m->be->act != ACT_F32)
        return fail(ERR_UNSUPPORTED, "bounds are for float32 on the CPU; use --device cpu");
    return OK;
}

static double *widen(arena *a, const float *from, int64_t n, status *st) {
    double *to = NULL;
    if (*st == OK) *st = ARENA_NEW_RAW(a, &to, (size_t)n);
    for (int64_t i = 0; *st == OK && i < n; i++)
        to[i] = (double)from[i];
    return to;
}

static status norms_alloc(arena *a, norm_form **out, int32_t n, int32_t dim) {
    double *room;
    TRY(ARENA_NEW(a, out, (size_t)n));
    TRY(ARENA_NEW(a, &room, 2 * (size_t)n * (size_t)dim));
    for (int32_t t = 0; t < n; t++)
        (*out)[t] = (norm_form){.c0 = room + (int64_t)2 * t * dim,
                                .keep = room + ((int64_t)2 * t + 1) * dim};
    return OK;
}

/* The projection is kept as (G, E), however it is stored. */
static status take_weights(bounds *b, bounds_layer *l) {
    const hstu_layer *from = l->from;
    status st = OK;
    l->uvqk = widen(&b->memory, from->uvqk->value, (int64_t)b->dim * b->width, &st);
    TRY(st);
    TRY(ARENA_NEW(&b->memory, &l->proj, (size_t)b->gated * (size_t)b->dim));
    for (int32_t g = 0; g < b->gated; g++)
        for (int32_t e = 0; e < b->dim; e++)
            l->proj[g * b->dim + e] =
                (double)(from->config.is_proj_transposed ? from->proj->value[e * b->gated + g]
                                                         : from->proj->value[g * b->dim + e]);
    return OK;
}

static status layer_alloc(bounds *b, bounds_layer *l) {
    arena *a = &b->memory;
    size_t n = (size_t)b->max_n, pairs = n * n * (size_t)l->from->config.n_heads;
    TRY(take_weights(b, l));
    TRY(ARENA_NEW(a, &l->pair_bias, n * n));
    TRY(norms_alloc(a, &l->in, b->max_n, b->dim));
    TRY(norms_alloc(a, &l->mid, b->max_n, b->gated));
    TRY(span_alloc(a, &l->normed, n * (size_t)b->dim));
    TRY(span_alloc(a, &l->act, n * (size_t)b->width));
    TRY(ARENA_NEW(a, &l->slope, n * (size_t)b->width));
    TRY(ARENA_NEW(a, &l->along, n));
    TRY(ARENA_NEW(a, &l->rest, n * (size_t)b->width));
    TRY(ARENA_NEW(a, &l->from_x, n * (size_t)b->width * (size_t)b->dim));
    TRY(span_alloc(a, &l->weight, pairs));
    TRY(ARENA_NEW(a, &l->pair_slope, pairs));
    TRY(span_alloc(a, &l->attn, n * (size_t)b->gated));
    TRY(span_alloc(a, &l->mids, n * (size_t)b->gated));
    return ARENA_NEW(a, &l->gate_error, n * (size_t)b->gated);
}

/* Of a token: attention (G, E), weights (G, E), norm (E, G), coefficients (E, E), and rows. */
static int64_t room_numbers(const bounds *b) {
    int64_t wide = b->gated > b->dim ? b->gated : b->dim;
    return 4 * wide * wide + 8 * wide;
}

static status make(bounds *b, const model *m) {
    const hstu_layer_config *c = &m->layers[0].hstu.config;
    b->m = m;
    b->dim = m->dim;
    b->gated = c->n_heads * c->dim_v;
    b->width = 2 * (b->gated + c->n_heads * c->dim_qk);
    b->max_n = m->plan.max_events;
    b->n_layers = m->n_layers;
    TRY(ARENA_NEW(&b->memory, &b->layers, (size_t)b->n_layers));
    TRY(ARENA_NEW(&b->memory, &b->hidden, (size_t)b->n_layers + 1));
    for (int i = 0; i < b->n_layers; i++) {
        b->layers[i].from = &m->layers[i].hstu;
        TRY(layer_alloc(b, &b->layers[i]));
    }
    for (int i = 0; i <= b->n_layers; i++)
        TRY(span_alloc(&b->memory, &b->hidden[i], (size_t)b->max_n * (size_t)b->dim));
    return ARENA_NEW(&b->memory, &b->room, (size_t)room_numbers(b));
}

status bounds_create(bounds **out, const model *m) {
    bounds *b;
    *out = NULL;
    TRY(check_model(m));
    TRY(MEM_NEW(&b, 1));
    arena_init(&b->memory, 1 << 20);
    status st = make(b, m);
    return CREATED(st, out, b, bounds_destroy);
}

void bounds_destroy(bounds *b) {
    if (b == NULL) return;
    MEM_FREE(b->grad, b->grad_act, b->grad_room, b->radius, b->error);
    arena_fini(&b->memory);
    mem_free(b);
}

int32_t bounds_max_events(const bounds *b) {
    return b->max_n;
}

/* Forward. */

/* token = sqrt(E) row + position. */
static void embed(bounds *b, const bounds_query *q) {
    const input *in = &b->m->input;
    const double scale = (double)sqrtf((float)b->dim);
    b->size = scale * q->eps;
    b->moved = q->n - q->n_moved;
    for (int32_t t = 0; t < q->n; t++) {
        const float *row = in->item->value + (int64_t)q->item[t] * b->dim;
        const float *place = in->position->value + (int64_t)t * b->dim;
        for (int32_t e = 0; e < b->dim; e++) {
            int64_t i = (int64_t)t * b->dim + e;
            double moved = (double)row[e] + (q->shift != NULL ? q->shift[i] : 0);
            b->hidden[0].centre[i] = scale * moved + (double)place[e];
            b->hidden[0].radius[i] = t >= b->moved ? b->size : 0;
        }
    }
}

static void take_biases(bounds *b, bounds_layer *l, const int64_t *time) {
    const hstu_layer *from = l->from;
    const bucket_table *table = bucket_table_get();
    int64_t per_second = b->m->plan.time_per_second, n = b->n;
    for (int64_t i = 0; i < n && from->config.has_bias; i++) {
        int64_t asked = seq_seconds(time[i + 1 < n ? i + 1 : i], per_second);
        for (int64_t j = 0; j <= i; j++) {
            float distance = bucket_distance(asked, seq_seconds(time[j], per_second));
            l->pair_bias[i * n + j] =
                (double)from->time_w->value[bucket_of(table, distance)] +
                (double)from->position_w->value[from->config.bias_len - 1 + j - i];
        }
    }
}

/* silu(alpha (q . k + bias)) / N of a pair; by_i, by_j (E): the score's coefficients of the inputs
 * of the two tokens; returns the part of the weight's radius that is not theirs. */
static double weigh(bounds *b, bounds_layer *l, int32_t h, int32_t i, int32_t j, const double *rx,
                    double *by_i, double *by_j) {
    const hstu_layer_config *c = &l->from->config;
    int64_t q = (int64_t)i * b->width + 2 * b->gated + h * c->dim_qk;
    int64_t k = (int64_t)j * b->width + 2 * b->gated + (c->n_heads + h) * c->dim_qk;
    int64_t pair = ((int64_t)h * b->n + i) * b->n + j;
    double score = l->pair_bias[(int64_t)i * b->n + j], both = 0, rest = 0,
           alpha = (double)c->alpha;
    memset(by_i, 0, (size_t)b->dim * sizeof *by_i);
    memset(by_j, 0, (size_t)b->dim * sizeof *by_j);
    for (int32_t d = 0; d < c->dim_qk; d++) {
        double qc = l->act.centre[q + d], kc = l->act.centre[k + d];
        score += qc * kc;
        both += l->act.radius[q + d] * l->act.radius[k + d];
        rest += fabs(qc) * l->rest[k + d] + fabs(kc) * l->rest[q + d];
        if (i >= b->moved) add(by_i, alpha * kc, l->from_x + (q + d) * b->dim, b->dim);
        if (j >= b->moved) add(by_j, alpha * qc, l->from_x + (k + d) * b->dim, b->dim);
    }
    for (int32_t e = 0; e < b->dim && i == j; e++)
        by_i[e] += by_j[e];
    double radius = alpha * (rest + both) + reach(by_i, rx + (int64_t)i * b->dim, b->dim);
    if (i != j) radius += reach(by_j, rx + (int64_t)j * b->dim, b->dim);
    double slope = span_silu(alpha * score, radius, (double)c->scale, &l->weight.centre[pair],
                             &l->weight.radius[pair], &l->weight.error[pair]);
    l->weight.error[pair] += fabs(slope) * alpha * both;
    l->pair_slope[pair] = slope * alpha;
    return l->weight.error[pair] + fabs(slope) * alpha * rest;
}

/* Attention of a row: own (G, E), its coefficients of the row's own input; other (G): the rest of
 * its radius. */
static void attend(bounds *b, bounds_layer *l, const double *rx, int32_t i, double *own,
                   double *other) {
    const hstu_layer_config *c = &l->from->config;
    int32_t dim = b->dim;
    span o = span_at(&l->attn, (int64_t)i * b->gated);
    double *by_i = other + b->gated, *by_j = by_i + dim;
    memset(own, 0, (size_t)b->gated * (size_t)dim * sizeof *own);
    for (int32_t g = 0; g < b->gated; g++)
        o.centre[g] = o.error[g] = other[g] = 0;
    for (int32_t h = 0; h < c->n_heads; h++)
        for (int32_t j = 0; j <= i; j++) {
            int64_t pair = ((int64_t)h * b->n + i) * b->n + j;
            int64_t at = (int64_t)j * b->width + b->gated + h * c->dim_v;
            double rest = weigh(b, l, h, i, j, rx, by_i, by_j), w = l->weight.centre[pair];
            double slope = l->pair_slope[pair] / (double)c->alpha;
            for (int32_t d = 0, g = h * c->dim_v; d < c->dim_v; d++, g++) {
                double v = l->act.centre[at + d], sum = 0;
                const double *from_x = l->from_x + (at + d) * dim, *r = rx + (int64_t)j * dim;
                o.centre[g] += w * v;
                o.error[g] += l->weight.radius[pair] * l->act.radius[at + d];
                other[g] += fabs(v) * rest + fabs(w) * l->rest[at + d];
                if (i < b->moved) continue;
                add(own + (int64_t)g * dim, slope * v, by_i, dim);
                if (i == j) add(own + (int64_t)g * dim, w, from_x, dim);
                if (i == j || j < b->moved) continue;
#pragma omp simd reduction(+ : sum)
                for (int32_t e = 0; e < dim; e++)
                    sum += fabs(w * from_x[e] + slope * v * by_j[e]) * r[e];
                other[g] += sum;
            }
        }
    for (int32_t g = 0; g < b->gated; g++) {
        other[g] += o.error[g];
        o.radius[g] = other[g] + reach(own + (int64_t)g * dim, rx + (int64_t)i * dim, dim);
    }
}

/* Backward: gradients of n directions, and |gradient| times the error of each step. */

static void add_error(bounds *b, const double *gradient, const double *error, int64_t rows) {
    int32_t n = b->n_directions;
    for (int64_t i = 0; i < rows; i++)
#pragma omp simd
        for (int32_t s = 0; s < n; s++)
            b->error[s] += fabs(gradient[i * n + s]) * error[i];
}

/* From the gradient of attention o (G, n) of row i to those of q, k, v. */
static void attend_back(bounds *b, const bounds_layer *l, int32_t i, const double *go) {
    const hstu_layer_config *c = &l->from->config;
    int32_t n = b->n_directions;
    double *gs = b->grad_room;
    for (int32_t h = 0; h < c->n_heads; h++)
        for (int32_t j = 0; j <= i; j++) {
            int64_t pair = ((int64_t)h * b->n + i) * b->n + j;
            int64_t v = (int64_t)j * b->width + b->gated + h * c->dim_v;
            int64_t q = (int64_t)i * b->width + 2 * b->gated + h * c->dim_qk;
            int64_t k = (int64_t)j * b->width + 2 * b->gated + (c->n_heads + h) * c->dim_qk;
            const double *from = go + (int64_t)h * c->dim_v * n;
            memset(gs, 0, (size_t)n * sizeof *gs);
            for (int32_t d = 0; d < c->dim_v; d++)
                add(gs, l->act.centre[v + d], from + d * n, n);
            add_error(b, gs, l->weight.error + pair, 1);
            double slope = l->pair_slope[pair];
            for (int32_t d = 0; d < c->dim_qk; d++)
                add(b->grad_act + (q + d) * n, slope * l->act.centre[k + d], gs, n);
            for (int32_t d = 0; d < c->dim_qk && j >= b->moved; d++)
                add(b->grad_act + (k + d) * n, slope * l->act.centre[q + d], gs, n);
            for (int32_t d = 0; d < c->dim_v && j >= b->moved; d++)
                add(b->grad_act + (v + d) * n, l->weight.centre[pair], from + d * n, n);
        }
}

/* From the gradient of a row of the output, gy (E, n), to those of u, q, k, v. */
static void gate_back(bounds *b, const bounds_layer *l, int32_t t, const double *gy) {
    int32_t n = b->n_directions, dim = b->dim;
    int64_t at = (int64_t)t * b->gated, act = (int64_t)t * b->width;
    double *gg = b->grad_room + 3 * n, *go = gg + (int64_t)b->gated * n, *room = b->grad_room;
    memset(gg, 0, 2 * (size_t)b->gated * (size_t)n * sizeof *gg);
    for (int32_t g = 0; g < b->gated; g++) {
        for (int32_t e = 0; e < dim; e++)
            add(gg + (int64_t)g * n, l->proj[g * dim + e], gy + (int64_t)e * n, n);
        add(b->grad_act + (act + g) * n, l->mids.centre[at + g], gg + (int64_t)g * n, n);
    }
    add_error(b, gg, l->gate_error + at, b->gated);
    for (int32_t g = 0; g < b->gated; g++)
        for (int32_t s = 0; s < n; s++)
            gg[(int64_t)g * n + s] *= l->act.centre[act + g];
    add_error(b, gg, l->mids.error + at, b->gated);
    norm_back(&l->mid[t], b->gated, gg, n, go, room + n);
    add_error(b, go, l->attn.error + at, b->gated);
    attend_back(b, l, t, go);
}

/* From the gradients of u, v, q, k of a token to that of its input, gx (E, n), which has that of
 * the residual. */
static void project_back(bounds *b, const bounds_layer *l, int32_t t, double *gx) {
    int32_t n = b->n_directions;
    int64_t act = (int64_t)t * b->width;
    double *gz = b->grad_act + act * n, *gn = b->grad_room + 2 * n;
    add_error(b, gz, l->act.error + act, b->width);
    for (int32_t w = 0; w < b->width; w++)
        for (int32_t s = 0; s < n; s++)
            gz[(int64_t)w * n + s] *= l->slope[act + w];
    memset(gn, 0, (size_t)b->dim * (size_t)n * sizeof *gn);
    for (int32_t e = 0; e < b->dim; e++)
        for (int32_t w = 0; w < b->width; w++)
            add(gn + (int64_t)e * n, l->uvqk[(int64_t)e * b->width + w], gz + (int64_t)w * n, n);
    add_error(b, gn, l->normed.error + (int64_t)t * b->dim, b->dim);
    norm_back(&l->in[t], b->dim, gn, n, gx, b->grad_room);
}

static status begin_back(bounds *b, int32_t n) {
    size_t rows = (size_t)b->max_n * (size_t)n;
    int32_t wide = 2 * b->gated > b->dim ? 2 * b->gated : b->dim;
    if (n > b->max_directions) {
        b->max_directions = 0;
        TRY(MEM_RESIZE(&b->grad, rows * (size_t)b->dim));
        TRY(MEM_RESIZE(&b->grad_act, rows * (size_t)b->width));
        TRY(MEM_RESIZE(&b->grad_room, (size_t)n * (size_t)(wide + 4)));
        TRY(MEM_RESIZE(&b->radius, (size_t)n));
        TRY(MEM_RESIZE(&b->error, (size_t)n));
        b->max_directions = n;
    }
    b->n_directions = n;
    rows = (size_t)b->n * (size_t)n;
    memset(b->error, 0, (size_t)n * sizeof *b->error);
    memset(b->grad, 0, rows * (size_t)b->dim * sizeof *b->grad);
    memset(b->grad_act, 0, rows * (size_t)b->width * sizeof *b->grad_act);
    return OK;
}

/* From the gradients of the output of layer k, or where they are there of its u, v, q and k, of
 * rows up to `last`, to b->radius. */
static void finish_back(bounds *b, int k, int32_t last, bool has_acts) {
    int32_t n = b->n_directions;
    int64_t token = (int64_t)b->dim * n;
    for (; k >= 0; k--, has_acts = false) {
        const bounds_layer *l = &b->layers[k];
        for (int32_t t = l->first > b->moved ? l->first : b->moved; t <= last && !has_acts; t++)
            gate_back(b, l, t, b->grad + t * token);
        for (int32_t t = b->moved; t <= last; t++)
            project_back(b, l, t, b->grad + t * token);
        size_t acts = (size_t)(last + 1) * (size_t)b->width * (size_t)n;
        memset(b->grad_act, 0, acts * sizeof *b->grad_act);
    }
    memcpy(b->radius, b->error, (size_t)n * sizeof *b->radius);
    for (int64_t i = b->moved * (int64_t)b->dim; i < (last + 1) * (int64_t)b->dim; i++)
        for (int32_t s = 0; s < n; s++)
            b->radius[s] += fabs(b->grad[i * n + s]) * b->size;
}

/* Few tokens move: what goes into a norm is worth a pass of its own. */
static bool is_tight(const bounds *b, int32_t t) {
    return t >= b->moved && b->n - b->moved <= TIGHT_TOKENS && b->size > 0;
}

/* The radii of the attention of row t, and of c0 . row, c0 being the centred row. */
static status tighten_attn(bounds *b, int k, int32_t t, double mean, double *along) {
    bounds_layer *l = &b->layers[k];
    int32_t gated = b->gated, n = gated + 1;
    span o = span_at(&l->attn, (int64_t)t * gated);
    if (!is_tight(b, t) || k == 0) return OK; /* of the first layer they are exact */
    TRY(begin_back(b, n));
    double *go = b->grad_room + (int64_t)(3 + gated) * n;
    memset(go, 0, (size_t)gated * (size_t)n * sizeof *go);
    for (int32_t g = 0; g < gated; g++) {
        go[g * n + g] = 1;
        go[g * n + gated] = o.centre[g] - mean;
    }
    add_error(b, go, o.error, gated);
    attend_back(b, l, t, go);
    finish_back(b, k, t, true);
    for (int32_t g = 0; g < gated; g++)
        o.radius[g] = fmin(o.radius[g], b->radius[g]);
    *along = fmin(*along, b->radius[gated]);
    return OK;
}

/* The radii of a row of hidden[k + 1], and of c0 . row for the norm that reads it. */
static status tighten_out(bounds *b, int k, int32_t t, const span *out) {
    int32_t dim = b->dim, n = dim + 1;
    double mean = 0;
    if (k + 1 == b->n_layers) return OK;
    b->layers[k + 1].along[t] = INFINITY;
    if (!is_tight(b, t)) return OK;
    TRY(begin_back(b, n));
    for (int32_t e = 0; e < dim; e++)
        mean += out->centre[e] / dim;
    for (int32_t e = 0; e < dim; e++) {
        b->grad[((int64_t)t * dim + e) * n + e] = 1;
        b->grad[((int64_t)t * dim + e) * n + dim] = out->centre[e] - mean;
    }
    finish_back(b, k, t, false);
    for (int32_t e = 0; e < dim; e++)
        out->radius[e] = fmin(out->radius[e], b->radius[e]);
    b->layers[k + 1].along[t] = b->radius[dim];
    return OK;
}

/* The radii of what goes into the silu, from the coefficients of the layer's input. */
static status tighten_act(bounds *b, int k, int32_t t, const span *act) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->width, dim = b->dim;
    const double *from_x = l->from_x + (int64_t)t * n * dim;
    if (!is_tight(b, t) || k == 0) return OK;
    TRY(begin_back(b, n));
    memcpy(b->error, l->rest + (int64_t)t * n, (size_t)n * sizeof *b->error);
    for (int32_t w = 0; w < n; w++)
        for (int32_t e = 0; e < dim; e++)
            b->grad[((int64_t)t * dim + e) * n + w] = from_x[w * dim + e];
    finish_back(b, k - 1, t, false);
    for (int32_t w = 0; w < n; w++)
        act->radius[w] = fmin(act->radius[w], b->radius[w]);
    return OK;
}

/* u, v, q, k of a token. */
static status project(bounds *b, int k, const span *x, int32_t t) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->width, dim = b->dim;
    span normed = span_at(&l->normed, (int64_t)t * dim), act = span_at(&l->act, (int64_t)t * n);
    double *slope = l->slope + (int64_t)t * n, *rest = l->rest + (int64_t)t * n;
    double *from_x = l->from_x + (int64_t)t * n * dim;
    norm_row(x->centre, x->radius, dim, (double)l->from->config.eps, l->along[t], &l->in[t],
             &normed, b->room);
    bool moves = t >= b->moved;
    if (moves) norm_through(&l->in[t], dim, l->uvqk, n, from_x);
    for (int32_t w = 0; w < n; w++)
        act.centre[w] = act.radius[w] = rest[w] = 0;
    for (int32_t e = 0; e < dim; e++)
#pragma omp simd
        for (int32_t w = 0; w < n; w++) {
            double weight = l->uvqk[(int64_t)e * n + w];
            act.centre[w] += weight * normed.centre[e];
            act.radius[w] += fabs(weight) * normed.radius[e];
            rest[w] += fabs(weight) * normed.error[e];
        }
    TRY(tighten_act(b, k, t, &act));
    for (int32_t w = 0; w < n; w++) {
        double *row = from_x + (int64_t)w * dim;
        double linear = moves ? rest[w] + reach(row, x->radius, dim) : INFINITY;
        double radius = fmin(act.radius[w], linear);
        slope[w] =
            span_silu(act.centre[w], radius, 1, &act.centre[w], &act.radius[w], &act.error[w]);
        rest[w] = fabs(slope[w]) * rest[w] + act.error[w];
        for (int32_t e = 0; e < dim && moves; e++)
            row[e] *= slope[w];
    }
    return OK;
}

/* out = (u * norm(o)) W + bias + x.  Of the row's own input the coefficients in out are added up
 * before their sizes are taken. */
static status gate(bounds *b, int k, const span *x, int32_t t, const span *out) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->gated, dim = b->dim;
    int64_t u = (int64_t)t * b->width;
    span o = span_at(&l->attn, (int64_t)t * n), m = span_at(&l->mids, (int64_t)t * n);
    double *own = b->room, *weight = own + n * dim, *through = weight + n * dim;
    double *by = through + n * dim, *other = by + dim * dim,
           *error = l->gate_error + (int64_t)t * n;
    const param *bias = l->from->proj_bias;
    attend(b, l, x->radius - (int64_t)t * dim, t, own, other);
    double mean = 0, along = 0, *row = by;
    for (int32_t g = 0; g < n; g++)
        mean += o.centre[g] / n;
    memset(row, 0, (size_t)dim * sizeof *row);
    for (int32_t g = 0; g < n; g++) {
        add(row, o.centre[g] - mean, own + (int64_t)g * dim, dim);
        along += fabs(o.centre[g] - mean) * other[g];
    }
    along += reach(row, x->radius, dim);
    TRY(tighten_attn(b, k, t, mean, &along));
    norm_row(o.centre, o.radius, n, (double)l->from->config.eps, along, &l->mid[t], &m,
             other + n + 2 * dim);
    for (int32_t g = 0; g < n; g++)
        for (int32_t e = 0; e < dim; e++)
            weight[g * dim + e] = l->act.centre[u + g] * l->proj[g * dim + e];
    if (t >= b->moved) norm_through(&l->mid[t], n, weight, dim, through);
    memset(by, 0, (size_t)dim * (size_t)dim * sizeof *by);
    for (int32_t e = 0; e < dim; e++) {
        double centre = x->centre[e] + (bias != NULL ? (double)bias->value[e] : 0), radius = 0;
        double *to = by + (int64_t)e * dim;
        to[e] = 1;
        for (int32_t g = 0; g < n; g++) {
            double w = l->proj[g * dim + e];
            error[g] = l->act.radius[u + g] * m.radius[g];
            centre += w * l->act.centre[u + g] * m.centre[g];
            if (t < b->moved) continue;
            radius += fabs(through[e * n + g]) * other[g] + fabs(weight[g * dim + e]) * m.error[g] +
                      fabs(w) * (fabs(m.centre[g]) * l->rest[u + g] + error[g]);
            add(to, through[e * n + g], own + (int64_t)g * dim, dim);
            add(to, w * m.centre[g], l->from_x + (u + g) * dim, dim);
        }
        out->centre[e] = centre;
        out->radius[e] = t < b->moved ? 0 : radius + reach(to, x->radius, dim);
    }
    return tighten_out(b, k, t, out);
}

status bounds_run(bounds *b, const bounds_query *q) {
    if (q->n < 1 || q->n > b->max_n)
        return fail(ERR_CONFIG, "a history of %d events; the model reads 1 to %d", q->n, b->max_n);
    b->n = q->n;
    embed(b, q);
    for (int k = 0; k < b->n_layers; k++) {
        bounds_layer *l = &b->layers[k];
        l->first = k + 1 == b->n_layers ? q->n - 1 : 0;
        take_biases(b, l, q->time);
        for (int32_t t = 0; t < q->n; t++) {
            span x = span_at(&b->hidden[k], (int64_t)t * b->dim);
            if (k == 0) l->along[t] = INFINITY;
            TRY(project(b, k, &x, t));
        }
        for (int32_t t = l->first; t < q->n; t++) {
            span x = span_at(&b->hidden[k], (int64_t)t * b->dim);
            span out = span_at(&b->hidden[k + 1], (int64_t)t * b->dim);
            TRY(gate(b, k, &x, t, &out));
        }
    }
    return OK;
}

const double *bounds_centre(const bounds *b) {
    return b->hidden[b->n_layers].centre + (int64_t)(b->n - 1) * b->dim;
}

const double *bounds_radius(const bounds *b) {
    return b->hidden[b->n_layers].radius + (int64_t)(b->n - 1) * b->dim;
}

status bounds_relax(bounds *b, int32_t n, const double *direction, bounds_form *out) {
    int64_t last = (int64_t)(b->n - 1) * b->dim;
    TRY(begin_back(b, n));
    for (int32_t e = 0; e < b->dim; e++)
        for (int32_t s = 0; s < n; s++)
            b->grad[(last + e) * n + s] = direction[(int64_t)s * b->dim + e];
    finish_back(b, b->n_layers - 1, b->n - 1, false);
    *out = (bounds_form){n, b->radius, b->error, b->grad};
    return OK;
}
