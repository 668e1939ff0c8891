#include "encode/subwords.h"

#include "base/map.h"

/* A word of a hostile text; places in it are int32_t. */
enum { MAX_WORD_BYTES = 1 << 28, JSON_MAX_BYTES = 64 << 20 };
enum { MAX_WORD_CHARS = 100 }; /* of WordPiece */

typedef struct merge {
    uint32_t rank;
    int32_t id; /* of the merged piece */
} merge;

struct subwords {
    enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_PIECES } kind;
    bool fuses_unknown;
    text_map pieces;
    int32_t *id;     /* (pieces.n) */
    int32_t unknown; /* id; -1: characters without a piece are left out */
    uint32_t n;
    size_t longest; /* WordPiece: bytes of a piece */

    /* BPE */
    map pairs;    /* of ids: first << 32 | second */
    merge *merge; /* (pairs.n) */

    /* Unigram: a trie, whose node k + 1 is number k of the map; node 0 is the root */
    map trie;      /* parent << 8 | byte */
    int32_t *leaf; /* (trie.n): id or -1 */
    size_t leaf_capacity;
    double *score; /* (n), by id */
    double unknown_score;
};

uint32_t subwords_n(const subwords *s) {
    return s->n;
}

int32_t subwords_find(const subwords *s, const char *text, size_t n) {
    uint32_t number = text_map_find(&s->pieces, text, n);
    return number != TEXT_MAP_NONE ? s->id[number] : -1;
}

status subwords_damaged(const char *path, const char *what) {
    return fail(ERR_FORMAT, "%s: %s is missing or damaged", path, what);
}

const json_value *subwords_member(const json_value *v, const char *name, json_type type) {
    const json_value *m = v != NULL && v->type == JSON_OBJECT ? json_member(v, name) : NULL;
    return m != NULL && m->type == type ? m : NULL;
}

const char *subwords_text(const json_value *v, const char *name) {
    const json_value *m = subwords_member(v, name, JSON_STRING);
    return m != NULL ? m->string : "";
}

bool subwords_bool(const json_value *v, const char *name, bool otherwise) {
    const json_value *m = subwords_member(v, name, JSON_BOOL);
    return m != NULL ? m->boolean : otherwise;
}

const char *subwords_among(const char *names, const char *name) {
    size_t n = strlen(name);
    const char *at = n > 0 && strchr(name, ' ') == NULL ? strstr(names, name) : NULL;
    while (at != NULL &&
           !((at == names || strchr(" ?", at[-1]) != NULL) && (at[n] == ' ' || at[n] == '\0')))
        at = strstr(at + 1, name);
    return at;
}

status subwords_read(arena *a, const char *folder, const char *name, json_type type,
                     char path[FOLDER_PATH_BYTES], const json_value **out) {
    *out = NULL;
    TRY(path_join(path, FOLDER_PATH_BYTES, folder, name));
    if (!file_exists(path)) return OK;
    TRY(json_read_file(a, path, JSON_MAX_BYTES, out));
    return (*out)->type == type ? OK : subwords_damaged(path, "its content");
}

status subwords_allow(const char *path, const json_value *v, const char *names) {
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        const char *at = subwords_among(names, m->key);
        if (at == NULL)
            return fail(ERR_UNSUPPORTED, "%s: the field '%.60s' of %.40s is not supported", path,
                        m->key, v->key != NULL ? v->key : "an object");
        if (at > names && at[-1] == '?' && m->type != JSON_BOOL && m->type != JSON_NULL)
            return fail(ERR_FORMAT, "%s: %s is not true or false", path, m->key);
    }
    return OK;
}

static status reserve_pieces(subwords *s, size_t n, size_t n_bytes) {
    if (n >= INT32_MAX) return fail(ERR_FORMAT, "a vocabulary of %zu pieces is too large", n);
    s->n = (uint32_t)n;
    TRY(text_map_reserve(&s->pieces, n, n_bytes));
    return MEM_NEW_RAW(&s->id, n);
}

/* The vocabulary of BPE: an object of ids.  Two pieces with one id would make merges ambiguous. */
static status read_ids(subwords *s, const char *path, const json_value *vocab, map *ids) {
    size_t n_bytes = 0;
    for (const json_value *v = vocab->first; v != NULL; v = v->next)
        n_bytes += strlen(v->key);
    TRY(reserve_pieces(s, vocab->n_children, n_bytes));
    for (const json_value *v = vocab->first; v != NULL; v = v->next) {
        uint32_t number, n_before = ids->n;
        if (!v->is_integer || v->integer < 0 || v->integer >= INT32_MAX)
            return fail(ERR_FORMAT, "%s: '%.60s' has no id", path, v->key);
        TRY(map_put(ids, (uint64_t)v->integer, &number));
        if (number < n_before)
            return fail(ERR_FORMAT, "%s: '%.60s' has the id of another piece", path, v->key);
        s->id[text_map_put(&s->pieces, v->key, strlen(v->key))] = (int32_t)v->integer;
    }
    return OK;
}

