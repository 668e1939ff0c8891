/* The numbers of /metrics, after requests whose every effect is known. */
#include "server_rig.h"

/* The value of a series, which must be there once. */
static double value_of(const char *text, const char *series) {
    char line[200];
    snprintf(line, sizeof line, "\n%s ", series);
    const char *at = strstr(text, line);
    if (at == NULL || strstr(at + 1, line) != NULL) FAIL_TEST("%s: not there, or twice", series);
    return atof(at + strlen(line));
}

/* Three histories of a page each, and room for two pages: the third moves the first one to the
 * host, and the first, when it comes again, the second. */
TEST(server_metrics_count_exactly) {
    static const char *const bodies[] = {
        "{\"history\": [{\"item\": 1, \"time\": 5}, {\"item\": 2, \"time\": 6}]}",
        "{\"history\": [{\"item\": 3, \"time\": 5}, {\"item\": 4, \"time\": 6}]}",
        "{\"history\": [{\"item\": 5, \"time\": 5}, {\"item\": 6, \"time\": 6}]}",
        "{\"history\": [{\"item\": 1, \"time\": 5}, {\"item\": 2, \"time\": 6}]}",
        "{\"history\": [{\"item\": 1, \"time\": 5}, {\"item\": 2, \"time\": 6}]}",
        "{\"history\": [{\"item\": 1, \"time\": 5}, {\"item\": 2, \"time\": 6}]}",
    };
    static const struct {
        const char *series;
        double value;
    } want[] = {
        {"hstu_requests_total{route=\"/v1/recommend\",code=\"200\"}", 6},
        {"hstu_requests_total{route=\"/v1/recommend\",code=\"400\"}", 2},
        {"hstu_requests_total{route=\"/v1/events\",code=\"200\"}", 1},
        {"hstu_request_seconds_bucket{route=\"/v1/recommend\",le=\"+Inf\"}", 8},
        {"hstu_request_seconds_count{route=\"/v1/recommend\"}", 8},
        {"hstu_stage_seconds_count{stage=\"parse\"}", 6},
        {"hstu_stage_seconds_count{stage=\"write\"}", 6},
        {"hstu_stage_seconds_count{model=\"toy\",stage=\"layers\"}", 6},
        {"hstu_queue_tokens{model=\"toy\"}", 0},
        {"hstu_queue_requests{model=\"toy\"}", 0},
        {"hstu_late_total{model=\"toy\"}", 0},
        {"hstu_wait_limit_seconds{model=\"toy\"}", 0.25},
        {"hstu_batch_requests_sum{model=\"toy\"}", 6},
        {"hstu_batch_requests_count{model=\"toy\"}", 6},
        {"hstu_batch_tokens_sum{model=\"toy\"}", 9},
        {"hstu_batch_tokens_count{model=\"toy\"}", 6},
        {"hstu_kv_pages{model=\"toy\",tier=\"device\",state=\"free\"}", 0},
        {"hstu_kv_pages{model=\"toy\",tier=\"device\",state=\"used\"}", 2},
        {"hstu_kv_pages{model=\"toy\",tier=\"device\",state=\"pinned\"}", 0},
        {"hstu_kv_pages{model=\"toy\",tier=\"host\",state=\"free\"}", 3},
        {"hstu_kv_pages{model=\"toy\",tier=\"host\",state=\"used\"}", 2},
        {"hstu_kv_tokens_total{model=\"toy\",source=\"device\"}", 2},
        {"hstu_kv_tokens_total{model=\"toy\",source=\"host\"}", 1},
        {"hstu_kv_tokens_total{model=\"toy\",source=\"computed\"}", 9},
        {"hstu_kv_evictions_total{model=\"toy\",tier=\"device\"}", 2},
        {"hstu_kv_evictions_total{model=\"toy\",tier=\"host\"}", 0},
        {"hstu_kv_computed_again_total{model=\"toy\"}", 0},
        {"hstu_events_total{result=\"added\"}", 1},
        {"hstu_events_total{result=\"duplicate\"}", 1},
        {"hstu_rejected_total{reason=\"quota\"}", 0},
    };
    rig r;
    rig_open(&r);
    r.c.engine.kv_pages = 2;
    r.c.engine.kv_host_pages = 5;
    r.c.engine.loads_always = true;
    rig_start(&r);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        ask(&r, "POST", "/v1/recommend", bodies[i], 200, "\"source\":\"model\"");
    for (int i = 0; i < 2; i++)
        ask(&r, "POST", "/v1/recommend", "{", 400, "not JSON");
    ask(&r, "POST", "/v1/events",
        "{\"user\": \"x\", \"events\": [{\"item\": 1, \"time\": 5, \"id\": \"a\"}, {\"item\": 1, "
        "\"time\": 5, \"id\": \"a\"}]}",
        200, "\"added\":1,\"duplicates\":1");
    char *text = client_ask(r.port, "GET", "/metrics", "", "");
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (value_of(text, want[i].series) != want[i].value)
            FAIL_TEST("%s is %g, not %g", want[i].series, value_of(text, want[i].series),
                      want[i].value);
    double stored = value_of(text, "hstu_kv_transfer_bytes_total{model=\"toy\",dir=\"store\"}");
    CHECK(stored > 0);
    CHECK(stored == 2 * value_of(text, "hstu_kv_transfer_bytes_total{model=\"toy\",dir=\"load\"}"));
    free(text);
    rig_close(&r);
}

