#include "encode/word_pieces.h"

#include "encode/charsmap.h"
#include "encode/subwords.h"
#include "encode/word_tables.h"

status word_ids_append(word_ids *to, int32_t id) {
    TRY(MEM_RESERVE(&to->ids, &to->capacity, to->n + 1));
    to->ids[to->n++] = id;
    return OK;
}

static status put(buf *to, uint32_t c) {
    char bytes[4];
    return buf_append(to, bytes, (size_t)utf8_encode(c, bytes));
}

static status put_lower(bool is_lower, buf *to, uint32_t c) {
    uint32_t low[WORD_CHAR_MAX] = {c};
    int n = is_lower ? word_char_lower(c, low) : 1;
    for (int i = 0; i < n; i++)
        TRY(put(to, low[i]));
    return OK;
}

status word_text_lower(const char *text, size_t n, buf *to) {
    for (size_t at = 0; at < n;) {
        int length = utf8_length(text + at, n - at);
        TRY(put_lower(true, to, utf8_decode(text + at, length)));
        at += (size_t)length;
    }
    return OK;
}

/* One character of the text: cleaned, parted, without accents, in lower case; in this order. */
static status clean(const word_piece_options *o, buf *to, uint32_t c) {
    uint32_t base[WORD_CHAR_MAX] = {c};
    int n = 1;
    bert_class class = word_char_class(c);
    if (class == BERT_CONTROL) return OK;
    if (class == BERT_SPACE) return buf_char(to, ' ');
    if (c < 0x80) return put_lower(o->is_lower, to, c); /* ASCII has no accents */
    bool is_chinese = o->parts_chinese && class == BERT_CHINESE;
    if (is_chinese) TRY(buf_char(to, ' '));
    if (o->strips_accents) n = word_char_strip(c, base);
    for (int i = 0; i < n; i++)
        TRY(put_lower(o->is_lower, to, base[i]));
    return is_chinese ? buf_char(to, ' ') : OK;
}

status word_text_clean(const word_piece_options *o, const char *text, size_t n, buf *to) {
    for (size_t at = 0; at < n;) {
        int length = utf8_length(text + at, n - at);
        if (length > 0) TRY(clean(o, to, utf8_decode(text + at, length)));
        at += length > 0 ? (size_t)length : 1;
    }
    return OK;
}

size_t word_text_next(const char *text, size_t n, size_t at, size_t *begin) {
    while (at < n && text[at] == ' ')
        at++;
    *begin = at;
    while (at < n && text[at] != ' ') {
        int length = utf8_length(text + at, n - at);
        bool is_mark = word_char_class(utf8_decode(text + at, length)) == BERT_PUNCTUATION;
        if (is_mark && at > *begin) break;
        at += (size_t)length;
        if (is_mark) break;
    }
    return at;
}

/* What else may be in a tokenizer_config.json: it changes no id of a text. */
static const char IGNORED[] =
    "backend clean_up_tokenization_spaces extra_special_tokens is_local local_files_only "
    "max_len max_length model_input_names model_max_length name_or_path pad_to_multiple_of "
    "pad_token_type_id padding_side processor_class special_tokens_map_file stride "
    "tokenizer_file truncation_side truncation_strategy vocab_file";

/* A special token is a string, or an object with its content. */
static const char *content_of(const json_value *v) {
    const json_value *content = v->type == JSON_OBJECT ? json_member(v, "content") : v;
    return content != NULL && content->type == JSON_STRING ? content->string : "";
}

static status check_token(const char *path, const json_value *v) {
    if (subwords_among("[PAD] [UNK] [CLS] [SEP] [MASK]", content_of(v)) != NULL) return OK;
    return fail(ERR_UNSUPPORTED, "%s: the special token '%.40s' of %.40s is not one of BERT's",
                path, content_of(v), v->key);
}

/* The members of added_tokens_decoder, a special token each. */
static status check_tokens(const char *path, const json_value *v) {
    for (const json_value *token = v->first; token != NULL; token = token->next)
        TRY(check_token(path, token));
    return OK;
}

static status read_bool(const char *path, const json_value *v, bool *out) {
    if (v->type != JSON_BOOL) return fail(ERR_FORMAT, "%s: %s is not true or false", path, v->key);
    *out = v->boolean;
    return OK;
}

static status read_class(const char *path, const json_value *v) {
    static const char known[] = "BertTokenizer BertTokenizerFast DistilBertTokenizer "
                                "DistilBertTokenizerFast ElectraTokenizer ElectraTokenizerFast "
                                "RetriBertTokenizerFast";
    if (v->type == JSON_STRING && subwords_among(known, v->string) != NULL) return OK;
    return fail(ERR_UNSUPPORTED,
                "%s: the tokenizer %.60s is not supported, BertTokenizer is; give ids instead of "
                "text",
                path, v->type == JSON_STRING ? v->string : "");
}