/* A merge is ["a", "b"], or in older files "a b". */
static status read_merge(subwords *s, const char *path, const json_value *v, uint32_t rank,
                         buf *whole) {
    const char *space = v->type == JSON_STRING ? strchr(v->string, ' ') : NULL;
    size_t n_first = space != NULL ? (size_t)(space - v->string) : 0;
    buf_clear(whole);
    if (space != NULL) {
        TRY(buf_append(whole, v->string, n_first));
        TRY(buf_text(whole, space + 1));
    } else if (v->type == JSON_ARRAY && v->n_children == 2 && v->first->type == JSON_STRING &&
               v->first->next->type == JSON_STRING) {
        n_first = v->first->string_bytes;
        TRY(buf_text(whole, v->first->string));
        TRY(buf_text(whole, v->first->next->string));
    }
    const char *text = buf_str(whole);
    size_t n = whole->n_bytes;
    int32_t first = subwords_find(s, text, n_first), id = subwords_find(s, text, n);
    int32_t second = subwords_find(s, text + n_first, n - n_first);
    uint32_t number;
    if (first < 0 || second < 0 || id < 0 || n_first == 0 || n_first == n)
        return fail(ERR_FORMAT, "%s: merge %u is not a pair of pieces of the vocabulary", path,
                    rank);
    TRY(map_put(&s->pairs, (uint64_t)first << 32 | (uint64_t)second, &number));
    s->merge[number] = (merge){rank, id};
    return OK;
}

static status read_merges(subwords *s, const char *path, const json_value *merges, buf *whole) {
    uint32_t rank = 0;
    TRY(MEM_NEW_RAW(&s->merge, merges->n_children));
    for (const json_value *v = merges->first; v != NULL; v = v->next, rank++)
        if (v->type != JSON_STRING || strncmp(v->string, "#version", 8) != 0)
            TRY(read_merge(s, path, v, rank, whole));
    return OK;
}

/* Options that must be null, false, 0 or "". */
static status check_off(const char *path, const json_value *model) {
    static const char *const names[] = {"dropout", "continuing_subword_prefix",
                                        "end_of_word_suffix", "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_value *v = json_member(model, names[i]);
        if (v != NULL && (v->boolean || v->number != 0 || v->string_bytes > 0 || v->n_children > 0))
            return fail(ERR_UNSUPPORTED, "%s: %s is not supported", path, names[i]);
    }
    return OK;
}

static status read_bpe(subwords *s, const char *path, const json_value *model) {
    const json_value *vocab = subwords_member(model, "vocab", JSON_OBJECT);
    const json_value *merges = subwords_member(model, "merges", JSON_ARRAY);
    const json_value *unknown = subwords_member(model, "unk_token", JSON_STRING);
    map ids = {0};
    buf whole = {0};
    TRY(subwords_allow(path, model,
                       "type dropout unk_token continuing_subword_prefix end_of_word_suffix "
                       "?fuse_unk ?byte_fallback ?ignore_merges vocab merges"));
    if (vocab == NULL || merges == NULL) return subwords_damaged(path, "vocab or merges");
    s->fuses_unknown =
        json_member(model, "fuse_unk") != NULL && json_member(model, "fuse_unk")->boolean;
    status st = read_ids(s, path, vocab, &ids);
    if (st == OK) st = read_merges(s, path, merges, &whole);
    map_fini(&ids);
    buf_fini(&whole);
    if (st != OK || unknown == NULL) return st;
    s->unknown = subwords_find(s, unknown->string, unknown->string_bytes);
    return s->unknown >= 0 ? OK : subwords_damaged(path, "the piece of unk_token");
}

static status add_to_trie(subwords *s, const json_value *piece, int32_t id) {
    uint64_t node = 0;
    for (size_t i = 0; i < piece->string_bytes; i++) {
        uint32_t number, n_before = s->trie.n;
        TRY(map_put(&s->trie, node << 8 | (unsigned char)piece->string[i], &number));
        TRY(MEM_RESERVE(&s->leaf, &s->leaf_capacity, s->trie.n));
        if (s->trie.n > n_before) s->leaf[number] = -1;
        node = (uint64_t)number + 1;
    }
    if (node > 0) s->leaf[node - 1] = id;
    return OK;
}

