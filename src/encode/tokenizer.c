#include "encode/tokenizer.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "encode/charsmap.h"
#include "encode/subwords.h"
#include "format/json.h"

enum { FILE_MAX_BYTES = 64 << 20, PATH_BYTES = 4096, MAX_STEPS = 8, MAX_ADDED = 4096 };

/* No normalizer of the supported families makes a text so many times longer. */
enum { MAX_GROWTH = 64 };

typedef enum {
    STEP_CHARSMAP,
    STEP_REPLACE,
    STEP_SPACES, /* two and more spaces are replaced */
    STEP_STRIP,
    STEP_WHITESPACE,
    STEP_METASPACE,
    STEP_BYTES,
} step_kind;

/* A step of the normalizer or of the pre-tokenizer. */
typedef struct step {
    step_kind kind;
    bool has_left, has_right; /* strip */
    bool has_prefix, parts;   /* metaspace and bytes: a space in front; split into words */
    const char *from, *to;    /* replace; metaspace: `to` stands for a space */
    size_t n_from, n_to;
    charsmap map;
} step;

/* A token that is found in the text before the model sees it. */
typedef struct added_token {
    const char *text; /* normalised, where is_normal */
    size_t n;
    int32_t id;
    bool is_normal, strips_left, strips_right;
} added_token;

struct tokenizer {
    word_pieces *pieces; /* WordPiece; else NULL, and all of these */
    subwords *model;
    uint8_t *classes;
    arena memory; /* texts */
    step normal[MAX_STEPS], part[MAX_STEPS];
    size_t n_normal, n_parts;
    added_token *added;
    size_t n_added;
    bool begins_added[2][256]; /* by is_normal: whether an added token begins with a byte */
    token_layout single, pair;
};

/* While a text is split. */
typedef struct splitter {
    const tokenizer *t;
    word_ids *to;
    buf normal[2];
    buf room[MAX_STEPS]; /* of each pre-tokenizer */
    subword_room words;
} splitter;

const token_layout *tokenizer_layout(const tokenizer *t, bool is_pair) {
    return is_pair ? &t->pair : &t->single;
}

static bool begins(const char *text, size_t n, const char *with, size_t n_with) {
    return n >= n_with && memcmp(text, with, n_with) == 0;
}

static status replace(const step *p, const char *text, size_t n, buf *to) {
    for (size_t at = 0; at < n;) {
        size_t length = 0;
        while (p->kind == STEP_SPACES && at + length < n && text[at + length] == ' ')
            length++;
        if (p->kind == STEP_REPLACE && begins(text + at, n - at, p->from, p->n_from))
            length = p->n_from;
        bool is_found = length >= (p->kind == STEP_SPACES ? 2 : 1);
        TRY(buf_append(to, is_found ? p->to : text + at, is_found ? p->n_to : 1));
        at += is_found ? length : 1;
    }
    return OK;
}

/* Bytes of white space at the end of a text. */
static size_t spaces_at_end(const uint8_t *classes, const char *text, size_t n) {
    size_t end = n, length;
    while (end > 0) {
        size_t at = end - 1;
        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (char_word_class(classes, text + at, end - at, &length) != WORD_SPACE) break;
        end = at;
    }
    return n - end;
}

static size_t spaces_at_start(const uint8_t *classes, const char *text, size_t n) {
    size_t at = 0, length;
    while (at < n && char_word_class(classes, text + at, n - at, &length) == WORD_SPACE)
        at += length;
    return at;
}

/* *out (view): the normalised text. */
static status normalise(const tokenizer *t, buf room[2], const char **out, size_t *n) {
    const char *text = *out;
    size_t n_first = *n;
    for (size_t i = 0; i < t->n_normal; i++) {
        const step *p = &t->normal[i];
        buf *to = &room[i % 2];
        buf_clear(to);
        if (p->kind == STEP_CHARSMAP) {
            TRY(charsmap_apply(&p->map, t->classes, text, *n, to));
        } else if (p->kind == STEP_STRIP) {
            size_t left = p->has_left ? spaces_at_start(t->classes, text, *n) : 0;
            size_t right = p->has_right ? spaces_at_end(t->classes, text + left, *n - left) : 0;
            TRY(buf_append(to, text + left, *n - left - right));
        } else {
            TRY(replace(p, text, *n, to));
        }
        if (to->n_bytes / MAX_GROWTH > n_first)
            return fail(ERR_FORMAT, "the normalizer makes the text more than %d times longer",
                        MAX_GROWTH);
        text = buf_str(to);
        *n = to->n_bytes;
    }
    *out = text;
    return OK;
}