/* do_lower_case true, say. */
static status read_option(word_piece_options *o, const char *path, const json_value *v,
                          bool *has_accents) {
    static const char tokens[] = "cls_token mask_token pad_token sep_token unk_token";
    bool is_on = false;
    if (v->type == JSON_NULL || subwords_among(IGNORED, v->key) != NULL) return OK;
    if (strcmp(v->key, "do_lower_case") == 0) return read_bool(path, v, &o->is_lower);
    if (strcmp(v->key, "tokenize_chinese_chars") == 0) return read_bool(path, v, &o->parts_chinese);
    if (strcmp(v->key, "strip_accents") == 0) {
        *has_accents = true;
        return read_bool(path, v, &o->strips_accents);
    }
    if (strcmp(v->key, "tokenizer_class") == 0) return read_class(path, v);
    if (subwords_among(tokens, v->key) != NULL) return check_token(path, v);
    if (strcmp(v->key, "added_tokens_decoder") == 0) return check_tokens(path, v);
    if (strcmp(v->key, "do_basic_tokenize") == 0) {
        TRY(read_bool(path, v, &is_on));
        if (is_on) return OK;
    }
    bool is_empty = (v->type == JSON_ARRAY || v->type == JSON_OBJECT) && v->n_children == 0;
    if (is_empty) return OK;
    return fail(ERR_UNSUPPORTED,
                "%s: the field '%.60s' may change the tokens and is not supported; give ids "
                "instead of text",
                path, v->key);
}

status word_piece_options_parse(word_piece_options *out, const char *path, const json_value *root) {
    bool has_accents = false;
    *out = (word_piece_options){true, true, true};
    if (root->type != JSON_OBJECT) return fail(ERR_FORMAT, "%s: is not a JSON object", path);
    for (const json_value *v = root->first; v != NULL; v = v->next)
        TRY(read_option(out, path, v, &has_accents));
    if (!has_accents) out->strips_accents = out->is_lower;
    return OK;
}

status word_piece_options_read(word_piece_options *out, const char *folder) {
    char path[FOLDER_PATH_BYTES];
    const json_value *root;
    arena a;
    *out = (word_piece_options){true, true, true};
    arena_init(&a, 1 << 14);
    status st = subwords_read(&a, folder, "tokenizer_config.json", JSON_OBJECT, path, &root);
    if (st == OK && root != NULL) st = word_piece_options_parse(out, path, root);
    arena_fini(&a);
    return st;
}

#define N(table) (sizeof(table) / sizeof *(table))

static uint8_t classes[CHAR_CODES];

static void make_classes(void) {
    char_runs_expand(classes, BERT_RUNS, N(BERT_RUNS), 0);
}

bert_class word_char_class(uint32_t c) {
    static pthread_once_t has_classes = PTHREAD_ONCE_INIT;
    pthread_once(&has_classes, make_classes);
    return c < CHAR_CODES ? (bert_class)classes[c] : BERT_OTHER;
}

/* What a character is mapped to; itself where no block of the ascending table has it. */
static uint32_t mapped(const char_block *table, size_t n, const uint32_t *list, uint32_t c) {
    size_t low = 0, high = n;
    BISECT(low, high, table[middle].last < c);
    return low < n && table[low].first <= c ? list[table[low].at + (c - table[low].first)] : c;
}

/* A syllable of Hangul is made of two or three letters: Unicode standard, section 3.12. */
static int strip_hangul(uint32_t c, uint32_t out[WORD_CHAR_MAX]) {
    uint32_t s = c - 0xac00, trail = s % 28;
    out[0] = 0x1100 + s / (21 * 28);
    out[1] = 0x1161 + s % (21 * 28) / 28;
    out[2] = 0x11a7 + trail;
    return trail != 0 ? 3 : 2;
}

int word_char_strip(uint32_t c, uint32_t out[WORD_CHAR_MAX]) {
    if (c >= 0xac00 && c <= 0xd7a3) return strip_hangul(c, out);
    if (word_char_class(c) == BERT_MARK) return 0;
    for (size_t i = 0; c >= LONG_BASES[0].from && i < N(LONG_BASES); i++) {
        const char_bases *to = &LONG_BASES[i];
        if (to->from != c) continue;
        out[0] = to->first;
        out[1] = to->second;
        out[2] = to->third;
        return to->third != 0 ? 3 : 2;
    }
    out[0] = mapped(BASE_BLOCKS, N(BASE_BLOCKS), BASES, c);
    return 1;
}

int word_char_lower(uint32_t c, uint32_t out[WORD_CHAR_MAX]) {
    out[0] = mapped(LOWER_BLOCKS, N(LOWER_BLOCKS), LOWERS, c);
    if (c == 0x130) { /* a capital I with a dot: i, and the dot as a mark */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    return 1;
}
