#include "profile/recorder.h"

void recorder_init(recorder *r, const recorder_schedule *s) {
    *r = (recorder){.schedule = *s};
    pthread_mutex_init(&r->lock, NULL);
    text_map_init(&r->names, 1);
}

void recorder_fini(recorder *r) {
    mem_free(r->spans);
    text_map_fini(&r->names);
    MEM_FREE(r->launches, r->steps, r->counted);
    pthread_mutex_destroy(&r->lock);
    *r = (recorder){0};
}

static status intern(recorder *r, const char *text, int64_t number, int32_t *out) {
    char name[RECORDER_NAME_BYTES];
    int n = number >= 0 ? snprintf(name, sizeof name, "%s %lld", text, (long long)number)
                        : snprintf(name, sizeof name, "%s", text);
    /* Two long names that begin alike stay two. */
    if (n >= (int)sizeof name)
        snprintf(name + sizeof name - 13, 13, "...#%08x", (unsigned)hash64(text, strlen(text), 1));
    TRY(text_map_reserve(&r->names, 1, sizeof name));
    *out = (int32_t)text_map_put(&r->names, name, strlen(name) + 1);
    return OK;
}

/* Room for one more span, or it is counted as dropped. */
static bool has_room(recorder *r) {
    if (r->n_spans < RECORDER_MAX_SPANS &&
        mem_reserve((void **)&r->spans, &r->capacity, r->n_spans + 1, sizeof *r->spans) == OK)
        return true;
    r->n_dropped++;
    return false;
}

static recorder_thread *this_thread(recorder *r) {
    pthread_t self = pthread_self();
    for (int i = 0; i < r->n_threads; i++)
        if (pthread_equal(r->threads[i].id, self)) return &r->threads[i];
    if (r->n_threads == RECORDER_MAX_THREADS) return NULL;
    r->threads[r->n_threads] = (recorder_thread){.id = self};
    return &r->threads[r->n_threads++];
}

/* Everything is forgotten but the names: indices of spans begin again, and spans that are open are
 * not kept when they end. */
static void forget(recorder *r) {
    r->n_spans = r->n_launches = r->n_counted = 0;
    r->n_dropped = 0;
    for (int i = 0; i < r->n_threads; i++)
        for (int d = 0; d < r->threads[i].depth && d < RECORDER_MAX_DEPTH; d++)
            r->threads[i].open[d].index = RECORDER_NO_OP;
}

/* Without memory the step is not listed. */
static void keep_step(recorder *r, int64_t number, uint64_t start_ns, uint64_t end_ns) {
    const recorder_schedule *s = &r->schedule;
    int64_t cycle = s->active > 0 ? number / (s->wait + s->warmup + s->active) : 0;
    r->n_active++;
    r->active_ns += end_ns - start_ns;
    if (MEM_RESERVE(&r->steps, &r->steps_capacity, r->n_steps + 1) == OK)
        r->steps[r->n_steps++] = (kept_step){number, start_ns, end_ns,
                                             (uint16_t)(cycle < UINT16_MAX ? cycle : UINT16_MAX)};
}

void recorder_add_step(recorder *r, int64_t number, bool is_kept, uint64_t start_ns,
                       uint64_t end_ns) {
    r->step++;
    if (is_kept) keep_step(r, number, start_ns, end_ns);
}

/* That of the first step that ends later, or of the last one. */
uint16_t recorder_cycle(const recorder *r, size_t first_step, uint64_t ns) {
    size_t low = first_step, high = r->n_steps;
    while (low + 1 < high) {
        size_t middle = (low + high) / 2;
        if (r->steps[middle - 1].end_ns <= ns)
            low = middle;
        else
            high = middle;
    }
    return low < r->n_steps ? r->steps[low].cycle : 0;
}

void recorder_cut(recorder *r, size_t first_span, size_t first_step) {
    for (size_t i = first_span; i < r->n_spans; i++)
        r->spans[i].cycle = recorder_cycle(r, first_step, r->spans[i].start_ns);
}

void recorder_start(recorder *r) {
    pthread_mutex_lock(&r->lock);
    r->is_on = !r->is_paused && schedule_at(&r->schedule, r->step) != STEP_OFF;
    r->started_ns = clock_ns();
    pthread_mutex_unlock(&r->lock);
}

void recorder_stop(recorder *r) {
    pthread_mutex_lock(&r->lock);
    step_state state = schedule_at(&r->schedule, r->step);
    if (r->is_on && state == STEP_ACTIVE) r->active_ns += clock_ns() - r->started_ns;
    if (r->is_on && state == STEP_WARMUP && r->n_active == 0) forget(r);
    r->is_on = false;
    pthread_mutex_unlock(&r->lock);
}