/* Bytes of the next word by GPT-2's pattern: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|
 * ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t next_word(const uint8_t *classes, const char *text, size_t n) {
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; text[0] == '\'' && i < sizeof endings / sizeof *endings; i++)
        if (begins(text, n, endings[i], strlen(endings[i]))) return strlen(endings[i]);
    size_t at = 0, last = 0, length;
    if (text[0] == ' ' && n > 1 && char_word_class(classes, text + 1, n - 1, &length) != WORD_SPACE)
        at = 1;
    word_class class = char_word_class(classes, text + at, n - at, &length);
    while (at < n && char_word_class(classes, text + at, n - at, &length) == class) {
        last = at;
        at += length;
    }
    /* The last of several white spaces belongs to the word after them. */
    return class == WORD_SPACE && at < n && last > 0 ? last : at;
}

/* The character that stands for a byte: itself where it is printable, else one from U+0100 on. */
static uint32_t byte_char(unsigned char byte) {
    if (byte <= 32) return 256u + byte;
    if (byte >= 127 && byte <= 160) return 256u + 33 + byte - 127;
    return byte == 173 ? 256u + 33 + 34 : byte;
}

static status split_part(splitter *s, size_t i, const char *text, size_t n);

static status part_bytes(splitter *s, size_t i, const char *text, size_t n) {
    const step *p = &s->t->part[i];
    buf *room = &s->room[i], whole = {0};
    status st = p->has_prefix && text[0] != ' ' ? buf_char(&whole, ' ') : OK;
    if (st == OK) st = buf_append(&whole, text, n);
    for (size_t at = 0, end; st == OK && at < whole.n_bytes; at = end) {
        const char *word = buf_str(&whole);
        end = whole.n_bytes;
        if (p->parts) end = at + next_word(s->t->classes, word + at, whole.n_bytes - at);
        buf_clear(room);
        for (size_t k = at; st == OK && k < end; k++) {
            char bytes[4];
            int length = utf8_encode(byte_char((unsigned char)word[k]), bytes);
            st = buf_append(room, bytes, (size_t)length);
        }
        if (st == OK) st = split_part(s, i + 1, buf_str(room), room->n_bytes);
    }
    buf_fini(&whole);
    return st;
}

static status part_metaspace(splitter *s, size_t i, const char *text, size_t n) {
    const step *p = &s->t->part[i];
    buf *room = &s->room[i];
    buf_clear(room);
    if (p->has_prefix && text[0] != ' ' && !begins(text, n, p->to, p->n_to))
        TRY(buf_append(room, p->to, p->n_to));
    for (size_t at = 0; at < n; at++)
        TRY(text[at] == ' ' ? buf_append(room, p->to, p->n_to) : buf_char(room, text[at]));
    const char *words = buf_str(room);
    size_t n_words = room->n_bytes, begin = 0;
    for (size_t at = 1; p->parts && at < n_words; at++)
        if (begins(words + at, n_words - at, p->to, p->n_to)) {
            TRY(split_part(s, i + 1, words + begin, at - begin));
            begin = at;
        }
    return split_part(s, i + 1, words + begin, n_words - begin);
}

static status part_whitespace(splitter *s, size_t i, const char *text, size_t n) {
    size_t begin = 0;
    for (size_t at = 0, length; at < n; at += length) {
        if (char_word_class(s->t->classes, text + at, n - at, &length) != WORD_SPACE) continue;
        TRY(split_part(s, i + 1, text + begin, at - begin));
        begin = at + length;
    }
    return split_part(s, i + 1, text + begin, n - begin);
}

/* Pre-tokenizers from number i on, then the model. */
static status split_part(splitter *s, size_t i, const char *text, size_t n) {
    if (n == 0) return OK;
    if (i == s->t->n_parts) return subwords_split(s->t->model, &s->words, text, n, s->to);
    step_kind kind = s->t->part[i].kind;
    if (kind == STEP_BYTES) return part_bytes(s, i, text, n);
    return kind == STEP_METASPACE ? part_metaspace(s, i, text, n) : part_whitespace(s, i, text, n);
}

