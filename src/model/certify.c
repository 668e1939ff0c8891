#include "model/certify.h"

#include "model/model_int.h"

const char *const verdict_names[VERDICTS] = {"unchanged", "changed", "unknown"};

/* Score differences for which a backward pass of their own is worth its time; movements tried as
 * examples of a change, and the items after the list that are looked at for them. */
enum { DIRECTIONS = 24, TRIES = 3, NEAR = 12 };

/* Of bounds_query: with more events that move, passes through several layers take long. */
enum { FAR_EVENTS = 24 };

/* A difference of two scores that is not proved to stay above 0. */
typedef struct open_pair {
    int32_t above, below; /* rows */
    double gap;           /* what is left of it in the worst case */
} open_pair;

typedef struct scored {
    double score;
    int32_t row;
} scored;

/* A linear form of the last row: without movement, its gradients alone; of balls. */
typedef struct row_form {
    double *centre, *box, *error; /* (E) */
    double *gradient;             /* (T, E, E) */
    double size;                  /* movement of a token's numbers */
} row_form;

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
    row_form still, ball;
    double slack;             /* rounding of a difference */
    double *unit, *direction; /* (E, E), (DIRECTIONS + 1 + k, E) */
    double *shift;            /* (T, E) */
    arena memory;
};

static status form_alloc(arena *a, row_form *f, size_t t, size_t e) {
    TRY(ARENA_NEW(a, &f->centre, e));
    TRY(ARENA_NEW(a, &f->box, e));
    TRY(ARENA_NEW(a, &f->error, e));
    return ARENA_NEW(a, &f->gradient, t * e * e);
}

static status make(certify *c) {
    size_t n = (size_t)c->items.n, e = (size_t)c->dim, t;
    TRY(bounds_create(&c->bounds, c->m));
    t = (size_t)bounds_max_events(c->bounds);
    TRY(ARENA_NEW(&c->memory, &c->order, n));
    TRY(ARENA_NEW(&c->memory, &c->is_seen, n));
    TRY(ARENA_NEW(&c->memory, &c->list, (size_t)c->k));
    TRY(form_alloc(&c->memory, &c->still, t, e));
    TRY(form_alloc(&c->memory, &c->ball, t, e));
    TRY(ARENA_NEW(&c->memory, &c->unit, e * e));
    TRY(ARENA_NEW(&c->memory, &c->direction, (DIRECTIONS + 1 + (size_t)c->k) * e));
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

/* Encloses the last row for balls of eps. */
static status enclose(certify *c, double eps, row_form *to) {
    bounds_form f;
    double farthest = 0;
    size_t bytes = (size_t)c->dim * sizeof(double);
    c->q.eps = eps;
    TRY(bounds_run(c->bounds, &c->q));
    TRY(bounds_relax(c->bounds, c->dim, c->unit, &f));
    memcpy(to->centre, bounds_centre(c->bounds), bytes);
    memcpy(to->error, f.error, bytes);
    memcpy(to->gradient, f.gradient, (size_t)c->q.n * (size_t)c->dim * bytes);
    to->size = (double)sqrtf((float)c->dim) * eps;
    for (int32_t i = 0; i < c->dim; i++) {
        to->box[i] = f.radius[i];
        farthest += pow(fabs(to->centre[i]) + to->box[i], 2);
    }
    c->slack = 2 * BOUNDS_SLACK * c->longest * sqrt(farthest);
    return OK;
}

status certify_user(certify *c, const bounds_query *q, const int32_t *seen, int32_t n_seen) {
    c->q = *q;
    c->q.n_far = FAR_EVENTS;
    c->n_order = 0;
    if (c->q.n_moved > q->n) c->q.n_moved = q->n;
    TRY(enclose(c, 0, &c->still));
    memset(c->is_seen, 0, (size_t)c->items.n * sizeof *c->is_seen);
    for (int32_t i = 0; i < n_seen; i++)
        c->is_seen[seen[i]] = true;
    for (int32_t row = 0; row < c->items.n; row++)
        if (!c->is_seen[row])
            c->order[c->n_order++] = (scored){dot_row(c, row, c->still.centre), row};
    qsort(c->order, (size_t)c->n_order, sizeof *c->order, compare);
    c->n_list = c->n_order < c->k ? c->n_order : c->k;
    double norm = fmax(length(c->still.centre, c->dim), (double)c->m->retrieval.eps);
    for (int32_t i = 0; i < c->n_list; i++) {
        double score = c->order[i].score / norm;
        c->list[i] =
            (certified_item){(uint32_t)c->items.item[c->order[i].row], score, score, score};
    }
    return OK;
}

/* How far d . row can be from d . centre: by the numbers of the row, and where that is more than
 * `enough`, by the gradient of d. */
static double find_reach(const certify *c, const row_form *f, const double *d, double enough) {
    double box = 0, error = 0, moved = 0;
    for (int32_t i = 0; i < c->dim; i++) {
        box += fabs(d[i]) * f->box[i];
        error += fabs(d[i]) * f->error[i];
    }
    if (box < enough) return box;
    for (int64_t i = (int64_t)(c->q.n - c->q.n_moved) * c->dim; i < (int64_t)c->q.n * c->dim; i++) {
        const double *g = f->gradient + i * c->dim;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int32_t s = 0; s < c->dim; s++)
            sum += d[s] * g[s];
        moved += fabs(sum);
    }
    return fmin(box, error + moved * f->size);
}

