#include "encode/encoder_io.h"

#include "format/input.h"
#include "format/json.h"
#include "format/safetensors.h"

enum { LINE_MAX_BYTES = 64 << 20 };

struct encoder_input {
    const char *path; /* the caller's */
    const tokenizer *words;
    int64_t max_len;
    bool is_cut, has_told;

    /* JSON lines */
    input_lines lines;
    encoder_line line;

    /* safetensors */
    st_file *file;
    const st_tensor *lengths, *ids, *types;
    int64_t sequence, token;
};

void encoder_line_fini(encoder_line *l) {
    MEM_FREE(l->ids, l->types);
    *l = (encoder_line){0};
}

static status reserve(encoder_line *l, size_t n) {
    TRY(MEM_RESERVE(&l->ids, &l->ids_capacity, n));
    return MEM_RESERVE(&l->types, &l->types_capacity, n);
}

static status read_int(const json_value *v, const char *name, size_t place, int32_t *out) {
    if (!v->is_integer || v->integer < INT32_MIN || v->integer > INT32_MAX)
        return fail(ERR_FORMAT, "%s: token %zu is not an integer of 32 bits", name, place);
    *out = (int32_t)v->integer;
    return OK;
}

static status read_ids(encoder_line *l, const json_value *ids, const json_value *types) {
    if (ids->type != JSON_ARRAY) return fail(ERR_FORMAT, "ids is not a list");
    if (types != NULL && (types->type != JSON_ARRAY || types->n_children != ids->n_children))
        return fail(ERR_FORMAT, "types is not a list as long as ids");
    TRY(reserve(l, ids->n_children));
    size_t i = 0;
    for (const json_value *v = ids->first; v != NULL; v = v->next, i++)
        TRY(read_int(v, "ids", i, &l->ids[i]));
    i = 0;
    for (const json_value *v = types != NULL ? types->first : NULL; v != NULL; v = v->next, i++)
        TRY(read_int(v, "types", i, &l->types[i]));
    l->n = ids->n_children;
    l->has_types = types != NULL;
    return OK;
}

/* The lengths to which two texts are cut for `room` tokens in all: the longer one first, then both
 * to half of it. */
static void cut_lengths(size_t *a, size_t *b, size_t room) {
    size_t *shorter = *a > *b ? b : a, *longer = *a > *b ? a : b;
    if (*a + *b <= room) return;
    if (2 * *shorter <= room) {
        *longer = room - *shorter;
    } else {
        *shorter = room / 2;
        *longer = room / 2 + room % 2;
    }
}

/* The tokens of one text or two, cut where they are too many, in the tokenizer's layout. */
static status lay_out(encoder_line *l, const token_layout *layout, const word_ids text[2],
                      bool is_cut, size_t max_len) {
    size_t n[2] = {text[0].n, text[1].n}, n_special = 0;
    for (size_t i = 0; i < layout->n; i++)
        n_special += layout->slot[i].id >= 0;
    if (is_cut && n_special <= max_len) cut_lengths(&n[0], &n[1], max_len - n_special);
    TRY(reserve(l, n_special + n[0] + n[1]));
    for (size_t i = 0; i < layout->n; i++) {
        const token_slot *slot = &layout->slot[i];
        size_t count = slot->id >= 0 ? 1 : n[SLOT_FIRST - slot->id];
        for (size_t k = 0; k < count; k++, l->n++) {
            l->ids[l->n] = slot->id >= 0 ? slot->id : text[SLOT_FIRST - slot->id].ids[k];
            l->types[l->n] = slot->type;
        }
    }
    return OK;
}

static status read_text(encoder_line *l, const json_value *text, const json_value *pair,
                        const tokenizer *words, int64_t max_len, bool is_cut) {
    word_ids ids[2] = {{0}, {0}};
    if (text->type != JSON_STRING || (pair != NULL && pair->type != JSON_STRING))
        return fail(ERR_FORMAT, "text and pair must be strings");
    if (words == NULL)
        return fail(ERR_FORMAT, "text needs a tokenizer, and the folder has neither vocab.txt nor "
                                "tokenizer.json; give ids");
    status st = tokenizer_split(words, text->string, text->string_bytes, &ids[0]);
    if (st == OK && pair != NULL)
        st = tokenizer_split(words, pair->string, pair->string_bytes, &ids[1]);
    if (st == OK)
        st = lay_out(l, tokenizer_layout(words, pair != NULL), ids, is_cut, (size_t)max_len);
    MEM_FREE(ids[0].ids, ids[1].ids);
    if (st != OK) return st;
    l->has_types = pair != NULL;
    if ((int64_t)l->n > max_len)
        return fail(ERR_FORMAT,
                    "the text has %zu tokens, and the model has positions for %" PRId64
                    "; --truncate cuts it",
                    l->n, max_len);
    return OK;
}

