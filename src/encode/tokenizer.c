#include "encode/tokenizer.h"

#include "encode/charsmap.h"
#include "encode/subwords.h"

enum { MAX_STEPS = 8, MAX_ADDED = 4096, VOCAB_MAX_BYTES = 256 << 20 };
enum { MAX_TEXT = 1024 }; /* of an added token, or what a normalizer inserts */

/* No normalizer of the supported families makes a text so many times longer. */
enum { MAX_GROWTH = 64 };

/* Steps of the normalizer, of the pre-tokenizer and of the post-processor. */
enum { STEP_CHARSMAP, STEP_REPLACE, STEP_SPACES, STEP_LOWER, STEP_STRIP };
enum { STEP_WHITESPACE = STEP_STRIP + 1, STEP_METASPACE, STEP_BYTES };
enum { STEP_ROBERTA = STEP_BYTES + 1, STEP_TEMPLATE };
enum { STEP_BERT = STEP_TEMPLATE + 1 }; /* both its normalizer and its pre-tokenizer */
typedef struct step {
    int kind;
    bool has_left, has_right; /* strip */
    bool has_prefix, parts;   /* metaspace and bytes: a space in front; split into words */
    const char *from, *to;    /* replace (spaces: two and more); metaspace: for a space */
    size_t n_from, n_to;
    charsmap map;
    word_piece_options bert;
} step;

/* A token that is found in the text before the model sees it. */
typedef struct added_token {
    const char *text; /* normalised, where is_normal */
    size_t n;
    int32_t id;
    bool is_normal, strips_left, strips_right;
} added_token;

struct tokenizer {
    subwords *model;
    uint8_t *classes;
    arena memory; /* texts */
    step normal[MAX_STEPS], part[MAX_STEPS];
    size_t n_normal, n_parts;
    added_token *added;
    size_t n_added;
    bool begins_added[2][256]; /* by is_normal: whether an added token begins with a byte */
    bool has_normal;           /* whether any is_normal */
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
        if (p->kind == STEP_BERT) {
            TRY(word_text_clean(&p->bert, text, *n, to));
        } else if (p->kind == STEP_CHARSMAP) {
            TRY(charsmap_apply(&p->map, t->classes, text, *n, to));
        } else if (p->kind == STEP_LOWER) {
            TRY(word_text_lower(text, *n, to));
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

static status part_bert(splitter *s, size_t i, const char *text, size_t n) {
    for (size_t at = 0, begin; at < n;) {
        at = word_text_next(text, n, at, &begin);
        TRY(split_part(s, i + 1, text + begin, at - begin));
    }
    return OK;
}

/* Pre-tokenizers from number i on, then the model. */
static status split_part(splitter *s, size_t i, const char *text, size_t n) {
    if (n == 0) return OK;
    if (i == s->t->n_parts) return subwords_split(s->t->model, &s->words, text, n, s->to);
    int kind = s->t->part[i].kind;
    if (kind == STEP_BERT) return part_bert(s, i, text, n);
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
    return s->t->has_normal ? split_added(s, true, text, n) : split_part(s, 0, text, n);
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
        TRY(word_ids_append(s->to, a->id));
        begin = at;
        if (a->strips_right) begin += spaces_at_start(s->t->classes, text + at, n - at);
    }
    return n > begin ? split_rest(s, is_normal, text + begin, n - begin) : OK;
}

static bool is_bert(const tokenizer *t) {
    return t->n_normal == 1 && t->normal[0].kind == STEP_BERT;
}

status tokenizer_split(const tokenizer *t, const char *text, size_t n, word_ids *to) {
    splitter s = {.t = t, .to = to};
    if (!is_bert(t) && !utf8_is_valid(text, n)) return fail(ERR_FORMAT, "the text is not UTF-8");
    status st = split_added(&s, false, text, n);
    subword_room_fini(&s.words);
    for (size_t i = 0; i < MAX_STEPS; i++)
        buf_fini(&s.room[i]);
    buf_fini(&s.normal[0]);
    buf_fini(&s.normal[1]);
    return st;
}

status tokenizer_lower(tokenizer *t) {
    if (is_bert(t)) {
        t->normal[0].bert.is_lower = true; /* accents stay */
        return OK;
    }
    if (t->n_normal == MAX_STEPS)
        return fail(ERR_UNSUPPORTED, "do_lower_case, and %d normalizers already", MAX_STEPS);
    memmove(t->normal + 1, t->normal, t->n_normal++ * sizeof *t->normal);
    t->normal[0] = (step){.kind = STEP_LOWER};
    return OK;
}

/* Reading a tokenizer.json. */

/* A text that outlives the JSON tree. */
static status keep_text(tokenizer *t, const char *path, const json_value *v, const char *name,
                        const char **out, size_t *n) {
    const json_value *m = subwords_member(v, name, JSON_STRING);
    if (m == NULL || m->string_bytes > MAX_TEXT) return subwords_damaged(path, name);
    *n = m->string_bytes;
    return arena_copy_text(&t->memory, m->string, m->string_bytes, out);
}

static status read_charsmap(tokenizer *t, const char *path, const json_value *v, step *to) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *text = subwords_text(v, "precompiled_charsmap"), *digit;
    size_t n = strcspn(text, "="), n_bytes = 0;
    uint32_t bits = 0;
    char *bytes;
    TRY(ARENA_NEW_RAW(&t->memory, &bytes, n + 1));
    for (size_t i = 0; i < n; i++) {
        if ((digit = strchr(digits, text[i])) == NULL)
            return subwords_damaged(path, "precompiled_charsmap");
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (i % 4 != 0) bytes[n_bytes++] = (char)(bits >> (6 - 2 * (i % 4)) & 0xff);
    }
    return charsmap_open(&to->map, path, bytes, n_bytes);
}