bool recorder_will_switch(recorder *r) {
    pthread_mutex_lock(&r->lock);
    bool changes = schedule_at(&r->schedule, r->step) != schedule_at(&r->schedule, r->step + 1);
    pthread_mutex_unlock(&r->lock);
    return changes;
}

void recorder_step(recorder *r, uint64_t end_ns) {
    pthread_mutex_lock(&r->lock);
    step_state before = schedule_at(&r->schedule, r->step);
    step_state after = schedule_at(&r->schedule, ++r->step);
    uint64_t now = clock_ns();
    if (before == STEP_ACTIVE && r->is_on) {
        keep_step(r, r->step - 1, r->started_ns, end_ns);
        r->started_ns = after == STEP_ACTIVE ? end_ns : now;
    }
    /* Only the first warm-up can be forgotten as a whole; later ones are not recorded at all. */
    if (before == STEP_WARMUP && after == STEP_ACTIVE && r->n_active == 0) forget(r);
    if (before != STEP_ACTIVE) r->started_ns = now;
    r->is_on =
        !r->is_paused && (after == STEP_ACTIVE || (after == STEP_WARMUP && r->n_active == 0));
    pthread_mutex_unlock(&r->lock);
}

void recorder_pause(recorder *r, bool is_paused) {
    pthread_mutex_lock(&r->lock);
    uint64_t now = clock_ns();
    if (is_paused && r->is_on) r->active_ns += now - r->started_ns;
    if (r->is_paused && !is_paused) r->started_ns = now;
    r->is_paused = is_paused;
    r->is_on = !is_paused && schedule_at(&r->schedule, r->step) != STEP_OFF;
    pthread_mutex_unlock(&r->lock);
}

int64_t recorder_begin(recorder *r, span_kind kind, const char *name, int64_t number) {
    pthread_mutex_lock(&r->lock);
    recorder_thread *t = this_thread(r);
    int64_t index = RECORDER_NO_OP;
    if (t == NULL || t->depth >= RECORDER_MAX_DEPTH) {
        if (t != NULL) t->depth++;
        if (r->is_on) r->n_dropped++;
    } else {
        int32_t id = 0;
        if (r->is_on && has_room(r) && intern(r, name, number, &id) == OK) {
            index = (int64_t)r->n_spans++;
            r->spans[index] =
                (span){.name = id,
                       .launch = -1,
                       .op = t->depth > 0 ? t->open[t->depth - 1].index : RECORDER_NO_OP,
                       .number = number,
                       .kind = (uint8_t)kind,
                       .lane = (uint16_t)(t - r->threads)};
        }
        t->open[t->depth++] = (open_span){.index = index, .start_ns = clock_ns()};
        if (index >= 0) r->spans[index].start_ns = t->open[t->depth - 1].start_ns;
    }
    pthread_mutex_unlock(&r->lock);
    return index;
}

