#include "model/bounds.h"

#include "model/model_int.h"
#include "ops/time_bucket.h"

/* A number at each place: centre, radius, and the error of the linear relaxation. */
typedef struct span {
    double *centre, *radius, *error;
} span;

/* The linear form of a LayerNorm around its centred row c0, dc being the movement of that row:
 *     y_i = y0_i + keep_i (dc_i * rstd + c0_i * along * (c0 . dx) + c0_i * off + dc_i * spread)
 * where off and spread are unknown numbers, the same for all i, of at most this size. */
typedef struct norm_form {
    double *c0;   /* (dim) */
    double *keep; /* (dim): 1, or 0 where only the range of y_i is used */
    double *rc;   /* (dim): radii of dc */
    double rstd, along, off, spread;
    double length;     /* of dc, at most */
    double most_along; /* radius of c0 . dx */
    double y_length;   /* of the movement of y, at most */
} norm_form;

typedef struct bounds_layer {
    const hstu_layer *from;
    double *uvqk, *proj; /* (E, W), (E, G) */
    double *pair_bias;   /* (T, T) of a head: position and time */
    norm_form *in, *mid; /* (T) each: of the norms */
    span normed;         /* (T, E) */
    span act;            /* (T, W) u, v, q, k after the silu */
    double *slope;       /* (T, W) of the silu */
    double *length;      /* (T, 1 + 3 H): of the movement of u, and of v, q, k by heads, at most */
    double *from_x;      /* (T, W, E): coefficients of the token's input in act */
    double *rest;        /* (T, W): the part of act's radius that is not theirs */
    span weight;         /* (H, T, T): silu(score) / N; radius, error with that of the score */
    double *pair_slope;  /* (H, T, T) */
    span attn;           /* (T, G): error alone is used later */
    double *attn_error;  /* (T, H): the same, of a gradient of length 1 */
    span mids;           /* (T, G): normed attn */
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
    double *room;  /* scratch of a token, */
    double *gram;  /* and of movement: two squares */
    arena memory;
    /* of bounds_relax */
    int32_t n_directions, max_directions;
    double *grad, *grad_act; /* (T, E, n), (T, W, n) */
    double *grad_room;       /* some rows of n */
    double *radius, *error;  /* (n) */
};

/* At most so many tokens that move get passes of their own for each layer. */
enum { TIGHT_TOKENS = 24 };

/* Rows of n numbers at the start of the room of a backward pass, for single steps. */
enum { ROWS = 3 };

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

/* Lowers what the form has of the movement, which may be infinite, to what the box allows. */
static norm_box norm_measure(const double *x, const double *rx, int32_t dim, double eps,
                             norm_form *f) {
    double mean = 0, sum_r = 0, squares = 0, centred = 0, length = 0, along = 0;
    norm_box b = {0};
    for (int32_t i = 0; i < dim; i++) {
        mean += x[i] / dim;
        sum_r += rx[i];
        squares += rx[i] * rx[i];
    }
    for (int32_t i = 0; i < dim; i++) {
        double c = f->c0[i] = x[i] - mean;
        double r = f->rc[i] = fmin(f->rc[i], rx[i] * (1 - 2.0 / dim) + sum_r / dim);
        b.low_sum += pow(fmax(fabs(c) - r, 0), 2);
        b.high_sum += pow(fabs(c) + r, 2);
        centred += r * r;
        length += c * c;
        along += fabs(c) * rx[i];
    }
    along = fmin(along, f->most_along);
    f->length = fmin(f->length, sqrt(fmin(squares, centred)));
    double shorter = fmax(sqrt(length) - f->length, 0);
    b.q = f->length * f->length / dim;
    b.at = length / dim + eps;
    b.high = fmin(b.high_sum / dim + eps, b.at + 2 * along / dim + b.q);
    b.low = fmax(b.low_sum, fmax(shorter * shorter, length - 2 * along)) / dim + eps;
    return b;
}

/* Nothing is known of the movement. */
static void norm_reset(norm_form *f, int32_t dim) {
    f->length = f->most_along = INFINITY;
    for (int32_t i = 0; i < dim; i++)
        f->rc[i] = INFINITY;
}

