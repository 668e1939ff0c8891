/* The config as JSON (the echo), the way back, and the parts that this version cannot train.
 *
 * On the way back every value becomes a gin binding, and the gin text is loaded and checked like
 * any other.  So a checkpoint can be opened without its gin file and includes, and a config that we
 * cannot have written is refused by the same rules. */
#include "config/config.h"
#include "config/metric_list.h"
#include "config/options.h"
#include "format/json.h"

static const char *config_family_name(config_family family) {
    return family == FAMILY_META ? "meta" : "nvidia";
}

const char *config_task_name(config_task task) {
    return task == TASK_RANKING ? "ranking" : "retrieval";
}

const char *config_model_name(config_model model) {
    static const char *const names[] = {"sasrec", "hstu-research", "fuxi", "esasrec", "hstu"};
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
    json_key_object(w, "source");
    JSON_FIELDS(w, FIELD("file", c->file), FIELD("family", config_family_name(c->family)),
                FIELD("task", config_task_name(c->task)),
                FIELD("model", config_model_name(c->model)),
                FIELD("data", c->is_benchmark ? "generated" : "dataset"));
    json_key_array(w, "overrides");
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
        json_key_object(w, class_->name);
        option_write_class(class_, c, w);
        json_object_close(w);
    }
    if (c->family != FAMILY_NVIDIA) return;
    json_key(w, "embeddings");
    option_write_tables(&c->embeddings, w);
}

status config_write_json(const config *c, buf *out, int indent) {
    json_writer w;
    json_begin_object(&w, out, indent);
    config_write_members(c, &w);
    return json_finish_object(&w);
}

static status refuse(const config *c, const char *sentence) {
    return fail(ERR_UNSUPPORTED, "%s: %s", c->file, sentence);
}

/* What of the mixture of logits no published file uses. */
static status check_mol(const config *c) {
    const config_mol *m = &c->retrieval.mol;
    const config_weights *w = &c->retrieval.loss_weights;
#define MOL "create_mol_interaction_module."
    if (!m->has_norm || !m->has_query_gate || !m->has_item_gate || m->combination != 0)
        return refuse(c, MOL "dot_product_l2_norm, gating_query_fn and gating_item_fn must be "
                             "True, and gating_combination_type 'glu_silu'");
    if (m->is_query_identity || m->is_item_identity || m->drops_users || m->pair_gate < 1)
        return refuse(c, MOL "query_use_identity_fn, item_use_identity_fn and "
                             "uid_embedding_level_dropout must be False, and gating_qi_hidden_dim "
                             "at least 1");
    if (m->item_gate_dropout > 0) return refuse(c, MOL "gating_item_dropout_rate must be 0");
    if (c->retrieval.has_item_norm)
        return refuse(c, "train_fn.item_l2_norm must be False: the mixture of logits takes items "
                         "as they are");
    if (c->retrieval.loss != LOSS_SAMPLED_SOFTMAX || c->retrieval.shares_negatives ||
        c->retrieval.draw != NEGATIVES_UNIFORM)
        return refuse(c, "the mixture of logits is trained with 'SampledSoftmaxLoss', without "
                         "shared_negatives and negative_distribution");
#undef MOL
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->name[i], "mi_loss") != 0 && strcmp(w->name[i], "uid_embedding_l2_norm") != 0)
            return fail(ERR_UNSUPPORTED,
                        "%s: train_fn.loss_weights: there is no loss '%s'; there are 'mi_loss' and "
                        "'uid_embedding_l2_norm'",
                        c->file, w->name[i]);
    return OK;
}

