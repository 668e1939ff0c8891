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
    norm_form *in, *mid; /* (T) each: of the norms */
    span normed;         /* (T, E): centre and error */
    span act;            /* (T, W) u, v, q, k after the silu */
    double *slope;       /* (T, W) of the silu */
    double *length;      /* (T, 3 H): of the movement of v, q and k, by heads, at most */
    span weight;         /* (H, T, T): silu(score) / N; error with that of the score */
    double *pair_slope;  /* (H, T, T) */
    span attn;           /* (T, G): centre and error */
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
    bool is_far;   /* passes for all layers go to the embeddings */
    double *gram;  /* scratch of movement: two squares, and columns twice */
    /* of the layer that bounds_run is at */
    double *pair_bias; /* (T, T): position and time */
    double *from_x;    /* (T, W, E): coefficients of the token's input in act */
    double *rest; /* (T, W): the part of act that is not theirs, at most; of tokens that move */
    arena memory;
    /* of a pass backward */
    int32_t n_directions, max_directions;
    double *grad, *grad_act; /* (T, E, n), (T, W, n); grad_act is 0 between passes */
    double *grad_room;       /* some rows of n */
    double *radius, *error;  /* (n) */
};

/* Rows of n numbers at the start of the room of a backward pass, for single steps. */
enum { ROWS = 2 };

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

/* rx (dim): the box, to which this lowers what the form has of the movement; NULL is no box. */
static norm_box norm_measure(const double *x, const double *rx, int32_t dim, double eps,
                             norm_form *f) {
    double mean = 0, sum_r = 0, squares = 0, length = 0, along = 0;
    norm_box b = {0};
    for (int32_t i = 0; i < dim; i++) {
        mean += x[i] / dim;
        sum_r += rx != NULL ? rx[i] : 0;
    }
    for (int32_t i = 0; i < dim; i++) {
        double c = f->c0[i] = x[i] - mean;
        if (rx != NULL) f->rc[i] = fmin(f->rc[i], rx[i] * (1 - 2.0 / dim) + sum_r / dim);
        double r = rx != NULL ? rx[i] : f->rc[i]; /* c0 . dx = c0 . dc, and |dc| <= |dx| */
        b.low_sum += pow(fmax(fabs(c) - f->rc[i], 0), 2);
        b.high_sum += pow(fabs(c) + f->rc[i], 2);
        squares += r * r;
        length += c * c;
        along += fabs(c) * r;
    }
    along = fmin(along, f->most_along);
    f->length = fmin(f->length, sqrt(squares));
    double shorter = fmax(sqrt(length) - f->length, 0);
    b.q = f->length * f->length / dim;
    b.at = length / dim + eps;
    b.high = fmin(b.high_sum / dim + eps, b.at + 2 * along / dim + b.q);
    b.low = fmax(b.low_sum, fmax(shorter * shorter, length - 2 * along)) / dim + eps;
    return b;
}

/* Of the movement is known: nothing (infinite), or that there is none (0). */
static void norm_reset(norm_form *f, int32_t dim, double most) {
    f->length = f->most_along = most;
    for (int32_t i = 0; i < dim; i++)
        f->rc[i] = most;
}

/* One row: y, with the range as its radius, and its form from x. */
static void norm_row(const double *x, const double *rx, int32_t dim, double eps, norm_form *f,
                     const span *y) {
    norm_box b = norm_measure(x, rx, dim, eps, f);
    double r_low = 1 / sqrt(b.high), r_high = 1 / sqrt(b.low);
    double slope = -r_low * r_high * r_low * r_high / (r_low + r_high);
    /* The chord is furthest above 1 / sqrt where that has its slope, at (-2 slope)^(-2/3). */
    double gap = fmax(r_high - slope * b.low - 1.5 * cbrt(-2 * slope), 0) + 1e-15 * r_high;
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
        y->radius[i] = fmax(top - y->centre[i], y->centre[i] - bottom);
        f->y_length += y->radius[i] * y->radius[i];
    }
    f->y_length = sqrt(f->y_length);
}

/* to (n) += scale times how large the sum of by_i weight_i dx_i can be, for the columns of by
 * (dim, n), dx being a movement of radii r (dim) and at most this length.  weight NULL: 1.
 * room: 2 n. */
