#include "tune/cost_model.h"

#include <dlfcn.h>

#include "base/machine.h"
#include "format/json.h"

enum { N_FEATURES = 15, FOLDS = 5, ROUNDS = 200, MAX_MODEL = 256 << 20 };

typedef void *handle;

/* The functions used, as in xgboost/c_api.h; each returns 0 or sets XGBGetLastError. */
#define FUNCTIONS(X)                                                                               \
    X(int, XGDMatrixCreateFromMat,                                                                 \
      (const float *data, uint64_t rows, uint64_t columns, float missing, handle *out))            \
    X(int, XGDMatrixSetFloatInfo,                                                                  \
      (handle matrix, const char *field, const float *data, uint64_t n))                           \
    X(int, XGDMatrixFree, (handle matrix))                                                         \
    X(int, XGBoosterCreate, (const handle *matrices, uint64_t n, handle *out))                     \
    X(int, XGBoosterFree, (handle booster))                                                        \
    X(int, XGBoosterSetParam, (handle booster, const char *name, const char *value))               \
    X(int, XGBoosterUpdateOneIter, (handle booster, int round, handle matrix))                     \
    X(int, XGBoosterPredict,                                                                       \
      (handle booster, handle matrix, int mask, unsigned trees, int trains, uint64_t *n,           \
       const float **out))                                                                         \
    X(int, XGBoosterSaveModelToBuffer,                                                             \
      (handle booster, const char *config, uint64_t *n, const char **out))                         \
    X(int, XGBoosterLoadModelFromBuffer, (handle booster, const void *bytes, uint64_t n))          \
    X(void, XGBoostVersion, (int *major, int *minor, int *patch))                                  \
    X(const char *, XGBGetLastError, (void))

#define AS_MEMBER(type, name, arguments) type(*name) arguments;
static struct {
    FUNCTIONS(AS_MEMBER)
    void *library; /* NULL until all of the above are found; never closed */
} xgb;

struct cost_model {
    handle booster;
    double median;
};

static void *open_library(void) {
    const char *own = env_xgboost();
    if (own != NULL) return dlopen(own, RTLD_NOW | RTLD_LOCAL);
    return library_find("libxgboost.so", "xgboost/lib/libxgboost.so");
}

