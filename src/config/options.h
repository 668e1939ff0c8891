/* THE table of options: everything a gin file or --set may bind, stated once.
 *
 * A row holds the name, the type, the range or choices, the default in gin syntax, one sentence,
 * and the member of the struct it fills.  Reading, checking, overriding, the JSON echo, `hstu train
 * --help-config` and docs/config.md all come from here.  The table is constant; any thread may read
 * it. */
#pragma once

#include "config/config.h"
#include "config/gin.h"
#include "format/json.h"

typedef enum {
    OPT_BOOL,          /* bool */
    OPT_INT,           /* int64_t */
    OPT_FLOAT,         /* double */
    OPT_TEXT,          /* const char * */
    OPT_CHOICE,        /* int: the index in `choices` */
    OPT_INTS,          /* config_ints */
    OPT_TEXTS,         /* config_texts; each text is one of `choices`, if there are any */
    OPT_WEIGHTS,       /* config_weights */
    OPT_DISTRIBUTION,  /* config_distribution *, NULL = None */
    OPT_DISTRIBUTIONS, /* config_distributions */
    OPT_FEATURES,      /* config_features */
    OPT_EMBEDDINGS,    /* config_embeddings */
    OPT_ALIAS,         /* an older spelling of the option named in `choices` */
    OPT_RETIRED        /* accepted with a note; no effect here */
} option_type;

enum {
    OPT_NULLABLE = 1,   /* None is a value */
    OPT_REQUIRED = 2,   /* has no default */
    OPT_ABOVE_MIN = 4,  /* min itself is out of range */
    OPT_BELOW_MAX = 8,  /* max itself is out of range */
    OPT_UNWRAP = 16,    /* [[512, 8]] is read as [512, 8]: the oldest spelling of a head */
    OPT_BF16 = 32,      /* an alias: True means bfloat16, False float32 */
    OPT_OURS = 64,      /* an option of hstu.c, not of the reference project */
    OPT_NO_EFFECT = 128 /* checked and echoed, but nothing here depends on it */
};

typedef struct option {
    const char *name; /* "NetworkArgs.num_layers" */
    option_type type;
    unsigned flags;
    size_t offset;             /* offset of the member, in config or in the struct of its class */
    double min, max;           /* both 0: any */
    const char *choices;       /* "adam|sgd" */
    const char *value;         /* the default, as a gin value; NULL: required */
    const char *default_words; /* shown instead of the default where it is computed; may be NULL */
    const char *help;          /* one sentence */
} option;

/* A class of options.  A root class fills the config; an instance is made once per reference. */
typedef struct option_class {
    const char *name;
    config_family family;
    bool is_instance;
    const char *help;
} option_class;

extern const option option_table[];
extern const size_t n_options;
extern const option_class option_classes[];
extern const size_t n_option_classes;

/* The class or option of that name, or NULL. */
const option *option_find(const char *class_name, const char *field);

/* The class of an option, and the field after its dot. */
const option_class *option_class_of(const option *o);
const char *option_field(const option *o);

/* Whether a class is active in this config (for an encoder: once the model is known). */
bool config_class_is_active(const config *c, const option_class *class_);

/* ERR_CONFIG for an unknown name; the message names the nearest known one. */
status option_fail_unknown(const gin_binding *b);

/* Builds the instances that references stand for; given by the loader. */
typedef struct option_builder {
    arena *memory;
    /* Fills *instance (of the class's struct) for @scope/Class(); NULL: only check the values. */
    status (*build)(void *ctx, const option_class *class_, const gin_value *reference,
                    void *instance);
    void *ctx;
} option_builder;

/* Checks a value and stores it at member (the address of the option's member).  Strings are not
 * copied: they live as long as the gin value. */
status option_store(const option *o, const gin_value *v, const option_builder *builder,
                    void *member);

/* Writes `"field": value` for every option of a class, from the struct it fills. */
void option_write_class(const option_class *class_, const void *base, json_writer *w);

/* Writes the tables with all their values. */
void option_write_tables(const config_embeddings *tables, json_writer *w);

/* The whole table as text for a terminal, or as markdown for docs/config.md. */
status options_write_help(buf *out, bool is_markdown);