static void movement_error(const double *by, int32_t dim, int32_t n, const double *weight,
                           const double *r, double length, double scale, double *to, double *room) {
    double *box = room, *squares = room + n;
    memset(room, 0, 2 * (size_t)n * sizeof *room);
    for (int32_t i = 0; i < dim; i++) {
        double w = weight != NULL ? weight[i] : 1;
#pragma omp simd
        for (int32_t o = 0; o < n; o++) {
            double g = by[(int64_t)i * n + o] * w;
            box[o] += fabs(g) * r[i];
            squares[o] += g * g;
        }
    }
#pragma omp simd
    for (int32_t o = 0; o < n; o++)
        to[o] += scale * fmin(box[o], sqrt(squares[o]) * length);
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
    enum { AT_ONCE = 8 };
    for (int32_t j = 0; j < k;) {
        int32_t at[AT_ONCE] = {0}, n_at = 0;
        const double *x[AT_ONCE];
        for (; j < k && n_at < AT_ONCE; j++)
            if (has_numbers(from + (int64_t)j * n, n)) at[n_at++] = j;
        for (int32_t p = 0; p < AT_ONCE; p++)
            x[p] = from + (int64_t)at[p] * n;
        for (int32_t i = 0; i < m && n_at > 0; i++) {
            double w[AT_ONCE], *row = to + (int64_t)i * n;
            for (int32_t p = 0; p < AT_ONCE; p++)
                w[p] = p < n_at ? a[(int64_t)i * k + at[p]] : 0;
#pragma omp simd
            for (int32_t s = 0; s < n; s++) {
                double sum = row[s];
                for (int32_t p = 0; p < AT_ONCE; p++)
                    sum += w[p] * x[p][s];
                row[s] = sum;
            }
        }
    }
}

/* dx (dim, n) += the gradient of x from that of y, dy (dim, n); to (n) += how far dy . y can be
 * from its linear form: as off and spread are the same for all numbers, the columns are summed up
 * before sizes are taken.  error: of y.  room: 2 n. */