#define LOOK_UP(type, name, arguments)                                                             \
    if ((*(void **)&xgb.name = dlsym(library, #name)) == NULL) missing = #name;

static status load(void) {
    const char *missing = NULL;
    if (xgb.library != NULL) return OK;
    void *library = open_library();
    if (library == NULL)
        return fail(ERR_UNSUPPORTED, "XGBoost is required, but libxgboost.so was not found: "
                                     "'apt-get install libxgboost-dev', "
                                     "'pip install xgboost', or set HSTU_XGBOOST to its path");
    FUNCTIONS(LOOK_UP)
    if (missing == NULL) {
        xgb.library = library;
        return OK;
    }
    dlclose(library);
    return fail(ERR_UNSUPPORTED, "libxgboost.so has no %s; version 1.6 or newer is needed",
                missing);
}

bool cost_model_version(char *text, size_t n) {
    int major, minor, patch;
    if (load() != OK) return false;
    xgb.XGBoostVersion(&major, &minor, &patch);
    snprintf(text, n, "%d.%d.%d", major, minor, patch);
    return true;
}

static status check(int result) {
    return result == 0 ? OK : fail(ERR_FORMAT, "XGBoost: %.600s", xgb.XGBGetLastError());
}

/* Bit 0, then whether each operator begins a kernel of another label than the one before it. */
static void write_features(uint16_t value, float *out) {
    unsigned cuts = value ^ value >> 1;
    out[0] = (float)(value >> 15);
    for (int i = 0; i < N_FEATURES - 1; i++)
        out[i + 1] = (float)(cuts >> i & 1);
}

static status make_matrix(const plan_time *plans, size_t n, handle *out) {
    float *features;
    *out = NULL;
    TRY(MEM_NEW_RAW(&features, n * N_FEATURES));
    for (size_t i = 0; i < n; i++)
        write_features(plans[i].value, features + i * N_FEATURES);
    status st = check(xgb.XGDMatrixCreateFromMat(features, n, N_FEATURES, NAN, out));
    mem_free(features);
    return st;
}

/* Shallow trees and many rounds: 128 plans are enough to rank the rest. */
static status set_params(handle booster, uint64_t seed) {
    char text[24];
    static const char *const params[][2] = {
        {"objective", "reg:squarederror"}, {"max_depth", "4"}, {"eta", "0.1"},
        {"min_child_weight", "1"},         {"nthread", "1"},   {"verbosity", "0"},
        {"tree_method", "exact"}};
    for (size_t i = 0; i < sizeof params / sizeof params[0]; i++)
        TRY(check(xgb.XGBoosterSetParam(booster, params[i][0], params[i][1])));
    snprintf(text, sizeof text, "%u", (unsigned)seed & 0x7fffffff);
    return check(xgb.XGBoosterSetParam(booster, "seed", text));
}

static status train(cost_model *m, handle matrix, const float *labels, size_t n, uint64_t seed) {
    TRY(check(xgb.XGDMatrixSetFloatInfo(matrix, "label", labels, n)));
    TRY(check(xgb.XGBoosterCreate(&matrix, 1, &m->booster)));
    TRY(set_params(m->booster, seed));
    for (int round = 0; round < ROUNDS; round++)
        TRY(check(xgb.XGBoosterUpdateOneIter(m->booster, round, matrix)));
    return OK;
}

/* The mean of the two in the middle of n sorted times. */
static double median_of(const plan_time *sorted, size_t n) {
    return (sorted[(n - 1) / 2].ms + sorted[n / 2].ms) / 2;
}

status cost_model_fit(cost_model **out, const plan_time *plans, size_t n, uint64_t seed) {
    cost_model *m = NULL;
    plan_time *sorted = NULL;
    float *labels = NULL;
    handle matrix = NULL;
    *out = NULL;
    TRY(load());
    status st = MEM_NEW(&m, 1);
    if (st == OK) st = MEM_NEW(&labels, n);
    if (st == OK) st = MEM_NEW(&sorted, n);
    if (st == OK) {
        for (size_t i = 0; i < n; i++)
            labels[i] = (float)plans[i].ms;
        memcpy(sorted, plans, n * sizeof *plans);
        qsort(sorted, n, sizeof *sorted, plan_time_by_ms);
        m->median = median_of(sorted, n);
        st = make_matrix(plans, n, &matrix);
    }
    if (st == OK) st = train(m, matrix, labels, n, seed);
    if (matrix != NULL) (void)xgb.XGDMatrixFree(matrix);
    MEM_FREE(labels, sorted);
    return CREATED(st, out, m, cost_model_destroy);
}

void cost_model_destroy(cost_model *m) {
    if (m == NULL) return;
    if (m->booster != NULL) (void)xgb.XGBoosterFree(m->booster);
    mem_free(m);
}

double cost_model_median(const cost_model *m) {
    return m->median;
}

status cost_model_predict(const cost_model *m, plan_time *plans, size_t n) {
    handle matrix;
    uint64_t n_out = 0;
    const float *out = NULL;
    if (n == 0) return OK;
    TRY(make_matrix(plans, n, &matrix));
    status st = check(xgb.XGBoosterPredict(m->booster, matrix, 0, 0, 0, &n_out, &out));
    if (st == OK && n_out != n)
        st = fail(ERR_FORMAT, "not a model of plans: it predicts %zu values for %zu plans",
                  (size_t)n_out, n);
    for (size_t i = 0; i < n && st == OK; i++)
        plans[i].ms = out[i];
    (void)xgb.XGDMatrixFree(matrix);
    return st;
}

/* Plans of the other folds train; those of this one are predicted.  `order` is a shuffle. */
static status validate_fold(const plan_time *plans, const size_t *order, size_t n, int fold,
                            uint64_t seed, double *guess) {
    plan_time *rest;
    cost_model *m = NULL;
    size_t n_rest = 0;
    TRY(MEM_NEW(&rest, n));
    for (size_t i = 0; i < n; i++)
        if (i % FOLDS != (size_t)fold) rest[n_rest++] = plans[order[i]];
    status st = cost_model_fit(&m, rest, n_rest, seed);
    for (size_t i = (size_t)fold; i < n && st == OK; i += FOLDS) {
        plan_time one = plans[order[i]];
        st = cost_model_predict(m, &one, 1);
        guess[order[i]] = one.ms;
    }
    cost_model_destroy(m);
    mem_free(rest);
    return st;
}

static void shuffle(size_t *order, size_t n, uint64_t seed) {
    rng_key key = rng_make_key(seed, RNG_SHUFFLE);
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n; i > 1; i--) {
        size_t k = rng_below(rng_draw64(key, i, 0).word[0], (uint32_t)i), old = order[i - 1];
        order[i - 1] = order[k];
        order[k] = old;
    }
}

double explained_variance(const double *x, const double *y, size_t n) {
    double mean = 0, total = 0, left = 0;
    for (size_t i = 0; i < n; i++)
        mean += y[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        total += (y[i] - mean) * (y[i] - mean);
        left += (y[i] - x[i]) * (y[i] - x[i]);
    }
    return total > 0 ? 1 - left / total : NAN;
}

typedef struct ordered {
    double value;
    size_t at;
} ordered;

static int by_value(const void *a, const void *b) {
    double x = ((const ordered *)a)->value, y = ((const ordered *)b)->value;
    return (x > y) - (x < y);
}

/* Where each x[i] stands in order, from 0; equal values share the mean of their positions. */
static status find_positions(const double *x, size_t n, double *position) {
    ordered *r;
    TRY(MEM_NEW(&r, n));
    for (size_t i = 0; i < n; i++)
        r[i] = (ordered){.value = x[i], .at = i};
    qsort(r, n, sizeof *r, by_value);
    for (size_t first = 0, last; first < n; first = last) {
        for (last = first + 1; last < n && r[last].value == r[first].value;)
            last++;
        for (size_t i = first; i < last; i++)
            position[r[i].at] = (double)(first + last - 1) / 2;
    }
    mem_free(r);
    return OK;
}

static double correlation(const double *x, const double *y, size_t n) {
    double mx = 0, my = 0, xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        mx += x[i] / (double)n;
        my += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
        xy += (x[i] - mx) * (y[i] - my);
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

status rank_correlation(const double *x, const double *y, size_t n, double *out) {
    double *position;
    *out = NAN;
    TRY(MEM_NEW(&position, 2 * n));
    status st = find_positions(x, n, position);
    if (st == OK) st = find_positions(y, n, position + n);
    if (st == OK) *out = correlation(position, position + n, n);
    mem_free(position);
    return st;
}

static status judge(const plan_time *plans, const double *guess, double *ms, size_t n,
                    cost_quality *out) {
    for (size_t i = 0; i < n; i++) {
        ms[i] = plans[i].ms;
        out->mae += fabs(guess[i] - ms[i]) / (double)n;
        out->rmse += (guess[i] - ms[i]) * (guess[i] - ms[i]) / (double)n;
    }
    out->rmse = sqrt(out->rmse);
    return rank_correlation(guess, ms, n, &out->spearman);
}

status cost_model_validate(const plan_time *plans, size_t n, uint64_t seed, cost_quality *out) {
    size_t *order = NULL;
    double *guess = NULL;
    *out = (cost_quality){0};
    TRY(load());
    status st = MEM_NEW(&order, n);
    if (st == OK) st = MEM_NEW(&guess, 2 * n);
    if (st == OK) shuffle(order, n, seed);
    for (int fold = 0; fold < FOLDS && st == OK; fold++)
        st = validate_fold(plans, order, n, fold, seed, guess);
    if (st == OK) st = judge(plans, guess, guess + n, n, out);
    MEM_FREE(order, guess);
    return st;
}

status cost_model_save(const cost_model *m, const char *path) {
    const char *model = NULL;
    uint64_t n = 0;
    buf text = {0};
    json_writer w;
    TRY(check(xgb.XGBoosterSaveModelToBuffer(m->booster, "{\"format\": \"json\"}", &n, &model)));
    json_begin_object(&w, &text, 2);
    JSON_FIELDS(&w, FIELD("kind", "hstu plan cost model"), FIELD("version", 1),
                FIELD("median", m->median));
    json_key(&w, "xgboost");
    json_string_n(&w, model, (size_t)n);
    status st = json_finish_sealed(&w);
    if (st == OK) st = buf_text(&text, "\n");
    return file_save(NULL, path, &text, st);
}

static status read_model(cost_model *m, arena *memory, const char *path, const char *text,
                         size_t n) {
    const json_value *root, *model;
    const char *kind;
    int64_t version;
    if (!json_is_sealed(text, n))
        return fail(ERR_FORMAT, "%s: not a model written by 'hstu tune fit', or modified since",
                    path);
    TRY(json_parse(memory, path, text, n, &root));
    TRY(json_member_string(root, "kind", &kind));
    TRY(json_member_int(root, "version", &version));
    TRY(json_member_double(root, "median", &m->median));
    model = json_member(root, "xgboost");
    if (strcmp(kind, "hstu plan cost model") != 0 || version != 1 || model == NULL ||
        model->type != JSON_STRING)
        return fail(ERR_FORMAT, "%s: not a model written by this version of 'hstu tune fit'", path);
    TRY(check(xgb.XGBoosterCreate(NULL, 0, &m->booster)));
    return check(xgb.XGBoosterLoadModelFromBuffer(m->booster, model->string, model->string_bytes));
}

status cost_model_load(cost_model **out, const char *path) {
    cost_model *m = NULL;
    arena memory;
    char *text;
    size_t n;
    *out = NULL;
    TRY(load());
    TRY(file_read_all(path, MAX_MODEL, &text, &n));
    arena_init(&memory, 1 << 16);
    status st = MEM_NEW(&m, 1);
    if (st == OK) st = read_model(m, &memory, path, text, n);
    arena_fini(&memory);
    mem_free(text);
    return CREATED(st, out, m, cost_model_destroy);
}
