/* Internals of config loading, shared by the files config*.c. */
#ifndef HSTU_CONFIG_LOADER_H
#define HSTU_CONFIG_LOADER_H

#include "config/config.h"
#include "config/options.h"

typedef struct loader {
    config *c;
    gin_config gin;
    option_builder builder; /* makes the instances that references stand for */
    int n_instances;        /* made so far */
} loader;

/* Whether a class is active in this config (for an encoder: once the model is known). */
bool config_class_is_active(const config *c, const option_class *class_);

/* The binding in force for a root option, whatever its spelling; NULL: none.  Two spellings with
 * two values are ERR_CONFIG naming both places. */
status loader_find(loader *l, const option *o, const gin_binding **out, const option **spelling);

/* Checks a bound value by the rules of `target` and stores it; errors name the spelling that the
 * file used. */
status loader_store(loader *l, const option *target, const option *spelling, const gin_value *v,
                    void *member);

/* Stores the default of an option. */
status loader_store_default(loader *l, const option *o, void *member);

/* Where an option is bound, "file:line", or the file's name if it is not. */
const char *loader_place(loader *l, const char *class_name, const char *field, char *text,
                         size_t n);

/* The option_builder.build of the loader. */
status loader_build(void *ctx, const option_class *class_, const gin_value *reference,
                    void *instance);

/* Fills c->embeddings for a data set that is known by name. */
status loader_add_predefined_tables(loader *l);

/* Computed defaults and the checks that need more than one value. */
status loader_complete(loader *l);

#endif