/* Which options of losses and negatives go together. */
static status check_loss(const config *c) {
    const config_retrieval *r = &c->retrieval;
    bool is_in_batch = r->negatives == NEGATIVES_IN_BATCH, is_full = r->loss == LOSS_FULL_SOFTMAX;
    if (r->label_smoothing > 0 && !is_full)
        return refuse(c, "label_smoothing spreads a label over the whole catalogue, and this loss "
                         "samples; choose loss_module = 'FullSoftmaxLoss'");
    if (is_full && (r->shares_negatives || r->draw != NEGATIVES_UNIFORM || r->logq != LOGQ_NONE))
        return refuse(c, "'FullSoftmaxLoss' draws no negatives, so shared_negatives, "
                         "negative_distribution and logq_correction cannot be set");
    if (r->logq != LOGQ_NONE && r->loss != LOSS_SAMPLED_SOFTMAX)
        return refuse(c, "logq_correction corrects a sampled softmax; choose loss_module = "
                         "'SampledSoftmaxLoss' or logq_correction = 'none'");
    if (is_in_batch && r->draw != NEGATIVES_UNIFORM)
        return refuse(c, "labels of a batch come by popularity already; negative_distribution "
                         "needs sampling_strategy = 'local'");
    if (is_in_batch && r->logq != LOGQ_NONE && (r->logq != LOGQ_OF_ALL || !r->shares_negatives))
        return refuse(c, "logq_correction of a batch's labels corrects all scores of all labels; "
                         "set shared_negatives = True and logq_correction = 'all'");
    if (is_in_batch && r->shares_negatives && r->loss != LOSS_SAMPLED_SOFTMAX)
        return refuse(c, "shared_negatives from the batch are of 'SampledSoftmaxLoss'; choose "
                         "sampling_strategy = 'local' or shared_negatives = False");
    if (!is_in_batch && r->logq != LOGQ_NONE && r->draw == NEGATIVES_UNIFORM)
        return refuse(c, "logq_correction has nothing to correct where every item is drawn alike; "
                         "set negative_distribution = 'popularity'");
    if (r->similarity == SIMILARITY_MOL &&
        (r->loss != LOSS_SAMPLED_SOFTMAX || r->logq != LOGQ_NONE ||
         (is_in_batch && r->shares_negatives)))
        return refuse(c,
                      "the similarity 'MoL' trains 'SampledSoftmaxLoss' without logq_correction, "
                      "and not with all labels of a batch; change these or the similarity");
    if (r->loss == LOSS_BCE && r->has_item_norm && c->family == FAMILY_META)
        return refuse(c, "with 'BCELoss' the reference normalises the negatives and not the label; "
                         "set train_fn.item_l2_norm = False");
    return OK;
}

static status check_meta(const config *c) {
    const config_retrieval *r = &c->retrieval;
    if (r->similarity == SIMILARITY_MOL) TRY(check_mol(c));
    if (r->similarity != SIMILARITY_MOL && r->top_k_method != 0)
        return refuse(c, "train_fn.top_k_method = 'MoLBruteForceTopK' searches for the similarity "
                         "'MoL'; the dot product has 'MIPSBruteForceTopK'");
    if (r->similarity != SIMILARITY_MOL && r->loss_weights.n > 0)
        return refuse(c, "train_fn.loss_weights weighs auxiliary losses, and there are none");
    if (c->data.positional_sampling_ratio != 1)
        return refuse(c, "train_fn.positional_sampling_ratio below 1 cannot be trained; every "
                         "position is");
    if (c->network.score == SCORE_SOFTMAX_REL_BIAS || c->network.concatenates_u)
        return refuse(c, "hstu_encoder.normalization = 'softmax_rel_bias' and concat_ua = True are "
                         "variants that cannot be trained");
    if (c->model == MODEL_FUXI && !c->network.has_relative_bias)
        return refuse(c, "fuxi_encoder.enable_relative_attention_bias = False leaves two of the "
                         "three channels of FuXi without weights");
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
    if (c->task == TASK_RETRIEVAL) TRY(check_loss(c));
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
    if (c->task == TASK_RANKING && c->network.item_dropout > 0)
        return refuse(c, "NetworkArgs.item_dropout is for retrieval; it would hide candidates");
    for (size_t i = 0; i < c->embeddings.n && c->optimizer.average > 0; i++)
        if (c->embeddings.item[i].is_dynamic)
            return refuse(c, "OptimizerArgs.weight_average averages all rows in every step, but a "
                             "table is dynamic; use static tables (EmbeddingArgs)");
    if (c->task == TASK_RETRIEVAL && c->data.max_candidates > 0)
        return refuse(c, "retrieval learns from the history; max_num_candidates must be 0");
    return OK;
}

