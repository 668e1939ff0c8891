#include "cli/data/info_tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/json_line.h"
#include "cli/show.h"
#include "format/safetensors.h"
#include "format/torch_file.h"

enum { NAME_COLUMNS = 100 };

/* A tensor of either format. */
typedef struct line {
    const char *name;
    st_dtype dtype;
    int n_dims;
    const int64_t *shape;
} line;

/* The tensors of an open file, by number. */
typedef struct tensor_list {
    const st_file *plain;
    const torch_file *torch;
    size_t n;
} tensor_list;

static line line_at(const tensor_list *l, size_t i) {
    if (l->torch != NULL) {
        const torch_tensor *t = torch_tensor_at(l->torch, i);
        return (line){t->name, t->dtype, t->n_dims, t->shape};
    }
    const st_tensor *t = st_tensor_at(l->plain, i);
    return (line){t->name, t->dtype, t->n_dims, t->shape};
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* By its name as well: of one that is broken, torch's reader says what is wrong. */
static bool is_torch(const char *path) {
    bool is_named = ends_with(path, ".pt") || ends_with(path, ".pth");
    return torch_is_file(path) || (is_named && file_exists(path) && !folder_exists(path));
}

bool info_is_tensors(const char *path) {
    return (ends_with(path, ".safetensors") && file_exists(path)) || is_torch(path);
}

/* "(3953, 50)" as Python writes it; a scalar is "()". */
static void shape_text(char text[SHOW_BYTES], const line *t) {
    size_t used = (size_t)snprintf(text, SHOW_BYTES, "(");
    for (int d = 0; d < t->n_dims; d++)
        used += (size_t)snprintf(text + used, SHOW_BYTES - used, "%s%" PRId64, d > 0 ? ", " : "",
                                 t->shape[d]);
    snprintf(text + used, SHOW_BYTES - used, t->n_dims == 1 ? ",)" : ")");
}

static void print_lines(const tensor_list *l) {
    char name[SHOW_BYTES], shape[SHOW_BYTES];
    int widest = 0;
    for (size_t i = 0; i < l->n; i++) {
        line t = line_at(l, i);
        show_text(name, t.name, strlen(t.name), NAME_COLUMNS);
        if (show_columns(name) > widest) widest = show_columns(name);
    }
    for (size_t i = 0; i < l->n; i++) {
        line t = line_at(l, i);
        show_text(name, t.name, strlen(t.name), NAME_COLUMNS);
        shape_text(shape, &t);
        printf("%s%*s  %-8s  %s\n", name, widest - show_columns(name), "",
               torch_dtype_name(t.dtype), shape);
    }
}

static status print_json(const char *path, const tensor_list *l) {
    json_line out;
    json_writer *w = json_line_open(&out);
    json_key_string(w, "path", path);
    json_key(w, "tensors");
    json_array_open(w);
    for (size_t i = 0; i < l->n; i++) {
        line t = line_at(l, i);
        json_object_open(w);
        json_key_string(w, "name", t.name);
        json_key_string(w, "dtype", torch_dtype_name(t.dtype));
        json_key(w, "shape");
        json_array_open(w);
        for (int d = 0; d < t.n_dims; d++)
            json_int(w, t.shape[d]);
        json_array_close(w);
        json_object_close(w);
    }
    json_array_close(w);
    return json_line_print(&out);
}

static status print_list(const char *path, const tensor_list *l, bool is_json) {
    if (is_json) return print_json(path, l);
    print_lines(l);
    return OK;
}

status info_tensors(const char *path, bool is_json) {
    torch_file *torch = NULL;
    st_file *plain = NULL;
    status st = ends_with(path, ".safetensors") ? st_open(&plain, path) : torch_open(&torch, path);
    tensor_list l = {plain, torch, 0};
    if (torch != NULL) l.n = torch_n_tensors(torch);
    if (plain != NULL) l.n = st_n_tensors(plain);
    if (st == OK) st = print_list(path, &l, is_json);
    torch_close(torch);
    st_close(plain);
    return st;
}