/* The vocabulary of Unigram: a list of pieces and scores.  Of two equal pieces the later counts. */
static status read_unigram(subwords *s, const char *path, const json_value *model) {
    const json_value *vocab = subwords_member(model, "vocab", JSON_ARRAY);
    const json_value *unknown = subwords_member(model, "unk_id", JSON_NUMBER);
    size_t n_bytes = 0;
    int32_t id = 0;
    TRY(subwords_allow(path, model, "type unk_id vocab ?byte_fallback"));
    if (vocab == NULL) return subwords_damaged(path, "vocab");
    if (unknown == NULL || !unknown->is_integer || unknown->integer < 0 ||
        unknown->integer >= (int64_t)vocab->n_children)
        return subwords_damaged(path, "unk_id");
    s->unknown = (int32_t)unknown->integer;
    for (const json_value *v = vocab->first; v != NULL; v = v->next) {
        if (v->type != JSON_ARRAY || v->n_children != 2 || v->first->type != JSON_STRING ||
            v->first->next->type != JSON_NUMBER)
            return subwords_damaged(path, "a piece of the vocabulary or its score");
        n_bytes += v->first->string_bytes;
    }
    TRY(reserve_pieces(s, vocab->n_children, n_bytes));
    TRY(MEM_NEW_RAW(&s->score, vocab->n_children));
    for (const json_value *v = vocab->first; v != NULL; v = v->next, id++) {
        double score = s->score[id] = v->first->next->number;
        if (id == 0 || score - 10 < s->unknown_score) s->unknown_score = score - 10;
        s->id[text_map_put(&s->pieces, v->first->string, v->first->string_bytes)] = id;
        TRY(add_to_trie(s, v->first, id));
    }
    return OK;
}

/* WordPiece as BERT has it. */
static status read_pieces(subwords *s, const char *path, const json_value *model) {
    const json_value *vocab = subwords_member(model, "vocab", JSON_OBJECT);
    const json_value *most = json_member(model, "max_input_chars_per_word");
    map ids = {0};
    if (strcmp(subwords_text(model, "unk_token"), "[UNK]") != 0 || vocab == NULL ||
        strcmp(subwords_text(model, "continuing_subword_prefix"), "##") != 0 ||
        (most != NULL && (!most->is_integer || most->integer != MAX_WORD_CHARS)))
        return fail(ERR_UNSUPPORTED, "%s: a WordPiece other than BERT's is not supported", path);
    for (const json_value *v = vocab->first; v != NULL; v = v->next)
        if (strlen(v->key) > s->longest) s->longest = strlen(v->key);
    status st = read_ids(s, path, vocab, &ids);
    map_fini(&ids);
    return st;
}

/* Pieces are numbered by their lines; of two equal ones the later counts, as in a Python dict. */
static status read_lines(subwords *s, const char *at, size_t n) {
    const char *end = at + n;
    size_t n_lines = 1;
    for (size_t i = 0; i < n; i++)
        n_lines += at[i] == '\n';
    TRY(reserve_pieces(s, n_lines, n));
    for (int32_t id = 0; at < end; id++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        size_t length = (size_t)(stop - at);
        if (length > 0 && at[length - 1] == '\r') length--;
        s->id[text_map_put(&s->pieces, at, length)] = id;
        if (length > s->longest) s->longest = length;
        at = stop + 1;
    }
    return OK;
}

static status create(subwords **out, int kind) {
    TRY(MEM_NEW(out, 1));
    (*out)->kind = kind;
    (*out)->unknown = -1;
    text_map_init(&(*out)->pieces, 0);
    return OK;
}

/* WordPiece needs these: *out becomes s where st is OK. */
static status finish_pieces(subwords **out, subwords *s, const char *path, status st) {
    static const char *const names[] = {"[UNK]", "[CLS]", "[SEP]"};
    for (size_t i = 0; st == OK && i < sizeof names / sizeof *names; i++)
        if (subwords_find(s, names[i], strlen(names[i])) < 0)
            st = fail(ERR_FORMAT, "%s: has no %s: not the vocabulary of a BERT tokenizer", path,
                      names[i]);
    if (st == OK) s->unknown = subwords_find(s, names[0], strlen(names[0]));
    return CREATED(st, out, s, subwords_destroy);
}

