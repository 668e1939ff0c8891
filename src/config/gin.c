/* Statements of a gin text: bindings, blocks, imports.  Includes and overrides; the index. */
#include "config/gin.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "config/gin_read.h"

void gin_init(gin_config *g) {
    *g = (gin_config){0};
    arena_init(&g->memory, 1 << 14);
}

void gin_fini(gin_config *g) {
    mem_free(g->bindings);
    mem_free(g->index);
    arena_fini(&g->memory);
    *g = (gin_config){0};
}

static status add_binding(gin_reader *r, const gin_binding *like) {
    gin_config *g = r->g;
    gin_binding *b;
    TRY(ARENA_NEW(&g->memory, &b, 1));
    TRY(MEM_RESERVE(&g->bindings, &g->bindings_capacity, g->n_bindings + 1));
    *b = *like;
    b->file = r->file;
    b->is_override = r->is_override;
    b->order = g->n_bindings;
    g->bindings[g->n_bindings++] = b;
    return OK;
}

/* Only spaces and a comment may follow the cursor on its line. */
static status end_statement(gin_reader *r) {
    gin_skip_space(r);
    if (gin_peek(r) == '#')
        while (r->at < r->n && r->text[r->at] != '\n')
            r->at++;
    if (gin_peek(r) == '\r') r->at++;
    if (r->at >= r->n) return OK;
    if (r->text[r->at] != '\n')
        return gin_fail(r, "the end of the line is expected, not '%.1s'",
                        isprint((unsigned char)r->text[r->at]) ? r->text + r->at : "?");
    r->at++;
    r->line++;
    return OK;
}

static status read_text(gin_reader *r);

static status read_file(gin_config *g, const char *path, const gin_reader *parent);

/* The path relative to the including file if that exists, else the path as written. */
static status resolve_include(gin_reader *r, const char *path, const char **out) {
    char joined[4096], folder[4096];
    const char *slash = strrchr(r->file, '/');
    *out = path;
    if (path[0] == '/' || slash == NULL) return OK;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - r->file), r->file);
    TRY(path_join(joined, sizeof joined, slash == r->file ? "/" : folder, path));
    if (!file_exists(joined)) return OK;
    return arena_copy_text(&r->g->memory, joined, strlen(joined), out);
}

static status read_include(gin_reader *r) {
    gin_value name = {0};
    const char *path;
    int line = r->line;
    if (!gin_at_string(r)) return gin_fail(r, "include needs a path in quotes");
    TRY(gin_read_string(r, &name));
    if (!r->is_file) return gin_fail(r, "include works in a file only");
    if (r->depth >= GIN_MAX_INCLUDE_DEPTH)
        return gin_fail(r, "includes are nested more than %d deep", (int)GIN_MAX_INCLUDE_DEPTH);
    TRY(resolve_include(r, name.string, &path));
    int here = r->line;
    r->line = line;
    TRY(read_file(r->g, path, r));
    r->line = here;
    return end_statement(r);
}

/* `import a.b` and `from a import b` import Python modules; there are none here. */
static status read_import(gin_reader *r) {
    size_t start = r->at;
    while (r->at < r->n && r->text[r->at] != '\n' && r->text[r->at] != '\r' &&
           r->text[r->at] != '#')
        r->at++;
    log_info("note: %.200s:%d: the import of %.*s is ignored: there is no Python here", r->file,
             r->line, (int)(r->at - start < 200 ? r->at - start : 200), r->text + start);
    return end_statement(r);
}

static bool is_word(const char *path, size_t n, const char *word) {
    return n == strlen(word) && memcmp(path, word, n) == 0;
}

/* `= value` after a name; completes the binding. */
static status read_assignment(gin_reader *r, gin_binding *b) {
    gin_skip_space(r);
    if (gin_peek(r) != '=') return gin_fail(r, "'=' is expected after '%.200s'", b->field);
    b->line = r->is_override ? 0 : r->line;
    r->at++;
    gin_skip_space(r);
    TRY(gin_parse_value(r, &b->value));
    TRY(add_binding(r, b));
    return end_statement(r);
}

/* `scope/Class:` opens a block; the indented lines after it are fields. */
static status open_block(gin_reader *r, const char *scope, const char *class_name) {
    r->at++;
    r->block_scope = scope;
    r->block_class = class_name;
    return end_statement(r);
}

static status read_block_line(gin_reader *r) {
    const char *path;
    size_t n;
    gin_binding b = {.scope = r->block_scope, .class_name = r->block_class};
    TRY(gin_read_path(r, "the name of a field", &path, &n));
    if (memchr(path, '/', n) != NULL || memchr(path, '.', n) != NULL)
        return gin_fail(r, "inside a block a line starts with the field alone, not '%.*s'",
                        (int)(n < 200 ? n : 200), path);
    TRY(arena_copy_text(&r->g->memory, path, n, &b.field));
    return read_assignment(r, &b);
}

static status read_statement(gin_reader *r) {
    const char *path;
    size_t n;
    gin_binding b = {0};
    TRY(gin_read_path(r, "a name", &path, &n));
    gin_skip_space(r);
    if (gin_peek(r) != '=') {
        if (is_word(path, n, "include")) return read_include(r);
        if (is_word(path, n, "import") || is_word(path, n, "from")) return read_import(r);
    }
    TRY(gin_split_path(r, path, n, &b.scope, &b.class_name, &b.field));
    if (gin_peek(r) == ':') return open_block(r, b.scope, b.field);
    return read_assignment(r, &b);
}