static bool is_known(const char *key) {
    return strcmp(key, "ids") == 0 || strcmp(key, "types") == 0 || strcmp(key, "text") == 0 ||
           strcmp(key, "pair") == 0;
}

static status parse_line(encoder_line *l, arena *a, const char *text, size_t n,
                         const tokenizer *words, int64_t max_len, bool is_cut) {
    const json_value *root;
    TRY(json_parse(a, "JSON", text, n, &root));
    if (root->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "is not a JSON object such as {\"ids\": [101, 102]}");
    for (const json_value *v = root->first; v != NULL; v = v->next)
        if (!is_known(v->key)) snprintf(l->unknown, sizeof l->unknown, "%s", v->key);
    const json_value *ids = json_member(root, "ids"), *text_of = json_member(root, "text");
    if ((ids != NULL) == (text_of != NULL))
        return fail(ERR_FORMAT, "needs either \"ids\" or \"text\"");
    const json_value *types = json_member(root, "types"), *pair = json_member(root, "pair");
    if (ids != NULL ? pair != NULL : types != NULL)
        return fail(ERR_FORMAT, "\"types\" belongs to \"ids\" and \"pair\" to \"text\"");
    if (ids != NULL) return read_ids(l, ids, types);
    return read_text(l, text_of, pair, words, max_len, is_cut);
}

status encoder_line_parse(encoder_line *l, const char *text, size_t n, const tokenizer *words,
                          int64_t max_len, bool is_cut) {
    arena a;
    l->n = 0;
    l->has_types = false;
    l->unknown[0] = '\0';
    arena_init(&a, 1 << 14);
    status st = parse_line(l, &a, text, n, words, max_len, is_cut);
    arena_fini(&a);
    if (st != OK) l->n = 0;
    return st;
}

static status check_ints(const encoder_input *in, const st_tensor *t, const char *name) {
    if (t == NULL)
        return fail(ERR_FORMAT, "%s: has no tensor %s; lengths (B) and ids (T) are needed",
                    in->path, name);
    if ((t->dtype == ST_I64 || t->dtype == ST_I32) && t->n_dims == 1) return OK;
    return fail(ERR_FORMAT, "%s: %s is not a list of int32 or int64", in->path, name);
}

static status open_tensors(encoder_input *in) {
    int64_t total = 0;
    TRY(st_open(&in->file, in->path));
    in->lengths = st_find(in->file, "lengths");
    in->ids = st_find(in->file, "ids");
    in->types = st_find(in->file, "types");
    TRY(check_ints(in, in->lengths, "lengths"));
    TRY(check_ints(in, in->ids, "ids"));
    if (in->types != NULL) TRY(check_ints(in, in->types, "types"));
    for (int64_t b = 0; b < in->lengths->n; b++) {
        int64_t n = st_int_at(in->lengths, b);
        if (n < 0 || n > in->ids->n - total)
            return fail(ERR_FORMAT,
                        "%s: lengths[%" PRId64 "] is %" PRId64 ", and ids has %" PRId64 " numbers",
                        in->path, b, n, in->ids->n);
        total += n;
    }
    if (total != in->ids->n || (in->types != NULL && in->types->n != total))
        return fail(ERR_FORMAT,
                    "%s: the lengths sum to %" PRId64 ", and ids%s must have as many numbers",
                    in->path, total, in->types != NULL ? " and types" : "");
    return OK;
}

status encoder_input_open(encoder_input **out, const char *path, const tokenizer *words,
                          int64_t max_len, bool is_cut) {
    encoder_input *in = NULL;
    *out = NULL;
    TRY(MEM_NEW(&in, 1));
    *in = (encoder_input){.path = path, .words = words, .max_len = max_len, .is_cut = is_cut};
    bool has_tensors = text_ends_with(path, ".safetensors");
    status st = has_tensors ? open_tensors(in) : input_lines_open(&in->lines, path);
    return CREATED(st, out, in, encoder_input_close);
}