void recorder_end(recorder *r, uint64_t bytes) {
    uint64_t now = clock_ns();
    pthread_mutex_lock(&r->lock);
    recorder_thread *t = this_thread(r);
    if (t != NULL && t->depth > 0 && --t->depth < RECORDER_MAX_DEPTH) {
        open_span *o = &t->open[t->depth];
        uint64_t ns = now - o->start_ns;
        if (t->depth > 0) t->open[t->depth - 1].child_ns += ns;
        if (o->index >= 0) {
            span *s = &r->spans[o->index];
            s->end_ns = now;
            s->child_ns = o->child_ns;
            s->bytes = bytes;
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void recorder_note_memory(recorder *r, int64_t bytes) {
    pthread_mutex_lock(&r->lock);
    recorder_thread *t = this_thread(r);
    int top = t == NULL ? 0 : t->depth < RECORDER_MAX_DEPTH ? t->depth : RECORDER_MAX_DEPTH;
    if (top > 0 && t->open[top - 1].index >= 0) r->spans[t->open[top - 1].index].memory += bytes;
    pthread_mutex_unlock(&r->lock);
}

void recorder_set_work(recorder *r, int64_t index, double flop, double moved) {
    pthread_mutex_lock(&r->lock);
    if (index >= 0 && (size_t)index < r->n_spans) {
        r->spans[index].flop = flop;
        r->spans[index].moved = moved;
        r->spans[index].has_work = flop > 0 || moved > 0;
    }
    pthread_mutex_unlock(&r->lock);
}

void recorder_set_pairs(recorder *r, int64_t index, double pairs) {
    pthread_mutex_lock(&r->lock);
    if (index >= 0 && (size_t)index < r->n_spans) r->spans[index].pairs = pairs;
    pthread_mutex_unlock(&r->lock);
}

int32_t recorder_name_id(recorder *r, const char *name) {
    int32_t id;
    pthread_mutex_lock(&r->lock);
    if (intern(r, name, -1, &id) != OK) id = -1;
    pthread_mutex_unlock(&r->lock);
    return id;
}

void recorder_add(recorder *r, const span *s, const char *name, const span_launch *launch) {
    int32_t id;
    pthread_mutex_lock(&r->lock);
    bool is_kept = has_room(r) && intern(r, name, -1, &id) == OK;
    if (is_kept && launch != NULL)
        is_kept = mem_reserve((void **)&r->launches, &r->launches_capacity, r->n_launches + 1,
                              sizeof *launch) == OK;
    if (is_kept) {
        span *to = &r->spans[r->n_spans++];
        *to = *s;
        to->name = id;
        to->launch = launch != NULL ? (int32_t)r->n_launches : -1;
        if (launch != NULL) r->launches[r->n_launches++] = *launch;
    }
    pthread_mutex_unlock(&r->lock);
}

/* Programs have some hundred kernels at most, so a linear search is quick. */
void recorder_add_counters(recorder *r, const char *name, const double add[N_COUNTED]) {
    int32_t id;
    size_t at = 0;
    pthread_mutex_lock(&r->lock);
    if (intern(r, name, -1, &id) == OK &&
        MEM_RESERVE(&r->counted, &r->counted_capacity, r->n_counted + 1) == OK) {
        while (at < r->n_counted && r->counted[at].name != id)
            at++;
        if (at == r->n_counted) r->counted[r->n_counted++] = (counted_kernel){.name = id};
        for (int i = 0; i < N_COUNTED; i++)
            r->counted[at].sum[i] += add[i];
    }
    pthread_mutex_unlock(&r->lock);
}

void recorder_add_gpu(recorder *r, const gpu_facts *g) {
    pthread_mutex_lock(&r->lock);
    int at = 0;
    while (at < r->n_gpus && r->gpus[at].device != g->device)
        at++;
    if (at < RECORDER_MAX_GPUS) r->gpus[at] = *g;
    if (at == r->n_gpus && at < RECORDER_MAX_GPUS) r->n_gpus++;
    pthread_mutex_unlock(&r->lock);
}

const gpu_facts *recorder_gpu(const recorder *r, uint32_t device) {
    for (int i = 0; i < r->n_gpus; i++)
        if (r->gpus[i].device == device) return &r->gpus[i];
    return NULL;
}

const char *recorder_text(const recorder *r, size_t name) {
    size_t n;
    return text_map_get(&r->names, (uint32_t)name, &n);
}

const char *recorder_name(const recorder *r, const span *s) {
    return recorder_text(r, (size_t)s->name);
}

const char *span_kind_name(span_kind kind) {
    static const char *const names[N_SPAN_KINDS] = {"user_annotation", "cpu_op",     "cuda_runtime",
                                                    "kernel",          "gpu_memcpy", "gpu_memset"};
    return names[kind];
}

/* Attention in a graph: the op that launched the graph knows how many pairs there were. */
static void give_work(recorder *r, span *s) {
    double pairs = s->op >= 0 ? r->spans[s->op].pairs : 0;
    if (s->of_pair <= 0 || pairs <= 0) return;
    s->has_work = true;
    s->flop = s->is_first ? s->of_pair * pairs : 0;
    s->moved = s->is_first ? s->pair_bytes : 0;
}

size_t recorder_n_correlations(const recorder *r) {
    size_t n = 1;
    for (size_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].correlation >= n) n = (size_t)r->spans[i].correlation + 1;
    return n;
}

/* The op of each correlation: none so far. */
static status make_ops(const recorder *r, int64_t **op_of) {
    size_t n = recorder_n_correlations(r);
    TRY(MEM_NEW_RAW(op_of, n));
    for (size_t i = 0; i < n; i++)
        (*op_of)[i] = RECORDER_NO_OP;
    return OK;
}

/* Span i goes to moved[i] <= i, of n in all, or away where that is RECORDER_NO_OP. */
static void move_spans(recorder *r, const int64_t *moved, int64_t n) {
    for (size_t i = 0; i < r->n_spans; i++) {
        if (moved[i] == RECORDER_NO_OP) continue;
        span s = r->spans[i];
        bool is_known = s.op >= 0 && (size_t)s.op < r->n_spans;
        s.op = is_known ? moved[s.op] : RECORDER_NO_OP;
        r->spans[moved[i]] = s;
    }
    r->n_spans = (size_t)n;
}

status recorder_link(recorder *r) {
    int64_t *op_of, *moved = NULL, n = 0;
    TRY(make_ops(r, &op_of));
    status st = MEM_NEW_RAW(&moved, r->n_spans + 1);
    for (size_t i = 0; st == OK && i < r->n_spans; i++)
        if (r->spans[i].kind == N_SPAN_KINDS) op_of[r->spans[i].correlation] = r->spans[i].op;
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        span *s = &r->spans[i];
        moved[i] = s->kind == N_SPAN_KINDS ? RECORDER_NO_OP : n++;
        if (s->correlation > 0) s->op = op_of[s->correlation];
    }
    if (st == OK) move_spans(r, moved, n);
    for (size_t i = 0; st == OK && i < r->n_spans; i++)
        give_work(r, &r->spans[i]);
    MEM_FREE(op_of, moved);
    return st;
}

/* Whether a span is, or is inside, a range of this name: by the spans around it. */
static bool is_inside(const recorder *r, const span *s, const char *name) {
    for (; s != NULL; s = s->op == RECORDER_NO_OP ? NULL : &r->spans[s->op])
        if (s->kind == SPAN_RANGE && strcmp(recorder_name(r, s), name) == 0) return true;
    return false;
}

/* The outermost ones count: a range may be inside another one of its name. */
static uint64_t time_of(const recorder *r, const char *name) {
    uint64_t ns = 0;
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i], *around = s->op == RECORDER_NO_OP ? NULL : &r->spans[s->op];
        if (s->kind == SPAN_RANGE && s->end_ns != 0 && strcmp(recorder_name(r, s), name) == 0 &&
            !is_inside(r, around, name))
            ns += s->end_ns - s->start_ns;
    }
    return ns;
}