/* The longest added token at the start of a text, or NULL. */
static const added_token *added_at(const tokenizer *t, bool is_normal, const char *text, size_t n) {
    const added_token *best = NULL;
    if (!t->begins_added[is_normal][(unsigned char)text[0]]) return NULL;
    for (size_t i = 0; i < t->n_added; i++) {
        const added_token *a = &t->added[i];
        if (a->is_normal == is_normal && begins(text, n, a->text, a->n) &&
            (best == NULL || a->n > best->n))
            best = a;
    }
    return best;
}

static status split_added(splitter *s, bool is_normal, const char *text, size_t n);

/* A part without added tokens of this kind: tokens that are written as the normalizer leaves them
 * are looked for in the normalised text. */
static status split_rest(splitter *s, bool is_normal, const char *text, size_t n) {
    if (n == 0) return OK;
    if (is_normal) return split_part(s, 0, text, n);
    TRY(normalise(s->t, s->normal, &text, &n));
    return split_added(s, true, text, n);
}

static status split_added(splitter *s, bool is_normal, const char *text, size_t n) {
    size_t begin = 0;
    for (size_t at = 0; at < n;) {
        const added_token *a = added_at(s->t, is_normal, text + at, n - at);
        if (a == NULL) {
            at++;
            continue;
        }
        size_t start = at;
        at += a->n;
        if (a->strips_left && start > begin)
            start -= spaces_at_end(s->t->classes, text + begin, start - begin);
        if (start > begin) TRY(split_rest(s, is_normal, text + begin, start - begin));
        TRY(MEM_RESERVE(&s->to->ids, &s->to->capacity, s->to->n + 1));
        s->to->ids[s->to->n++] = a->id;
        begin = at;
        if (a->strips_right) begin += spaces_at_start(s->t->classes, text + at, n - at);
    }
    return n > begin ? split_rest(s, is_normal, text + begin, n - begin) : OK;
}

/* The text as UTF-8: bytes that are not become U+FFFD. */
static status repair(const char *text, size_t n, buf *to) {
    for (size_t at = 0; at < n;) {
        size_t length = (size_t)utf8_length(text + at, n - at);
        TRY(buf_append(to, length > 0 ? text + at : "\xef\xbf\xbd", length > 0 ? length : 3));
        at += length > 0 ? length : 1;
    }
    return OK;
}

status tokenizer_split(const tokenizer *t, const char *text, size_t n, word_ids *to) {
    splitter s = {.t = t, .to = to};
    buf whole = {0};
    status st = OK;
    if (t->pieces != NULL) return word_pieces_split(t->pieces, text, n, to);
    if (!utf8_is_valid(text, n)) {
        st = repair(text, n, &whole);
        text = buf_str(&whole);
        n = whole.n_bytes;
    }
    if (st == OK) st = split_added(&s, false, text, n);
    subword_room_fini(&s.words);
    for (size_t i = 0; i < MAX_STEPS; i++)
        buf_fini(&s.room[i]);
    buf_fini(&s.normal[0]);
    buf_fini(&s.normal[1]);
    buf_fini(&whole);
    return st;
}

/* Reading a tokenizer.json. */

static const char *type_of(const json_value *v) {
    const json_value *type = v->type == JSON_OBJECT ? json_member(v, "type") : NULL;
    return type != NULL && type->type == JSON_STRING ? type->string : "";
}

static bool bool_of(const json_value *v, const char *name, bool or) {
    const json_value *m = json_member(v, name);
    return m != NULL && m->type == JSON_BOOL ? m->boolean : or ;
}

/* A text that outlives the JSON tree. */
static status keep_text(tokenizer *t, const char *path, const json_value *v, size_t least,
                        const char **out, size_t *n) {
    if (v == NULL || v->type != JSON_STRING || v->string_bytes < least)
        return fail(ERR_FORMAT, "%s: a text of a normalizer, pre-tokenizer or token is missing",
                    path);
    *n = v->string_bytes;
    return arena_copy_text(&t->memory, v->string, v->string_bytes, out);
}