static void norm_back(const norm_form *f, const double *error, int32_t dim, const double *dy,
                      int32_t n, double *dx, double *to, double *room) {
    double *mean = room, *dot = room + n;
    movement_error(dy, dim, n, f->keep, f->rc, f->length, f->spread, to, room);
    memset(room, 0, 2 * (size_t)n * sizeof *room);
    for (int32_t i = 0; i < dim; i++) {
        double c = f->keep[i] * f->c0[i], range = (1 - f->keep[i]) * error[i];
#pragma omp simd
        for (int32_t o = 0; o < n; o++) {
            double g = dy[(int64_t)i * n + o];
            mean[o] += f->keep[i] * g / dim;
            dot[o] += c * g;
            to[o] += range * fabs(g);
        }
    }
#pragma omp simd
    for (int32_t o = 0; o < n; o++)
        to[o] += fabs(dot[o]) * f->off;
    for (int32_t i = 0; i < dim; i++)
#pragma omp simd
        for (int32_t o = 0; o < n; o++)
            dx[(int64_t)i * n + o] += f->rstd * (f->keep[i] * dy[(int64_t)i * n + o] - mean[o]) +
                                      dot[o] * f->along * f->c0[i];
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

static status layer_alloc(bounds *b, bounds_layer *l) {
    arena *a = &b->memory;
    size_t n = (size_t)b->max_n, pairs = n * n * (size_t)l->from->config.n_heads;
    TRY(take_weights(b, l));
    TRY(norms_alloc(a, &l->in, b->max_n, b->dim));
    TRY(norms_alloc(a, &l->mid, b->max_n, b->gated));
    TRY(span_alloc(a, &l->normed, n * (size_t)b->dim));
    TRY(span_alloc(a, &l->act, n * (size_t)b->width));
    TRY(ARENA_NEW(a, &l->slope, n * (size_t)b->width));
    TRY(ARENA_NEW(a, &l->length, n * 3 * (size_t)l->from->config.n_heads));
    TRY(span_alloc(a, &l->weight, pairs));
    TRY(ARENA_NEW(a, &l->pair_slope, pairs));
    TRY(span_alloc(a, &l->attn, n * (size_t)b->gated));
    TRY(span_alloc(a, &l->mids, n * (size_t)b->gated));
    return ARENA_NEW(a, &l->attn_error, n * (size_t)l->from->config.n_heads);
}

static size_t gram_numbers(const bounds *b) {
    const hstu_layer_config *c = &b->m->layers[0].hstu.config;
    size_t wide = (size_t)(b->gated > b->dim ? b->gated : b->dim);
    if ((size_t)c->dim_qk > wide) wide = (size_t)c->dim_qk;
    return 4 * wide * wide;
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
    size_t n = (size_t)b->max_n, acts = n * (size_t)b->width;
    TRY(ARENA_NEW(&b->memory, &b->pair_bias, n * n));
    TRY(ARENA_NEW(&b->memory, &b->rest, acts));
    TRY(ARENA_NEW(&b->memory, &b->from_x, acts * (size_t)b->dim));
    return ARENA_NEW(&b->memory, &b->gram, gram_numbers(b));
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
    b->is_far = q->n_moved <= q->n_far;
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

static void take_biases(bounds *b, const hstu_layer *from, const int64_t *time) {
    const bucket_table *table = bucket_table_get();
    int64_t per_second = b->m->plan.time_per_second, n = b->n;
    for (int64_t i = 0; i < n && from->config.has_bias; i++) {
        int64_t asked = seq_seconds(time[i + 1 < n ? i + 1 : i], per_second);
        for (int64_t j = 0; j <= i; j++) {
            float distance = bucket_distance(asked, seq_seconds(time[j], per_second));
            b->pair_bias[i * n + j] =
                (double)from->time_w->value[bucket_of(table, distance)] +
                (double)from->position_w->value[from->config.bias_len - 1 + j - i];
        }
    }
}

/* Where the numbers of a head begin: of a query, of a key; of a pair. */
static int64_t query_at(const bounds *b, const bounds_layer *l, int32_t h, int32_t t) {
    return (int64_t)t * b->width + 2 * b->gated + h * l->from->config.dim_qk;
}

static int64_t key_at(const bounds *b, const bounds_layer *l, int32_t h, int32_t t) {
    return query_at(b, l, l->from->config.n_heads + h, t);
}

static int64_t pair_at(const bounds *b, int32_t h, int32_t i, int32_t j) {
    return ((int64_t)h * b->n + i) * b->n + j;
}

/* How far q . k is from its linear form. */
static double score_error(const bounds *b, const bounds_layer *l, int32_t h, int32_t i, int32_t j) {
    const hstu_layer_config *c = &l->from->config;
    const double *length_i = l->length + i * 3 * c->n_heads,
                 *length_j = l->length + j * 3 * c->n_heads;
    return fmin(
        reach(l->act.radius + query_at(b, l, h, i), l->act.radius + key_at(b, l, h, j), c->dim_qk),
        length_i[c->n_heads + h] * length_j[2 * c->n_heads + h]);
}

/* Attention of a row, from the radii of its scores, which lie in those of the weights. */
static void attend(const bounds *b, bounds_layer *l, int32_t i) {
    const hstu_layer_config *c = &l->from->config;
    const double alpha = (double)c->alpha;
    span o = span_at(&l->attn, (int64_t)i * b->gated);
    for (int32_t g = 0; g < b->gated; g++)
        o.centre[g] = o.error[g] = 0;
    for (int32_t h = 0; h < c->n_heads; h++) {
        double *by_length = &l->attn_error[i * c->n_heads + h];
        *by_length = 0;
        for (int32_t j = 0; j <= i; j++) {
            int64_t pair = pair_at(b, h, i, j), q = query_at(b, l, h, i), k = key_at(b, l, h, j),
                    v = (int64_t)j * b->width + b->gated + h * c->dim_v;
            double score = b->pair_bias[(int64_t)i * b->n + j];
            for (int32_t d = 0; d < c->dim_qk; d++)
                score += l->act.centre[q + d] * l->act.centre[k + d];
            span w = span_at(&l->weight, pair);
            double slope =
                span_silu(alpha * score, *w.radius, (double)c->scale, w.centre, w.radius, w.error);
            *w.error += fabs(slope) * alpha * score_error(b, l, h, i, j);
            l->pair_slope[pair] = slope * alpha;
            *by_length += *w.radius * l->length[j * 3 * c->n_heads + h];
            for (int32_t d = 0, g = h * c->dim_v; d < c->dim_v; d++, g++) {
                o.centre[g] += *w.centre * l->act.centre[v + d];
                o.error[g] += *w.radius * l->act.radius[v + d];
            }
        }
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
    for (int32_t h = 0; h < c->n_heads; h++) {
        int64_t o = (int64_t)i * b->gated + h * c->dim_v;
        movement_error(go + (int64_t)h * c->dim_v * n, c->dim_v, n, NULL, l->attn.error + o,
                       l->attn_error[i * c->n_heads + h], 1, b->error, gs);
        for (int32_t j = 0; j <= i; j++) {
            int64_t pair = pair_at(b, h, i, j), q = query_at(b, l, h, i), k = key_at(b, l, h, j);
            int64_t v = (int64_t)j * b->width + b->gated + h * c->dim_v;
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
    movement_error(gg, b->gated, n, l->act.radius + act, l->mids.radius + at, l->mid[t].y_length, 1,
                   b->error, b->grad_room);
    for (int32_t g = 0; g < b->gated; g++)
        for (int32_t s = 0; s < n; s++)
            gg[(int64_t)g * n + s] *= l->act.centre[act + g];
    norm_attend_back(b, l, t, gg);
}

/* From the gradients of u, v, q, k of a token, which become 0, to that of its input, gx (E, n),
 * which has that of the residual. */
static void project_back(bounds *b, const bounds_layer *l, int32_t t, double *gx) {
    int32_t n = b->n_directions;
    int64_t act = (int64_t)t * b->width;
    double *gz = b->grad_act + act * n, *gn = b->grad_room + ROWS * n;
    if (!has_numbers(gz, (int64_t)b->width * n)) return;
    for (int32_t w = 0; w < b->width; w++) {
        double *row = gz + (int64_t)w * n;
        if (!has_numbers(row, n)) continue;
        add_error(b, row, l->act.error + act + w, 1);
        for (int32_t s = 0; s < n; s++)
            row[s] *= l->slope[act + w];
    }
    memset(gn, 0, (size_t)b->dim * (size_t)n * sizeof *gn);
    multiply(l->uvqk, gz, b->dim, b->width, n, gn);
    memset(gz, 0, (size_t)b->width * (size_t)n * sizeof *gz);
    norm_back(&l->in[t], l->normed.error + (int64_t)t * b->dim, b->dim, gn, n, gx, b->error,
              b->grad_room);
}

static status begin_back(bounds *b, int32_t n, int32_t last) {
    size_t rows = (size_t)b->max_n * (size_t)n;
    int32_t wide = 2 * b->gated > b->dim ? 2 * b->gated : b->dim;
    int64_t row = (int64_t)b->dim * n;
    if (n > b->max_directions) {
        b->max_directions = 0;
        TRY(MEM_RESIZE(&b->grad, rows * (size_t)b->dim));
        TRY(MEM_RESIZE(&b->grad_act, rows * (size_t)b->width));
        TRY(MEM_RESIZE(&b->grad_room, (size_t)n * (size_t)(wide + ROWS)));
        TRY(MEM_RESIZE(&b->radius, (size_t)n));
        TRY(MEM_RESIZE(&b->error, (size_t)n));
        memset(b->grad_act, 0, rows * (size_t)b->width * sizeof *b->grad_act);
        b->max_directions = n;
    }
    b->n_directions = n;
    for (int32_t t = b->moved; t <= last; t++)
        memset(b->grad + t * row, 0, (size_t)row * sizeof *b->grad);
    for (int32_t s = 0; s < n; s++) {
        b->error[s] = 0;
        b->radius[s] = INFINITY;
    }
    return OK;
}

/* Whether passes for layer k go through all layers below it to the embeddings.  Otherwise they go
 * to the layer's input, whose box is then made. */
static bool is_far(const bounds *b, int k) {
    return k == 0 || b->is_far || (k == 1 && b->n_layers == 2);
}

static bool moves(const bounds *b, int32_t t) {
    return t >= b->moved && b->size > 0;
}

/* Radii from the gradients of a layer's input, unless they are known to be less. */
static void take_radii(bounds *b, int k, int32_t last) {
    int32_t n = b->n_directions;
    double *sum = b->grad_room;
    memcpy(sum, b->error, (size_t)n * sizeof *sum);
    for (int64_t i = b->moved * (int64_t)b->dim; i < (last + 1) * (int64_t)b->dim; i++)
#pragma omp simd
        for (int32_t s = 0; s < n; s++)
            sum[s] += fabs(b->grad[i * n + s]) * b->hidden[k].radius[i];
    for (int32_t s = 0; s < n; s++)
        b->radius[s] = fmin(b->radius[s], sum[s]);
}

/* From the gradients of the output of layer k, or where they are there of its u, v, q and k, of
 * rows up to `last`, to those of the input of layer `to` and b->radius. */
static void finish_back(bounds *b, int k, int to, int32_t last, bool has_acts) {
    int64_t token = (int64_t)b->dim * b->n_directions;
    for (int from = k; k >= to; k--, has_acts = false) {
        const bounds_layer *l = &b->layers[k];
        if (k < from && !is_far(b, k + 1)) take_radii(b, k + 1, last);
        for (int32_t t = l->first > b->moved ? l->first : b->moved; t <= last && !has_acts; t++)
            gate_back(b, l, t, b->grad + t * token);
        for (int32_t t = b->moved; t <= last; t++)
            project_back(b, l, t, b->grad + t * token);
    }
    take_radii(b, to, last);
}

/* At most how long what moves in the directions first .. first + n of a pass to layer k can be:
 * |J x| for |x_i| <= 1, J being the gradients times the radii of the layer's input, and the errors.
 * With any positive d_i
 *     |J x|^2 = |J d^(-1/2) d^(1/2) x|^2 <= lambda(J d^(-1) J') sum of d_i x_i^2;
 * d_i is the length of J's column i, which is exact where all columns are parallel, or orthogonal
 * and of one length.  lambda is at most the p-th root of the Frobenius norm of the p-th power. */
static double movement(const bounds *b, int k, int32_t first, int32_t n, int32_t last) {
    enum { SQUARINGS = 4 };
    int32_t dim = b->dim;
    double *a = b->gram, *square = a + n * n, *columns = square + n * n, *rows = columns + dim * n;
    double sum = 0, norm = 0, lambda = 1;
    memset(a, 0, (size_t)n * (size_t)n * sizeof *a);
    for (int32_t t = b->moved; t <= last; t++) {
        for (int32_t e = 0; e < dim; e++) {
            int64_t i = (int64_t)t * dim + e;
            const double *from = b->grad + i * b->n_directions + first;
            double length = length_of(from, n), radius = b->hidden[k].radius[i];
            double scale = length > 0 ? sqrt(radius / length) : 0;
            sum += length * radius;
            for (int32_t s = 0; s < n; s++)
                rows[e * n + s] = columns[s * dim + e] = from[s] * scale;
        }
        multiply(columns, rows, n, dim, n, a);
    }
    for (int p = 0; p <= SQUARINGS; p++) {
        norm = length_of(a, n * n);
        lambda *= pow(norm, 1.0 / (1 << p));
        if (p == SQUARINGS || norm == 0) break;
        for (int32_t i = 0; i < n * n; i++)
            a[i] /= norm;
        memset(square, 0, (size_t)n * (size_t)n * sizeof *a);
        multiply(a, a, n, n, n, square);
        double *swap = a;
        a = square;
        square = swap;
    }
    return sqrt(lambda * sum) + length_of(b->error + first, n);
}

/* Radii of what goes into the steps that are not linear, each by a pass of its own. */

/* The layer to whose input the passes for layer k go. */
static int end_of(const bounds *b, int k) {
    return is_far(b, k) ? 0 : k;
}

/* Of u, v, q, k of a row that is not needed in the end, v and k alone: the s-th of a pass. */
static int32_t act_at(const bounds *b, const bounds_layer *l, int32_t t, int32_t s) {
    int32_t n_queries = b->width / 2 - b->gated;
    return t >= l->first ? s : s + b->gated + (s >= b->gated ? n_queries : 0);
}

/* What goes into the silu, and the lengths of what moves after it. */
static status bound_acts(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    const hstu_layer_config *c = &l->from->config;
    int32_t n = t >= l->first ? b->width : b->width / 2, dim = b->dim;
    int64_t row = (int64_t)t * dim, act = (int64_t)t * b->width;
    TRY(begin_back(b, n, t));
    double *weight = b->grad_room + ROWS * n, *slope = b->grad_room;
    for (int32_t e = 0; e < dim; e++)
        for (int32_t s = 0; s < n; s++)
            weight[e * n + s] = l->uvqk[e * b->width + act_at(b, l, t, s)];
    norm_back(&l->in[t], l->normed.error + row, dim, weight, n, b->grad + row * n, b->error,
              b->grad_room);
    for (int32_t s = 0; s < n; s++) {
        int64_t w = act + act_at(b, l, t, s);
        b->rest[w] = b->error[s];
        for (int32_t e = 0; e < dim; e++)
            b->from_x[w * dim + e] = b->grad[(row + e) * n + s];
    }
    finish_back(b, k - 1, end_of(b, k), t, false);
    for (int32_t s = 0; s < n; s++) {
        int64_t w = act + act_at(b, l, t, s);
        l->slope[w] = span_silu(l->act.centre[w], b->radius[s], 1, l->act.centre + w,
                                l->act.radius + w, l->act.error + w);
        b->rest[w] = fabs(l->slope[w]) * b->rest[w] + l->act.error[w];
        b->error[s] = fabs(l->slope[w]) * b->error[s] + l->act.error[w];
        for (int32_t e = 0; e < dim; e++)
            b->from_x[w * dim + e] *= l->slope[w];
        slope[s] = l->slope[w];
    }
    for (int64_t i = b->moved * (int64_t)dim; i < row + dim; i++)
#pragma omp simd
        for (int32_t s = 0; s < n; s++)
            b->grad[i * n + s] *= slope[s];
    for (int32_t i = 0, s = t >= l->first ? b->gated : 0; i < 3 * c->n_heads; i++) {
        int32_t size = i < c->n_heads ? c->dim_v : c->dim_qk;
        if (t < l->first && i / c->n_heads == 1) continue; /* q */
        double box = length_of(l->act.radius + act + act_at(b, l, t, s), size);
        l->length[t * 3 * c->n_heads + i] = fmin(box, movement(b, end_of(b, k), s, size, t));
        s += size;
    }
    return OK;
}

/* A score by its coefficients of the layer's input. */
static double score_radius(const bounds *b, int k, int32_t h, int32_t i, int32_t j) {
    const bounds_layer *l = &b->layers[k];
    const double *r = b->hidden[k].radius;
    int64_t q = query_at(b, l, h, i), key = key_at(b, l, h, j);
    double *by_i = b->gram, *by_j = by_i + b->dim, radius = score_error(b, l, h, i, j);
    memset(by_i, 0, 2 * (size_t)b->dim * sizeof *by_i);
    for (int32_t d = 0; d < l->from->config.dim_qk; d++) {
        double qc = l->act.centre[q + d], kc = l->act.centre[key + d];
        radius += fabs(kc) * b->rest[q + d];
        add(by_i, kc, b->from_x + (q + d) * b->dim, b->dim);
        if (j < b->moved) continue;
        radius += fabs(qc) * b->rest[key + d];
        add(i == j ? by_i : by_j, qc, b->from_x + (key + d) * b->dim, b->dim);
    }
    return radius + reach(by_i, r + (int64_t)i * b->dim, b->dim) +
           reach(by_j, r + (int64_t)j * b->dim, b->dim);
}

/* The scores of row t, for attend. */
static status bound_scores(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    const hstu_layer_config *c = &l->from->config;
    const double alpha = (double)c->alpha;
    int32_t n = c->n_heads * (t + 1);
    bool has_pass = moves(b, t) && k > 0 && is_far(b, k);
    if (has_pass) TRY(begin_back(b, n, t));
    for (int32_t s = 0; s < n; s++) {
        int32_t h = s / (t + 1), j = s % (t + 1);
        int64_t q = query_at(b, l, h, t), key = key_at(b, l, h, j);
        double *radius = &l->weight.radius[pair_at(b, h, t, j)];
        *radius = moves(b, t) && !has_pass ? alpha * score_radius(b, k, h, t, j) : 0;
        for (int32_t d = 0; d < c->dim_qk && has_pass; d++) {
            b->grad_act[(q + d) * n + s] += alpha * l->act.centre[key + d];
            if (j >= b->moved) b->grad_act[(key + d) * n + s] += alpha * l->act.centre[q + d];
        }
        if (has_pass) b->error[s] = alpha * score_error(b, l, h, t, j);
    }
    if (has_pass) finish_back(b, k, 0, t, true);
    for (int32_t s = 0; s < n && has_pass; s++)
        l->weight.radius[pair_at(b, s / (t + 1), t, s % (t + 1))] = b->radius[s];
    return OK;
}

/* to (dim, dim + 1): the directions of the row, or of the centred one, and of c0. */
static void put_directions(const double *row, int32_t dim, bool is_centred, double *to) {
    double mean = 0;
    for (int32_t e = 0; e < dim; e++)
        mean += row[e] / dim;
    for (int32_t e = 0; e < dim; e++) {
        for (int32_t s = 0; s < dim; s++)
            to[e * (dim + 1) + s] = (s == e) - (is_centred ? 1.0 / dim : 0);
        to[e * (dim + 1) + dim] = row[e] - mean;
    }
}

static void take_centred(const bounds *b, int end, int32_t dim, int32_t last, norm_form *to) {
    memcpy(to->rc, b->radius, (size_t)dim * sizeof *to->rc);
    to->most_along = b->radius[dim];
    to->length = movement(b, end, 0, dim, last);
}

/* The attention of row t, for its norm. */
static status bound_attn(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    int32_t gated = b->gated, n = gated + 1;
    norm_reset(&l->mid[t], gated, 0);
    if (!moves(b, t)) return OK;
    TRY(begin_back(b, n, t));
    double *go = b->grad_room + (int64_t)(ROWS + gated) * n;
    put_directions(l->attn.centre + (int64_t)t * gated, gated, true, go);
    attend_back(b, l, t, go);
    finish_back(b, k, end_of(b, k), t, true);
    take_centred(b, end_of(b, k), gated, t, &l->mid[t]);
    return OK;
}

/* The normed attention of row t, for the product with u. */
static status bound_mids(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->gated;
    double *radius = l->mids.radius + (int64_t)t * n;
    if (!moves(b, t)) return OK;
    TRY(begin_back(b, n, t));
    double *gg = b->grad_room + ROWS * n;
    memset(gg, 0, 2 * (size_t)n * (size_t)n * sizeof *gg);
    for (int32_t g = 0; g < n; g++)
        gg[g * n + g] = 1;
    norm_attend_back(b, l, t, gg);
    finish_back(b, k, end_of(b, k), t, true);
    for (int32_t g = 0; g < n; g++)
        radius[g] = fmin(radius[g], b->radius[g]);
    l->mid[t].y_length = fmin(l->mid[t].y_length, movement(b, end_of(b, k), 0, n, t));
    return OK;
}

/* A row of hidden[k + 1], for the norm that reads it: its box where passes end there. */
static status bound_out(bounds *b, int k, int32_t t) {
    int32_t dim = b->dim, n = dim + 1;
    int64_t row = (int64_t)t * dim;
    const span *out = &b->hidden[k + 1];
    if (k + 1 == b->n_layers) return OK;
    norm_form *f = &b->layers[k + 1].in[t];
    norm_reset(f, dim, 0);
    memset(out->radius + row, 0, (size_t)dim * sizeof *out->radius);
    if (!moves(b, t)) return OK;
    TRY(begin_back(b, n, t));
    put_directions(out->centre + row, dim, is_far(b, k + 1), b->grad + row * n);
    finish_back(b, k, end_of(b, k), t, false);
    take_centred(b, end_of(b, k), dim, t, f);
    if (is_far(b, k + 1)) return OK;
    memcpy(out->radius + row, b->radius, (size_t)dim * sizeof *b->radius);
    for (int32_t e = 0; e < dim; e++)
        f->rc[e] = INFINITY;
    return OK;
}

/* u, v, q, k of a token. */
static status project(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->width, dim = b->dim;
    int64_t row = (int64_t)t * dim, act = (int64_t)t * n;
    span x = span_at(&b->hidden[k], row), normed = span_at(&l->normed, row);
    bool has_box = k == 0 || !is_far(b, k);
    norm_row(x.centre, has_box ? x.radius : NULL, dim, (double)l->from->config.eps, &l->in[t],
             &normed);
    memset(l->act.centre + act, 0, (size_t)n * sizeof(double));
    for (int32_t e = 0; e < dim; e++)
        add(l->act.centre + act, normed.centre[e], l->uvqk + (int64_t)e * n, n);
    if (moves(b, t)) return bound_acts(b, k, t);
    for (int64_t w = act; w < act + n; w++)
        l->slope[w] = span_silu(l->act.centre[w], 0, 1, l->act.centre + w, l->act.radius + w,
                                l->act.error + w);
    int32_t n_lengths = 3 * l->from->config.n_heads;
    memset(l->length + t * n_lengths, 0, (size_t)n_lengths * sizeof *l->length);
    return OK;
}

/* out = (u * norm(o)) W + bias + x */
static status gate(bounds *b, int k, int32_t t) {
    bounds_layer *l = &b->layers[k];
    int32_t n = b->gated, dim = b->dim;
    const double *u = l->act.centre + (int64_t)t * b->width;
    span m = span_at(&l->mids, (int64_t)t * n);
    double *out = b->hidden[k + 1].centre + (int64_t)t * dim;
    const param *bias = l->from->proj_bias;
    TRY(bound_scores(b, k, t));
    attend(b, l, t);
    TRY(bound_attn(b, k, t));
    norm_row(l->attn.centre + (int64_t)t * n, NULL, n, (double)l->from->config.eps, &l->mid[t], &m);
    TRY(bound_mids(b, k, t));
    for (int32_t e = 0; e < dim; e++)
        out[e] =
            b->hidden[k].centre[(int64_t)t * dim + e] + (bias != NULL ? (double)bias->value[e] : 0);
    for (int32_t g = 0; g < n; g++)
        add(out, u[g] * m.centre[g], l->proj + (int64_t)g * dim, dim);
    return bound_out(b, k, t);
}

status bounds_run(bounds *b, const bounds_query *q) {
    if (q->n < 1 || q->n > b->max_n)
        return fail(ERR_CONFIG, "a history of %d events; the model reads 1 to %d", q->n, b->max_n);
    b->n = q->n;
    embed(b, q);
    for (int32_t t = 0; t < b->n; t++)
        norm_reset(&b->layers[0].in[t], b->dim, INFINITY);
    for (int k = 0; k < b->n_layers; k++) {
        bounds_layer *l = &b->layers[k];
        l->first = k + 1 == b->n_layers ? q->n - 1 : 0;
        take_biases(b, l->from, q->time);
        for (int32_t t = 0; t < q->n; t++)
            TRY(project(b, k, t));
        for (int32_t t = l->first; t < q->n; t++)
            TRY(gate(b, k, t));
    }
    return OK;
}

const double *bounds_centre(const bounds *b) {
    return b->hidden[b->n_layers].centre + (int64_t)(b->n - 1) * b->dim;
}

status bounds_relax(bounds *b, int32_t n, const double *direction, bounds_form *out) {
    int64_t last = (int64_t)(b->n - 1) * b->dim;
    TRY(begin_back(b, n, b->n - 1));
    memset(b->grad, 0, (size_t)b->moved * (size_t)b->dim * (size_t)n * sizeof *b->grad);
    for (int32_t e = 0; e < b->dim; e++)
        for (int32_t s = 0; s < n; s++)
            b->grad[(last + e) * n + s] = direction[(int64_t)s * b->dim + e];
    finish_back(b, b->n_layers - 1, 0, b->n - 1, false);
    *out = (bounds_form){n, b->radius, b->error, b->grad};
    return OK;
}