static status write_value(const json_value *v, buf *out);

/* Writes a gin string, with gin's escapes. */
static status write_text(const char *text, buf *out) {
    TRY(buf_char(out, '\''));
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            TRY(buf_text(out, "\\n"));
            continue;
        }
        if (*text == '\'' || *text == '\\') TRY(buf_char(out, '\\'));
        TRY(buf_char(out, *text));
    }
    return buf_char(out, '\'');
}

static status write_children(const json_value *v, const char *open, const char *close, buf *out) {
    TRY(buf_text(out, open));
    for (const json_value *e = v->first; e != NULL; e = e->next) {
        if (v->type == JSON_OBJECT) {
            TRY(write_text(e->key, out));
            TRY(buf_text(out, ": "));
        }
        TRY(write_value(e, out));
        if (e->next != NULL) TRY(buf_text(out, ", "));
    }
    return buf_text(out, close);
}

static status write_value(const json_value *v, buf *out) {
    switch (v->type) {
    case JSON_NULL:
        return buf_text(out, "None");
    case JSON_BOOL:
        return buf_text(out, v->boolean ? "True" : "False");
    case JSON_NUMBER:
        if (v->is_integer) return buf_printf(out, "%lld", (long long)v->integer);
        return buf_printf(out, "%.17g", v->number);
    case JSON_STRING:
        return write_text(v->string, out);
    case JSON_ARRAY:
        return write_children(v, "[", "]", out);
    case JSON_OBJECT:
        return write_children(v, "{", "}", out);
    }
    return OK;
}

/* A name that goes into gin text without quotes must be an identifier (a scope may have slashes).
 */
static status check_name(const char *name) {
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./");
    if (n > 0 && name[n] == '\0') return OK;
    return fail(ERR_FORMAT, "'%.60s' is not the name of an option or a table", name);
}

