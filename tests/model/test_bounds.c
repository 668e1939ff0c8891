#include "model/bounds.h"

#include "oom.h"
#include "test.h"
#include "toy_model.h"

enum { DIM = 12, EVENTS = 13, ITEMS = 90, DIRECTIONS = DIM + 3 };

/* A model of two layers or three, and users whose items are all different, so that each event's
 * embedding can move by itself. */
typedef struct rig {
    toy_model t;
    toy_batch b;
    bounds *of;
    float *item; /* (ITEMS + 1, DIM): the table before it moves */
    int32_t n_far;
    double direction[DIRECTIONS * DIM];
} rig;

static double drawn(uint64_t seed, uint64_t at, uint64_t what) {
    return 2 * (double)rng_uniform(rng_draw64(rng_make_key(seed, RNG_TEST), at, what).word[0]) - 1;
}

/* Bounds are of models on the CPU. */
static void open_on_cpu(toy_model *t, toy_kind kind) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    toy_model_open_on(t, kind, 0, be);
}

static void open_rig(rig *r, uint64_t seed) {
    static const int32_t length[TOY_USERS] = {1, 2, 3, EVENTS, 5, 8};
    model_limits limits = toy_model_limits(TOY_HSTU_RESEARCH);
    limits.n_items = ITEMS;
    open_on_cpu(&r->t, TOY_HSTU_RESEARCH);
    if (seed >= 2) { /* widths that all differ, 21 of v and u */
        r->t.c.network.n_heads = 3;
        r->t.c.network.dim_qk = 4;
        r->t.c.network.dim_v = 7;
    }
    r->n_far = seed == 4 ? 0 : EVENTS;
    if (seed >= 4) r->t.c.network.n_layers = 3;
    toy_model_remake(&r->t, &limits, seed);
    if (seed % 2 == 1) toy_enlarge(&r->t);
    toy_batch_make(&r->b, TOY_HSTU_RESEARCH, seed);
    for (int32_t u = 0, at = 0; u < TOY_USERS; u++) {
        r->b.n_targets[u] = 0;
        for (int32_t i = 0; i < length[u]; i++, at++)
            r->b.item[at] = 1 + (uint32_t)(at * 7 + (int32_t)seed) % ITEMS;
        r->b.offsets[u + 1] = at;
    }
    r->b.b.n_tokens = r->b.offsets[TOY_USERS];
    int64_t n = (ITEMS + 1) * DIM;
    r->item = malloc((size_t)n * sizeof *r->item);
    memcpy(r->item, r->t.m->input.item->value, (size_t)n * sizeof *r->item);
    CHECK_OK(bounds_create(&r->of, r->t.m));
    for (int i = 0; i < DIRECTIONS * DIM; i++)
        r->direction[i] = i < DIM * DIM ? i / DIM == i % DIM : drawn(seed, (uint64_t)i, 7);
}

static void close_rig(rig *r) {
    bounds_destroy(r->of);
    free(r->item);
    toy_model_close(&r->t);
}

/* A user's balls, and what encloses the last row. */
typedef struct enclosure {
    double centre[DIM], around[DIRECTIONS], size[DIRECTIONS];
    double gradient[EVENTS * DIM * DIRECTIONS];
} enclosure;

static bounds_query query_of(const rig *r, int u, double eps) {
    int32_t first = r->b.offsets[u], n = r->b.offsets[u + 1] - first;
    return (bounds_query){n, r->b.item + first, r->b.time + first, n - u % 2, eps, NULL, r->n_far};
}

static void enclose(rig *r, int u, double eps, enclosure *e) {
    bounds_query q = query_of(r, u, eps);
    bounds_form form;
    CHECK_OK(bounds_run(r->of, &q));
    CHECK_OK(bounds_relax(r->of, DIRECTIONS, r->direction, &form));
    memcpy(e->centre, bounds_centre(r->of), sizeof e->centre);
    memcpy(e->size, form.radius, sizeof e->size);
    memcpy(e->gradient, form.gradient, sizeof *e->gradient * (size_t)(q.n * DIM * DIRECTIONS));
    for (int s = 0; s < DIRECTIONS; s++) {
        e->around[s] = 0;
        for (int d = 0; d < DIM; d++)
            e->around[s] += r->direction[s * DIM + d] * e->centre[d];
    }
}

/* Moves the embeddings of all users: at random inside, to random corners, or to the corner where a
 * direction is highest or lowest. */
