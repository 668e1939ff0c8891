/* hstu bench latency, throughput and dataset, from outside, on a run that reads 12 events. */
#include "base/file.h"
#include "run_test.h"

/* A report as JSON, as text without spaces. */
static char *report_of(const char *file) {
    char command[128];
    snprintf(command, sizeof command, "tr -d ' \\n' <%s", file);
    return shell(0, command);
}

/* Each row has its history, what of it is new, the state of the cache, and the tokens of all
 * requests: a token is an event, and the last one known is computed again. */
TEST(latency_rows_by_history_and_cache) {
    static const struct {
        int history, fresh, reused, computed;
        const char *cache;
    } rows[] = {
        {8, 8, 0, 24, "cold"},    {8, 1, 18, 6, "memory"}, {8, 1, 18, 6, "host"},
        {8, 1, 18, 6, "fp8"},     {12, 12, 0, 36, "cold"}, {12, 1, 30, 6, "memory"},
        {12, 9, 6, 30, "memory"}, {12, 1, 30, 6, "host"},  {12, 9, 6, 30, "host"},
        {12, 1, 30, 6, "fp8"},    {12, 9, 6, 30, "fp8"},
    };
    enum { N = sizeof rows / sizeof *rows };
    char *text = shell(0, "./hstu bench latency run --device cpu --history 8,12 --new 1,9 --n 3 "
                          "--states cold,cached,host,fp8 --report-json r.json");
    CHECK_CONTAINS(text, "run, cpu: 1 at a time, 3 requests a row, milliseconds");
    CHECK_CONTAINS(text, "peak* % of it\n");
    char *json = report_of("r.json");
    CHECK_CONTAINS(json, "{\"bench\":\"latency\",\"engine\":\"run\",\"task\":\"retrieval\","
                         "\"device\":\"cpu\",\"concurrency\":1,\"rows\":[");
    CHECK_EQ(count_parts(json, "\"num_requests\":3,\"answered\":3,\"refused\":0,\"failed\":0"), N);
    CHECK_EQ(count_parts(json, "\"percent_of_roofline\":"), N);
    const char *line = strstr(text, "% of it\n") + 8, *at = json;
    for (int i = 0; i < N; i++, line = strchr(line, '\n') + 1) {
        char want[128];
        double ms[8], reused, computed;
        int history, fresh, n = 0;
        snprintf(want, sizeof want, "{\"history\":%d,\"new\":%d,\"cache\":\"%s\",", rows[i].history,
                 rows[i].fresh, rows[i].cache);
        CHECK((at = strstr(at, want)) != NULL);
        snprintf(want, sizeof want, "\"tokens_reused\":%d,\"tokens_computed\":%d,", rows[i].reused,
                 rows[i].computed);
        CHECK((at = strstr(at, want)) != NULL);
        /* p50 p90 p95 p99 p99.9 min max mean */
        CHECK(sscanf(line, "%d %d %*s %n", &history, &fresh, &n) == 2 && n > 0);
        CHECK(history == rows[i].history && fresh == rows[i].fresh);
        CHECK_EQ(sscanf(line + n, "%lf %lf %lf %lf %lf %lf %lf %lf %lf %lf", &ms[0], &ms[1], &ms[2],
                        &ms[3], &ms[4], &ms[5], &ms[6], &ms[7], &reused, &computed),
                 10);
        CHECK(ms[5] <= ms[0] && ms[0] <= ms[1] && ms[1] <= ms[6] && ms[4] == ms[6]);
        CHECK(ms[7] >= ms[5] && ms[7] <= ms[6]);
        CHECK(reused == rows[i].reused / 3 && computed == rows[i].computed / 3);
    }
    free(json);
    free(text);
}

/* Two users whose histories grow to 12 events in three requests: 4, 8 and 12; with the cache the
 * last known token and the new ones are computed. */