status recorder_keep_range(recorder *r, const char *name) {
    int64_t *moved, n = 0;
    TRY(MEM_NEW_RAW(&moved, r->n_spans + 1));
    r->active_ns = time_of(r, name);
    for (size_t i = 0; i < r->n_spans; i++)
        moved[i] = is_inside(r, &r->spans[i], name) ? n++ : RECORDER_NO_OP;
    move_spans(r, moved, n);
    mem_free(moved);
    return OK;
}

/* By lane, then by time; what begins together by length, so that what is around comes first. */
static int by_place(const void *a, const void *b, void *spans) {
    const span *x = (const span *)spans + *(const size_t *)a;
    const span *y = (const span *)spans + *(const size_t *)b;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1; /* a range before a call */
    return x < y ? -1 : x > y;
}

/* The innermost range around a span, found from the last one that began: those that ended before
 * are around nothing that is still to come. */
static int64_t find_around(const recorder *r, int64_t last, const span *s) {
    while (last != RECORDER_NO_OP &&
           (r->spans[last].lane != s->lane || r->spans[last].end_ns <= s->start_ns))
        last = r->spans[last].op;
    return last;
}

static void nest(recorder *r, const size_t *order, size_t n, int64_t *op_of) {
    int64_t last = RECORDER_NO_OP;
    for (size_t i = 0; i < n; i++) {
        span *s = &r->spans[order[i]];
        last = find_around(r, last, s);
        s->op = last;
        if (s->kind == SPAN_CALL) {
            if (s->correlation > 0) op_of[s->correlation] = last;
            continue;
        }
        s->child_ns = 0;
        /* A range that ends later is inside the one around it only in part. */
        if (last != RECORDER_NO_OP && s->end_ns <= r->spans[last].end_ns)
            r->spans[last].child_ns += s->end_ns - s->start_ns;
        last = (int64_t)order[i];
    }
}

static bool is_on_host(const span *s) {
    return s->end_ns != 0 && (s->kind == SPAN_RANGE || s->kind == SPAN_CALL);
}

status recorder_nest(recorder *r) {
    size_t n = 0, *order = NULL;
    int64_t *op_of;
    TRY(make_ops(r, &op_of));
    status st = MEM_NEW_RAW(&order, r->n_spans + 1);
    if (st == OK) {
        for (size_t i = 0; i < r->n_spans; i++)
            if (is_on_host(&r->spans[i])) order[n++] = i;
        qsort_r(order, n, sizeof *order, by_place, r->spans);
        nest(r, order, n, op_of);
        for (size_t i = 0; i < r->n_spans; i++)
            if (!is_on_host(&r->spans[i])) r->spans[i].op = op_of[r->spans[i].correlation];
    }
    MEM_FREE(order, op_of);
    return st;
}