static void move(rig *r, const enclosure *e, double eps, int trial) {
    for (int u = 0; u < TOY_USERS; u++) {
        bounds_query q = query_of(r, u, eps);
        for (int32_t i = (q.n - q.n_moved) * DIM; i < q.n * DIM; i++) {
            double by = drawn((uint64_t)trial, (uint64_t)(u * 1000 + i), 3);
            int s = trial / 4 % DIRECTIONS;
            if (trial % 4 == 1) by = by > 0 ? 1 : -1;
            if (trial % 4 >= 2)
                by = (e[u].gradient[i * DIRECTIONS + s] > 0) == (trial % 4 == 2) ? 1 : -1;
            int64_t at = (int64_t)q.item[i / DIM] * DIM + i % DIM;
            double moved = (double)r->item[at] + eps * by;
            r->t.m->input.item->value[at] = (float)moved;
        }
    }
}

/* used: how much of its radius each direction needed, at most. */
static void compare(rig *r, const enclosure *e, double used[TOY_USERS][DIRECTIONS]) {
    int64_t n;
    const void *unused;
    CHECK_OK(pass_encode(r->t.p, &r->b.b, &unused));
    float *hidden = toy_model_hidden(&r->t, &n);
    for (int u = 0; u < TOY_USERS; u++) {
        const float *x = hidden + (r->b.offsets[u + 1] - 1) * DIM;
        double length = 0;
        for (int d = 0; d < DIM; d++)
            length += (double)x[d] * (double)x[d];
        double rounding = BOUNDS_SLACK * sqrt(length) / 2;
        for (int s = 0; s < DIRECTIONS; s++) {
            double at = 0;
            for (int d = 0; d < DIM; d++)
                at += r->direction[s * DIM + d] * (double)x[d];
            double share = fabs(at - e[u].around[s]) / (e[u].size[s] + rounding);
            if (!(share <= 1))
                FAIL_TEST("user %d, direction %d: %.9g is further than %.9g from %.9g", u, s, at,
                          e[u].size[s], e[u].around[s]);
            used[u][s] = fmax(used[u][s], share);
        }
    }
    free(hidden);
}

static void try_movements(uint64_t seed, double eps, int n) {
    static enclosure e[TOY_USERS];
    double used[TOY_USERS][DIRECTIONS] = {0};
    rig r;
    open_rig(&r, seed);
    for (int u = 0; u < TOY_USERS; u++)
        enclose(&r, u, eps, &e[u]);
    for (int trial = 0; trial < n; trial++) {
        move(&r, e, eps, trial);
        compare(&r, e, used);
    }
    for (int u = 0; u < TOY_USERS && seed % 2 == 0 && eps == 1e-4; u++) {
        double most = 0;
        for (int s = 0; s < DIRECTIONS; s++)
            most = fmax(most, used[u][s]);
        CHECK(most > 0.98);
    }
    close_rig(&r);
}

/* No movement leaves the bounds, and the worst corners come within 2 % of them where eps is small:
 * bounds a little smaller would fail. */
TEST(bounds_hold_what_the_model_computes) {
    static const double eps[] = {0, 1e-4, 1e-3, 1e-2, 0.1, 3};
    int n = test_is_brief() ? 60 : 1200; /* of six users each: 260,000 movements in all */
    for (uint64_t seed = 0; seed < 6; seed++)
        for (size_t k = 0; k < sizeof eps / sizeof *eps; k++)
            try_movements(seed, eps[k], n);
}

/* Of tokens that do not move, nothing is left from users of whom they did. */
TEST(bounds_do_not_depend_on_earlier_users) {
    static enclosure first, other, again;
    for (uint64_t seed = 0; seed < 5; seed += 4) {
        rig r;
        open_rig(&r, seed);
        enclose(&r, 1, 1e-3, &first);
        enclose(&r, 2, 0.1, &other);
        enclose(&r, 1, 1e-3, &again);
        CHECK(memcmp(first.size, again.size, sizeof first.size) == 0);
        close_rig(&r);
    }
}

static void set_all(param *p, float value) {
    for (int64_t i = 0; i < p->n; i++)
        p->value[i] = value;
}

/* A model that is a polynomial of one number: its norms' eps makes them linear, its u, v, q and k
 * are far in the linear part of the silu, and multiples of the only token's input x0 (of v all but
 * the first number are 0).  The corner
 * x0 (1 + .1) then uses its bounds up, and the bounds are those of products of what moves: without
 * any term of second order in weigh, attend or gate they would be too small.  With u, v, q, k and
 * the score where the silu is convex, each chord meets its curve at that corner, and the bounds are
 * used up as well: they would be too small without any error of a silu. */