/* d = row of `above` - row of `below`; returns d . centre - rounding. */
static double subtract(const certify *c, const row_form *f, int32_t above, int32_t below,
                       double *d) {
    const float *a = row_of(c, above), *b = row_of(c, below);
    double sum = 0;
    for (int32_t i = 0; i < c->dim; i++) {
        d[i] = (double)a[i] - (double)b[i];
        sum += d[i] * f->centre[i];
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
            double difference = subtract(c, &c->ball, p.above, p.below, d);
            p.gap = difference - find_reach(c, &c->ball, d, difference);
            if (p.gap > 0) continue;
            open[n++] = p;
            if (n > DIRECTIONS) return n;
        }
    return n;
}

/* Whether the first n_above items stay above all others within the ball: proved. */
static status prove(certify *c, int32_t n_above, bool *is_proved) {
    open_pair open[DIRECTIONS + 1];
    bounds_form f;
    int n = find_open(c, n_above, open);
    *is_proved = n == 0;
    if (n == 0 || n > DIRECTIONS) return OK;
    for (int i = 0; i < n; i++)
        open[i].gap =
            subtract(c, &c->ball, open[i].above, open[i].below, c->direction + i * c->dim);
    TRY(bounds_relax(c->bounds, n, c->direction, &f));
    *is_proved = true;
    for (int i = 0; i < n; i++)
        *is_proved &= open[i].gap > f.radius[i];
    return OK;
}

/* Whether `below` is certainly above once the events have moved against the gradient. */
static status try_move(certify *c, double eps, const open_pair *p, bool *is_changed) {
    double *d = c->direction, difference = 0;
    bounds_query q = c->q;
    subtract(c, &c->still, p->above, p->below, d);
    for (int64_t i = 0; i < (int64_t)c->q.n * c->dim; i++) {
        double by = 0;
        for (int32_t s = 0; s < c->dim; s++)
            by += d[s] * c->still.gradient[i * c->dim + s];
        c->shift[i] = i / c->dim < c->q.n - c->q.n_moved ? 0 : by > 0 ? -eps : eps;
    }
    q.shift = c->shift;
    q.eps = 0;
    q.n_moved = 0;
    TRY(bounds_run(c->bounds, &q));
    for (int32_t i = 0; i < c->dim; i++)
        difference += d[i] * bounds_centre(c->bounds)[i];
    difference += 2 * BOUNDS_SLACK * c->longest * length(bounds_centre(c->bounds), c->dim);
    *is_changed = difference < 0;
    return OK;
}

/* Tries the pairs that come nearest by the gradients without movement. */
static status disprove(certify *c, int32_t n_above, double eps, bool *is_changed) {
    open_pair best[TRIES];
    int n = 0;
    double *d = c->direction;
    c->still.size = (double)sqrtf((float)c->dim) * eps;
    for (int32_t i = 0; i < c->dim; i++)
        c->still.box[i] = INFINITY;
    for (int32_t b = n_above; b < c->n_order && b < n_above + NEAR; b++)
        for (int32_t a = n_above; a-- > 0 && a + NEAR / 4 >= n_above;) {
            open_pair p = {c->order[a].row, c->order[b].row, 0};
            p.gap = subtract(c, &c->still, p.above, p.below, d);
            p.gap -= find_reach(c, &c->still, d, 0);
            int at = n < TRIES ? n++ : TRIES;
            for (; at > 0 && p.gap < best[at - 1].gap; at--)
                if (at < TRIES) best[at] = best[at - 1];
            if (at < TRIES) best[at] = p;
        }
    for (int i = 0; i < n && !*is_changed && best[i].gap < 0; i++)
        TRY(try_move(c, eps, &best[i], is_changed));
    return OK;
}

/* With x^ the unit vector of the centre, x^ . x <= |x| <= x^ . x + off, so
 *     sign (s |x| - row . x) >= sign (s x^ - row) . x - (|s| off where sign s < 0),
 * which is linear in x.  Returns that in the worst case: where it is not negative, item i's score
 * does not pass s.  s0: its score at the centre; f: of row - s0 x^ of all items, and of x^. */