/* One row: y and its form from x. */
static void norm_row(const double *x, const double *rx, int32_t dim, double eps, norm_form *f,
                     const span *y) {
    norm_box b = norm_measure(x, rx, dim, eps, f);
    double r_low = 1 / sqrt(b.high), r_high = 1 / sqrt(b.low);
    double slope = -r_low * r_high * r_low * r_high / (r_low + r_high); /* of the chord, */
    double touch = cbrt(1 / (4 * slope * slope)); /* which is furthest from 1 / sqrt there */
    double gap = fmax(r_high + slope * (touch - b.low) - 1 / sqrt(touch), 0) + 1e-15 * r_high;
    double at = r_high + slope * (b.at + b.q / 2 - b.low) - gap / 2;
    f->off = gap / 2 - slope * b.q / 2;
    f->spread = (r_high - r_low) / 2;
    f->rstd = (r_low + r_high) / 2;
    f->along = 2 * slope / dim;
    f->y_length = 0;
    for (int32_t i = 0; i < dim; i++) {
        double c = f->c0[i], rc = f->rc[i], part = fmax(fabs(c) - rc, 0), most = fabs(c) + rc;
        double low = fmax(b.low_sum - part * part, 0), high = b.high_sum - most * most;
        double top = norm_end(c + rc, low, high, dim, eps);
        double bottom = -norm_end(rc - c, low, high, dim, eps);
        double e = fabs(c) * f->off + rc * f->spread;
        f->keep[i] = e < (top - bottom) / 2;
        y->centre[i] = f->keep[i] != 0 ? c * at : (top + bottom) / 2;
        y->error[i] = f->keep[i] != 0 ? e : (top - bottom) / 2;
        double linear = y->error[i], own = f->rstd * (1 - 1.0 / dim) + f->along * c * c;
        for (int32_t k = 0; k < dim && f->keep[i] != 0; k++)
            linear += rx[k] * fabs(k == i ? own : f->along * c * f->c0[k] - f->rstd / dim);
        double range = fmax(top - y->centre[i], y->centre[i] - bottom);
        y->radius[i] = f->keep[i] != 0 ? fmin(range, linear) : range;
        f->y_length += y->radius[i] * y->radius[i];
    }
    f->y_length = sqrt(f->y_length);
}

/* to (n) += how far dy . y can be from its linear form, for the columns of dy (dim, n): as off and
 * spread are the same for all numbers, the columns are summed up before sizes are taken. error:
 * of y.  room: 3 n. */
static void norm_error(const norm_form *f, const double *error, int32_t dim, const double *dy,
                       int32_t n, double *to, double *room) {
    double *dot = room, *box = room + n, *squares = room + 2 * n;
    memset(room, 0, 3 * (size_t)n * sizeof *room);
    for (int32_t i = 0; i < dim; i++) {
        double c = f->keep[i] * f->c0[i], ranges = (1 - f->keep[i]) * error[i];
#pragma omp simd
        for (int32_t o = 0; o < n; o++) {
            double g = dy[(int64_t)i * n + o], kept = f->keep[i] * g;
            dot[o] += c * g;
            box[o] += fabs(kept) * f->rc[i];
            squares[o] += kept * kept;
            to[o] += fabs(g) * ranges;
        }
    }
#pragma omp simd
    for (int32_t o = 0; o < n; o++)
        to[o] += fabs(dot[o]) * f->off + fmin(box[o], sqrt(squares[o]) * f->length) * f->spread;
}

/* to (n) += how large the sum of by_i da_i db_i can be, for the columns of by (dim, n), da and db
 * being movements in boxes of radii ra and rb, of lengths la and lb at most.  room: 3 n. */
