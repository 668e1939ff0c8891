/* What tests of configs share: a config loaded from a text, `c`, which a file frees after its
 * tests. */
#ifndef HSTU_TESTS_CONFIG_TEST_H
#define HSTU_TESTS_CONFIG_TEST_H

#include "base/log.h"
#include "config/config.h"
#include "test.h"

static config *c;

static status load_text(const char *text, const char *const *overrides, size_t n,
                        const char *task) {
    config_source source = {.text = text,
                            .text_name = "t.gin",
                            .text_bytes = strlen(text),
                            .overrides = overrides,
                            .n_overrides = n,
                            .task = task};
    log_set_level(LOG_QUIET);
    config_destroy(c);
    return config_load(&c, &source);
}

static status load(const char *text) {
    return load_text(text, NULL, 0, NULL);
}

/* The smallest NVIDIA file, with room for more lines. */
#define SMALL                                                                                      \
    "DatasetArgs.dataset_name = 'ml-1m'\nDatasetArgs.max_history_seqlen = 200\n"                   \
    "NetworkArgs.num_layers = 2\nNetworkArgs.hidden_size = 64\n"
#define GENERATED                                                                                  \
    "NetworkArgs.num_layers = 2\nNetworkArgs.hidden_size = 64\nRankingArgs.num_tasks = 8\n"        \
    "f/FeatureArgs.feature_names = ['item']\nf/FeatureArgs.max_sequence_length = 10\n"             \
    "e/EmbeddingArgs.feature_names = ['item']\ne/EmbeddingArgs.table_name = 'item'\n"              \
    "e/EmbeddingArgs.item_vocab_size_or_capacity = 100\n"                                          \
    "e/EmbeddingArgs.sharding_type = 'data_parallel'\n"                                            \
    "BenchmarkDatasetArgs.feature_args = [@f/FeatureArgs()]\n"                                     \
    "BenchmarkDatasetArgs.embedding_args = [@e/EmbeddingArgs()]\n"                                 \
    "BenchmarkDatasetArgs.item_feature_name = 'item'\n"                                            \
    "BenchmarkDatasetArgs.contextual_feature_names = []\n"

#endif
