#include "cli/serve/kv_args.h"

#include <string.h>

#include "base/log.h"

status kv_args_dtype(const char *text, bool *is_fp8) {
    *is_fp8 = text != NULL && strcmp(text, "fp8") == 0;
    if (text == NULL || *is_fp8 || strcmp(text, "model") == 0) return OK;
    return fail(ERR_USAGE, "--kv-dtype %.40s: model or fp8", text);
}

status kv_args_load(const char *text, bool *is_always) {
    *is_always = text != NULL && strcmp(text, "always") == 0;
    if (text == NULL || *is_always || strcmp(text, "cost") == 0) return OK;
    return fail(ERR_USAGE, "--kv-load %.40s: cost or always", text);
}

void kv_args_tell(const engine_model_info *m) {
    if (m->has_fp8_kv)
        log_info("model %s: keys and values in 8 bits change results by up to %.2g of the largest "
                 "one (tried on a made-up history of full length)",
                 m->name, m->fp8_error);
    if (m->n_host_pages == 0) return;
    log_info("model %s: %lld KV pages of %.1f KiB in host memory", m->name,
             (long long)m->n_host_pages, (double)m->page_bytes / 1024);
    if (m->load_us_token == 0) return;
    log_info("model %s: measured, a token is loaded in %.3g us and computed in %.3g (half way "
             "through the longest history)",
             m->name, m->load_us_token, m->compute_us_token);
    if (m->load_from_tokens < 0)
        log_info("model %s: computing is always faster, so nothing is kept in host memory",
                 m->name);
    else
        log_info("model %s: histories of %d tokens or more are loaded, shorter ones computed",
                 m->name, m->load_from_tokens);
}