/* What is refused is counted by its reason. */
TEST(server_metrics_count_refusals) {
    static const struct {
        const char *key;
        int code;
    } asks[] = {{"not-a-key", 401}, {"secret-key", 200}, {"secret-key", 429}, {"secret-key", 429}};
    static const struct {
        const char *series;
        double value;
    } want[] = {{"hstu_rejected_total{reason=\"quota\"}", 2},
                {"hstu_requests_total{route=\"/v1/recommend\",code=\"200\"}", 1},
                {"hstu_requests_total{route=\"/v1/recommend\",code=\"401\"}", 1},
                {"hstu_requests_total{route=\"/v1/recommend\",code=\"429\"}", 2}};
    rig r;
    rig_open(&r);
    FILE *f = fopen(r.keys, "w");
    CHECK(f != NULL && fputs("secret-key shop 0.001 read\nother-key ops 0 read\n", f) >= 0 &&
          fclose(f) == 0);
    r.c.keys = r.keys;
    rig_start(&r);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        char header[64];
        snprintf(header, sizeof header, "X-Api-Key: %s\r\n", asks[i].key);
        char *text = client_ask(r.port, "POST", "/v1/recommend", header, "{\"user\": 7}");
        CHECK_EQ(client_code(text), asks[i].code);
        free(text);
    }
    char *text = client_ask(r.port, "GET", "/metrics", "X-Api-Key: other-key\r\n", "");
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK_EQ(value_of(text, want[i].series), want[i].value);
    free(text);
    rig_close(&r);
}

/* Events of what was shown are hits, once each; the rest tells of drift. */
TEST(server_counts_hits_of_its_lists) {
    rig r;
    arena a;
    char body[160];
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *items = json_member(
        rig_json(&r, &a, "POST", "/v1/recommend", "{\"user\": 7, \"top_k\": 3}"), "items");
    (void)rig_json(&r, &a, "POST", "/v1/recommend", "{\"user\": \"who\", \"top_k\": 2}");
    int shown = (int)json_number(json_at(items, 1), "item"),
        seen = (int)json_number(json_at(items, 2), "item");
    snprintf(body, sizeof body, "{\"user\": \"7\", \"events\": [%d, %d, {\"item\": \"nothing\"}]}",
             shown, shown);
    (void)rig_json(&r, &a, "POST", "/v1/events", body);
    /* A list that comes with events counts after them. */
    snprintf(body, sizeof body, "{\"user\": 7, \"top_k\": 3, \"events\": [%d]}", seen);
    (void)rig_json(&r, &a, "POST", "/v1/recommend", body);
    ask(&r, "GET", "/metrics", "", 200, "hstu_recommended_shown_total{model=\"toy\"} 8\n");
    ask(&r, "GET", "/metrics", "", 200, "hstu_recommended_hits_total{model=\"toy\"} 2\n");
    ask(&r, "GET", "/metrics", "", 200, "hstu_recommended_events_total{model=\"toy\"} 4\n");
    ask(&r, "GET", "/metrics", "", 200, "hstu_recommended_users_total{model=\"toy\"} 3\n");
    ask(&r, "GET", "/metrics", "", 200, "hstu_recommended_strangers_total{model=\"toy\"} 1\n");
    ask(&r, "GET", "/metrics", "", 200, "hstu_event_items_total{known=\"yes\"} 3\n");
    ask(&r, "GET", "/metrics", "", 200, "hstu_event_items_total{known=\"no\"} 1\n");
    /* What is erased is forgotten here, too. */
    (void)rig_json(&r, &a, "DELETE", "/v1/users/7", "");
    snprintf(body, sizeof body, "{\"user\": 7, \"events\": [%d]}", shown);
    (void)rig_json(&r, &a, "POST", "/v1/events", body);
    ask(&r, "GET", "/metrics", "", 200, "hstu_recommended_events_total{model=\"toy\"} 4\n");
    arena_fini(&a);
    rig_close(&r);
}
