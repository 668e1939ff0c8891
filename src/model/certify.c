#include "model/certify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/model_int.h"

const char *const verdict_names[VERDICTS] = {"unchanged", "changed", "unknown"};

/* Score differences for which a backward pass of their own is worth its time, and tries to find an
 * example of a change. */
enum { DIRECTIONS = 24, TRIES = 3 };

/* A difference of two scores that is not proved to stay above 0. */
typedef struct open_pair {
    int32_t above, below; /* rows */
    double gap;           /* what is left of it in the worst case */
} open_pair;

typedef struct scored {
    double score;
    int32_t row;
} scored;

struct certify {
    const model *m;
    model_items items;
    bounds *bounds;
    int32_t dim, k, n_order, n_list;
    bounds_query q;
    scored *order;        /* (n_order): rows that may be recommended, best first */
    certified_item *list; /* (k) */
    bool *is_seen;        /* (n) */
    double longest;       /* row */
    /* Of the last ball: */
    double *centre, *box, *reach, *error; /* (E): of the numbers of the last row */
    double *gradient;                     /* (T, E, E) */
    double size, slack;                   /* movement of a token; rounding of a difference */
    int32_t first;                        /* event that moves */
    double *unit, *direction;             /* (E, E), (DIRECTIONS, E) */
    double *shift;                        /* (T, E) */
    arena memory;
};

static status make(certify *c) {
    size_t n = (size_t)c->items.n, e = (size_t)c->dim, t;
    TRY(bounds_create(&c->bounds, c->m));
    t = (size_t)bounds_max_events(c->bounds);
    TRY(ARENA_NEW(&c->memory, &c->order, n));
    TRY(ARENA_NEW(&c->memory, &c->is_seen, n));
    TRY(ARENA_NEW(&c->memory, &c->list, (size_t)c->k));
    TRY(ARENA_NEW(&c->memory, &c->centre, 4 * e));
    TRY(ARENA_NEW(&c->memory, &c->gradient, t * e * e));
    TRY(ARENA_NEW(&c->memory, &c->unit, e * e));
    TRY(ARENA_NEW(&c->memory, &c->direction, DIRECTIONS * e));
    c->box = c->centre + e;
    c->reach = c->box + e;
    c->error = c->reach + e;
    for (size_t i = 0; i < e; i++)
        c->unit[i * e + i] = 1;
    return ARENA_NEW(&c->memory, &c->shift, t * e);
}

