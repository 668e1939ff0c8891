#include "encode/subwords.h"

#include <stdbool.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"

/* A word of a hostile text; places in it are int32_t. */
enum { MAX_WORD_BYTES = 1 << 28 };

typedef struct merge {
    uint32_t rank;
    int32_t id; /* of the merged piece */
} merge;

struct subwords {
    bool is_unigram, fuses_unknown, ignores_merges;
    text_map pieces;
    int32_t *id;     /* (pieces.n) */
    int32_t unknown; /* id; -1: characters without a piece are left out */
    uint32_t n;

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

status subwords_allow(const char *path, const json_value *v, const char *names) {
    for (const json_value *m = v->type == JSON_OBJECT ? v->first : NULL; m != NULL; m = m->next) {
        size_t n = strlen(m->key);
        bool is_known = false;
        for (const char *at = names; n > 0 && !is_known && (at = strstr(at, m->key)) != NULL; at++)
            is_known = (at == names || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0');
        if (!is_known)
            return fail(ERR_UNSUPPORTED,
                        "%s: the field '%.60s' of %.40s is not known, and may "
                        "change the tokens; give ids instead of text",
                        path, m->key, v->key != NULL ? v->key : "the file");
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
static status read_ids(subwords *s, const char *path, const json_value *vocab) {
    size_t n_bytes = 0;
    uint32_t number;
    map ids = {0};
    status st = OK;
    for (const json_value *v = vocab->first; v != NULL; v = v->next)
        n_bytes += strlen(v->key);
    TRY(reserve_pieces(s, vocab->n_children, n_bytes));
    for (const json_value *v = vocab->first; st == OK && v != NULL; v = v->next) {
        uint32_t n_before = ids.n;
        if (!v->is_integer || v->integer < 0 || v->integer >= INT32_MAX)
            st = fail(ERR_FORMAT, "%s: the id of '%.60s' is not one", path, v->key);
        if (st == OK) st = map_put(&ids, (uint64_t)v->integer, &number);
        if (st == OK && number < n_before)
            st = fail(ERR_FORMAT, "%s: '%.60s' has the id %lld of another piece", path, v->key,
                      (long long)v->integer);
        if (st == OK) s->id[text_map_put(&s->pieces, v->key, strlen(v->key))] = (int32_t)v->integer;
    }
    map_fini(&ids);
    return st;
}

/* A merge is ["a", "b"], or in older files "a b". */
static status read_merge(subwords *s, const char *path, const json_value *v, uint32_t rank,
                         buf *room) {
    const char *a = NULL, *b = NULL;
    size_t n_a = 0, n_b = 0;
    if (v->type == JSON_STRING && (b = memchr(v->string, ' ', v->string_bytes)) != NULL) {
        a = v->string;
        n_a = (size_t)(b++ - a);
        n_b = v->string_bytes - n_a - 1;
    } else if (v->type == JSON_ARRAY && v->n_children == 2 && v->first->type == JSON_STRING &&
               v->first->next->type == JSON_STRING) {
        a = v->first->string, b = v->first->next->string;
        n_a = v->first->string_bytes, n_b = v->first->next->string_bytes;
    } else {
        return fail(ERR_FORMAT, "%s: merge %u is not a pair of texts", path, rank);
    }
    buf_clear(room);
    TRY(buf_append(room, a, n_a));
    TRY(buf_append(room, b, n_b));
    int32_t first = subwords_find(s, a, n_a), second = subwords_find(s, b, n_b);
    int32_t id = subwords_find(s, buf_str(room), room->n_bytes);
    if (first < 0 || second < 0 || id < 0 || n_a == 0 || n_b == 0)
        return fail(ERR_FORMAT, "%s: merge %u ('%.30s' and '%.30s') is not in the vocabulary", path,
                    rank, a, b);
    uint32_t number;
    TRY(map_put(&s->pairs, (uint64_t)first << 32 | (uint64_t)second, &number));
    s->merge[number] = (merge){rank, id};
    return OK;
}

static status read_merges(subwords *s, const char *path, const json_value *merges) {
    uint32_t rank = 0;
    buf room = {0};
    status st = MEM_NEW_RAW(&s->merge, merges->n_children);
    for (const json_value *v = merges->first; st == OK && v != NULL; v = v->next, rank++) {
        bool is_version = v->type == JSON_STRING && strncmp(v->string, "#version", 8) == 0;
        if (!is_version) st = read_merge(s, path, v, rank, &room);
    }
    buf_fini(&room);
    return st;
}

/* An option that must be absent, null, false, 0 or "". */
static status check_off(const char *path, const json_value *model, const char *name) {
    const json_value *v = json_member(model, name);
    if (v == NULL || v->type == JSON_NULL || (v->type == JSON_BOOL && !v->boolean) ||
        (v->type == JSON_NUMBER && v->number == 0) ||
        (v->type == JSON_STRING && v->string_bytes == 0))
        return OK;
    return fail(ERR_UNSUPPORTED, "%s: %s of the model is set, which is not supported", path, name);
}

static bool is_on(const json_value *model, const char *name) {
    const json_value *v = json_member(model, name);
    return v != NULL && v->type == JSON_BOOL && v->boolean;
}

static status read_bpe(subwords *s, const char *path, const json_value *model) {
    const json_value *vocab = json_member(model, "vocab"), *merges = json_member(model, "merges");
    const json_value *unknown = json_member(model, "unk_token");
    TRY(subwords_allow(path, model,
                       "type dropout unk_token continuing_subword_prefix end_of_word_suffix "
                       "fuse_unk byte_fallback ignore_merges vocab merges"));
    TRY(check_off(path, model, "dropout"));
    TRY(check_off(path, model, "continuing_subword_prefix"));
    TRY(check_off(path, model, "end_of_word_suffix"));
    TRY(check_off(path, model, "byte_fallback"));
    if (vocab == NULL || vocab->type != JSON_OBJECT || merges == NULL || merges->type != JSON_ARRAY)
        return fail(ERR_FORMAT, "%s: the BPE model needs vocab (an object) and merges (a list)",
                    path);
    s->fuses_unknown = is_on(model, "fuse_unk");
    s->ignores_merges = is_on(model, "ignore_merges");
    TRY(read_ids(s, path, vocab));
    TRY(read_merges(s, path, merges));
    if (unknown == NULL || unknown->type == JSON_NULL) return OK;
    if (unknown->type == JSON_STRING)
        s->unknown = subwords_find(s, unknown->string, unknown->string_bytes);
    return s->unknown >= 0 ? OK : fail(ERR_FORMAT, "%s: unk_token is not in the vocabulary", path);
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
static status read_scores(subwords *s, const char *path, const json_value *vocab) {
    size_t n_bytes = 0;
    int32_t id = 0;
    double least = 0;
    for (const json_value *v = vocab->first; v != NULL; v = v->next) {
        if (v->type != JSON_ARRAY || v->n_children != 2 || v->first->type != JSON_STRING ||
            v->first->next->type != JSON_NUMBER)
            return fail(ERR_FORMAT, "%s: a piece of the vocabulary is not a text and a score",
                        path);
        n_bytes += v->first->string_bytes;
    }
    TRY(reserve_pieces(s, vocab->n_children, n_bytes));
    TRY(MEM_NEW_RAW(&s->score, vocab->n_children));
    for (const json_value *v = vocab->first; v != NULL; v = v->next, id++) {
        const json_value *piece = v->first;
        s->score[id] = piece->next->number;
        if (id == 0 || s->score[id] < least) least = s->score[id];
        s->id[text_map_put(&s->pieces, piece->string, piece->string_bytes)] = id;
        TRY(add_to_trie(s, piece, id));
    }
    s->unknown_score = least - 10;
    return OK;
}

static status read_unigram(subwords *s, const char *path, const json_value *model) {
    const json_value *vocab = json_member(model, "vocab"), *unknown = json_member(model, "unk_id");
    s->is_unigram = true;
    TRY(subwords_allow(path, model, "type unk_id vocab byte_fallback"));
    TRY(check_off(path, model, "byte_fallback"));
    if (vocab == NULL || vocab->type != JSON_ARRAY)
        return fail(ERR_FORMAT, "%s: the Unigram model needs vocab, a list", path);
    if (unknown == NULL || !unknown->is_integer || unknown->integer < 0 ||
        unknown->integer >= (int64_t)vocab->n_children)
        return fail(ERR_FORMAT, "%s: unk_id is not the index of a piece", path);
    s->unknown = (int32_t)unknown->integer;
    return read_scores(s, path, vocab);
}

status subwords_create(subwords **out, const char *path, const json_value *model) {
    const json_value *type = json_member(model, "type");
    subwords *s = NULL;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    s->unknown = -1;
    text_map_init(&s->pieces, 0);
    const char *name = type != NULL && type->type == JSON_STRING ? type->string : "";
    status st = strcmp(name, "BPE") == 0       ? read_bpe(s, path, model)
                : strcmp(name, "Unigram") == 0 ? read_unigram(s, path, model)
                                               : fail(ERR_UNSUPPORTED,
                                                      "%s: the model '%.40s' is not supported; "
                                                      "BPE and Unigram are",
                                                      path, name);
    if (st == OK)
        *out = s;
    else
        subwords_destroy(s);
    return st;
}

void subwords_destroy(subwords *s) {
    if (s == NULL) return;
    text_map_fini(&s->pieces);
    map_fini(&s->pairs);
    map_fini(&s->trie);
    mem_free(s->id);
    mem_free(s->merge);
    mem_free(s->leaf);
    mem_free(s->score);
    mem_free(s);
}

void subword_room_fini(subword_room *r) {
    mem_free(r->symbol);
    mem_free(r->heap);
    mem_free(r->node);
    *r = (subword_room){0};
}

static status append(word_ids *to, int32_t id) {
    TRY(MEM_RESERVE(&to->ids, &to->capacity, to->n + 1));
    to->ids[to->n++] = id;
    return OK;
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
    int32_t whole = s->ignores_merges ? subwords_find(s, word, n) : -1;
    if (whole >= 0) return append(to, whole);
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
        TRY(append(to, r->symbol[i].id));
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
        TRY(append(to, id));
    }
    for (size_t a = first, b = to->n; a + 1 < b; a++) {
        int32_t id = to->ids[a];
        to->ids[a] = to->ids[--b];
        to->ids[b] = id;
    }
    return OK;
}

status subwords_split(const subwords *s, subword_room *r, const char *word, size_t n,
                      word_ids *to) {
    if (n > MAX_WORD_BYTES) return fail(ERR_FORMAT, "a word of %zu bytes is too long", n);
    return s->is_unigram ? split_unigram(s, r, word, n, to) : split_bpe(s, r, word, n, to);
}
