#include "cli/cli.h"
#include "cli/help/help.h"
#include "cli/output.h"

enum { MAX_OPTIONS = 128, MAX_PARTS = 16 };

/* The option called `name` (n bytes of it), or NULL. */
static const arg_option *find_option(const arg_spec *spec, const char *name, size_t n) {
    for (const arg_option *o = spec->options; o->name != NULL; o++)
        if (!args_is_group(o) && strlen(o->name) == n && memcmp(o->name, name, n) == 0) return o;
    return NULL;
}

status fail_unknown(const char *what, const char *name, const char *const *names, size_t n) {
    const char *near = nearest_name(name, names, n), *word = name + strspn(name, "-");
    for (size_t i = 0; near == NULL && strlen(word) > 3 && i < n; i++) /* --config */
        if (strstr(names[i], word) != NULL) near = names[i];
    if (near == NULL) return fail(ERR_USAGE, "unknown %s '%.100s'", what, name);
    return fail(ERR_USAGE, "unknown %s '%.100s'; did you mean '%s'?", what, name, near);
}

static status unknown_option(const arg_spec *spec, const char *name, size_t n) {
    const char *names[MAX_OPTIONS + 1];
    size_t n_names = 0;
    for (const arg_option *o = spec->options; o->name != NULL && n_names < MAX_OPTIONS; o++)
        if (!args_is_group(o)) names[n_names++] = o->name;
    names[n_names++] = "--help";
    return fail_unknown("option", show_printf("%.*s", (int)n, name), names, n_names);
}

static void store_number(const arg_option *o, int64_t number) {
    if (o->value_bytes == sizeof(bool))
        *(bool *)o->value = number != 0;
    else if (o->value_bytes == sizeof(uint32_t))
        *(uint32_t *)o->value = (uint32_t)number;
    else
        *(int64_t *)o->value = number;
}

static status read_int(const arg_option *o, const char *text) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || *text == ' ')
        return fail(ERR_USAGE, "%s: '%s' is not a whole number", o->name, text);
    bool has_range = o->min != 0 || o->max != 0;
    if (errno == ERANGE || (has_range && (value < o->min || value > o->max))) {
        int64_t min = has_range ? o->min : INT64_MIN, max = has_range ? o->max : INT64_MAX;
        return fail(ERR_USAGE, "%s: %s is out of range; it must be from %lld to %lld", o->name,
                    text, (long long)min, (long long)max);
    }
    store_number(o, value);
    return OK;
}

static status read_double(const arg_option *o, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || *text == ' ' || !isfinite(value))
        return fail(ERR_USAGE, "%s: '%s' is not a finite number", o->name, text);
    *(double *)o->value = value;
    return OK;
}

/* "red, green or blue" */
static const char *list_choices(const char *const *choices) {
    const char *text = choices[0];
    for (int i = 1; choices[i] != NULL; i++)
        text = show_printf("%s%s%s", text, choices[i + 1] == NULL ? " or " : ", ", choices[i]);
    return text;
}

static status read_choice(const arg_option *o, const char *text) {
    for (int i = 0; o->choices[i] != NULL; i++) {
        if (strcmp(text, o->choices[i]) != 0) continue;
        store_number(o, i);
        return OK;
    }
    return fail(ERR_USAGE, "%s %.40s: must be %s", o->name, text, list_choices(o->choices));
}

static arena list_memory;

void args_fini(void) {
    arena_fini(&list_memory);
}

status args_list_add(arg_list *list, const char *text) {
    size_t n = list->n_items;
    if ((n & (n - 1)) == 0) { /* full: it has room for 1, 2, 4, 8, ... */
        const char **item;
        if (list_memory.block_bytes == 0) arena_init(&list_memory, 4096);
        TRY(ARENA_NEW(&list_memory, &item, n > 0 ? 2 * n : 1));
        if (n > 0) memcpy(item, list->item, n * sizeof *item);
        list->item = item;
    }
    list->item[list->n_items++] = text;
    return OK;
}