static void reach_products(int active, bool is_curved) {
    enum { PUT = 4 }; /* the number of the row that the layer changes */
    static enclosure e;
    const double eps = 0.01, share = 0.1;
    model_limits limits = toy_model_limits(TOY_HSTU_RESEARCH);
    rig r;
    limits.n_items = ITEMS;
    open_rig(&r, 0);
    r.t.c.network.norm_epsilon = 1e16;
    bounds_destroy(r.of);
    toy_model_remake(&r.t, &limits, 0);
    model *m = r.t.m;
    hstu_layer *l = &m->layers[active].hstu;
    int32_t gated = l->config.n_heads * l->config.dim_v, width = (int32_t)(l->uvqk->n / DIM);
    set_all(m->input.position, 0);
    set_all(m->layers[1 - active].hstu.proj, 0);
    set_all(l->proj, 0);
    l->proj->value[l->config.is_proj_transposed ? (int64_t)PUT * gated : PUT] =
        is_curved ? 1e13F : 100;
    for (int k = 0; k < 2; k++)
        if (m->layers[k].hstu.proj_bias != NULL) set_all(m->layers[k].hstu.proj_bias, 0);
    for (int d = 0; d < DIM; d++) {
        double x0 = sqrt(DIM) * share * (d % 2 == 0 ? 1 : -1), square = DIM * DIM * share * share;
        m->input.item->value[(int64_t)r.b.item[0] * DIM + d] = (float)(x0 / sqrt(DIM));
        for (int w = 0; w < width; w++) {
            double z = is_curved ? (w <= gated ? 1 : 0.5) + 0.01 * (w % 13) : 80 - w % 13;
            l->uvqk->value[(int64_t)d * width + w] =
                w > gated && w < 2 * gated ? 0 : (float)(z * x0 / square * 1e8);
        }
    }
    memcpy(r.item, m->input.item->value, sizeof *r.item * (ITEMS + 1) * DIM);
    CHECK_OK(bounds_create(&r.of, m));
    enclose(&r, 0, eps, &e);
    for (int d = 0; d < DIM; d++)
        m->input.item->value[(int64_t)r.b.item[0] * DIM + d] *= (float)(1 + eps / share);
    const void *unused;
    int64_t n;
    CHECK_OK(pass_encode(r.t.p, &r.b.b, &unused));
    float *hidden = toy_model_hidden(&r.t, &n);
    double most = (double)hidden[PUT] - e.centre[PUT];
    CHECK(fabs(most) <= e.size[PUT] * (1 + 1e-5) && fabs(most) >= e.size[PUT] * (1 - 1e-4));
    free(hidden);
    close_rig(&r);
}

TEST(bounds_of_products_are_reached) {
    for (int active = 0; active < 2; active++) {
        reach_products(active, false);
        reach_products(active, true);
    }
}

/* A model of which the norm of attention alone is curved.  With z = +-1 the movement of the only
 * token, what goes into that norm is A + B z, and its number 0 is added to the number PUT of the
 * row; the rest of the row shows the movement.  So a direction without any gradient shows the error
 * alone: that of the chord of 1 / sqrt (A and B nearly parallel, B0 = 0), that of the square of the
 * movement (orthogonal), that of the factor of what moves (A0 = 0), and the range (A = 0). */