static status read_base64(tokenizer *t, const char *path, const json_value *v, step *to) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = v != NULL && v->type == JSON_STRING ? v->string_bytes : 0, n_bytes = 0;
    uint32_t bits = 0;
    char *bytes;
    while (n > 0 && v->string[n - 1] == '=')
        n--;
    TRY(ARENA_NEW_RAW(&t->memory, &bytes, n));
    for (size_t i = 0; i < n; i++) {
        const char *digit = strchr(digits, v->string[i]);
        if (digit == NULL) return fail(ERR_FORMAT, "%s: precompiled_charsmap is not base64", path);
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (i % 4 != 0) bytes[n_bytes++] = (char)(bits >> (6 - 2 * (i % 4)) & 0xff);
    }
    return charsmap_open(&to->map, path, bytes, n_bytes);
}

static status read_replace(tokenizer *t, const char *path, const json_value *v, step *to) {
    const json_value *pattern = json_member(v, "pattern");
    bool is_object = pattern != NULL && pattern->type == JSON_OBJECT;
    const json_value *text = is_object ? json_member(pattern, "String") : NULL;
    const json_value *regex = is_object ? json_member(pattern, "Regex") : NULL;
    TRY(subwords_allow(path, v, "type pattern content"));
    TRY(keep_text(t, path, json_member(v, "content"), 0, &to->to, &to->n_to));
    to->kind = STEP_REPLACE;
    if (regex == NULL) return keep_text(t, path, text, 1, &to->from, &to->n_from);
    to->kind = STEP_SPACES;
    if (regex->type == JSON_STRING && strcmp(regex->string, " {2,}") == 0) return OK;
    return fail(ERR_UNSUPPORTED, "%s: the regular expression '%.60s' of Replace is not supported",
                path, regex->type == JSON_STRING ? regex->string : "");
}

static status read_normalizer(tokenizer *t, const char *path, const json_value *v, step *to) {
    const char *type = type_of(v);
    if (strcmp(type, "Replace") == 0) return read_replace(t, path, v, to);
    if (strcmp(type, "Strip") == 0) {
        *to = (step){.kind = STEP_STRIP,
                     .has_left = bool_of(v, "strip_left", true),
                     .has_right = bool_of(v, "strip_right", true)};
        return subwords_allow(path, v, "type strip_left strip_right");
    }
    if (strcmp(type, "Precompiled") == 0) {
        to->kind = STEP_CHARSMAP;
        TRY(subwords_allow(path, v, "type precompiled_charsmap"));
        return read_base64(t, path, json_member(v, "precompiled_charsmap"), to);
    }
    return fail(ERR_UNSUPPORTED, "%s: the normalizer '%.40s' is not supported", path, type);
}

static status read_metaspace(tokenizer *t, const char *path, const json_value *v, step *to) {
    const json_value *scheme = json_member(v, "prepend_scheme");
    const char *name = scheme != NULL && scheme->type == JSON_STRING ? scheme->string : NULL;
    bool has_prefix = bool_of(v, "add_prefix_space", true);
    if (name != NULL && strcmp(name, "always") != 0 && strcmp(name, "never") != 0)
        return fail(ERR_UNSUPPORTED, "%s: prepend_scheme '%.40s' of Metaspace is not supported",
                    path, name);
    *to = (step){.kind = STEP_METASPACE,
                 .has_prefix = name != NULL ? strcmp(name, "always") == 0 : has_prefix,
                 .parts = bool_of(v, "split", true)};
    TRY(subwords_allow(path, v, "type replacement str_rep add_prefix_space prepend_scheme split"));
    TRY(keep_text(t, path, json_member(v, "replacement"), 1, &to->to, &to->n_to));
    if ((size_t)utf8_length(to->to, to->n_to) == to->n_to) return OK;
    return fail(ERR_FORMAT, "%s: the replacement of Metaspace is not one character", path);
}

static status read_part(tokenizer *t, const char *path, const json_value *v, step *to) {
    const char *type = type_of(v);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(t, path, v, to);
    if (strcmp(type, "WhitespaceSplit") == 0) {
        to->kind = STEP_WHITESPACE;
        return subwords_allow(path, v, "type");
    }
    if (strcmp(type, "ByteLevel") == 0) {
        *to = (step){.kind = STEP_BYTES,
                     .has_prefix = bool_of(v, "add_prefix_space", true),
                     .parts = bool_of(v, "use_regex", true)};
        return subwords_allow(path, v, "type add_prefix_space trim_offsets use_regex");
    }
    return fail(ERR_UNSUPPORTED, "%s: the pre-tokenizer '%.40s' is not supported", path, type);
}