static status read_replace(tokenizer *t, const char *path, const json_value *v, step *to) {
    const json_value *pattern = subwords_member(v, "pattern", JSON_OBJECT);
    const char *regex = subwords_text(pattern, "Regex");
    TRY(keep_text(t, path, v, "content", &to->to, &to->n_to));
    if (strcmp(regex, " {2,}") == 0) {
        to->kind = STEP_SPACES;
        return OK;
    }
    if (regex[0] != '\0')
        return fail(ERR_UNSUPPORTED, "%s: the pattern '%.60s' of Replace is not supported", path,
                    regex);
    TRY(keep_text(t, path, pattern, "String", &to->from, &to->n_from));
    return to->n_from > 0 ? OK : subwords_damaged(path, "String");
}

static status read_metaspace(tokenizer *t, const char *path, const json_value *v, step *to) {
    const char *scheme = subwords_text(v, "prepend_scheme");
    to->has_prefix = scheme[0] != '\0' ? strcmp(scheme, "always") == 0 : to->has_prefix;
    if (scheme[0] != '\0' && !to->has_prefix && strcmp(scheme, "never") != 0)
        return fail(ERR_UNSUPPORTED, "%s: prepend_scheme '%.40s' is not supported", path, scheme);
    TRY(keep_text(t, path, v, "replacement", &to->to, &to->n_to));
    bool is_char = to->n_to > 0 && (size_t)utf8_length(to->to, to->n_to) == to->n_to;
    return is_char ? OK : subwords_damaged(path, "replacement");
}

static bool is_id(const json_value *v) {
    return v != NULL && v->is_integer && v->integer >= 0 && v->integer < INT32_MAX;
}

static status add_slot(token_layout *to, const char *path, int64_t id, int64_t type) {
    if (to->n == MAX_SLOTS)
        return fail(ERR_UNSUPPORTED, "%s: more than %d special tokens", path, MAX_SLOTS);
    to->slot[to->n++] = (token_slot){(int32_t)id, (int32_t)type};
    return OK;
}

/* RobertaProcessing: cls and sep are ["</s>", 2]; <s> A </s> and <s> A </s> </s> B </s>. */
static status read_roberta(tokenizer *t, const char *path, const json_value *v) {
    const json_value *cls = subwords_member(v, "cls", JSON_ARRAY);
    const json_value *sep = subwords_member(v, "sep", JSON_ARRAY);
    if (cls == NULL || cls->n_children != 2 || !is_id(cls->first->next))
        return subwords_damaged(path, "cls");
    if (sep == NULL || sep->n_children != 2 || !is_id(sep->first->next))
        return subwords_damaged(path, "sep");
    int32_t a = (int32_t)cls->first->next->integer, z = (int32_t)sep->first->next->integer;
    t->single = (token_layout){{{a, 0}, {SLOT_FIRST, 0}, {z, 0}}, 3};
    t->pair =
        (token_layout){{{a, 0}, {SLOT_FIRST, 0}, {z, 0}, {z, 0}, {SLOT_SECOND, 0}, {z, 0}}, 6};
    return OK;
}