TEST(bounds_of_norms_hold_their_curves) {
    enum { PUT = 4, STEPS = 40, CASES = 4 };
    static const double A[CASES][3] = {{1, 1, -2}, {2, -1, -1}, {0, 1, -1}, {0}},
                        B[CASES][3] = {{0, .2, -.2}, {0, .8, -.8}, {.1, .15, -.25}, {.8}};
    static const double reached[CASES] = {.3, .95, .95, .95};
    static enclosure e;
    const double moves = 1e-3, size = moves / sqrt(6), eps = size / sqrt(DIM),
                 at_rest = 2 * sqrt(6);
    for (int c = 0; c < CASES; c++) {
        rig r;
        open_rig(&r, 0);
        model *m = r.t.m;
        hstu_layer *l = &m->layers[0].hstu;
        int32_t gated = l->config.n_heads * l->config.dim_v, width = (int32_t)(l->uvqk->n / DIM);
        float *row = m->input.item->value + (int64_t)r.b.item[0] * DIM;
        set_all(m->input.position, 0);
        set_all(m->layers[1].hstu.proj, 0);
        set_all(l->proj, 0);
        set_all(l->uvqk, 0);
        set_all(l->time_w, 0);
        set_all(l->position_w, 50);
        l->proj->value[l->config.is_proj_transposed ? (int64_t)PUT * gated : PUT] = 1;
        for (int k = 0; k < 2; k++)
            if (m->layers[k].hstu.proj_bias != NULL) set_all(m->layers[k].hstu.proj_bias, 0);
        for (int d = 0; d < DIM; d++)
            row[d] = d > 1 ? 0 : (float)((d == 0 ? 1 : -1) / sqrt(DIM));
        for (int g = 0; g < gated; g++)
            for (int d = 0; d < 4; d++) { /* 0 and 1 rest, 2 and 3 move */
                double a = 100 + (g < 3 ? A[c][g] : 0), b = g < 3 ? B[c][g] : 0;
                if (c == 3 && g > 0) b = -B[c][0] / (gated - 1);
                double sign = d % 2 == 0 ? 1 : -1;
                l->uvqk->value[d * width + g] = d < 2 ? (float)(sign * 50 / at_rest) : 0;
                l->uvqk->value[d * width + gated + g] =
                    (float)(sign * (d < 2 ? a / at_rest : b / (2 * moves)));
            }
        bounds_destroy(r.of);
        CHECK_OK(bounds_create(&r.of, m));
        enclose(&r, 0, eps, &e);
        for (int d = 0; d < DIM; d++)
            r.direction[DIM * DIM + d] = d == PUT ? 1 : -e.gradient[d * DIRECTIONS + PUT];
        enclose(&r, 0, eps, &e);
        double most = 0;
        for (int i = -STEPS; i <= STEPS; i++) {
            const void *unused;
            int64_t n;
            row[2] = (float)(eps * i / STEPS);
            row[3] = -row[2];
            CHECK_OK(pass_encode(r.t.p, &r.b.b, &unused));
            float *hidden = toy_model_hidden(&r.t, &n);
            double at = 0;
            for (int d = 0; d < DIM; d++)
                at += r.direction[DIM * DIM + d] * (double)hidden[d];
            most = fmax(most, fabs(at - e.around[DIM]));
            free(hidden);
        }
        CHECK(most <= e.size[DIM] * 1.002 && most >= e.size[DIM] * reached[c]);
        close_rig(&r);
    }
}

TEST(bounds_refuse_other_models) {
    static const struct {
        toy_kind kind;
        const char *why;
    } other[] = {{TOY_SASREC, "sasrec layers"},   {TOY_FUXI, "fuxi layers"},
                 {TOY_ESASREC, "ligr layers"},    {TOY_OWN, "user features"},
                 {TOY_RETRIEVAL, "NVIDIA-style"}, {TOY_RANK_BITS, "ranks candidates"}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        toy_model t;
        bounds *b;
        open_on_cpu(&t, other[i].kind);
        CHECK_FAILS(bounds_create(&b, t.m), ERR_UNSUPPORTED, other[i].why);
        CHECK(b == NULL);
        toy_model_close(&t);
    }
}

static status create_and_run(void *ctx) {
    rig *r = ctx;
    bounds_query q = query_of(r, 3, 0.01);
    bounds_form form;
    bounds *b;
    status st = bounds_create(&b, r->t.m);
    if (st == OK) st = bounds_run(b, &q);
    if (st == OK) st = bounds_relax(b, DIRECTIONS, r->direction, &form);
    bounds_destroy(b);
    return st;
}

TEST(bounds_out_of_memory) {
    rig r;
    open_rig(&r, 0);
    CHECK(oom_at_each_allocation(create_and_run, &r) > 5);
    close_rig(&r);
}

TEST(bounds_of_silu_hold_its_curve) {
    for (int i = 0; i < 20000; i++) {
        double at = 12 * drawn(1, (uint64_t)i, 1),
               width = 5 * pow(fabs(drawn(2, (uint64_t)i, 1)), 6);
        silu_line s = bounds_silu(at, at + width);
        for (int k = 0; k <= 60; k++) {
            double x = at + width * k / 60, y = x / (1 + exp(-x));
            CHECK(y >= s.low - 1e-14 && y <= s.high + 1e-14);
            CHECK(fabs(y - s.slope * x - s.shift) <= s.error + 1e-14);
        }
    }
    silu_line dip = bounds_silu(-2, 1);
    CHECK(fabs(dip.low + 0.278464542761) < 1e-11);
}