typedef status (*step_reader)(tokenizer *t, const char *path, const json_value *v, step *to);

/* One step, or a Sequence of them, which may hold others; JSON itself bounds their depth. */
static status read_steps(tokenizer *t, const char *path, const json_value *v, const char *list,
                         step_reader read, step *to, size_t *n) {
    if (v == NULL || v->type == JSON_NULL) return OK;
    if (strcmp(type_of(v), "Sequence") == 0) {
        const json_value *all = json_member(v, list);
        for (v = all != NULL && all->type == JSON_ARRAY ? all->first : NULL; v != NULL; v = v->next)
            TRY(read_steps(t, path, v, list, read, to, n));
        return OK;
    }
    if (*n == MAX_STEPS) return fail(ERR_UNSUPPORTED, "%s: more than %d %s", path, MAX_STEPS, list);
    return read(t, path, v, &to[(*n)++]);
}

static bool is_id(const json_value *v) {
    return v != NULL && v->is_integer && v->integer >= 0 && v->integer < INT32_MAX;
}

/* Tokens that the vocabulary lacks have the ids after it, as `tokenizers` numbers them. */
static status read_added(tokenizer *t, const char *path, const json_value *v, added_token *to,
                         int32_t *next) {
    buf room[2] = {{0}, {0}};
    const json_value *content = json_member(v, "content"), *id = json_member(v, "id");
    TRY(subwords_allow(path, v, "id content single_word lstrip rstrip normalized special"));
    TRY(keep_text(t, path, content, 1, &to->text, &to->n));
    int32_t known = subwords_find(t->model, to->text, to->n);
    to->id = known >= 0 ? known : (*next)++;
    to->is_normal = bool_of(v, "normalized", true);
    to->strips_left = bool_of(v, "lstrip", false);
    to->strips_right = bool_of(v, "rstrip", false);
    if (!is_id(id) || id->integer != to->id)
        return fail(ERR_FORMAT, "%s: the id of the added token '%.40s' must be %d", path, to->text,
                    to->id);
    if (bool_of(v, "single_word", false))
        return fail(ERR_UNSUPPORTED, "%s: single_word of the token '%.40s' is not supported", path,
                    to->text);
    const char *text = to->text;
    status st = to->is_normal ? normalise(t, room, &text, &to->n) : OK;
    if (st == OK) st = arena_copy_text(&t->memory, text, to->n, &to->text);
    buf_fini(&room[0]);
    buf_fini(&room[1]);
    if (st != OK) return st;
    if (to->n == 0) return fail(ERR_FORMAT, "%s: an added token is empty", path);
    for (const added_token *a = t->added; a < to; a++)
        if (a->n == to->n && a->is_normal == to->is_normal && memcmp(a->text, to->text, a->n) == 0)
            return fail(ERR_FORMAT, "%s: the added token '%.40s' stands there twice", path,
                        to->text);
    t->begins_added[to->is_normal][(unsigned char)to->text[0]] = true;
    return OK;
}

static status read_all_added(tokenizer *t, const char *path, const json_value *list) {
    int32_t next = (int32_t)subwords_n(t->model);
    if (list == NULL || list->type == JSON_NULL) return OK;
    if (list->type != JSON_ARRAY || list->n_children > MAX_ADDED)
        return fail(ERR_FORMAT, "%s: added_tokens is not a list of at most %d", path, MAX_ADDED);
    TRY(MEM_NEW(&t->added, list->n_children));
    for (const json_value *v = list->first; v != NULL; v = v->next, t->n_added++) {
        if (v->type != JSON_OBJECT)
            return fail(ERR_FORMAT, "%s: an added token is not an object", path);
        TRY(read_added(t, path, v, &t->added[t->n_added], &next));
    }
    return OK;
}

static status add_slot(token_layout *to, const char *path, int32_t id, int32_t type) {
    if (to->n == MAX_SLOTS)
        return fail(ERR_FORMAT, "%s: more than %d special tokens around a text", path, MAX_SLOTS);
    to->slot[to->n++] = (token_slot){id, type};
    return OK;
}