/* TemplateProcessing: a list of {"SpecialToken": {"id": "<s>", "type_id": 0}} and
 * {"Sequence": {"id": "A", "type_id": 0}}; `tokens` has the ids. */
static status read_layout(token_layout *to, const char *path, const json_value *list,
                          const json_value *tokens, bool is_pair) {
    int n_texts[2] = {0, 0};
    for (const json_value *v = list != NULL ? list->first : NULL; v != NULL; v = v->next) {
        const json_value *text = subwords_member(v, "Sequence", JSON_OBJECT);
        const json_value *token = subwords_member(v, "SpecialToken", JSON_OBJECT);
        const json_value *type =
            subwords_member(text != NULL ? text : token, "type_id", JSON_NUMBER);
        const char *name = subwords_text(text != NULL ? text : token, "id");
        bool is_second = strcmp(name, "B") == 0;
        if (!is_id(type)) return subwords_damaged(path, "type_id of TemplateProcessing");
        if (text != NULL) {
            n_texts[is_second]++;
            TRY(add_slot(to, path, is_second ? SLOT_SECOND : SLOT_FIRST, type->integer));
            continue;
        }
        token = subwords_member(subwords_member(tokens, name, JSON_OBJECT), "ids", JSON_ARRAY);
        if (token == NULL) return subwords_damaged(path, "a token of TemplateProcessing");
        for (const json_value *id = token->first; id != NULL; id = id->next) {
            if (!is_id(id)) return subwords_damaged(path, "an id of TemplateProcessing");
            TRY(add_slot(to, path, id->integer, type->integer));
        }
    }
    return n_texts[0] == 1 && n_texts[1] == is_pair ? OK
                                                    : subwords_damaged(path, "TemplateProcessing");
}

static status read_template(tokenizer *t, const char *path, const json_value *v) {
    const json_value *tokens = subwords_member(v, "special_tokens", JSON_OBJECT);
    TRY(read_layout(&t->single, path, subwords_member(v, "single", JSON_ARRAY), tokens, false));
    return read_layout(&t->pair, path, subwords_member(v, "pair", JSON_ARRAY), tokens, true);
}

static const struct step_type {
    const char *name, *members;
    int kind;
} STEP_TYPES[] = {
    {"Precompiled", "type precompiled_charsmap", STEP_CHARSMAP},
    {"Replace", "type pattern content", STEP_REPLACE},
    {"Lowercase", "type", STEP_LOWER},
    {"Strip", "type ?strip_left ?strip_right", STEP_STRIP},
    {"WhitespaceSplit", "type", STEP_WHITESPACE},
    {"Metaspace", "type replacement str_rep ?add_prefix_space prepend_scheme ?split",
     STEP_METASPACE},
    {"ByteLevel", "type ?add_prefix_space ?trim_offsets ?use_regex", STEP_BYTES},
    {"RobertaProcessing", "type sep cls ?trim_offsets ?add_prefix_space", STEP_ROBERTA},
    {"TemplateProcessing", "type single pair special_tokens", STEP_TEMPLATE},
};

/* One kind of steps: a member of the file, and the name of the list in a Sequence. */
typedef struct stage {
    const char *member, *list;
    int first, last; /* kinds */
} stage;