static double length(const double *x, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static const float *row_of(const certify *c, int32_t row) {
    return c->items.rows + (int64_t)row * c->dim;
}

static double dot_row(const certify *c, int32_t row, const double *x) {
    const float *e = row_of(c, row);
    double sum = 0;
    for (int32_t i = 0; i < c->dim; i++)
        sum += (double)e[i] * x[i];
    return sum;
}

status certify_create(certify **out, const model *m, const model_items *items, int32_t k) {
    certify *c;
    *out = NULL;
    TRY(MEM_NEW(&c, 1));
    c->m = m;
    c->items = *items;
    c->dim = model_dim(m);
    c->k = k;
    arena_init(&c->memory, 1 << 16);
    status st = make(c);
    for (int32_t row = 0; st == OK && row < items->n; row++) {
        double squares = 0;
        for (int32_t i = 0; i < c->dim; i++)
            squares += (double)row_of(c, row)[i] * (double)row_of(c, row)[i];
        c->longest = fmax(c->longest, sqrt(squares));
    }
    return CREATED(st, out, c, certify_destroy);
}

void certify_destroy(certify *c) {
    if (c == NULL) return;
    bounds_destroy(c->bounds);
    arena_fini(&c->memory);
    mem_free(c);
}

/* Highest first, of equal ones the smaller row. */
static int compare(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

status certify_user(certify *c, const bounds_query *q, const int32_t *seen, int32_t n_seen) {
    c->q = *q;
    c->q.n_moved = c->n_order = 0;
    c->q.eps = 0;
    TRY(bounds_run(c->bounds, &c->q));
    memset(c->is_seen, 0, (size_t)c->items.n * sizeof *c->is_seen);
    for (int32_t i = 0; i < n_seen; i++)
        c->is_seen[seen[i]] = true;
    for (int32_t row = 0; row < c->items.n; row++)
        if (!c->is_seen[row])
            c->order[c->n_order++] = (scored){dot_row(c, row, bounds_centre(c->bounds)), row};
    qsort(c->order, (size_t)c->n_order, sizeof *c->order, compare);
    c->n_list = c->n_order < c->k ? c->n_order : c->k;
    double norm = fmax(length(bounds_centre(c->bounds), c->dim), (double)c->m->retrieval.eps);
    for (int32_t i = 0; i < c->n_list; i++) {
        double score = c->order[i].score / norm;
        c->list[i] =
            (certified_item){(uint32_t)c->items.item[c->order[i].row], score, score, score};
    }
    return OK;
}

/* Encloses the last row for balls of eps, and copies what the pairs need. */
static status enclose(certify *c, int32_t n_moved, double eps) {
    bounds_form f;
    double farthest = 0;
    size_t bytes = (size_t)c->dim * sizeof(double);
    c->q.n_moved = n_moved < c->q.n ? n_moved : c->q.n;
    c->q.eps = eps;
    c->q.shift = NULL;
    c->first = c->q.n - c->q.n_moved;
    c->size = (double)sqrtf((float)c->dim) * eps;
    TRY(bounds_run(c->bounds, &c->q));
    TRY(bounds_relax(c->bounds, c->dim, c->unit, &f));
    memcpy(c->centre, bounds_centre(c->bounds), bytes);
    memcpy(c->box, bounds_radius(c->bounds), bytes);
    memcpy(c->reach, f.radius, bytes);
    memcpy(c->error, f.error, bytes);
    memcpy(c->gradient, f.gradient, (size_t)c->q.n * (size_t)c->dim * bytes);
    for (int32_t i = 0; i < c->dim; i++) {
        c->box[i] = fmin(c->box[i], c->reach[i]);
        farthest += pow(fabs(c->centre[i]) + c->box[i], 2);
    }
    c->slack = 2 * BOUNDS_SLACK * c->longest * sqrt(farthest);
    return OK;
}

/* How far d . row can be from d . centre: by the numbers of the row, and where that is more than
 * `enough`, by the gradient of d. */
static double find_reach(const certify *c, const double *d, double enough) {
    double box = 0, error = 0, moved = 0;
    for (int32_t i = 0; i < c->dim; i++) {
        box += fabs(d[i]) * c->box[i];
        error += fabs(d[i]) * c->error[i];
    }
    if (box < enough) return box;
    for (int64_t i = (int64_t)c->first * c->dim; i < (int64_t)c->q.n * c->dim; i++) {
        const double *g = c->gradient + i * c->dim;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int32_t s = 0; s < c->dim; s++)
            sum += d[s] * g[s];
        moved += fabs(sum);
    }
    return fmin(box, error + moved * c->size);
}

/* d = row of `above` - row of `below`; returns d . centre - rounding. */
static double subtract(const certify *c, int32_t above, int32_t below, double *d) {
    const float *a = row_of(c, above), *b = row_of(c, below);
    double sum = 0;
    for (int32_t i = 0; i < c->dim; i++) {
        d[i] = (double)a[i] - (double)b[i];
        sum += d[i] * c->centre[i];
    }
    return sum - c->slack;
}

/* Collects pairs of the first n_above items and the others that are not proved, until there are
 * DIRECTIONS + 1 of them. */
static int find_open(const certify *c, int32_t n_above, open_pair *open) {
    int n = 0;
    double *d = c->direction;
    for (int32_t b = n_above; b < c->n_order; b++)
        for (int32_t a = n_above; a-- > 0;) {
            open_pair p = {c->order[a].row, c->order[b].row, 0};
            double difference = subtract(c, p.above, p.below, d);
            p.gap = difference - find_reach(c, d, difference);
            if (p.gap > 0) continue;
            open[n++] = p;
            if (n > DIRECTIONS) return n;
        }
    return n;
}

/* Whether `below` is certainly above once the events have moved against direction s of f. */
static status try_move(certify *c, const bounds_form *f, int s, const open_pair *p,
                       bool *is_changed) {
    double difference = 0;
    bounds_query q = c->q;
    for (int64_t i = 0; i < (int64_t)c->q.n * c->dim; i++) {
        double by = i / c->dim < c->first ? 0 : f->gradient[i * f->n + s];
        c->shift[i] = by > 0 ? -c->q.eps : by < 0 ? c->q.eps : 0;
    }
    q.shift = c->shift;
    q.eps = 0;
    TRY(bounds_run(c->bounds, &q));
    for (int32_t i = 0; i < c->dim; i++) {
        double d = (double)row_of(c, p->above)[i] - (double)row_of(c, p->below)[i];
        difference += d * bounds_centre(c->bounds)[i] + fabs(d) * bounds_radius(c->bounds)[i];
    }
    *is_changed = difference + c->slack < 0;
    return OK;
}

static int compare_gaps(const void *a, const void *b) {
    const open_pair *x = a, *y = b;
    return (x->gap > y->gap) - (x->gap < y->gap);
}

/* Whether the first n_above items stay above all others. */
static status settle(certify *c, int32_t n_above, verdict *out) {
    open_pair open[DIRECTIONS + 1];
    bounds_form f;
    bounds_query still = c->q;
    int n = find_open(c, n_above, open), n_left = n > DIRECTIONS;
    *out = VERDICT_UNCHANGED;
    if (n == 0) return OK;
    qsort(open, (size_t)n, sizeof *open, compare_gaps);
    if (n > DIRECTIONS) n = TRIES;
    for (int i = 0; i < n; i++)
        open[i].gap = subtract(c, open[i].above, open[i].below, c->direction + i * c->dim);
    TRY(bounds_run(c->bounds, &still)); /* an earlier try has moved on */
    TRY(bounds_relax(c->bounds, n, c->direction, &f));
    for (int i = 0; i < n; i++)
        n_left += !(open[i].gap > f.radius[i]);
    if (n_left == 0) return OK;
    for (int i = 0; i < n && i < TRIES; i++) {
        bool is_changed = false;
        TRY(try_move(c, &f, i, &open[i], &is_changed));
        *out = VERDICT_CHANGED;
        if (is_changed) return OK;
    }
    *out = VERDICT_UNKNOWN;
    return OK;
}

/* With x^ the unit vector of the centre and s0 its score,
 *     score - s0 = ((row - s0 x^) . x - s0 (|x| - x^ . x)) / |x|,
 * whose first term is linear in x, and whose second is small: 0 <= |x| - x^ . x <= |x - centre|^2 /
 * (2 x^ . x). */
static void find_range(certify *c, int32_t i) {
    double norm = length(c->centre, c->dim), away = length(c->box, c->dim), *d = c->direction;
    double s0 = dot_row(c, c->order[i].row, c->centre) / norm, unit = BOUNDS_SLACK * c->longest;
    c->list[i].low = -c->longest - unit;
    c->list[i].high = c->longest + unit;
    if (!(norm - away > 2 * (double)c->m->retrieval.eps)) return;
    double off = away * away / (2 * (norm - away)), at = 0;
    for (int32_t e = 0; e < c->dim; e++) {
        d[e] = (double)row_of(c, c->order[i].row)[e] - s0 * c->centre[e] / norm;
        at += d[e] * c->centre[e];
    }
    double reach = find_reach(c, d, 0), up = at + reach, down = at - reach;
    up += s0 < 0 ? -s0 * off : 0;
    down -= s0 > 0 ? s0 * off : 0;
    up /= up > 0 ? norm - away : norm + away;
    down /= down < 0 ? norm - away : norm + away;
    c->list[i].low = fmax(s0 + down, -c->longest) - unit;
    c->list[i].high = fmin(s0 + up, c->longest) + unit;
}

status certify_ball(certify *c, int32_t n_moved, double eps, certified *out) {
    *out = (certified){VERDICT_UNCHANGED, VERDICT_UNCHANGED};
    TRY(enclose(c, n_moved, eps));
    for (int32_t i = 0; i < c->n_list; i++)
        find_range(c, i);
    if (c->n_list == 0) return OK;
    TRY(settle(c, 1, &out->first));
    return settle(c, c->n_list, &out->list);
}

int32_t certify_list(const certify *c, const certified_item **out) {
    *out = c->list;
    return c->n_list;
}