status subwords_of_lines(subwords **out, const char *path, const char *text, size_t n) {
    subwords *s;
    *out = NULL;
    TRY(create(&s, MODEL_PIECES));
    return finish_pieces(out, s, path, read_lines(s, text, n));
}

status subwords_create(subwords **out, const char *path, const json_value *model) {
    static const char *const names[] = {"BPE", "Unigram", "WordPiece"};
    const char *name = subwords_text(model, "type");
    int kind = 0;
    subwords *s = NULL;
    *out = NULL;
    while (kind <= MODEL_PIECES && strcmp(name, names[kind]) != 0)
        kind++;
    if (kind > MODEL_PIECES)
        return fail(ERR_UNSUPPORTED,
                    "%s: the model '%.40s' is not supported; BPE, Unigram and WordPiece are", path,
                    name);
    if (kind != MODEL_PIECES) TRY(check_off(path, model));
    TRY(create(&s, kind));
    if (kind == MODEL_PIECES) return finish_pieces(out, s, path, read_pieces(s, path, model));
    status st = kind == MODEL_BPE ? read_bpe(s, path, model) : read_unigram(s, path, model);
    return CREATED(st, out, s, subwords_destroy);
}

void subwords_destroy(subwords *s) {
    if (s == NULL) return;
    text_map_fini(&s->pieces);
    map_fini(&s->pairs);
    map_fini(&s->trie);
    MEM_FREE(s->id, s->merge, s->leaf, s->score, s);
}

void subword_room_fini(subword_room *r) {
    MEM_FREE(r->symbol, r->heap, r->node);
    *r = (subword_room){0};
}

/* A piece of a word while it is merged, in a list; id -1: merged into the one before. */
typedef struct symbol {
    int32_t id, previous, next; /* -1: none */
} symbol;

/* A merge that may be done: of the symbol at a place and the next one. */
typedef struct candidate {
    uint32_t rank;
    int32_t at, id;
} candidate;