static status read_step(tokenizer *t, const char *path, const json_value *v, const stage *g,
                        step *to) {
    const struct step_type *type = NULL;
    for (size_t i = 0; i < sizeof STEP_TYPES / sizeof *STEP_TYPES; i++)
        if (strcmp(STEP_TYPES[i].name, subwords_text(v, "type")) == 0) type = &STEP_TYPES[i];
    if (type == NULL || type->kind < g->first || type->kind > g->last)
        return fail(ERR_UNSUPPORTED, "%s: the %s '%.40s' is not supported", path, g->member,
                    subwords_text(v, "type"));
    TRY(subwords_allow(path, v, type->members));
    *to = (step){.kind = type->kind,
                 .has_left = subwords_bool(v, "strip_left", true),
                 .has_right = subwords_bool(v, "strip_right", true),
                 .has_prefix = subwords_bool(v, "add_prefix_space", true),
                 .parts = subwords_bool(v, "use_regex", true) && subwords_bool(v, "split", true)};
    if (type->kind >= STEP_ROBERTA && t->single.n > 0)
        return fail(ERR_UNSUPPORTED, "%s: several post-processors are not supported", path);
    switch (type->kind) {
    case STEP_CHARSMAP:
        return read_charsmap(t, path, v, to);
    case STEP_REPLACE:
        return read_replace(t, path, v, to);
    case STEP_METASPACE:
        return read_metaspace(t, path, v, to);
    case STEP_ROBERTA:
        return read_roberta(t, path, v);
    case STEP_TEMPLATE:
        return read_template(t, path, v);
    default:
        return OK;
    }
}

/* One step, or a Sequence of them, which may hold others; JSON itself bounds their depth. */
static status read_steps(tokenizer *t, const char *path, const json_value *v, const stage *g,
                         step *to, size_t *n) {
    if (v == NULL || v->type == JSON_NULL) return OK;
    if (strcmp(subwords_text(v, "type"), "Sequence") == 0) {
        const json_value *all = subwords_member(v, g->list, JSON_ARRAY);
        if (all == NULL) return subwords_damaged(path, g->list);
        for (v = all->first; v != NULL; v = v->next)
            TRY(read_steps(t, path, v, g, to, n));
        return OK;
    }
    if (*n == MAX_STEPS)
        return fail(ERR_UNSUPPORTED, "%s: more than %d %s", path, MAX_STEPS, g->list);
    return read_step(t, path, v, g, &to[(*n)++]);
}

/* Tokens that the vocabulary lacks have the ids after it, as `tokenizers` numbers them. */
static status read_added(tokenizer *t, const char *path, const json_value *v, added_token *to,
                         int32_t *next, buf room[2]) {
    const json_value *id = subwords_member(v, "id", JSON_NUMBER);
    TRY(keep_text(t, path, v, "content", &to->text, &to->n));
    TRY(subwords_allow(path, v, "id content ?single_word ?lstrip ?rstrip ?normalized ?special"));
    to->id = subwords_find(t->model, to->text, to->n);
    if (to->id < 0) to->id = (*next)++;
    if (!is_id(id) || id->integer != to->id)
        return fail(ERR_FORMAT, "%s: the id of the added token '%.40s' must be %d", path, to->text,
                    to->id);
    if (subwords_bool(v, "single_word", false))
        return fail(ERR_UNSUPPORTED, "%s: single_word of '%.40s' is not supported", path, to->text);
    to->is_normal = subwords_bool(v, "normalized", true);
    t->has_normal |= to->is_normal;
    to->strips_left = subwords_bool(v, "lstrip", false);
    to->strips_right = subwords_bool(v, "rstrip", false);
    const char *text = to->text;
    if (to->is_normal) TRY(normalise(t, room, &text, &to->n));
    TRY(arena_copy_text(&t->memory, text, to->n, &to->text));
    for (const added_token *a = t->added; a < to; a++)
        if (a->n == to->n && a->is_normal == to->is_normal && memcmp(a->text, to->text, a->n) == 0)
            return fail(ERR_FORMAT, "%s: the added token '%.40s' stands there twice", path, text);
    if (to->n == 0) return subwords_damaged(path, "content of an added token");
    t->begins_added[to->is_normal][(unsigned char)to->text[0]] = true;
    return OK;
}

static status read_all_added(tokenizer *t, const char *path, const json_value *list) {
    int32_t next = (int32_t)subwords_n(t->model);
    buf room[2] = {{0}, {0}};
    status st = OK;
    if (list == NULL) return OK;
    if (list->n_children > MAX_ADDED)
        return fail(ERR_UNSUPPORTED, "%s: more than %d added tokens", path, MAX_ADDED);
    TRY(MEM_NEW(&t->added, list->n_children));
    for (const json_value *v = list->first; st == OK && v != NULL; v = v->next, t->n_added++)
        st = read_added(t, path, v, &t->added[t->n_added], &next, room);
    buf_fini(&room[0]);
    buf_fini(&room[1]);
    return st;
}

