/* Action map: texts of an action column and the actions they stand for, as --action-map has them:
 * "view=1,buy=2", where "*" stands for every other text. */
#ifndef HSTU_DATA_READ_ACTION_MAP_H
#define HSTU_DATA_READ_ACTION_MAP_H

#include "base/status.h"
#include "data/set/seq_file.h"

enum { ACTION_MAP_MAX = 256 };

typedef struct action_map {
    const char *text[ACTION_MAP_MAX]; /* views of the option */
    size_t n_bytes[ACTION_MAP_MAX];
    uint16_t action[ACTION_MAP_MAX];
    int n;
    bool has_other; /* "*" */
    uint16_t other;
} action_map;

/* Reads "text=number,..."; numbers are ratings of the kind.  The option's text must outlive the
 * map.  ERR_USAGE names the entry that is wrong. */
status action_map_parse(action_map *m, const char *option, action_kind kind);

/* The action of a text; false if it is not in the map and "*" is not either. */
bool action_map_find(const action_map *m, const char *text, size_t n, uint16_t *out);

#endif