void encoder_input_close(encoder_input *in) {
    if (in == NULL) return;
    input_lines_close(&in->lines);
    st_close(in->file);
    encoder_line_fini(&in->line);
    mem_free(in);
}

static bool is_blank(const buf *text) {
    for (size_t i = 0; i < text->n_bytes; i++)
        if (strchr(" \t\r", text->data[i]) == NULL || text->data[i] == '\0') return false;
    return true;
}

static status next_json(encoder_input *in, encoder_sequence *out, bool *is_end) {
    encoder_line *l = &in->line;
    do {
        TRY(input_lines_next(&in->lines, LINE_MAX_BYTES, is_end));
        if (*is_end) return OK;
    } while (is_blank(&in->lines.line));
    const buf *text = &in->lines.line;
    TRY(encoder_input_blame(in, encoder_line_parse(l, buf_str(text), text->n_bytes, in->words,
                                                   in->max_len, in->is_cut)));
    if (l->unknown[0] != '\0' && !in->has_told) {
        log_info("%s: \"%s\" is ignored; known members are \"ids\" and \"types\", or \"text\" "
                 "and \"pair\"",
                 in->path, l->unknown);
        in->has_told = true;
    }
    *out = (encoder_sequence){l->ids, l->has_types ? l->types : NULL, (int64_t)l->n};
    return OK;
}

static status next_tensor(encoder_input *in, encoder_sequence *out, bool *is_end) {
    encoder_line *l = &in->line;
    *is_end = in->sequence == in->lengths->n;
    if (*is_end) return OK;
    int64_t n = st_int_at(in->lengths, in->sequence++);
    TRY(reserve(l, (size_t)n));
    for (int64_t i = 0; i < n; i++, in->token++) {
        int64_t id = st_int_at(in->ids, in->token);
        int64_t type = in->types != NULL ? st_int_at(in->types, in->token) : 0;
        if (id < INT32_MIN || id > INT32_MAX || type < INT32_MIN || type > INT32_MAX)
            return encoder_input_blame(
                in, fail(ERR_FORMAT, "token %" PRId64 " has a number beyond 32 bits", i));
        l->ids[i] = (int32_t)id;
        l->types[i] = (int32_t)type;
    }
    *out = (encoder_sequence){l->ids, l->types, n};
    return OK;
}

status encoder_input_next(encoder_input *in, encoder_sequence *out, bool *is_end) {
    return in->file != NULL ? next_tensor(in, out, is_end) : next_json(in, out, is_end);
}

status encoder_input_blame(const encoder_input *in, status st) {
    if (st == OK) return OK;
    if (in->file != NULL)
        return fail_prefix(st, "%s: sequence %" PRId64, in->path, in->sequence - 1);
    return fail_prefix(st, "%s: line %" PRIu64, in->path, in->lines.n);
}

void encoder_input_progress(const encoder_input *in, uint64_t *done, uint64_t *total) {
    *done = (uint64_t)in->sequence;
    if (in->file != NULL)
        *total = (uint64_t)in->lengths->n;
    else
        input_progress(in->lines.in, done, total);
}

const char *encoder_input_unit(const encoder_input *in) {
    return in->file != NULL ? "sequences" : "B";
}

enum { PIECE_BYTES = 1 << 20, PATH_BYTES = 4096 };

struct encoder_output {
    out_file *file;
    out_file *second; /* beside it, until the first tensor is complete; or NULL */
    encoder_rows rows[2];
    const char *labels;
    int64_t *offsets; /* (n + 1) */
    size_t n, capacity;
};

status encoder_output_create(encoder_output **out, const char *path, const encoder_rows rows[2],
                             const char *labels) {
    encoder_output *o = NULL;
    char beside[PATH_BYTES];
    *out = NULL;
    TRY(MEM_NEW(&o, 1));
    *o = (encoder_output){.rows = {rows[0], rows[1]}, .labels = labels};
    status st = OK;
    if (snprintf(beside, sizeof beside, "%s.second", path) >= (int)sizeof beside)
        st = fail(ERR_USAGE, "--out: the path is too long");
    if (st == OK) st = MEM_RESERVE(&o->offsets, &o->capacity, 1);
    if (st == OK) o->offsets[0] = 0;
    if (st == OK) st = st_begin_late(&o->file, path);
    if (st == OK && rows[1].name != NULL) st = out_file_create(&o->second, beside);
    if (st == OK)
        *out = o;
    else
        st = encoder_output_close(o, st);
    return st;
}