TEST(latency_of_growing_histories) {
    char *text = shell(0, "./hstu bench latency run --device cpu --growing 3 --n 1 --warmup 0 "
                          "--concurrency 2 --report-json r.json");
    CHECK_CONTAINS(text, "run: 2 users at the same time, 3 requests each, histories growing "
                         "evenly; milliseconds of all of them, median of 1\n");
    static const char *const caches[] = {"memory", "none"};
    const char *line = strstr(text, "users  cache");
    for (int i = 0; i < 2; i++) { /* total, least, most, first, last, reused, computed */
        char cache[16];
        double ms[5], reused, computed;
        int users;
        CHECK(line != NULL && (line = strchr(line, '\n')) != NULL);
        line++;
        CHECK_EQ(sscanf(line, "%d %15s %lf %lf %lf %lf %lf %lf %lf", &users, cache, &ms[0], &ms[1],
                        &ms[2], &ms[3], &ms[4], &reused, &computed),
                 9);
        CHECK_STR(cache, caches[i]);
        CHECK(users == 2 && reused == (i == 0 ? 20 : 0) && computed == (i == 0 ? 28 : 48));
        CHECK(ms[0] == ms[1] && ms[0] == ms[2] && ms[3] > 0 && ms[4] > 0 && ms[3] + ms[4] < ms[0]);
    }
    free(text);
    text = report_of("r.json");
    const char *cached = strstr(text, "{\"cache\":\"memory\","),
               *none = strstr(text, "{\"cache\":\"none\",");
    CHECK(cached != NULL && none != NULL);
    CHECK_CONTAINS(cached, "\"tokens_reused\":20,\"tokens_computed\":28,");
    CHECK_CONTAINS(none, "\"tokens_reused\":0,\"tokens_computed\":48,");
    double total, least, most, round[3];
    CHECK_EQ(sscanf(none,
                    "{\"cache\":\"none\",\"total_ms\":%lf,\"minimum_ms\":%lf,\"maximum_ms\":%lf,",
                    &total, &least, &most),
             3);
    none = strstr(none, "\"round_ms\":");
    CHECK(none != NULL &&
          sscanf(none, "\"round_ms\":[%lf,%lf,%lf]", &round[0], &round[1], &round[2]) == 3);
    CHECK(total == least && total == most);
    CHECK(fabs(round[0] + round[1] + round[2] - total) < 1e-9 * total);
    free(text);
}

/* A closed loop, an open one, the requests of a file, and the search for the highest rate. */
TEST(throughput_of_loops_and_files) {
    char *text = shell(0, "./hstu bench throughput run --device cpu --requests 40 --warmup 3 "
                          "--history-mean 6 --concurrency 2 --report-json r.json");
    CHECK_CONTAINS(text, "retrieval, 60 items, cpu, history of 12\n");
    CHECK_CONTAINS(text, "Loop:                              closed, 2 at a time\n");
    CHECK_CONTAINS(text,
                   "Number of requests:                40 (40 answered, 0 refused, 0 failed)");
    CHECK(strstr(text, "p99 <=") == NULL);
    free(text);
    text = report_of("r.json");
    CHECK_CONTAINS(text, "\"cache\":\"memory\",\"loop\":\"closed\",\"concurrency\":2,");
    CHECK(strstr(text, "\"rate\"") == NULL && strstr(text, "\"slo\"") == NULL);
    free(text);
    free(shell(0, "./hstu bench dataset run --requests 30 --out d.jsonl"));
    text = shell(0, "wc -l <d.jsonl; ./hstu bench throughput run --device cpu --dataset d.jsonl "
                    "--rate 5000 --slo 1000 --rounds 1 --seconds .02 --kv-pages 0 "
                    "--report-json r.json");
    CHECK_EQ(atoi(text), 30);
    CHECK_CONTAINS(text, "KV cache:                          cold\n");
    CHECK_CONTAINS(text, "open, 5000.0 requests/s, burstiness 1.00");
    CHECK_CONTAINS(text, "Number of requests:                30 (30 answered");
    CHECK_CONTAINS(text, "Requests per second with p99 <= 1000 ms: ");
    free(text);
    text = report_of("r.json");
    CHECK_CONTAINS(text, "\"cache\":\"cold\",\"loop\":\"open\",\"rate\":5000,");
    CHECK_CONTAINS(text, "\"slo\":{\"p99_ms\":1000,\"requests_per_s\":");
    free(text);
    /* The requests of a file are those of users who are new. */
    text = shell(0, "for i in 0 20; do ./hstu bench throughput run --device cpu --dataset d.jsonl "
                    "--concurrency 1 --warmup $i | grep reused; done | sort -u");
    CHECK_EQ(count_parts(text, "\n"), 1);
    CHECK(strstr(text, " 0 / ") == NULL);
    free(text);
}

TEST(serving_benches_refuse) {
    static const struct {
        const char *args, *text;
    } cases[] = {
        {"latency run --history 13", "--history 13: the model reads 12 events"},
        {"latency run --history 8 --growing 9", "9 growing requests to 8 events"},
        {"latency run --growing 2 --history 13", "--history 13: the model reads 12 events"},
        {"latency run --history 8 --states cold,warm", "--states cold,warm: of cold, cached"},
        {"latency run --history 8 --states cach", "--states cach: of cold, cached"},
        {"latency run --history 8 --states cached --kv-pages 0", "nothing of the history can be"},
        {"latency run --history 8 --states cached --new 8", "nothing of the history can be"},
        {"throughput run --zipf 10.5", "--zipf must be from 0 to 10"},
        {"throughput run --zipf -1", "--zipf must be from 0 to 10"},
        {"throughput run --returning 1.1", "--returning must be from 0 to 1"},
        {"throughput run --new-stdev -1", "lengths and deviations must not be negative"},
        {"dataset run", "--out"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[256];
        snprintf(command, sizeof command, "./hstu bench %s%s", cases[i].args,
                 strncmp(cases[i].args, "dataset", 7) == 0 ? "" : " --device cpu");
        char *text = shell(2, command);
        CHECK_CONTAINS(text, cases[i].text);
        free(text);
    }
}
