#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/build/builder_int.h"
#include "data/build/partition.h"
#include "format/json.h"

/* From blocks of events to the file: ids become numbers (builder_renumber.c), the columns are laid
 * out, the small ones written (builder_vocab.c), then the events, partition by partition. */

/* The scalars a reader needs, and where the data came from. */
static status write_meta(const write_job *job, const char *source_json, buf *out) {
    const builder_options *options = &job->b->options;
    json_writer w;
    json_begin(&w, out, 0);
    json_object_open(&w);
    json_key_int(&w, "action_kind", options->actions);
    json_key_int(&w, "time_per_second", job->stats->time_per_second);
    json_key_int(&w, "catalogue", (int64_t)job->stats->n_items);
    json_key(&w, "source");
    TRY(w.state);
    /* The caller's JSON object is copied as it is; reading the file back checks it. */
    TRY(buf_printf(out, "%s}", source_json));
    return buf_append(out, "", 1);
}

static status make_out_offsets(write_job *job) {
    uint64_t n = job->stats->n_users + 1;
    TRY(MEM_NEW(&job->out_offsets, n));
    if (job->b->options.drop_duplicates)
        TRY(partition_count_duplicates(job));
    else
        memcpy(job->out_offsets, job->offsets, n * sizeof *job->offsets);
    job->stats->n_events = job->out_offsets[n - 1];
    return OK;
}

static status write_columns(write_job *job, const buf *meta, const vocab_output *vocab,
                            column_writer *w) {
    const builder_stats *stats = job->stats;
    event_columns events = {.writer = w};
    int meta_index, offsets_index;
    TRY(column_writer_declare(w, "meta", COLUMN_U8, meta->n_bytes, &meta_index));
    TRY(column_writer_declare(w, "offsets", COLUMN_U64, stats->n_users + 1, &offsets_index));
    TRY(column_writer_declare(w, "item_index", COLUMN_U32, stats->n_events, &events.item));
    TRY(column_writer_declare(w, "action", COLUMN_U16, stats->n_events, &events.action));
    TRY(column_writer_declare(w, "time", COLUMN_I64, stats->n_events, &events.time));
    TRY(vocab_output_declare((vocab_output *)vocab, w));
    column_writer_begin(w);
    TRY(column_writer_put(w, meta_index, 0, meta->data, meta->n_bytes));
    TRY(column_writer_put(w, offsets_index, 0, job->out_offsets, stats->n_users + 1));
    TRY(vocab_output_put(vocab, w));
    TRY(partition_write(job, &events));
    return column_writer_commit(w, job->b->workers);
}

static status write_file(write_job *job, const char *path, const char *source_json) {
    vocab_output *vocab = NULL;
    column_writer *w = NULL;
    buf meta;
    buf_init(&meta);
    status st = column_writer_create(
        &w, path); /* First, so that a target that cannot be written is reported early. */
    if (st == OK) st = builder_renumber(job);
    if (st == OK) st = make_out_offsets(job);
    if (st == OK) st = write_meta(job, source_json, &meta);
    if (st == OK) st = vocab_output_create(&vocab, job);
    if (st == OK) st = write_columns(job, &meta, vocab, w);
    column_writer_abandon(w);
    vocab_output_destroy(vocab);
    buf_fini(&meta);
    return st;
}

status builder_write(builder *b, const char *folder, const char *meta_json, builder_stats *stats) {
    char path[4096];
    bool is_made;
    *stats = (builder_stats){0};
    write_job job = {.b = b, .stats = stats};
    TRY(path_join(path, sizeof path, folder, "data.seq"));
    TRY(folder_create(folder, &is_made));
    status st = write_file(&job, path, meta_json);
    id_space_fini(&job.users);
    id_space_fini(&job.items);
    mem_free(job.offsets);
    mem_free(job.out_offsets);
    if (st != OK && is_made) (void)rmdir(folder);
    return st;
}
