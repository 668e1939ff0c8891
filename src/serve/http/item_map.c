/* /v1/map: a map of the items.  Their embedding rows, normed, are projected to the two directions
 * in which they differ most (principal components, by power iteration); the answer carries the
 * directions too, so that a page can put a user's vector on the map.  Made once for each version of
 * a model. */
#include <math.h>
#include <string.h>

#include "serve/http/server_int.h"

enum { ITERATIONS = 40 };

struct item_map {
    char version[64];
    char *text;
    size_t n_bytes;
};

/* While it is made. */
typedef struct drawing {
    int32_t dim;
    uint32_t n, stride;
    float *rows; /* (n, dim), normed, then centred */
    float *mean; /* (dim) */
    float *axis; /* (2, dim) */
} drawing;

static float dot(const float *a, const float *b, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return (float)sum;
}

static void norm(float *a, int32_t n) {
    float length = sqrtf(dot(a, a, n));
    for (int32_t i = 0; i < n && length > 0; i++)
        a[i] /= length;
}

static void centre(drawing *d) {
    for (uint32_t i = 0; i < d->n; i++) {
        norm(d->rows + (size_t)i * (size_t)d->dim, d->dim);
        for (int32_t k = 0; k < d->dim; k++)
            d->mean[k] += d->rows[(size_t)i * (size_t)d->dim + (size_t)k] / (float)d->n;
    }
    for (uint32_t i = 0; i < d->n; i++)
        for (int32_t k = 0; k < d->dim; k++)
            d->rows[(size_t)i * (size_t)d->dim + (size_t)k] -= d->mean[k];
}

/* axis = the largest eigenvector of rows' covariance that is orthogonal to `other`. */
static void find_axis(const drawing *d, float *axis, const float *other, float *next) {
    for (int32_t k = 0; k < d->dim; k++)
        axis[k] = (float)((k * 7919 + 13) % 101) - 50;
    for (int step = 0; step < ITERATIONS; step++) {
        if (other != NULL) {
            float part = dot(axis, other, d->dim);
            for (int32_t k = 0; k < d->dim; k++)
                axis[k] -= part * other[k];
        }
        norm(axis, d->dim);
        memset(next, 0, (size_t)d->dim * sizeof *next);
        for (uint32_t i = 0; i < d->n; i++) {
            const float *row = d->rows + (size_t)i * (size_t)d->dim;
            float along = dot(row, axis, d->dim);
            for (int32_t k = 0; k < d->dim; k++)
                next[k] += along * row[k];
        }
        memcpy(axis, next, (size_t)d->dim * sizeof *axis);
    }
    norm(axis, d->dim);
}

static status read_rows(arena *a, engine *e, int model, const engine_model_info *m, drawing *d) {
    d->dim = m->dim;
    d->stride = (uint32_t)((m->n_items + ITEM_MAP_MAX - 1) / ITEM_MAP_MAX);
    if (d->stride == 0) d->stride = 1;
    d->n = (uint32_t)(m->n_items / d->stride);
    TRY(ARENA_NEW(a, &d->rows, (size_t)d->n * (size_t)d->dim));
    TRY(ARENA_NEW(a, &d->mean, (size_t)d->dim));
    TRY(ARENA_NEW(a, &d->axis, 3 * (size_t)d->dim));
    for (uint32_t i = 0; i < d->n; i++)
        TRY(engine_item_rows(e, model, 1 + i * d->stride, 1, d->rows + (size_t)i * (size_t)d->dim));
    centre(d);
    find_axis(d, d->axis, NULL, d->axis + 2 * d->dim);
    find_axis(d, d->axis + d->dim, d->axis, d->axis + 2 * d->dim);
    return OK;
}

static void write_floats(json_writer *w, const char *key, const float *value, int32_t n) {
    json_key(w, key);
    json_array_open(w);
    for (int32_t i = 0; i < n; i++)
        json_float(w, value[i]);
    json_array_close(w);
}

/* Three digits are more than a screen shows. */
static void write_coordinate(json_writer *w, float x) {
    json_double(w, round((double)x * 1000) / 1000);
}

static status write_map(engine *e, int model, const engine_model_info *m, const drawing *d,
                        buf *out) {
    json_writer w;
    json_begin(&w, out, 0);
    json_object_open(&w);
    json_key_string(&w, "model", m->name);
    json_key_string(&w, "version", m->version);
    json_key_int(&w, "of", (int64_t)m->n_items);
    write_floats(&w, "mean", d->mean, d->dim);
    write_floats(&w, "x_axis", d->axis, d->dim);
    write_floats(&w, "y_axis", d->axis + d->dim, d->dim);
    json_key(&w, "items");
    json_array_open(&w);
    for (uint32_t i = 0; i < d->n; i++) {
        const float *row = d->rows + (size_t)i * (size_t)d->dim;
        engine_item item;
        if (engine_item_of(e, model, 1 + i * d->stride, &item) != OK) break;
        json_array_open(&w);
        write_id(&w, &item.id);
        write_coordinate(&w, dot(row, d->axis, d->dim));
        write_coordinate(&w, dot(row, d->axis + d->dim, d->dim));
        if (item.title != NULL) json_string_n(&w, item.title, item.title_bytes);
        json_array_close(&w);
    }
    json_array_close(&w);
    json_object_close(&w);
    return json_finish(&w);
}

static status draw(engine *e, int model, buf *out) {
    engine_model_info m;
    drawing d = {0};
    arena memory;
    arena_init(&memory, 1 << 20);
    status st = engine_model(e, model, &m);
    if (st == OK) st = read_rows(&memory, e, model, &m, &d);
    if (st == OK) st = write_map(e, model, &m, &d, out);
    arena_fini(&memory);
    return st;
}

static void map_free(item_map *m) {
    if (m == NULL) return;
    mem_free(m->text);
    mem_free(m);
}

void item_maps_free(server *s) {
    for (int i = 0; i < ENGINE_MAX_MODELS; i++)
        map_free(s->map[i]);
}

/* The map of the present version into `out`; under the lock of maps. */
static status find_map(server *s, int model, buf *out) {
    engine_model_info info;
    TRY(engine_model(s->engine, model, &info));
    item_map *m = s->map[model];
    if (m != NULL && strcmp(m->version, info.version) == 0)
        return buf_append(out, m->text, m->n_bytes);
    TRY(draw(s->engine, model, out));
    map_free(m);
    s->map[model] = NULL;
    TRY(MEM_NEW(&m, 1));
    status st = MEM_NEW_RAW(&m->text, out->n_bytes);
    if (st != OK) {
        map_free(m);
        return st;
    }
    memcpy(m->text, out->data, out->n_bytes);
    m->n_bytes = out->n_bytes;
    memcpy(m->version, info.version, sizeof m->version);
    s->map[model] = m;
    return OK;
}

static void send_map(void *context) {
    call *c = context;
    const char *name = http_query(c->x, "model");
    int model = engine_find_model(c->s->engine, name);
    buf body;
    buf_init(&body);
    if (model < 0) {
        call_fail(c, 404, "there is no model '%.64s'", name);
        return;
    }
    pthread_mutex_lock(&c->s->reload_lock); /* names are valid while no model is replaced */
    pthread_mutex_lock(&c->s->map_lock);
    status st = find_map(c->s, model, &body);
    pthread_mutex_unlock(&c->s->map_lock);
    pthread_mutex_unlock(&c->s->reload_lock);
    st == OK ? call_reply_json(c, 200, &body) : call_fail_status(c, st);
    buf_fini(&body);
}

void serve_map(call *c) {
    call_later(c, send_map);
}