/* Floats of a tensor for so many sequences and tokens. */
static int64_t n_floats(const encoder_rows *r, int64_t n, int64_t n_tokens) {
    return r->name != NULL ? (r->is_of_tokens ? n_tokens : n) * r->dim : 0;
}

status encoder_output_add(encoder_output *o, int32_t n, const int32_t *offsets, const float *first,
                          const float *second) {
    TRY(MEM_RESERVE(&o->offsets, &o->capacity, o->n + (size_t)n + 1));
    for (int32_t b = 0; b < n; b++, o->n++)
        o->offsets[o->n + 1] = o->offsets[o->n] + offsets[b + 1] - offsets[b];
    size_t bytes = (size_t)n_floats(&o->rows[0], n, offsets[n]) * sizeof *first;
    TRY(out_file_write(o->file, first, bytes));
    if (o->second == NULL) return OK;
    bytes = (size_t)n_floats(&o->rows[1], n, offsets[n]) * sizeof *second;
    return out_file_write(o->second, second, bytes);
}

/* Appends the second tensor of n bytes, which was written beside. */
static status append_second(encoder_output *o, uint64_t n) {
    char *piece;
    status st = MEM_NEW_RAW(&piece, PIECE_BYTES);
    for (uint64_t at = 0; st == OK && at < n; at += PIECE_BYTES) {
        size_t bytes = n - at < PIECE_BYTES ? (size_t)(n - at) : PIECE_BYTES;
        st = out_file_read_at(o->second, at, piece, bytes);
        if (st == OK) st = out_file_write(o->file, piece, bytes);
    }
    mem_free(piece);
    return st;
}

/* Offsets are int64 and last, so they must begin at a multiple of 8 bytes: an odd number of floats
 * before them is made even by a tensor of one float. */
static status write_end(encoder_output *o) {
    int64_t n = (int64_t)o->n, total = 0;
    const float nothing = 0;
    st_tensor t[4];
    size_t n_tensors = 0;
    for (int i = 0; i < 2; i++) {
        const encoder_rows *r = &o->rows[i];
        int64_t count = n_floats(r, n, o->offsets[n]);
        if (r->name != NULL)
            t[n_tensors++] = (st_tensor){.name = r->name,
                                         .dtype = ST_F32,
                                         .n_dims = 2,
                                         .shape = {count / r->dim, r->dim},
                                         .n = count};
        if (i == 1) TRY(append_second(o, (uint64_t)count * sizeof(float)));
        total += count;
    }
    if (total % 2 != 0) {
        t[n_tensors++] =
            (st_tensor){.name = "padding", .dtype = ST_F32, .n_dims = 1, .shape = {1}, .n = 1};
        TRY(out_file_write(o->file, &nothing, sizeof nothing));
    }
    t[n_tensors++] =
        (st_tensor){.name = "offsets", .dtype = ST_I64, .n_dims = 1, .shape = {n + 1}, .n = n + 1};
    TRY(out_file_write(o->file, o->offsets, (o->n + 1) * sizeof *o->offsets));
    const st_pair pairs[] = {{"made_by", "hstu encode"}, {"labels", o->labels}};
    return st_end_late(o->file, t, n_tensors, pairs, o->labels != NULL ? 2 : 1);
}

status encoder_output_close(encoder_output *o, status st) {
    if (o == NULL) return st;
    if (st == OK) st = write_end(o);
    out_file_abandon(o->second);
    st = out_file_end(o->file, st);
    MEM_FREE(o->offsets, o);
    return st;
}

static void put_vector(json_writer *w, const float *x, int32_t dim) {
    json_array_open(w);
    for (int32_t c = 0; c < dim; c++)
        json_float(w, x[c]);
    json_array_close(w);
}

status encoder_output_line(buf *to, int32_t n, int32_t dim, const float *hidden,
                           const float *pooled) {
    json_writer w;
    json_begin_object(&w, to, 0);
    json_key_array(&w, "hidden");
    for (int64_t i = 0; i < n; i++)
        put_vector(&w, hidden + i * dim, dim);
    json_array_close(&w);
    if (pooled != NULL) {
        json_key(&w, "pooled");
        put_vector(&w, pooled, dim);
    }
    TRY(json_finish_object(&w));
    return buf_char(to, '\n');
}