/* WordPiece as BERT has it: this normalizer, or Lowercase before it. */
static status read_bert_normalizer(const char *path, const json_value *v, word_piece_options *o) {
    const json_value *list = subwords_member(v, "normalizers", JSON_ARRAY);
    bool is_lower = list != NULL && list->n_children == 2 &&
                    strcmp(subwords_text(list->first, "type"), "Lowercase") == 0;
    if (is_lower) v = list->first->next;
    if (strcmp(subwords_text(v, "type"), "BertNormalizer") != 0)
        return fail(ERR_UNSUPPORTED, "%s: the normalizer '%.40s' of WordPiece is not supported",
                    path, subwords_text(v, "type"));
    TRY(subwords_allow(path, v,
                       "type ?clean_text ?handle_chinese_chars ?strip_accents ?lowercase"));
    if (!subwords_bool(v, "clean_text", true))
        return fail(ERR_UNSUPPORTED, "%s: clean_text must be true", path);
    o->is_lower = subwords_bool(v, "lowercase", true);
    o->strips_accents = subwords_bool(v, "strip_accents", o->is_lower);
    o->is_lower |= is_lower;
    o->parts_chinese = subwords_bool(v, "handle_chinese_chars", true);
    return OK;
}

static const char *const SPECIAL[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
enum { UNK = 1, CLS, SEP, N_SPECIAL = 5 };

static int32_t special(const tokenizer *t, int i) {
    return subwords_find(t->model, SPECIAL[i], strlen(SPECIAL[i]));
}

/* BERT's steps, and those of its special tokens that the vocabulary has. */
static status set_bert(tokenizer *t, const word_piece_options *o) {
    t->normal[t->n_normal++] = t->part[t->n_parts++] = (step){.kind = STEP_BERT, .bert = *o};
    TRY(MEM_NEW(&t->added, N_SPECIAL));
    t->begins_added[false]['['] = true;
    for (int i = 0; i < N_SPECIAL; i++)
        if (special(t, i) >= 0)
            t->added[t->n_added++] =
                (added_token){.text = SPECIAL[i], .n = strlen(SPECIAL[i]), .id = special(t, i)};
    return OK;
}

/* What a tokenizer.json has besides the model of WordPiece. */
static status read_bert(tokenizer *t, const char *path, const json_value *root) {
    const json_value *part = json_member(root, "pre_tokenizer");
    const json_value *added = subwords_member(root, "added_tokens", JSON_ARRAY);
    word_piece_options o;
    if (strcmp(subwords_text(part, "type"), "BertPreTokenizer") != 0)
        return fail(ERR_UNSUPPORTED, "%s: a WordPiece other than BERT's is not supported", path);
    TRY(read_bert_normalizer(path, json_member(root, "normalizer"), &o));
    for (const json_value *v = added != NULL ? added->first : NULL; v != NULL; v = v->next) {
        const char *name = subwords_text(v, "content");
        if (subwords_among("[PAD] [UNK] [CLS] [SEP] [MASK]", name) == NULL ||
            subwords_bool(v, "lstrip", false) || subwords_bool(v, "rstrip", false))
            return fail(ERR_UNSUPPORTED, "%s: the added token '%.40s' is not supported", path,
                        name);
    }
    return set_bert(t, &o);
}

static status read_all(tokenizer *t, const char *path, const json_value *root) {
    static const stage normal = {"normalizer", "normalizers", STEP_CHARSMAP, STEP_STRIP},
                       part = {"pre_tokenizer", "pretokenizers", STEP_WHITESPACE, STEP_BYTES},
                       end = {"post_processor", "processors", STEP_BYTES, STEP_TEMPLATE};
    step ends[MAX_STEPS];
    size_t n_ends = 0;
    const json_value *model = subwords_member(root, "model", JSON_OBJECT);
    if (model == NULL) return subwords_damaged(path, "the model");
    /* Truncation and padding are set at every call in transformers, too. */
    TRY(subwords_allow(path, root,
                       "version truncation padding added_tokens normalizer pre_tokenizer "
                       "post_processor decoder model"));
    TRY(subwords_create(&t->model, path, model));
    if (strcmp(subwords_text(model, "type"), "WordPiece") == 0) {
        TRY(read_bert(t, path, root));
    } else {
        TRY(char_classes_create(&t->classes));
        TRY(read_steps(t, path, json_member(root, normal.member), &normal, t->normal,
                       &t->n_normal));
        TRY(read_steps(t, path, json_member(root, part.member), &part, t->part, &t->n_parts));
        TRY(read_all_added(t, path, subwords_member(root, "added_tokens", JSON_ARRAY)));
    }
    TRY(read_steps(t, path, json_member(root, end.member), &end, ends, &n_ends));
    if (t->single.n > 0) return OK;
    t->single = (token_layout){{{SLOT_FIRST, 0}}, 1};
    t->pair = (token_layout){{{SLOT_FIRST, 0}, {SLOT_SECOND, 1}}, 2};
    return OK;
}

status tokenizer_parse(tokenizer **out, const char *path, const json_value *root) {
    tokenizer *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    arena_init(&t->memory, 1 << 14);
    status st = read_all(t, path, root);
    return CREATED(st, out, t, tokenizer_destroy);
}

status tokenizer_of_lines(tokenizer **out, const char *path, const char *text, size_t n,
                          const word_piece_options *o) {
    tokenizer *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    arena_init(&t->memory, 1 << 14);
    status st = subwords_of_lines(&t->model, path, text, n);
    if (st == OK) st = set_bert(t, o);
    if (st != OK) return CREATED(st, out, t, tokenizer_destroy);
    token_slot cls = {special(t, CLS), 0}, sep = {special(t, SEP), 0}, last = {sep.id, 1};
    t->single = (token_layout){{cls, {SLOT_FIRST, 0}, sep}, 3};
    t->pair = (token_layout){{cls, {SLOT_FIRST, 0}, sep, {SLOT_SECOND, 1}, last}, 5};
    *out = t;
    return OK;
}

void tokenizer_destroy(tokenizer *t) {
    if (t == NULL) return;
    subwords_destroy(t->model);
    MEM_FREE(t->classes, t->added);
    arena_fini(&t->memory);
    mem_free(t);
}

/* transformers prefers add_prefix_space of tokenizer_config.json; files that disagree are refused.
 */
static status check_config(const tokenizer *t, arena *a, const char *folder) {
    char path[FOLDER_PATH_BYTES];
    const json_value *root;
    TRY(subwords_read(a, folder, "tokenizer_config.json", JSON_OBJECT, path, &root));
    for (size_t i = 0; i < t->n_parts; i++)
        if (t->part[i].kind == STEP_BYTES &&
            subwords_bool(root, "add_prefix_space", t->part[i].has_prefix) != t->part[i].has_prefix)
            return fail(ERR_UNSUPPORTED, "%s: add_prefix_space differs from tokenizer.json", path);
    return OK;
}

static status open_json(tokenizer **out, arena *a, const char *folder) {
    char path[FOLDER_PATH_BYTES];
    const json_value *root;
    TRY(subwords_read(a, folder, "tokenizer.json", JSON_OBJECT, path, &root));
    if (root == NULL) return OK;
    TRY(tokenizer_parse(out, path, root));
    status st = check_config(*out, a, folder);
    if (st == OK) return OK;
    tokenizer_destroy(*out);
    *out = NULL;
    return st;
}

static status open_lines(tokenizer **out, const char *path, const char *folder) {
    word_piece_options o;
    char *text;
    size_t n;
    TRY(word_piece_options_read(&o, folder));
    TRY(file_read_all(path, VOCAB_MAX_BYTES, &text, &n));
    status st = tokenizer_of_lines(out, path, text, n, &o);
    mem_free(text);
    return st;
}

status tokenizer_open(tokenizer **out, const char *folder) {
    char path[FOLDER_PATH_BYTES];
    arena a;
    *out = NULL;
    TRY(path_join(path, sizeof path, folder, "vocab.txt"));
    if (file_exists(path)) return open_lines(out, path, folder);
    arena_init(&a, 1 << 16);
    status st = open_json(out, &a, folder);
    arena_fini(&a);
    return st;
}