/* RobertaProcessing and BertProcessing: ["</s>", 2] of cls and sep. */
static status read_pair_processor(tokenizer *t, const char *path, const json_value *v,
                                  bool is_bert) {
    const json_value *name[2] = {json_member(v, "cls"), json_member(v, "sep")};
    int32_t id[2];
    for (int i = 0; i < 2; i++) {
        bool is_pair = name[i] != NULL && name[i]->type == JSON_ARRAY && name[i]->n_children == 2;
        if (!is_pair || !is_id(name[i]->first->next))
            return fail(ERR_FORMAT, "%s: cls or sep of %.40s is not a token and its id", path,
                        type_of(v));
        id[i] = (int32_t)name[i]->first->next->integer;
    }
    TRY(subwords_allow(path, v, "type sep cls trim_offsets add_prefix_space"));
    t->single = (token_layout){{{id[0], 0}, {SLOT_FIRST, 0}, {id[1], 0}}, 3};
    t->pair = t->single;
    if (!is_bert) TRY(add_slot(&t->pair, path, id[1], 0));
    TRY(add_slot(&t->pair, path, SLOT_SECOND, is_bert));
    return add_slot(&t->pair, path, id[1], is_bert);
}

static status read_special(token_layout *to, const char *path, const json_value *tokens,
                           const char *name, int32_t type) {
    const json_value *token = tokens->type == JSON_OBJECT ? json_member(tokens, name) : NULL;
    const json_value *ids =
        token != NULL && token->type == JSON_OBJECT ? json_member(token, "ids") : NULL;
    if (ids == NULL || ids->type != JSON_ARRAY)
        return fail(ERR_FORMAT, "%s: the template's token '%.40s' has no ids", path, name);
    for (const json_value *id = ids->first; id != NULL; id = id->next) {
        if (!is_id(id))
            return fail(ERR_FORMAT, "%s: an id of the template's token '%.40s' is not one", path,
                        name);
        TRY(add_slot(to, path, (int32_t)id->integer, type));
    }
    return OK;
}

/* {"SpecialToken": {"id": "<s>", "type_id": 0}} or {"Sequence": {"id": "A", "type_id": 0}}. */
static status read_layout(token_layout *to, const char *path, const json_value *list,
                          const json_value *tokens, bool is_pair) {
    int n_first = 0, n_second = 0;
    *to = (token_layout){.n = 0};
    for (const json_value *v = list != NULL ? list->first : NULL; v != NULL; v = v->next) {
        const json_value *piece = v->type == JSON_OBJECT && v->n_children == 1 ? v->first : NULL;
        bool is_object = piece != NULL && piece->type == JSON_OBJECT;
        const json_value *id = is_object ? json_member(piece, "id") : NULL;
        const json_value *type = is_object ? json_member(piece, "type_id") : NULL;
        if (id == NULL || id->type != JSON_STRING || !is_id(type) || tokens == NULL)
            return fail(ERR_FORMAT, "%s: a piece of TemplateProcessing is damaged", path);
        int32_t number = (int32_t)type->integer;
        if (strcmp(piece->key, "SpecialToken") == 0) {
            TRY(read_special(to, path, tokens, id->string, number));
            continue;
        }
        bool is_second = strcmp(id->string, "B") == 0;
        n_first += !is_second;
        n_second += is_second;
        TRY(add_slot(to, path, is_second ? SLOT_SECOND : SLOT_FIRST, number));
    }
    if (n_first == 1 && n_second == is_pair) return OK;
    return fail(ERR_FORMAT, "%s: a template must have each text once", path);
}

static status read_processor(tokenizer *t, const char *path, const json_value *v, step *to) {
    const char *type = type_of(v);
    to->kind = STEP_BYTES;                         /* not used: only their number counts */
    if (strcmp(type, "ByteLevel") == 0) return OK; /* places of tokens in the text */
    if (t->single.n > 0)
        return fail(ERR_UNSUPPORTED, "%s: several post-processors are not supported", path);
    if (strcmp(type, "RobertaProcessing") == 0) return read_pair_processor(t, path, v, false);
    if (strcmp(type, "BertProcessing") == 0) return read_pair_processor(t, path, v, true);
    if (strcmp(type, "TemplateProcessing") != 0)
        return fail(ERR_UNSUPPORTED, "%s: the post-processor '%.40s' is not supported", path, type);
    const json_value *tokens = json_member(v, "special_tokens");
    TRY(subwords_allow(path, v, "type single pair special_tokens"));
    TRY(read_layout(&t->single, path, json_member(v, "single"), tokens, false));
    return read_layout(&t->pair, path, json_member(v, "pair"), tokens, true);
}

