#include "cli/model/own_config.h"

#include "cli/output.h"
#include "data/read/sources.h"
#include "model/session.h"
#include "ops/device.h"

/* A larger model learns nothing more from fewer events. */
enum { MANY_EVENTS = 200000, MAX_DEVICES = 64 };

/* The program may be all that there is. */
TEXT_FILE(own_small, "configs/own/small.gin");
TEXT_FILE(own_retrieval, "configs/own/retrieval.gin");
TEXT_FILE(own_ranking, "configs/own/ranking.gin");

static bool has_gpu(const char *device) {
    device_info list[MAX_DEVICES];
    int n = 0;
    if (strcmp(device, "auto") != 0) return strcmp(device, "cpu") != 0;
    if (device_list(list, MAX_DEVICES, &n) != OK) return false; /* opening it says what is wrong */
    for (int i = 0; i < n; i++)
        if (list[i].sm >= DEVICE_MIN_SM) return true;
    return false;
}

/* What data may have beside items and times. */
typedef struct parts {
    bool has_features, has_content, has_actions;
} parts;

/* The names of the features and the actions, or of those that a config leaves out; prep adds
 * user_id by itself to some data sets. */
static const char *list_parts(const seq_file *data, const parts *p) {
    const char *text = "", *before = "user features ";
    for (int f = 0; f < data->n_context && p->has_features; f++) {
        if (strcmp(data->context[f].name, "user_id") == 0) continue;
        text = show_printf("%s%s%s", text, before, data->context[f].name);
        before = ", ";
    }
    before = text[0] != '\0' ? "; item features " : "item features ";
    for (int f = 0; f < data->n_content && p->has_content; f++) {
        text = show_printf("%s%s%s", text, before, data->content[f].name);
        before = ", ";
    }
    if (p->has_content && data->item_vector != NULL)
        text = show_printf("%s%s%d-dimensional vectors", text, before, data->item_vector_dim);
    if (!p->has_actions || data->actions == ACTION_NONE) return text;
    return show_printf("%s%sactions (%s)", text, text[0] != '\0' ? "; " : "",
                       action_kind_name(data->actions));
}

/* The classes or signals of the data's actions. */
static status fit_head(own_config *o, const seq_file *data) {
    bool is_bits = data->actions == ACTION_BITS;
    int32_t n = is_bits ? 8 : session_count_actions(data);
    if (data->actions == ACTION_NONE)
        return fail(ERR_USAGE,
                    "the data have no actions, and ranking learns from ratings, clicks or "
                    "purchases; name their column with 'hstu prep --action-col', or train "
                    "retrieval without --task");
    snprintf(o->set[0], sizeof o->set[0], "RankingArgs.prediction_head_arch=[128, %d]", n);
    snprintf(o->set[1], sizeof o->set[1], "RankingArgs.num_tasks=%d", is_bits ? n : 1);
    TRY(args_list_add(&o->overrides, o->set[0]));
    return args_list_add(&o->overrides, o->set[1]);
}

static void tell_choice(const own_config *o, const seq_file *data, const char *why) {
    const char *names = list_parts(data, &(parts){true, true, true});
    bool has_names = names[0] != '\0';
    log_info("config: %s%s, for %s events of %s items%s, with%s %s", o->path,
             o->text != NULL ? " (in the program)" : "", show_count(data->n_events),
             show_count(data->n_items), why, has_names ? "" : "out",
             has_names ? names : "features and actions");
}

static status choose(own_config *o, const seq_file *data, const char *task, const char *device) {
    const char *name = "configs/own/small.gin", *text = own_small, *why = " on the CPU";
    bool is_gpu = has_gpu(device);
    if (task != NULL && strcmp(task, "ranking") == 0) {
        name = "configs/own/ranking.gin";
        text = own_ranking;
        why = " and --task ranking";
        TRY(fit_head(o, data));
    } else if (is_gpu && data->n_events >= MANY_EVENTS) {
        name = "configs/own/retrieval.gin";
        text = own_retrieval;
        why = " on a GPU";
    } else if (is_gpu) {
        why = ", few enough for a small model";
    }
    if (!work_find_file(name, o->path)) o->text = text;
    tell_choice(o, data, why);
    return OK;
}

status own_config_choose(own_config *out, const char *data, const char *task, const char *device,
                         const arg_list *overrides) {
    seq_file *file;
    *out = (own_config){0};
    TRY(seq_file_open(&file, data, NULL));
    status st = choose(out, file, task, device);
    for (size_t i = 0; i < overrides->n_items && st == OK; i++)
        st = args_list_add(&out->overrides, overrides->item[i]);
    seq_file_close(file);
    return st;
}

/* 'hstu synth' adds features and actions that nobody asked for. */
static bool is_synthetic(const seq_file *data) {
    return strstr(data->meta_json, "\"source\":{\"name\":\"synth\"") != NULL;
}

void own_config_tell_unused(const config *c, const seq_file *data) {
    parts unused = {!config_reads_context(c), !c->network.has_item_features,
                    !config_reads_actions(c)};
    const char *names = list_parts(data, &unused);
    if (names[0] != '\0' && !is_synthetic(data))
        log_info("note: %s does not read the data's %s; %s", c->file, names,
                 c->family == FAMILY_META
                     ? "train_fn.user_features, .item_features and .action_input = True do, as "
                       "in configs/own"
                     : "the files of configs/own do");
}