static void cross_error(const double *by, int32_t dim, int32_t n, const double *ra, double la,
                        const double *rb, double lb, double *to, double *room) {
    double *box = room, *left = room + n, *right = room + 2 * n;
    memset(room, 0, 3 * (size_t)n * sizeof *room);
    for (int32_t i = 0; i < dim; i++)
#pragma omp simd
        for (int32_t o = 0; o < n; o++) {
            double a = by[(int64_t)i * n + o] * ra[i], b = by[(int64_t)i * n + o] * rb[i];
            box[o] += fabs(a) * rb[i];
            left[o] += a * a;
            right[o] += b * b;
        }
#pragma omp simd
    for (int32_t o = 0; o < n; o++)
        to[o] += fmin(box[o], fmin(sqrt(left[o]) * lb, sqrt(right[o]) * la));
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

static double length_of(const double *x, int32_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* to (n) += by * from (n) */
static inline void add(double *to, double by, const double *from, int32_t n) {
#pragma omp simd
    for (int32_t s = 0; s < n; s++)
        to[s] += by * from[s];
}

static bool has_numbers(const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0) return true;
    return false;
}

/* to (m, n) += a (m, k) from (k, n); rows of zeros are left out, of which there are many. */
static void multiply(const double *a, const double *from, int32_t m, int32_t k, int32_t n,
                     double *to) {
    enum { AT_ONCE = 4 };
    for (int32_t j = 0; j < k;) {
        int32_t at[AT_ONCE] = {0}, n_at = 0;
        for (; j < k && n_at < AT_ONCE; j++)
            if (has_numbers(from + (int64_t)j * n, n)) at[n_at++] = j;
        const double *x = from + (int64_t)at[0] * n, *y = from + (int64_t)at[1] * n,
                     *z = from + (int64_t)at[2] * n, *t = from + (int64_t)at[3] * n;
        for (int32_t i = 0; i < m && n_at > 0; i++) {
            double w[AT_ONCE] = {0}, *row = to + (int64_t)i * n;
            for (int32_t p = 0; p < n_at; p++)
                w[p] = a[(int64_t)i * k + at[p]];
#pragma omp simd
            for (int32_t s = 0; s < n; s++)
                row[s] += w[0] * x[s] + w[1] * y[s] + w[2] * z[s] + w[3] * t[s];
        }
    }
}

/* dx (dim, n) += the gradient of x from that of y, dy (dim, n); to, error as above.  room: 3 n. */
static void norm_back(const norm_form *f, const double *error, int32_t dim, const double *dy,
                      int32_t n, double *dx, double *to, double *room) {
    double *mean = room, *dot = room + n;
    norm_error(f, error, dim, dy, n, to, room);
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
    TRY(ARENA_NEW(a, &room, 3 * (size_t)n * (size_t)dim));
    for (int32_t t = 0; t < n; t++, room += 3 * (size_t)dim)
        (*out)[t] = (norm_form){.c0 = room, .keep = room + dim, .rc = room + 2 * (size_t)dim};
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

static int32_t n_blocks(const hstu_layer_config *c) {
    return 1 + 3 * c->n_heads;
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
    TRY(ARENA_NEW(a, &l->length, n * (size_t)n_blocks(&l->from->config)));
    TRY(ARENA_NEW(a, &l->rest, n * (size_t)b->width));
    TRY(ARENA_NEW(a, &l->from_x, n * (size_t)b->width * (size_t)b->dim));
    TRY(span_alloc(a, &l->weight, pairs));
    TRY(ARENA_NEW(a, &l->pair_slope, pairs));
    TRY(span_alloc(a, &l->attn, n * (size_t)b->gated));
    TRY(span_alloc(a, &l->mids, n * (size_t)b->gated));
    return ARENA_NEW(a, &l->attn_error, n * (size_t)l->from->config.n_heads);
}

/* Of a token: attention (G, E), weights (G, E), norm (E, G), coefficients (E, E), and rows. */
static size_t room_numbers(const bounds *b) {
    size_t wide = (size_t)(b->gated > b->dim ? b->gated : b->dim);
    return 4 * wide * wide + 9 * wide + 3 * (size_t)b->width;
}

static size_t gram_numbers(const bounds *b) {
    const hstu_layer_config *c = &b->m->layers[0].hstu.config;
    size_t wide = (size_t)(b->gated > b->dim ? b->gated : b->dim);
    if ((size_t)c->dim_qk > wide) wide = (size_t)c->dim_qk;
    return 2 * wide * wide;
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
    TRY(ARENA_NEW(&b->memory, &b->gram, gram_numbers(b)));
    return ARENA_NEW(&b->memory, &b->room, room_numbers(b));
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

/* How far a score is from its linear form. */
static double score_error(const bounds *b, const bounds_layer *l, int32_t h, int32_t i, int32_t j) {
    const hstu_layer_config *c = &l->from->config;
    const double *q = l->act.radius + (int64_t)i * b->width + 2 * b->gated + h * c->dim_qk;
    const double *k =
        l->act.radius + (int64_t)j * b->width + 2 * b->gated + (c->n_heads + h) * c->dim_qk;
    int32_t n = n_blocks(c);
    return fmin(reach(q, k, c->dim_qk),
                l->length[i * n + 1 + c->n_heads + h] * l->length[j * n + 1 + 2 * c->n_heads + h]);
}

/* silu(alpha (q . k + bias)) / N of a pair, whose score has at most the radius that the weight's
 * radius has before; by_i, by_j (E): the score's coefficients of the inputs
 * of the two tokens; returns the part of the weight's radius that is not theirs. */
static double weigh(bounds *b, bounds_layer *l, int32_t h, int32_t i, int32_t j, const double *rx,
                    double *by_i, double *by_j) {
    const hstu_layer_config *c = &l->from->config;
    int64_t q = (int64_t)i * b->width + 2 * b->gated + h * c->dim_qk;
    int64_t k = (int64_t)j * b->width + 2 * b->gated + (c->n_heads + h) * c->dim_qk;
    int64_t pair = ((int64_t)h * b->n + i) * b->n + j;
    double score = l->pair_bias[(int64_t)i * b->n + j], both = score_error(b, l, h, i, j), rest = 0,
           alpha = (double)c->alpha;
    memset(by_i, 0, (size_t)b->dim * sizeof *by_i);
    memset(by_j, 0, (size_t)b->dim * sizeof *by_j);
    for (int32_t d = 0; d < c->dim_qk; d++) {
        double qc = l->act.centre[q + d], kc = l->act.centre[k + d];
        score += qc * kc;
        rest += fabs(qc) * l->rest[k + d] + fabs(kc) * l->rest[q + d];
        if (i >= b->moved) add(by_i, alpha * kc, l->from_x + (q + d) * b->dim, b->dim);
        if (j >= b->moved) add(by_j, alpha * qc, l->from_x + (k + d) * b->dim, b->dim);
    }
    for (int32_t e = 0; e < b->dim && i == j; e++)
        by_i[e] += by_j[e];
    double radius = alpha * (rest + both) + reach(by_i, rx + (int64_t)i * b->dim, b->dim);
    if (i != j) radius += reach(by_j, rx + (int64_t)j * b->dim, b->dim);
    radius = fmin(radius, l->weight.radius[pair]);
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
    for (int32_t h = 0; h < c->n_heads; h++) {
        double *error = &l->attn_error[i * c->n_heads + h];
        *error = 0;
        for (int32_t j = 0; j <= i; j++) {
            int64_t pair = ((int64_t)h * b->n + i) * b->n + j;
            int64_t at = (int64_t)j * b->width + b->gated + h * c->dim_v;
            double rest = weigh(b, l, h, i, j, rx, by_i, by_j), w = l->weight.centre[pair];
            double slope = l->pair_slope[pair] / (double)c->alpha;
            *error += l->weight.radius[pair] * l->length[j * n_blocks(c) + 1 + h];
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

/* The errors of a head's sums of weights times v: by its numbers, or by the gradient's length. */
static void attn_error(bounds *b, const double *error, double by_length, int32_t dim,
                       const double *go) {
    int32_t n = b->n_directions;
    double *box = b->grad_room, *squares = box + n;
    memset(box, 0, 2 * (size_t)n * sizeof *box);
    for (int32_t d = 0; d < dim; d++)
#pragma omp simd
        for (int32_t s = 0; s < n; s++) {
            box[s] += fabs(go[(int64_t)d * n + s]) * error[d];
            squares[s] += go[(int64_t)d * n + s] * go[(int64_t)d * n + s];
        }
#pragma omp simd
    for (int32_t s = 0; s < n; s++)
        b->error[s] += fmin(box[s], sqrt(squares[s]) * by_length);
}

/* From the gradient of attention o (G, n) of row i to those of q, k, v. */
static void attend_back(bounds *b, const bounds_layer *l, int32_t i, const double *go) {
    const hstu_layer_config *c = &l->from->config;
    int32_t n = b->n_directions;
    double *gs = b->grad_room;
    for (int32_t h = 0; h < c->n_heads; h++) {
        int64_t o = (int64_t)i * b->gated + h * c->dim_v;
        attn_error(b, l->attn.error + o, l->attn_error[i * c->n_heads + h], c->dim_v,
                   go + (int64_t)h * c->dim_v * n);
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
}

/* From the gradient gg (G, n) of the normed attention of row t; n (G) zeros follow it, which become
 * that of attention. */
static void norm_attend_back(bounds *b, const bounds_layer *l, int32_t t, const double *gg) {
    int32_t n = b->n_directions;
    int64_t at = (int64_t)t * b->gated;
    double *go = b->grad_room + (int64_t)(ROWS + b->gated) * n;
    norm_back(&l->mid[t], l->mids.error + at, b->gated, gg, n, go, b->error, b->grad_room);
    attend_back(b, l, t, go);
}

/* From the gradient of a row of the output, gy (E, n), to those of u, q, k, v. */
static void gate_back(bounds *b, const bounds_layer *l, int32_t t, const double *gy) {
    int32_t n = b->n_directions, dim = b->dim;
    int64_t at = (int64_t)t * b->gated, act = (int64_t)t * b->width;
    double *gg = b->grad_room + ROWS * n;
    if (!has_numbers(gy, (int64_t)dim * n)) return;
    memset(gg, 0, 2 * (size_t)b->gated * (size_t)n * sizeof *gg);
    multiply(l->proj, gy, b->gated, dim, n, gg);
    for (int32_t g = 0; g < b->gated; g++)
        add(b->grad_act + (act + g) * n, l->mids.centre[at + g], gg + (int64_t)g * n, n);
    cross_error(gg, b->gated, n, l->act.radius + act, l->length[t * n_blocks(&l->from->config)],
                l->mids.radius + at, l->mid[t].y_length, b->error, b->grad_room);
    for (int32_t g = 0; g < b->gated; g++)
        for (int32_t s = 0; s < n; s++)
            gg[(int64_t)g * n + s] *= l->act.centre[act + g];
    norm_attend_back(b, l, t, gg);
}

/* From the gradients of u, v, q, k of a token to that of its input, gx (E, n), which has that of
 * the residual. */
static void project_back(bounds *b, const bounds_layer *l, int32_t t, double *gx) {
    int32_t n = b->n_directions;
    int64_t act = (int64_t)t * b->width;
    double *gz = b->grad_act + act * n, *gn = b->grad_room + ROWS * n;
    if (!has_numbers(gz, (int64_t)b->width * n)) return;
    add_error(b, gz, l->act.error + act, b->width);
    for (int32_t w = 0; w < b->width; w++)
        for (int32_t s = 0; s < n; s++)
            gz[(int64_t)w * n + s] *= l->slope[act + w];
    memset(gn, 0, (size_t)b->dim * (size_t)n * sizeof *gn);
    multiply(l->uvqk, gz, b->dim, b->width, n, gn);
    norm_back(&l->in[t], l->normed.error + (int64_t)t * b->dim, b->dim, gn, n, gx, b->error,
              b->grad_room);
}

/* Of the tokens that move, up to `last`: gradients of n numbers each. */
static void clear_rows(const bounds *b, double *gradient, int32_t n, int32_t last) {
    int64_t row = (int64_t)n * b->n_directions;
    if (last >= b->moved)
        memset(gradient + b->moved * row, 0,
               (size_t)((last + 1 - b->moved) * row) * sizeof *gradient);
}

static status begin_back(bounds *b, int32_t n) {
    size_t rows = (size_t)b->max_n * (size_t)n;
    int32_t wide = 2 * b->gated > b->dim ? 2 * b->gated : b->dim;
    if (n > b->max_directions) {
        b->max_directions = 0;
        TRY(MEM_RESIZE(&b->grad, rows * (size_t)b->dim));
        TRY(MEM_RESIZE(&b->grad_act, rows * (size_t)b->width));
        TRY(MEM_RESIZE(&b->grad_room, (size_t)n * (size_t)(wide + ROWS)));
        TRY(MEM_RESIZE(&b->radius, (size_t)n));
        TRY(MEM_RESIZE(&b->error, (size_t)n));
        b->max_directions = n;
    }
    b->n_directions = n;
    memset(b->error, 0, (size_t)n * sizeof *b->error);
    clear_rows(b, b->grad, b->dim, b->n - 1);
    clear_rows(b, b->grad_act, b->width, b->n - 1);
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
        clear_rows(b, b->grad_act, b->width, last);
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

/* At most how long what moves in the directions first .. first + n of a pass can be: |J x| for
 * |x_i| <= size, and the errors.  With any positive d_i
 *     |J x|^2 = |J d^(-1/2) d^(1/2) x|^2 <= lambda(J d^(-1) J') sum of d_i x_i^2;
 * d_i is the length of J's column i, which is exact where all columns are parallel, or orthogonal
 * and of one length.  lambda is at most the k-th root of the Frobenius norm of the k-th power. */
static double movement(const bounds *b, int32_t first, int32_t n, int32_t last) {
    enum { SQUARINGS = 4 };
    double *a = b->gram, *square = a + (int64_t)n * n, sum = 0, norm = 0, lambda = 1;
    memset(a, 0, (size_t)n * (size_t)n * sizeof *a);
    for (int64_t i = b->moved * (int64_t)b->dim; i < (last + 1) * (int64_t)b->dim; i++) {
        const double *from = b->grad + i * b->n_directions + first;
        double length = length_of(from, n);
        sum += length;
        for (int32_t r = 0; r < n && length > 0; r++)
            add(a + r * n, from[r] / length, from, n);
    }
    for (int k = 0; k <= SQUARINGS; k++) {
        norm = length_of(a, n * n);
        lambda *= pow(norm, 1.0 / (1 << k));
        if (k == SQUARINGS || norm == 0) break;
        memset(square, 0, (size_t)n * (size_t)n * sizeof *a);
        for (int32_t r = 0; r < n; r++)
            for (int32_t s = 0; s < n; s++)
                add(square + r * n, a[r * n + s] / (norm * norm), a + s * n, n);
        double *swap = a;
        a = square;
        square = swap;
    }
    return sqrt(lambda * sum) * b->size + length_of(b->error + first, n);
}

/* The radii of the scores of row t, for weigh. */
static status tighten_scores(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    const hstu_layer_config *c = &l->from->config;
    const double alpha = (double)c->alpha;
    int32_t n = c->n_heads * (t + 1);
    for (int32_t s = 0; s < n; s++)
        l->weight.radius[((int64_t)(s / (t + 1)) * b->n + t) * b->n + s % (t + 1)] = INFINITY;
    if (!is_tight(b, t) || k == 0) return OK; /* of the first layer they are exact */
    TRY(begin_back(b, n));
    for (int32_t s = 0; s < n; s++) {
        int32_t h = s / (t + 1), j = s % (t + 1);
        int64_t q = (int64_t)t * b->width + 2 * b->gated + h * c->dim_qk;
        int64_t key = (int64_t)j * b->width + 2 * b->gated + (c->n_heads + h) * c->dim_qk;
        for (int32_t d = 0; d < c->dim_qk; d++) {
            b->grad_act[(q + d) * n + s] += alpha * l->act.centre[key + d];
            if (j >= b->moved) b->grad_act[(key + d) * n + s] += alpha * l->act.centre[q + d];
        }
        b->error[s] = alpha * score_error(b, l, h, t, j);
    }
    finish_back(b, k, t, true);
    for (int32_t s = 0; s < n; s++)
        l->weight.radius[((int64_t)(s / (t + 1)) * b->n + t) * b->n + s % (t + 1)] = b->radius[s];
    return OK;
}

/* What a norm wants to know of its row, from a pass with the directions of the centred row and of
 * c0: to (dim, dim + 1). */
static void centred_directions(const double *row, int32_t dim, double *to) {
    double mean = 0;
    for (int32_t e = 0; e < dim; e++)
        mean += row[e] / dim;
    for (int32_t e = 0; e < dim; e++) {
        for (int32_t s = 0; s < dim; s++)
            to[e * (dim + 1) + s] = (s == e) - 1.0 / dim;
        to[e * (dim + 1) + dim] = row[e] - mean;
    }
}

static void take_centred(const bounds *b, int32_t dim, int32_t last, norm_form *to) {
    memcpy(to->rc, b->radius, (size_t)dim * sizeof *to->rc);
    to->most_along = fmin(to->most_along, b->radius[dim]);
    to->length = movement(b, 0, dim, last);
}

/* The radii of the attention of row t. */
static status tighten_attn(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    int32_t gated = b->gated, n = gated + 1;
    if (!is_tight(b, t)) return OK;
    TRY(begin_back(b, n));
    double *go = b->grad_room + (int64_t)(ROWS + gated) * n;
    centred_directions(l->attn.centre + (int64_t)t * gated, gated, go);
    attend_back(b, l, t, go);
    finish_back(b, k, t, true);
    take_centred(b, gated, t, &l->mid[t]);
    return OK;
}

/* The radii of the normed attention of row t. */
static status tighten_mids(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->gated;
    span m = span_at(&l->mids, (int64_t)t * n);
    if (!is_tight(b, t)) return OK;
    TRY(begin_back(b, n));
    double *gg = b->grad_room + ROWS * n;
    memset(gg, 0, 2 * (size_t)n * (size_t)n * sizeof *gg);
    for (int32_t g = 0; g < n; g++)
        gg[g * n + g] = 1;
    norm_attend_back(b, l, t, gg);
    finish_back(b, k, t, true);
    for (int32_t g = 0; g < n; g++)
        m.radius[g] = fmin(m.radius[g], b->radius[g]);
    l->mid[t].y_length = fmin(l->mid[t].y_length, movement(b, 0, n, t));
    return OK;
}

/* Of a row of hidden[k + 1], for the norm that reads it. */
static status tighten_out(bounds *b, int k, int32_t t, const span *out) {
    int32_t dim = b->dim, n = dim + 1;
    if (k + 1 == b->n_layers || !is_tight(b, t)) return OK;
    TRY(begin_back(b, n));
    centred_directions(out->centre, dim, b->grad + (int64_t)t * dim * n);
    finish_back(b, k, t, false);
    take_centred(b, dim, t, &b->layers[k + 1].in[t]);
    return OK;
}

/* The radii of what goes into the silu, from the coefficients of the layer's input. */
static status tighten_act(bounds *b, int k, int32_t t, const span *act) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->width, dim = b->dim;
    const double *from_x = l->from_x + (int64_t)t * n * dim;
    if (!is_tight(b, t)) return OK;
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

/* The lengths of the movement of u, v, q and k: of a tight token, from the pass of tighten_act. */
static void measure_acts(bounds *b, bounds_layer *l, int32_t t) {
    const hstu_layer_config *c = &l->from->config;
    int32_t n = b->width, n_of = n_blocks(c);
    int64_t act = (int64_t)t * n;
    for (int64_t i = b->moved * (int64_t)b->dim; i < (t + 1) * (int64_t)b->dim && is_tight(b, t);
         i++)
        for (int32_t w = 0; w < n; w++)
            b->grad[i * n + w] *= l->slope[act + w];
    for (int32_t w = 0; w < n && is_tight(b, t); w++)
        b->error[w] = b->error[w] * fabs(l->slope[act + w]) + l->act.error[act + w];
    for (int32_t k = 0, first = 0; k < n_of; k++) {
        int32_t dim = k == 0 ? b->gated : k <= c->n_heads ? c->dim_v : c->dim_qk;
        const double *r = l->act.radius + act + first;
        double box = length_of(r, dim);
        l->length[t * n_of + k] = is_tight(b, t) ? fmin(box, movement(b, first, dim, t)) : box;
        first += dim;
    }
}

/* u, v, q, k of a token. */
static status project(bounds *b, int k, const span *x, int32_t t) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->width, dim = b->dim;
    span normed = span_at(&l->normed, (int64_t)t * dim), act = span_at(&l->act, (int64_t)t * n);
    double *slope = l->slope + (int64_t)t * n, *rest = l->rest + (int64_t)t * n;
    double *from_x = l->from_x + (int64_t)t * n * dim;
    norm_row(x->centre, x->radius, dim, (double)l->from->config.eps, &l->in[t], &normed);
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
        }
    norm_error(&l->in[t], normed.error, dim, l->uvqk, n, rest, b->room);
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
    measure_acts(b, l, t);
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
    double *by = through + n * dim, *other = by + dim * dim, *row = other + n + 2 * dim,
           *rest = row + dim;
    norm_form *f = &l->mid[t];
    const param *bias = l->from->proj_bias;
    norm_reset(f, n);
    TRY(tighten_scores(b, k, t));
    attend(b, l, x->radius - (int64_t)t * dim, t, own, other);
    double mean = 0, along = 0;
    for (int32_t g = 0; g < n; g++)
        mean += o.centre[g] / n;
    memset(row, 0, 2 * (size_t)dim * sizeof *row);
    for (int32_t g = 0; g < n; g++) {
        add(row, o.centre[g] - mean, own + (int64_t)g * dim, dim);
        along += fabs(o.centre[g] - mean) * other[g];
    }
    f->most_along = along + reach(row, x->radius, dim);
    TRY(tighten_attn(b, k, t));
    norm_row(o.centre, o.radius, n, (double)l->from->config.eps, f, &m);
    TRY(tighten_mids(b, k, t));
    for (int32_t g = 0; g < n; g++)
        for (int32_t e = 0; e < dim; e++)
            weight[g * dim + e] = l->act.centre[u + g] * l->proj[g * dim + e];
    if (t >= b->moved) {
        norm_through(f, n, weight, dim, through);
        norm_error(f, m.error, n, weight, dim, rest, rest + dim);
        cross_error(l->proj, n, dim, l->act.radius + u, l->length[t * n_blocks(&l->from->config)],
                    m.radius, f->y_length, rest, rest + dim);
    }
    memset(by, 0, (size_t)dim * (size_t)dim * sizeof *by);
    for (int32_t e = 0; e < dim; e++) {
        double centre = x->centre[e] + (bias != NULL ? (double)bias->value[e] : 0);
        double *to = by + (int64_t)e * dim;
        to[e] = 1;
        for (int32_t g = 0; g < n; g++) {
            double w = l->proj[g * dim + e];
            centre += w * l->act.centre[u + g] * m.centre[g];
            if (t < b->moved) continue;
            rest[e] +=
                fabs(through[e * n + g]) * other[g] + fabs(w) * fabs(m.centre[g]) * l->rest[u + g];
            add(to, through[e * n + g], own + (int64_t)g * dim, dim);
            add(to, w * m.centre[g], l->from_x + (u + g) * dim, dim);
        }
        out->centre[e] = centre;
        out->radius[e] = t < b->moved ? 0 : rest[e] + reach(to, x->radius, dim);
    }
    return tighten_out(b, k, t, out);
}

status bounds_run(bounds *b, const bounds_query *q) {
    if (q->n < 1 || q->n > b->max_n)
        return fail(ERR_CONFIG, "a history of %d events; the model reads 1 to %d", q->n, b->max_n);
    b->n = q->n;
    embed(b, q);
    for (int k = 0; k < b->n_layers; k++)
        for (int32_t t = 0; t < b->n; t++)
            norm_reset(&b->layers[k].in[t], b->dim);
    for (int k = 0; k < b->n_layers; k++) {
        bounds_layer *l = &b->layers[k];
        l->first = k + 1 == b->n_layers ? q->n - 1 : 0;
        take_biases(b, l, q->time);
        for (int32_t t = 0; t < q->n; t++) {
            span x = span_at(&b->hidden[k], (int64_t)t * b->dim);
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
    memset(b->grad, 0, (size_t)b->moved * (size_t)b->dim * (size_t)n * sizeof *b->grad);
    for (int32_t e = 0; e < b->dim; e++)
        for (int32_t s = 0; s < n; s++)
            b->grad[(last + e) * n + s] = direction[(int64_t)s * b->dim + e];
    finish_back(b, b->n_layers - 1, b->n - 1, false);
    *out = (bounds_form){n, b->radius, b->error, b->grad};
    return OK;
}