static double find_certain(const certify *c, const bounds_form *f, int32_t i, double s0, double s,
                           double sign, double off) {
    double norm = length(c->ball.centre, c->dim), by = s - s0, moved = 0, box = 0;
    for (int64_t e = (int64_t)(c->q.n - c->q.n_moved) * c->dim; e < (int64_t)c->q.n * c->dim; e++)
        moved += fabs(f->gradient[e * f->n + i] - by * f->gradient[e * f->n + c->n_list]);
    for (int32_t e = 0; e < c->dim; e++)
        box += c->ball.box[e] *
               fabs((double)row_of(c, c->order[i].row)[e] - s * c->ball.centre[e] / norm);
    moved = moved * c->ball.size + f->error[i] + fabs(by) * f->error[c->n_list];
    return sign * by * norm - fmin(moved, box) - (sign * s < 0 ? fabs(s) * off : 0);
}

/* off: |x| - x^ . x <= |x - centre|^2 / (2 x^ . x). */
static void find_range(certify *c, const bounds_form *f, int32_t i) {
    enum { ROUNDS = 5 };
    const double push = 1e-9; /* past the rounding of find_certain */
    double norm = length(c->ball.centre, c->dim), away = length(c->ball.box, c->dim), end[2];
    double s0 = dot_row(c, c->order[i].row, c->ball.centre) / norm;
    bool is_bounded = norm - away > 2 * (double)c->m->retrieval.eps;
    double off = is_bounded ? away * away / (2 * (norm - away)) : 0;
    for (int k = 0; k < 2; k++) {
        double sign = k == 0 ? -1 : 1, near = s0, far = sign * c->longest;
        double at_near = find_certain(c, f, i, s0, near, sign, off);
        double at_far = find_certain(c, f, i, s0, far, sign, off);
        for (int j = 0; j < ROUNDS && is_bounded && at_near < 0 && at_far > 0; j++) {
            double s =
                near + (far - near) * at_near / (at_near - at_far) + sign * push * c->longest;
            double at = find_certain(c, f, i, s0, s, sign, off);
            *(at >= 0 ? &far : &near) = s;
            *(at >= 0 ? &at_far : &at_near) = at;
        }
        end[k] = (at_near >= 0 && is_bounded ? near : far) + sign * BOUNDS_SLACK * c->longest;
    }
    c->list[i].low = end[0];
    c->list[i].high = end[1];
}

static status find_ranges(certify *c) {
    bounds_form f;
    double norm = length(c->ball.centre, c->dim);
    for (int32_t i = 0; i <= c->n_list; i++) {
        double *d = c->direction + i * c->dim,
               s0 = i == c->n_list ? -1 : dot_row(c, c->order[i].row, c->ball.centre) / norm;
        for (int32_t e = 0; e < c->dim; e++)
            d[e] = (i == c->n_list ? 0 : (double)row_of(c, c->order[i].row)[e]) -
                   s0 * c->ball.centre[e] / norm;
    }
    TRY(bounds_relax(c->bounds, c->n_list + 1, c->direction, &f));
    for (int32_t i = 0; i < c->n_list; i++)
        find_range(c, &f, i);
    return OK;
}

/* *at: the verdict at a smaller eps, then at this one. */
static status settle(certify *c, int32_t n_above, double eps, bool is_proved, verdict *at) {
    bool is_changed = *at == VERDICT_CHANGED;
    if (is_proved) return OK;
    if (!is_changed) TRY(disprove(c, n_above, eps, &is_changed));
    *at = is_changed ? VERDICT_CHANGED : VERDICT_UNKNOWN;
    return OK;
}

status certify_ball(certify *c, double eps, const certified *before, certified *out) {
    bool is_first = false, is_list = false;
    *out = (certified){VERDICT_UNCHANGED, VERDICT_UNCHANGED};
    if (before != NULL) *out = *before;
    bool is_open = out->first == VERDICT_UNCHANGED || out->list == VERDICT_UNCHANGED;
    if (is_open) TRY(enclose(c, eps, &c->ball));
    for (int32_t i = 0; i < c->n_list; i++) {
        c->list[i].low = -c->longest - BOUNDS_SLACK;
        c->list[i].high = c->longest + BOUNDS_SLACK;
    }
    if (is_open) TRY(find_ranges(c));
    if (out->list == VERDICT_UNCHANGED) TRY(prove(c, c->n_list, &is_list));
    if (out->first == VERDICT_UNCHANGED) TRY(prove(c, c->n_list > 0, &is_first));
    TRY(settle(c, c->n_list, eps, is_list, &out->list)); /* the enclosure is of no use after it */
    return settle(c, c->n_list > 0, eps, is_first, &out->first);
}

int32_t certify_list(const certify *c, const certified_item **out) {
    *out = c->list;
    return c->n_list;
}
