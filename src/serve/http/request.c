/* What the readers of requests share: ids, events, numbers. */
#include "serve/http/request.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double max_seconds = 1e12; /* the year 33658 */

status request_object(arena *a, const char *body, size_t n, const json_value **out) {
    if (n == 0) return fail(ERR_USAGE, "the body is empty; send a JSON object");
    status st = json_parse(a, "the body", body, n, out);
    if (st == ERR_FORMAT) return fail_prefix(ERR_USAGE, "not JSON");
    if (st != OK) return st;
    if ((*out)->type == JSON_OBJECT) return OK;
    return fail(ERR_USAGE, "the body is not a JSON object");
}

status request_id_read(const json_value *v, const char *what, engine_id *out) {
    *out = (engine_id){0};
    if (v->type == JSON_NUMBER && v->is_integer) {
        out->number = v->integer;
        return OK;
    }
    if (v->type != JSON_STRING)
        return fail(ERR_USAGE, "%s: an id is a whole number or a string", what);
    if (v->string_bytes == 0 || v->string_bytes > ENGINE_ID_BYTES)
        return fail(ERR_USAGE, "%s: an id has 1 to %d bytes", what, ENGINE_ID_BYTES);
    out->text = v->string;
    out->n = v->string_bytes;
    return OK;
}

status request_ids_read(arena *a, const json_value *v, const char *what, const engine_id **out,
                        size_t *n) {
    engine_id *ids;
    if (v->type != JSON_ARRAY) return fail(ERR_USAGE, "%s: give a list of ids", what);
    if (v->n_children > REQUEST_MAX_IDS)
        return fail(ERR_USAGE, "%s: at most %d ids in one request", what, REQUEST_MAX_IDS);
    TRY(ARENA_NEW(a, &ids, v->n_children));
    *n = 0;
    for (const json_value *id = v->first; id != NULL; id = id->next)
        TRY(request_id_read(id, what, &ids[(*n)++]));
    *out = ids;
    return OK;
}

static status read_time(const json_value *v, const char *what, engine_event *e) {
    if (v->type != JSON_NUMBER || !(fabs(v->number) <= max_seconds))
        return fail(ERR_USAGE, "%s: a time is a number of seconds since 1970, as in 1900000000",
                    what);
    double whole = floor(v->number);
    e->has_time = true;
    e->time = v->is_integer ? v->integer : (int64_t)whole;
    double ns = v->is_integer ? 0 : floor((v->number - whole) * 1e9);
    e->time_ns = ns < 0 ? 0 : ns > 999999999 ? 999999999u : (uint32_t)ns;
    return OK;
}

static status read_member(const json_value *m, const char *what, engine_event *e) {
    int64_t action = 0;
    if (strcmp(m->key, "item") == 0) return request_id_read(m, what, &e->item);
    if (strcmp(m->key, "time") == 0 && m->type == JSON_NULL) return OK;
    if (strcmp(m->key, "time") == 0) return read_time(m, what, e);
    if (strcmp(m->key, "id") == 0) {
        TRY(request_id_read(m, what, &e->id));
        return OK;
    }
    if (strcmp(m->key, "action") != 0)
        return fail(ERR_USAGE,
                    "%s: '%.40s' is not a member of an event; it has item, time, action and id",
                    what, m->key);
    TRY(request_whole_number(m, "action", 0, UINT16_MAX, &action));
    e->action = (uint16_t)action;
    return OK;
}

/* An event is an object, or in a history just the item's id.  Numbers as event ids become text, so
 * that an id that was given is told from none. */
static status read_event(arena *a, const json_value *v, const char *what, engine_event *e) {
    char digits[24];
    bool has_item = false, has_id = false;
    if (v->type != JSON_OBJECT) return request_id_read(v, what, &e->item);
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        TRY(read_member(m, what, e));
        has_item |= strcmp(m->key, "item") == 0;
        has_id |= strcmp(m->key, "id") == 0;
    }
    if (!has_item) return fail(ERR_USAGE, "%s: an event without \"item\"", what);
    if (!has_id || e->id.text != NULL) return OK;
    int n = snprintf(digits, sizeof digits, "%" PRId64, e->id.number);
    TRY(arena_copy_text(a, digits, (size_t)n, &e->id.text));
    e->id.n = (size_t)n;
    return OK;
}

status request_event_list(arena *a, const json_value *v, const char *what, const engine_event **out,
                          size_t *n) {
    engine_event *events;
    if (v->type != JSON_ARRAY)
        return fail(ERR_USAGE,
                    "%s: give a list of events, as in [{\"item\": 12, \"time\": 1900000000}]",
                    what);
    if (v->n_children > REQUEST_MAX_EVENTS)
        return fail(ERR_USAGE, "%s: at most %d events in one request", what, REQUEST_MAX_EVENTS);
    TRY(ARENA_NEW(a, &events, v->n_children));
    *n = 0;
    for (const json_value *e = v->first; e != NULL; e = e->next)
        TRY(read_event(a, e, what, &events[(*n)++]));
    *out = events;
    return OK;
}

status request_whole_number(const json_value *v, const char *what, int64_t min, int64_t max,
                            int64_t *out) {
    if (v->type != JSON_NUMBER || !v->is_integer || v->integer < min || v->integer > max)
        return fail(ERR_USAGE, "%s: give a whole number from %" PRId64 " to %" PRId64, what, min,
                    max);
    *out = v->integer;
    return OK;
}

status request_flag(const json_value *v, const char *what, bool *out) {
    if (v->type != JSON_BOOL) return fail(ERR_USAGE, "%s: give true or false", what);
    *out = v->boolean;
    return OK;
}

status request_model(const json_value *v, char out[REQUEST_NAME_BYTES]) {
    if (v->type != JSON_STRING || v->string_bytes >= REQUEST_NAME_BYTES)
        return fail(ERR_USAGE, "model: give the name of a model, as GET /v1/models has it");
    memcpy(out, v->string, v->string_bytes + 1);
    return OK;
}