/* One line: empty, a comment, or a statement. */
static status read_line(gin_reader *r) {
    size_t start = r->at;
    gin_skip_space(r);
    char c = gin_peek(r);
    if (r->at >= r->n || c == '\n' || c == '\r' || c == '#') return end_statement(r);
    if (r->at > start && r->block_class != NULL) return read_block_line(r);
    r->block_class = NULL;
    return read_statement(r);
}

static status read_text(gin_reader *r) {
    const char *nul = memchr(r->text, '\0', r->n);
    if (nul != NULL) {
        for (const char *p = r->text; p < nul; p++)
            r->line += *p == '\n';
        return gin_fail(r, "a NUL byte: this is not a text file");
    }
    if (r->n >= 3 && memcmp(r->text, "\xef\xbb\xbf", 3) == 0) r->at = 3;
    while (r->at < r->n)
        TRY(read_line(r));
    return OK;
}

/* Refuses a file that is already being read, and names the cycle of includes. */
static status check_cycle(const gin_reader *r) {
    char names[700];
    size_t used = 0;
    const gin_reader *p = r->parent;
    while (p != NULL && (p->device != r->device || p->inode != r->inode))
        p = p->parent;
    if (p == NULL) return OK;
    for (p = r; p != NULL && used < sizeof names; p = p->parent)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%.200s",
                                 p == r ? "" : " <- ", p->file);
    return gin_fail(r->parent, "this include closes a cycle: %s", names);
}

static status read_file(gin_config *g, const char *path, const gin_reader *parent) {
    struct stat info;
    char *text = NULL;
    gin_reader r = {.g = g, .line = 1, .is_file = true, .parent = parent};
    r.depth = parent != NULL ? parent->depth + 1 : 0;
    if (++g->n_files > GIN_MAX_FILES)
        return fail(ERR_CONFIG, "%s: more than %d files are included", path, (int)GIN_MAX_FILES);
    TRY(arena_copy_text(&g->memory, path, strlen(path), &r.file));
    if (stat(path, &info) == 0) {
        r.device = info.st_dev;
        r.inode = info.st_ino;
    }
    TRY(check_cycle(&r));
    status st = file_read_all(path, GIN_MAX_FILE_BYTES, &text, &r.n);
    if (st != OK && parent != NULL)
        return fail_prefix(st, "%s:%d: include", parent->file, parent->line);
    if (st != OK) return st;
    r.text = text;
    st = read_text(&r);
    mem_free(text);
    return st;
}

status gin_read_file(gin_config *g, const char *path) {
    TRY(read_file(g, path, NULL));
    return OK;
}

status gin_read_text(gin_config *g, const char *name, const char *text, size_t n) {
    gin_reader r = {.g = g, .text = text, .n = n, .line = 1};
    if (n > GIN_MAX_FILE_BYTES) return fail(ERR_CONFIG, "%s: larger than a config can be", name);
    TRY(arena_copy_text(&g->memory, name, strlen(name), &r.file));
    return read_text(&r);
}

status gin_read_value(gin_config *g, const char *name, const char *text, gin_value **out) {
    gin_reader r = {.g = g, .file = name, .text = text, .n = strlen(text)};
    TRY(gin_parse_value(&r, out));
    gin_skip_space(&r);
    if (r.at < r.n) return gin_fail(&r, "'%.40s' is left over", text + r.at);
    return OK;
}

/* A bare word such as bfloat16 or ./runs/a: the shell removes the quotes that gin wants. */
static bool is_bare_word(const char *text) {
    if (strcmp(text, "True") == 0 || strcmp(text, "False") == 0 || strcmp(text, "None") == 0)
        return false;
    if (!isalpha((unsigned char)text[0]) && strchr("_./~", text[0]) == NULL) return false;
    if (text[0] == '.' && isdigit((unsigned char)text[1])) return false;
    for (const char *p = text; *p != '\0'; p++)
        if (!isalnum((unsigned char)*p) && strchr("_./~-+@:", *p) == NULL) return false;
    return text[0] != '\0';
}

status gin_override(gin_config *g, const char *assignment) {
    const char *equals = strchr(assignment, '='), *path;
    gin_reader r = {.g = g, .text = assignment, .n = strlen(assignment), .is_override = true};
    gin_binding b = {0};
    char name[480];
    size_t n;
    snprintf(name, sizeof name, "--set %.400s", assignment);
    TRY(arena_copy_text(&g->memory, name, strlen(name), &r.file));
    if (equals == NULL) return gin_fail(&r, "write it as Class.field=value");
    TRY(gin_read_path(&r, "a name", &path, &n));
    TRY(gin_split_path(&r, path, n, &b.scope, &b.class_name, &b.field));
    const char *value = equals + 1 + strspn(equals + 1, " ");
    if (path + n + strspn(path + n, " ") != equals || !is_bare_word(value)) {
        TRY(read_assignment(&r, &b));
        return r.at >= r.n ? OK : gin_fail(&r, "more than one line");
    }
    TRY(ARENA_NEW(&g->memory, &b.value, 1));
    *b.value = (gin_value){.type = GIN_STRING, .file = r.file};
    TRY(arena_copy_text(&g->memory, value, strlen(value), &b.value->string));
    return add_binding(&r, &b);
}