static status read_value(const arg_option *o, const char *text) {
    if (*text == '\0') return fail(ERR_USAGE, "%s: the value is empty", o->name);
    switch (o->type) {
    case ARG_TEXT:
        *(const char **)o->value = text;
        return OK;
    case ARG_INT:
        return read_int(o, text);
    case ARG_DOUBLE:
        return read_double(o, text);
    case ARG_CHOICE:
        return read_choice(o, text);
    case ARG_LIST:
        return args_list_add(o->value, text);
    case ARG_FLAG:
        break;
    }
    return fail(ERR_USAGE, "%s takes no value", o->name);
}

/* Reads the option at argv[*i], and the value after it where it has one; moves *i to the last
 * argument used.  If the name of an option follows where a value is expected, the value was
 * forgotten. */
static status read_option(const arg_spec *spec, int argc, char **argv, int *i) {
    const char *word = argv[*i], *equals = strchr(word, '=');
    size_t n = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const arg_option *o = find_option(spec, word, n);
    if (o == NULL) return unknown_option(spec, word, n);
    if (equals != NULL) return read_value(o, equals + 1);
    if (o->type == ARG_FLAG) {
        *(bool *)o->value = true;
        return OK;
    }
    const char *what = o->placeholder != NULL ? o->placeholder : "VALUE";
    if (*i + 1 >= argc) return fail(ERR_USAGE, "%s needs a value: %s %s", o->name, o->name, what);
    const char *next = argv[*i + 1];
    if (find_option(spec, next, strlen(next)) != NULL)
        return fail(ERR_USAGE, "%s needs a value: %s %s, but the option %s follows", o->name,
                    o->name, what, next);
    *i += 1;
    return read_value(o, next);
}

status args_read_numbers(const char *option, const char *text, int64_t max, int64_t *out, int max_n,
                         int *n) {
    *n = 0;
    for (const char *at = text;; at++) {
        char *end;
        long x = strtol(at, &end, 10);
        if (end == at || x < 1 || x > max || (*end != ',' && *end != '\0'))
            return fail(ERR_USAGE,
                        "%s %.60s: give whole numbers from 1 to %lld with commas between them, as "
                        "in 8,4,2",
                        option, text, (long long)max);
        if (*n == max_n) return fail(ERR_USAGE, "%s: at most %d numbers", option, max_n);
        out[(*n)++] = x;
        if (*end == '\0') return OK;
        at = end;
    }
}

/* --help anywhere before "--" wins over any error in the other arguments. */
static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

status args_parse(const arg_spec *spec, int argc, char **argv, const char **positional,
                  int *n_positional, bool *is_help) {
    int n = 0;
    bool is_rest = false; /* "--" was seen: all that follows is positional */
    *is_help = wants_help(argc, argv);
    if (n_positional != NULL) *n_positional = 0;
    if (*is_help) {
        help_print(spec);
        return OK;
    }
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!is_rest && strcmp(word, "--") == 0) {
            is_rest = true;
        } else if (!is_rest && word[0] == '-' && word[1] != '\0') {
            TRY(read_option(spec, argc, argv, &i));
        } else {
            if (n >= (spec->max_positional > 0 ? spec->max_positional : spec->min_positional))
                return fail(ERR_USAGE, "unexpected argument '%s'; usage: %s", word, spec->usage);
            positional[n++] = word;
        }
    }
    if (n < spec->min_positional)
        return fail(ERR_USAGE, "missing argument; usage: %s", spec->usage);
    if (n_positional != NULL) *n_positional = n;
    return OK;
}

static void print_parts(const char *whole, const char *about, const command *parts) {
    printf("Usage: hstu %s WHAT [options]\n\n%s\n\n", whole, about);
    for (const command *c = parts; c->name != NULL; c++)
        printf("  %-10s %s\n", c->name, c->summary);
    printf("\n'hstu %s WHAT --help' shows the options.\n", whole);
}

status run_subcommand(const char *whole, const char *about, const command *parts, int argc,
                      char **argv) {
    const char *names[MAX_PARTS];
    size_t n = 0;
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_parts(whole, about, parts);
        return OK;
    }
    for (const command *c = parts; c->name != NULL; c++) {
        if (strcmp(argv[1], c->name) == 0) return c->run(argc - 1, argv + 1);
        names[n++] = c->name;
    }
    if (nearest_name(argv[1], names, n) != NULL)
        return fail_unknown("subcommand", argv[1], names, n);
    return fail(ERR_USAGE, "unknown subcommand '%.100s'; 'hstu %s' lists them", argv[1], whole);
}