static status read_all(tokenizer *t, arena *a, const char *path, const char *text, size_t n) {
    const json_value *root;
    step processors[MAX_STEPS];
    size_t n_processors = 0;
    TRY(json_parse(a, path, text, n, &root));
    const json_value *model = root->type == JSON_OBJECT ? json_member(root, "model") : NULL;
    if (model == NULL || model->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "%s: has no model: not a tokenizer.json", path);
    /* Truncation and padding are set at every call in transformers, too. */
    TRY(subwords_allow(path, root,
                       "version truncation padding added_tokens normalizer pre_tokenizer "
                       "post_processor decoder model"));
    TRY(char_classes_create(&t->classes));
    TRY(subwords_create(&t->model, path, model));
    TRY(read_steps(t, path, json_member(root, "normalizer"), "normalizers", read_normalizer,
                   t->normal, &t->n_normal));
    TRY(read_steps(t, path, json_member(root, "pre_tokenizer"), "pretokenizers", read_part, t->part,
                   &t->n_parts));
    TRY(read_all_added(t, path, json_member(root, "added_tokens")));
    TRY(read_steps(t, path, json_member(root, "post_processor"), "processors", read_processor,
                   processors, &n_processors));
    if (t->single.n > 0) return OK;
    t->single = (token_layout){{{SLOT_FIRST, 0}}, 1};
    t->pair = (token_layout){{{SLOT_FIRST, 0}, {SLOT_SECOND, 1}}, 2};
    return OK;
}

static status create(tokenizer **out) {
    *out = NULL;
    TRY(MEM_NEW(out, 1));
    arena_init(&(*out)->memory, 1 << 14);
    return OK;
}

status tokenizer_parse(tokenizer **out, const char *path, const char *text, size_t n) {
    tokenizer *t;
    arena a;
    *out = NULL;
    TRY(create(&t));
    arena_init(&a, 1 << 16);
    status st = read_all(t, &a, path, text, n);
    arena_fini(&a);
    if (st == OK)
        *out = t;
    else
        tokenizer_destroy(t);
    return st;
}

status tokenizer_of_pieces(tokenizer **out, word_pieces *pieces) {
    int32_t cls = word_pieces_cls(pieces), sep = word_pieces_sep(pieces);
    status st = create(out);
    if (st != OK) {
        word_pieces_destroy(pieces);
        return st;
    }
    (*out)->pieces = pieces;
    (*out)->single = (token_layout){{{cls, 0}, {SLOT_FIRST, 0}, {sep, 0}}, 3};
    (*out)->pair =
        (token_layout){{{cls, 0}, {SLOT_FIRST, 0}, {sep, 0}, {SLOT_SECOND, 1}, {sep, 1}}, 5};
    return OK;
}

void tokenizer_destroy(tokenizer *t) {
    if (t == NULL) return;
    word_pieces_destroy(t->pieces);
    subwords_destroy(t->model);
    mem_free(t->classes);
    mem_free(t->added);
    arena_fini(&t->memory);
    mem_free(t);
}

status tokenizer_open(tokenizer **out, const char *folder) {
    char path[PATH_BYTES], *text;
    word_pieces *pieces;
    size_t n;
    *out = NULL;
    TRY(path_join(path, sizeof path, folder, "vocab.txt"));
    if (file_exists(path)) {
        TRY(word_pieces_open(&pieces, folder));
        return tokenizer_of_pieces(out, pieces);
    }
    TRY(path_join(path, sizeof path, folder, "tokenizer.json"));
    if (!file_exists(path)) return OK;
    TRY(file_read_all(path, FILE_MAX_BYTES, &text, &n));
    status st = tokenizer_parse(out, path, text, n);
    mem_free(text);
    return st;
}