/* PREFIX.field = value for every member that is an option. */
static status write_class(const char *prefix, const json_value *object, buf *out) {
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        if (strcmp(v->key, "scope") == 0 || strcmp(v->key, "class") == 0) continue;
        TRY(check_name(v->key));
        TRY(buf_printf(out, "%s.%s = ", prefix, v->key));
        TRY(write_value(v, out));
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

/* One table: its scope and class are members beside the values. */
static status write_table(const json_value *table, buf *names, buf *out) {
    const char *scope, *class_;
    char prefix[512];
    TRY(json_member_string(table, "scope", &scope));
    TRY(json_member_string(table, "class", &class_));
    TRY(check_name(scope));
    TRY(check_name(class_));
    TRY(buf_printf(names, "%s@%s/%s()", names->n_bytes > 0 ? ", " : "", scope, class_));
    if (snprintf(prefix, sizeof prefix, "%s/%s", scope, class_) >= (int)sizeof prefix)
        return fail(ERR_FORMAT, "'%.60s' is too long for the name of a table", scope);
    return write_class(prefix, table, out);
}

static status write_tables(const json_value *tables, buf *out) {
    buf names = {0};
    status st = OK;
    if (tables->type != JSON_ARRAY) return fail(ERR_FORMAT, "'embeddings' is not a list");
    for (const json_value *t = tables->first; t != NULL && st == OK; t = t->next)
        st = write_table(t, &names, out);
    if (st == OK && names.n_bytes > 0)
        st = buf_printf(out, "BenchmarkDatasetArgs.embedding_args = [%s]\n", buf_str(&names));
    buf_fini(&names);
    return st;
}

static status write_gin(const json_value *root, config_source *to, buf *out) {
    const json_value *source = json_member(root, "source");
    if (source == NULL || source->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "the config has no 'source'");
    TRY(json_member_string(source, "task", &to->task));
    TRY(json_member_string(source, "file", &to->text_name));
    const json_value *data = json_member(source, "data");
    if (data != NULL && data->type == JSON_STRING && strcmp(data->string, "generated") == 0)
        return fail(ERR_CONFIG,
                    "the run was on generated data, which only its gin file describes (%s)",
                    to->text_name);
    for (const json_value *v = root->first; v != NULL; v = v->next) {
        if (v == source || strcmp(v->key, "run") == 0) continue; /* not options */
        if (strcmp(v->key, "embeddings") == 0) {
            TRY(write_tables(v, out));
        } else if (v->type == JSON_OBJECT) {
            TRY(check_name(v->key));
            TRY(write_class(v->key, v, out));
        }
    }
    return OK;
}

/* Overrides given with --set are in the values already; they are kept as a record. */
static status copy_overrides(config *c, const json_value *root) {
    const json_value *list = json_member(json_member(root, "source"), "overrides");
    if (list == NULL || list->type != JSON_ARRAY) return OK;
    TRY(ARENA_NEW(&c->memory, &c->overrides.item, list->n_children));
    for (const json_value *v = list->first; v != NULL; v = v->next)
        if (v->type == JSON_STRING)
            TRY(arena_copy_text(&c->memory, v->string, v->string_bytes,
                                &c->overrides.item[c->overrides.n++]));
    return OK;
}

static status read_count(const json_value *source, const char *key, int64_t most, int64_t *out) {
    int64_t n;
    if (json_member(source, key) == NULL) return OK; /* not given, or by an older version */
    TRY(json_member_int(source, key, &n));
    if (n < 1 || n > most) return fail(ERR_FORMAT, "the config's '%s' is %lld", key, (long long)n);
    *out = n;
    return OK;
}

/* The length of the run from the command line, for which the family may have no option. */
static status read_length(config *c, const json_value *root) {
    const json_value *source = json_member(root, "source");
    TRY(read_count(source, "epochs", 1 << 20, &c->trainer.n_epochs));
    return read_count(source, "max_iters", (int64_t)1 << 53, &c->trainer.max_train_iters);
}

/* Where the run's weights came from. */
static status read_start(config *c, const json_value *root) {
    const json_value *source = json_member(root, "source");
    const char *from, *new_items;
    if (json_member(source, "init_from") == NULL) return OK;
    TRY(json_member_string(source, "init_from", &from));
    TRY(json_member_string(source, "new_items", &new_items));
    c->trainer.has_mean_items = strcmp(new_items, "mean") == 0;
    return arena_copy_text(&c->memory, from, strlen(from), &c->trainer.resume_folder);
}

status config_load_json(config **out, const char *name, const char *json, size_t n) {
    arena a;
    buf text = {0};
    const json_value *root;
    config_source source = {0};
    *out = NULL;
    arena_init(&a, 16 << 10);
    status st = json_parse(&a, name, json, n, &root);
    if (st == OK && root->type != JSON_OBJECT)
        st = fail(ERR_FORMAT, "%s: the config is not an object", name);
    if (st == OK) {
        st = write_gin(root, &source, &text);
        if (st != OK) st = fail_prefix(st, "%s", name);
    }
    source.text = buf_str(&text);
    source.text_bytes = text.n_bytes;
    if (st == OK) st = config_load(out, &source);
    if (st == OK) st = copy_overrides(*out, root);
    if (st == OK) {
        st = read_length(*out, root);
        if (st == OK) st = read_start(*out, root);
        if (st != OK) st = fail_prefix(st, "%s", name);
    }
    if (st != OK) {
        config_destroy(*out);
        *out = NULL;
    }
    buf_fini(&text);
    arena_fini(&a);
    return st;
}
