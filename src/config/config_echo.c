/* The config as JSON, and the parts that this version cannot train. */
#include <string.h>

#include "config/config.h"
#include "config/loader.h"
#include "config/metric_list.h"
#include "format/json.h"

const char *config_family_name(config_family family) {
    return family == FAMILY_META ? "meta" : "nvidia";
}

const char *config_task_name(config_task task) {
    return task == TASK_RANKING ? "ranking" : "retrieval";
}

const char *config_model_name(config_model model) {
    static const char *const names[] = {"sasrec", "hstu-research", "hstu"};
    return names[model];
}

/* The length of the run is written here and not with the options: each family has an option for
 * epochs or for steps, the command line has both. */
static void write_length(const config *c, json_writer *w) {
    json_key_int(w, "epochs", c->trainer.n_epochs);
    if (c->trainer.max_train_iters != CONFIG_NONE)
        json_key_int(w, "max_iters", c->trainer.max_train_iters);
}

/* Likewise where the weights come from. */
static void write_start(const config *c, json_writer *w) {
    const char *from = c->trainer.resume_folder;
    if (from == NULL || from[0] == '\0') return;
    json_key_string(w, "init_from", from);
    json_key_string(w, "new_items", c->trainer.has_mean_items ? "mean" : "init");
}

static void write_source(const config *c, json_writer *w) {
    json_key(w, "source");
    json_object_open(w);
    json_key_string(w, "file", c->file);
    json_key_string(w, "family", config_family_name(c->family));
    json_key_string(w, "task", config_task_name(c->task));
    json_key_string(w, "model", config_model_name(c->model));
    json_key_string(w, "data", c->is_benchmark ? "generated" : "dataset");
    json_key(w, "overrides");
    json_array_open(w);
    for (size_t i = 0; i < c->overrides.n; i++)
        json_string(w, c->overrides.item[i]);
    json_array_close(w);
    write_length(c, w);
    write_start(c, w);
    json_object_close(w);
}

/* A class with only retired options has nothing to show. */
static bool has_values(const option_class *class_) {
    for (size_t i = 0; i < n_options; i++)
        if (option_class_of(&option_table[i]) == class_ && option_table[i].type < OPT_ALIAS)
            return true;
    return false;
}

void config_write_members(const config *c, json_writer *w) {
    write_source(c, w);
    for (size_t i = 0; i < n_option_classes; i++) {
        const option_class *class_ = &option_classes[i];
        if (!config_class_is_active(c, class_) || !has_values(class_)) continue;
        json_key(w, class_->name);
        json_object_open(w);
        option_write_class(class_, c, w);
        json_object_close(w);
    }
    if (c->family != FAMILY_NVIDIA) return;
    json_key(w, "embeddings");
    option_write_tables(&c->embeddings, w);
}

status config_write_json(const config *c, buf *out, int indent) {
    json_writer w;
    json_begin(&w, out, indent);
    json_object_open(&w);
    config_write_members(c, &w);
    json_object_close(&w);
    return json_finish(&w);
}

static status refuse(const config *c, const char *sentence) {
    return fail(ERR_UNSUPPORTED, "%s: %s", c->file, sentence);
}

static status check_meta(const config *c) {
    const config_retrieval *r = &c->retrieval;
    if (r->loss != LOSS_SAMPLED_SOFTMAX)
        return refuse(c, "train_fn.loss_module = 'BCELoss' cannot be trained; the loss is "
                         "'SampledSoftmaxLoss'");
    if (r->similarity != SIMILARITY_DOT_PRODUCT || r->top_k_method != 0)
        return refuse(c, "the MoL similarity cannot be trained; items are scored by 'DotProduct' "
                         "and 'MIPSBruteForceTopK'");
    if (r->loss_weights.n > 0)
        return refuse(c, "train_fn.loss_weights weighs auxiliary losses, and there are none");
    if (c->data.positional_sampling_ratio != 1)
        return refuse(c, "train_fn.positional_sampling_ratio below 1 cannot be trained; every "
                         "position is");
    if (c->network.score == SCORE_SOFTMAX_REL_BIAS || c->network.concatenates_u)
        return refuse(c, "hstu_encoder.normalization = 'softmax_rel_bias' and concat_ua = True are "
                         "variants that cannot be trained");
    return OK;
}

static status check_ranking_metrics(const config *c) {
    metric_list metrics;
    if (metric_list_of(&metrics, c) == OK) return OK;
    return refuse(
        c, "RankingArgs.eval_metrics: NDCG and HR rank a catalogue; use " METRIC_RANKING_WORDS
           "for a ranking model");
}

status config_check_trainable(const config *c) {
    if (c->family == FAMILY_META) return check_meta(c);
    if (c->task == TASK_RANKING) TRY(check_ranking_metrics(c));
    if (c->trainer.train_batch_size == CONFIG_NONE)
        return fail(ERR_CONFIG,
                    "%s: TrainerArgs.train_batch_size is needed to train; bind it, or "
                    "give --set TrainerArgs.train_batch_size=N",
                    c->file);
    if (!c->network.is_causal)
        return refuse(c, "NetworkArgs.is_causal = False cannot be trained; the layers are causal "
                         "(the reference's fused layer ignores it, too)");
    if (c->task == TASK_RETRIEVAL && c->data.max_candidates > 0)
        return refuse(c, "retrieval learns from the history; max_num_candidates must be 0");
    return OK;
}