static bool is_before(const candidate *a, const candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static const merge *merge_at(const subwords *s, const symbol *list, int32_t at) {
    if (at < 0 || list[at].id < 0 || list[at].next < 0) return NULL;
    uint64_t key = (uint64_t)list[at].id << 32 | (uint64_t)list[list[at].next].id;
    uint32_t number = map_find(&s->pairs, key);
    return number != MAP_NONE ? &s->merge[number] : NULL;
}

static void push(const subwords *s, subword_room *r, size_t *n, int32_t at) {
    const merge *m = merge_at(s, r->symbol, at);
    if (m == NULL) return;
    candidate c = {m->rank, at, m->id};
    size_t i = (*n)++;
    for (; i > 0 && is_before(&c, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = c;
}

static candidate pop(candidate *heap, size_t *n) {
    candidate first = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && is_before(&heap[child + 1], &heap[child])) child++;
        if (!is_before(&heap[child], &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

/* The characters of a word as symbols: their number. */
static size_t first_symbols(const subwords *s, symbol *list, const char *word, size_t n) {
    size_t count = 0;
    bool was_unknown = false;
    for (size_t at = 0, length; at < n; at += length) {
        length = (size_t)utf8_length(word + at, n - at);
        int32_t id = subwords_find(s, word + at, length);
        bool is_unknown = id < 0, is_fused = is_unknown && was_unknown && s->fuses_unknown;
        was_unknown = is_unknown;
        if (is_unknown) id = s->unknown;
        if (id < 0 || is_fused) continue;
        list[count] = (symbol){id, (int32_t)count - 1, (int32_t)count + 1};
        count++;
    }
    if (count > 0) list[count - 1].next = -1;
    return count;
}

static status split_bpe(const subwords *s, subword_room *r, const char *word, size_t n,
                        word_ids *to) {
    TRY(MEM_RESERVE(&r->symbol, &r->symbol_capacity, n));
    size_t n_heap = 0, count = first_symbols(s, r->symbol, word, n);
    TRY(MEM_RESERVE(&r->heap, &r->heap_capacity, 3 * count)); /* a merge pushes two */
    for (size_t i = 0; i < count; i++)
        push(s, r, &n_heap, (int32_t)i);
    while (n_heap > 0) {
        candidate c = pop(r->heap, &n_heap);
        const merge *m = merge_at(s, r->symbol, c.at);
        if (m == NULL || m->id != c.id) continue; /* its symbols have been merged otherwise */
        symbol *left = &r->symbol[c.at], *right = &r->symbol[left->next];
        left->id = c.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) r->symbol[left->next].previous = c.at;
        push(s, r, &n_heap, left->previous);
        push(s, r, &n_heap, c.at);
    }
    for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = r->symbol[i].next)
        TRY(word_ids_append(to, r->symbol[i].id));
    return OK;
}

/* The best pieces of the word's first bytes: the last piece of them. */
typedef struct node {
    double score; /* of all the pieces */
    int32_t id;
    int32_t start; /* of the last piece; -1: no piece ends here */
} node;

static void offer(node *to, double score, int32_t id, size_t start) {
    if (to->start < 0 || score > to->score) *to = (node){score, id, (int32_t)start};
}

static void search(const subwords *s, node *path, const char *word, size_t n) {
    for (size_t at = 0, length; at < n; at += length) {
        bool has_single = false;
        uint64_t parent = 0;
        length = (size_t)utf8_length(word + at, n - at);
        for (size_t end = at; end < n;) {
            uint32_t number = map_find(&s->trie, parent << 8 | (unsigned char)word[end++]);
            if (number == MAP_NONE) break;
            parent = (uint64_t)number + 1;
            int32_t id = s->leaf[number];
            if (id < 0) continue;
            offer(&path[end], path[at].score + s->score[id], id, at);
            has_single |= end - at == length;
        }
        if (!has_single)
            offer(&path[at + length], path[at].score + s->unknown_score, s->unknown, at);
    }
}

/* Unknown characters beside each other are one piece, which may be in the vocabulary. */
static status split_unigram(const subwords *s, subword_room *r, const char *word, size_t n,
                            word_ids *to) {
    size_t first = to->n;
    TRY(MEM_RESERVE(&r->node, &r->node_capacity, n + 1));
    for (size_t i = 0; i <= n; i++)
        r->node[i] = (node){0, -1, -1};
    search(s, r->node, word, n);
    for (int32_t end = (int32_t)n, start; end > 0; end = start) {
        int32_t id = r->node[end].id;
        start = r->node[end].start;
        if (id == s->unknown) {
            while (start > 0 && r->node[start].id == s->unknown)
                start = r->node[start].start;
            int32_t whole = subwords_find(s, word + start, (size_t)(end - start));
            if (whole >= 0) id = whole;
        }
        TRY(word_ids_append(to, id));
    }
    for (size_t a = first, b = to->n; a + 1 < b; a++) {
        int32_t id = to->ids[a];
        to->ids[a] = to->ids[--b];
        to->ids[b] = id;
    }
    return OK;
}

/* The longest piece at the start of a word's rest; starts[k] is the byte at which character k
 * begins, starts[n] the end.  *end: the character after it.  -1: there is none. */
static int32_t longest_piece(const subwords *s, const char *word, const size_t *starts, int first,
                             int n, int *end) {
    char text[2 + 4 * MAX_WORD_CHARS];
    size_t prefix = first > 0 ? 2 : 0, n_bytes = starts[n] - starts[first];
    memcpy(text, "##", 2);
    memcpy(text + prefix, word + starts[first], n_bytes);
    for (*end = n; *end > first; --*end) {
        size_t length = prefix + starts[*end] - starts[first];
        int32_t id = length <= s->longest ? subwords_find(s, text, length) : -1;
        if (id >= 0) return id;
    }
    return -1;
}

static status split_pieces(const subwords *s, const char *word, size_t n, word_ids *to) {
    size_t starts[MAX_WORD_CHARS + 1], before = to->n;
    int n_chars = 0;
    for (size_t at = 0; at < n; at += (size_t)utf8_length(word + at, n - at)) {
        if (n_chars == MAX_WORD_CHARS) return word_ids_append(to, s->unknown);
        starts[n_chars++] = at;
    }
    starts[n_chars] = n;
    for (int first = 0, end; first < n_chars; first = end) {
        int32_t id = longest_piece(s, word, starts, first, n_chars, &end);
        if (id < 0) {
            to->n = before;
            return word_ids_append(to, s->unknown);
        }
        TRY(word_ids_append(to, id));
    }
    return OK;
}

status subwords_split(const subwords *s, subword_room *r, const char *word, size_t n,
                      word_ids *to) {
    if (n > MAX_WORD_BYTES) return fail(ERR_FORMAT, "a word of %zu bytes is too long", n);
    if (s->kind == MODEL_PIECES) return split_pieces(s, word, n, to);
    return s->kind == MODEL_UNIGRAM ? split_unigram(s, r, word, n, to)
                                    : split_bpe(s, r, word, n, to);
}
