/* hstu serve, build and state, from outside. */
#include <pthread.h>

#include "hstu.h"
#include "serve_process.h"

/* As long as a name can be. */
#define X21 "xxxxxxxxxxxxxxxxxxxxx"
#define X63 X21 X21 X21

/* What a command says before it opens anything: --split x is read last, after all options and
 * names. */
TEST(serve_refuses_wrong_usage) {
    static const struct {
        const char *args, *text;
    } cases[] = {
        {"a b --name x", "2 models and 1 names: give --name for each model or for none"},
        {"a --name x --name y", "1 models and 2 names"},
        {"a --name 'x y'", "--name x y: letters, digits, '.', '_' and '-' only"},
        {"a b --name x --name x", "two models are called 'x': give each a --name"},
        {"m/" X63 "a/ n/" X63 "b", "two models are called '" X63 "': give each a --name"},
        {"a z/a/", "two models are called 'a'"},
        {"b a.b-c_1 /x/y/a.b-c_1//", "two models are called 'a.b-c_1'"},
        {"'m/a +b' m/a__b", "two models are called 'a__b'"},
        {"/ //", "two models are called 'model'"},
        {"a b --shadow c", "--shadow c: there is no model of this name"},
        {"a b --shadow a", "--shadow a: the first model answers"},
        {"a b --shadow b --split 9,1", "--split: b is a shadow and answers nobody"},
        {"a b --split 90", "--split 90: give a whole number for each of the 2 models"},
        {"a b --split 1,2,3", "give a whole number for each of the 2 models"},
        {"a b --split x,1", "give a whole number"},
        {"a b --split 1,", "give a whole number"},
        {"a b --split 1,-1", "give a whole number"},
        {"a b --split 1000001,1", "give a whole number"},
        {"a b --split 0,0", "--split 0,0: at least one share must be above 0"},
        {"a --split 0", "at least one share must be above 0"},
        {"a --tensor-parallel 2 --device=cpu,cpu,cpu",
         "--tensor-parallel 2: --device names 3 devices; name 2 of one kind, or one"},
        {"a --tensor-parallel 2 --device=cpu,cuda:0",
         "--tensor-parallel 2: --device names 2 devices; name 2 of one kind, or one"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[256];
        snprintf(args, sizeof args, "serve --device cpu %s", cases[i].args);
        char *text = said(2, args);
        CHECK_CONTAINS(text, cases[i].text);
        free(text);
    }
}

/* Both ends of each number are taken, and what is beyond them is not. */
TEST(serve_numbers_have_ends) {
    static const struct {
        const char *name;
        long long min, max;
    } numbers[] = {
        {"--erase-within", 1, 86400},      {"--port", 0, 65535},
        {"--connections", 1, 1000000},     {"--connections-per-address", 1, 1000000},
        {"--max-body", 1, 1024},           {"--max-buffered", 1, 1 << 20},
        {"--deadline", 1, 600000},         {"--max-batch", 1, 4096},
        {"--max-tokens", 1, 1 << 24},      {"--max-queue", 1, 1 << 20},
        {"--max-queue-mib", 1, 1 << 20},   {"--kv-pages", 0, INT32_MAX},
        {"--kv-host-pages", 0, INT32_MAX}, {"--drain-delay", 0, 3600},
        {"--drain-timeout", 0, 3600},      {"--tensor-parallel", 1, 64},
    };
    char good[2][1024] = {"serve a --split x", "serve a --split x"}, wrong[2048] = "", want[128];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int end = 0; end < 2; end++) {
            long long value = end == 0 ? numbers[i].min : numbers[i].max;
            snprintf(good[end] + strlen(good[end]), 64, " %s %lld", numbers[i].name, value);
            snprintf(wrong + strlen(wrong), 64, " %s=%lld", numbers[i].name,
                     end == 0 ? value - 1 : value + 1);
        }
    for (int end = 0; end < 2; end++) {
        char *text = said(2, good[end]);
        CHECK_CONTAINS(text, "--split x: give a whole number");
        free(text);
    }
    char *text;
    CHECK_EQ(test_command(&text, "for i in %s; do %s serve a $i; done", wrong, test_program()), 2);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(want, sizeof want, " %s: %lld is out of range; it must be from %lld to %lld\n",
                 numbers[i].name, numbers[i].min - 1, numbers[i].min, numbers[i].max);
        CHECK_CONTAINS(text, want);
        snprintf(want, sizeof want, " %s: %lld is out of range", numbers[i].name,
                 numbers[i].max + 1);
        CHECK_CONTAINS(text, want);
    }
    free(text);
}

/* Two models by the names of their folders; users go to the one that has a share; each request is
 * a line on stdout, which is a file; a signal ends it. */
TEST(serve_answers_until_a_signal) {
    served s;
    free(shell(0, "cp -r run 'other run'"));
    serve_start(&s, "run 'other run/' --split 0,7 --kv-pages 8 --state st", "out");
    CHECK_CONTAINS(s.said, "model run: retrieval, 60 items, cpu");
    CHECK_CONTAINS(s.said, "model other_run: retrieval, 60 items, cpu");
    CHECK_CONTAINS(s.said, "events: 0 read from st\n");
    CHECK(strstr(s.said, "no access log") == NULL);
    ask(&s, "GET", "/health", "", 200, "\"models\":2,\"durable\":true");
    ask(&s, "POST", "/v1/recommend", "{\"user\": 7, \"top_k\": 3}", 200, "\"model\":\"other_run\"");
    ask(&s, "POST", "/v1/recommend", "{\"user\": 7, \"model\": \"run\"}", 200, "\"model\":\"run\"");
    ask(&s, "POST", "/v1/events", "{\"user\": 7, \"events\": [{\"item\": 3}]}", 200, "");
    CHECK(kill(s.pid, SIGTERM) == 0);
    CHECK_EQ(serve_end(&s), 0);
    CHECK_CONTAINS(s.said, "draining; a second signal exits at once\n");
    CHECK(strstr(s.said, "dropped") == NULL);
    char *text = shell(0, "grep -c '^{.*}$' out; grep -c v1/recommend out");
    CHECK_STR(text, "4\n2\n");
    free(text);
    /* What was acknowledged is in the state, which the commands count, copy and put back. */
    text = shell(0, "./hstu state check st; ./hstu state backup st copy --json; "
                    "rm st/*; ./hstu state restore st copy; ./hstu state recover st");
    CHECK_STR(text, "sound: 1 users, 1 events, 0 erased users\n"
                    "{\"users\":1,\"events\":1,\"erased\":0,\"not_swept\":0,\"damaged\":0}\n"
                    "st: 1 users, 1 events, 0 erased users\n"
                    "saved: 1 users, 1 events, 0 erased users\n");
    free(text);
    free(shell(2, "./hstu state backup st"));
    free(shell(1, "./hstu state check nothing"));
}

/* After the first signal it is not ready and goes on; the second one ends it at once. */
TEST(serve_drains_and_ends_by_a_second_signal) {
    served s;
    serve_start(&s,
                "run --name a --drain-delay 60 --access-log log --kv-dtype fp8 --kv-host-pages 4",
                "/dev/null");
    CHECK_CONTAINS(s.said, "model a: keys and values in 8 bits change results by up to ");
    CHECK_CONTAINS(s.said, "model a: 4 KV pages of ");
    CHECK_CONTAINS(s.said, "model a: retrieval");
    CHECK_CONTAINS(s.said, "events are kept in memory only");
    ask(&s, "GET", "/health", "", 200, "\"models\":1,\"durable\":false");
    CHECK(kill(s.pid, SIGTERM) == 0);
    wait_said(&s, "draining");
    ask(&s, "GET", "/health", "", 503, "not ready");
    ask(&s, "POST", "/v1/recommend", "{\"user\": 7, \"top_k\": 3}", 200, "\"model\":\"a\"");
    CHECK(kill(s.pid, SIGINT) == 0);
    CHECK_EQ(serve_end(&s), 1);
    CHECK_CONTAINS(s.said, "ended by a second signal");
    char *text = shell(0, "wc -l <log");
    CHECK_EQ(atoi(text), 3);
    free(text);
}

/* The score of an item in an answer, from "id":N or "item":N on. */
static float score_in(const char *answer, uint32_t item) {
    char key[32];
    snprintf(key, sizeof key, "\"item\":%u,", item);
    const char *at = strstr(answer, key);
    if (at == NULL || (at = strstr(at, "\"score\":")) == NULL)
        FAIL_TEST("no %s in %s", key, answer);
    return strtof(at + 8, NULL);
}

/* Events without times are a minute apart, wherever the history is given: the library, both
 * commands, the server's own routes and its tensors give the same bits, and so do events with such
 * times; but not with others. */
TEST(serve_scores_a_history_as_commands_and_library_do) {
    enum { K = 3 };
    const uint32_t items[] = {9, 4, 33, 21};
    hstu_history h = {.length = 4, .item = items};
    static const char history[] = "[9,4,33,21]",
                      timed[] = "[{\"item\":9,\"time\":1000000},{\"item\":4,\"time\":1000060},"
                                "{\"item\":33,\"time\":1000120},{\"item\":21,\"time\":1000180}]",
                      apart[] = "[{\"item\":9,\"time\":1},{\"item\":4,\"time\":2},"
                                "{\"item\":33,\"time\":900000},{\"item\":21,\"time\":999999}]";
    const char *const text[] = {history, timed, apart};
    hstu_model *m;
    uint32_t item[K];
    float score[K];
    served s;
    char line[1024];
    serve_start(&s, "run", "/dev/null");
    CHECK_EQ(hstu_model_open(&m, run_path("run"), run_path("data"), "cpu"), HSTU_OK);
    CHECK_EQ(hstu_model_recommend_history(m, &h, K, 0, item, score), HSTU_OK);
    hstu_model_close(m);
    for (int i = 0; i < 3; i++) {
        char *answer[4];
        snprintf(line, sizeof line, "recommend run -k %d --json --history '%s'", K, text[i]);
        answer[0] = said(0, line);
        snprintf(line, sizeof line, "score run --json --candidates %u,%u,%u --history '%s'",
                 item[0], item[1], item[2], text[i]);
        answer[1] = said(0, line);
        snprintf(line, sizeof line, "{\"history\":%s,\"top_k\":%d}", text[i], K);
        answer[2] = client_ask(s.port, "POST", "/v1/recommend", "", line);
        snprintf(line, sizeof line, "{\"history\":%s,\"candidates\":[%u,%u,%u]}", text[i], item[0],
                 item[1], item[2]);
        answer[3] = client_ask(s.port, "POST", "/v1/rank", "", line);
        for (int way = 0; way < 4; way++) {
            for (int k = 0; k < K && (i < 2 || k == 0); k++)
                CHECK((score_in(answer[way], item[k]) == score[k]) == (i < 2));
            free(answer[way]);
        }
    }
    char *text_of =
        client_ask(s.port, "POST", "/v2/models/run/infer", "",
                   "{\"inputs\":[{\"name\":\"TOKENS\",\"datatype\":\"INT64\",\"shape\":[4],"
                   "\"data\":[9,4,33,21]},"
                   "{\"name\":\"TOKEN_LENGTHS\",\"datatype\":\"INT64\",\"shape\":[1],\"data\":[4]},"
                   "{\"name\":\"TOP_K\",\"datatype\":\"INT64\",\"shape\":[1],\"data\":[1]}]}");
    const char *at = strstr(text_of, "\"name\":\"OUTPUT\"");
    CHECK(at != NULL && (at = strstr(at, "\"data\":[")) != NULL &&
          strtof(at + 8, NULL) == score[0]);
    free(text_of);
    ask(&s, "POST", "/v1/recommend", "{\"history\":[9,{\"item\":4,\"time\":5}]}", 400,
        "event 2: give a time for all events of a history or for none");
    CHECK(kill(s.pid, SIGTERM) == 0);
    CHECK_EQ(serve_end(&s), 0);
}

/* With ids that are text, metadata, configuration and answers of /v2 name the same types; SOURCE
 * says whose scores are counts of events. */
TEST(serve_describes_text_ids_alike) {
    static const char infer[] = "/v2/models/strings/infer";
    served s;
    free(shell(0, "python3 -c 'print(\"user,item,time\"); [print(f\"u{u},i{(u * 7 + t * 3) % 40},"
                  "{1700000000 + t * 60}\") for u in range(30) for t in range(8)]' >log.csv && "
                  "./hstu prep csv --input log.csv --out text && ./hstu train --device cpu "
                  "--gin-config-file m.gin --data text --out strings --epochs 1"));
    serve_start(&s, "strings --data text", "/dev/null");
    ask(&s, "GET", "/v2/models/strings", "", 200,
        "\"inputs\":[{\"name\":\"USER_IDS\",\"datatype\":\"BYTES\",\"shape\":[-1]},"
        "{\"name\":\"CANDIDATES\",\"datatype\":\"BYTES\",\"shape\":[-1,-1]},");
    ask(&s, "GET", "/v2/models/strings", "", 200,
        "{\"name\":\"ITEM_IDS\",\"datatype\":\"BYTES\",\"shape\":[-1,-1]},"
        "{\"name\":\"SOURCE\",\"datatype\":\"BYTES\",\"shape\":[-1]}]");
    ask(&s, "GET", "/v2/models/strings/config", "", 200,
        "\"input\":[{\"name\":\"USER_IDS\",\"data_type\":\"TYPE_STRING\",\"dims\":[-1]},"
        "{\"name\":\"CANDIDATES\",\"data_type\":\"TYPE_STRING\",\"dims\":[-1,-1],"
        "\"optional\":true},");
    ask(&s, "GET", "/v2/models/strings/config", "", 200,
        "{\"name\":\"ITEM_IDS\",\"data_type\":\"TYPE_STRING\",\"dims\":[-1,-1]}");
    char *text =
        client_ask(s.port, "POST", infer, "",
                   "{\"inputs\":[{\"name\":\"USER_IDS\",\"datatype\":\"BYTES\",\"shape\":[2]"
                   ",\"data\":[\"u3\",\"nobody\"]}]}");
    CHECK_CONTAINS(text,
                   "{\"name\":\"ITEM_IDS\",\"datatype\":\"BYTES\",\"shape\":[2,10],\"data\":[\"i");
    CHECK_CONTAINS(text, "{\"name\":\"SOURCE\",\"datatype\":\"BYTES\",\"shape\":[2],\"data\":["
                         "\"model\",\"popular\"]}");
    free(text);
    /* Also where there is nobody to answer for. */
    ask(&s, "POST", infer,
        "{\"inputs\":[{\"name\":\"USER_IDS\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":[\"u1\"]"
        "},"
        "{\"name\":\"TOKENS\",\"datatype\":\"BYTES\",\"shape\":[0],\"data\":[]},{\"name\":"
        "\"TOKEN_LENGTHS\",\"datatype\":\"INT64\",\"shape\":[1],\"data\":[0]}]}",
        200, "\"ITEM_IDS\",\"datatype\":\"BYTES\"");
    /* Tokens of one type: items and actions as text. */
    ask(&s, "POST", infer,
        "{\"inputs\":[{\"name\":\"USER_IDS\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":[\"u1\"]"
        "},"
        "{\"name\":\"TOKENS\",\"datatype\":\"BYTES\",\"shape\":[4],\"data\":[\"i1\","
        "\"i2\",\"0\",\"0\"]},{\"name\":\"TOKEN_LENGTHS\",\"datatype\":\"INT64\",\"shape\":[2],"
        "\"data\":[2,2]}],\"outputs\":[{\"name\":\"SOURCE\"}]}",
        200,
        "\"outputs\":[{\"name\":\"SOURCE\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":["
        "\"model\"]}]");
    CHECK(kill(s.pid, SIGTERM) == 0);
    CHECK_EQ(serve_end(&s), 0);
}

/* Replicas on two devices, an engine folder and a run: both are named, and both answer. */
TEST(serve_takes_several_devices) {
    served s;
    free(shell(0, "./hstu build run --out e"));
    serve_start(&s, "e run --device cpu,cpu", "/dev/null");
    CHECK_CONTAINS(s.said, "model e: retrieval, 60 items, cpu,cpu, loaded in ");
    CHECK_CONTAINS(s.said, "model run: retrieval, 60 items, cpu,cpu, loaded in ");
    wait_said(&s, "checked: all weights match their checksums");
    for (int user = 1; user <= 12; user++) {
        char body[64];
        snprintf(body, sizeof body, "{\"user\": %d, \"top_k\": 3}", user);
        ask(&s, "POST", "/v1/recommend", body, 200, "\"model\":\"e\"");
    }
    ask(&s, "GET", "/metrics", "", 200, "replica=\"1\",device=\"cpu\"} ");
    CHECK(kill(s.pid, SIGTERM) == 0);
    CHECK_EQ(serve_end(&s), 0);
    char *text = said(2, "serve run --device cpu,cuda:0 --data data");
    CHECK_CONTAINS(text, "--device cpu,cuda:0: give auto, cpu, cuda or cuda:N, or up to 16 devices "
                         "of one kind, as in cuda:0,cuda:1");
    free(text);
}

enum { CANDIDATES = 9 };
static const char rank_body[] = "{\"user\": 7, \"candidates\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}";

/* Items and scores of the candidates, best first. */
static void read_ranked(const served *s, double out[2 * CANDIDATES]) {
    char *text = client_ask(s->port, "POST", "/v1/rank", "", rank_body), *at = text;
    CHECK_EQ(client_code(text), 200);
    for (int i = 0; i < 2 * CANDIDATES; i++) {
        at = strstr(at, i % 2 == 0 ? "\"item\":" : "\"score\":");
        CHECK(at != NULL);
        out[i] = strtod(at += i % 2 == 0 ? 7 : 8, NULL);
    }
    free(text);
}

/* Asks until it is refused: every answer is the model's, and then 503 with the reason. */
static void *ask_on(void *argument) {
    const served *s = argument;
    for (int code = 200; code == 200; usleep(1000)) {
        char *text = client_ask(s->port, "POST", "/v1/rank", "", rank_body);
        code = client_code(text);
        bool is_named = strstr(text, "a rank that shares the models is lost; the server") != NULL;
        if (code != 200 && (code != 503 || !is_named)) FAIL_TEST("%s", text);
        free(text);
    }
    return NULL;
}

/* Two processes share a model and answer as one does.  When one is killed under load, requests get
 * 503 for a while, and then the server ends with the reason. */
TEST(serve_shares_a_model_among_ranks) {
    static const char train[] = "./hstu train t.gin --device cpu --data data --out shared --epochs "
                                "1 --set NetworkArgs.num_attention_heads=4";
    double one[2 * CANDIDATES], two[2 * CANDIDATES];
    served s;
    pthread_t clients[2];
    int rank[2] = {0};
    free(shell(0, "true"));
    write_text("t.gin", ranking_gin);
    free(shell(0, train));
    serve_start(&s, "shared", "/dev/null");
    read_ranked(&s, one);
    CHECK(kill(s.pid, SIGTERM) == 0);
    CHECK_EQ(serve_end(&s), 0);
    serve_start(&s, "shared --tensor-parallel 2", "/dev/null");
    CHECK_CONTAINS(s.said, "model shared: ranking, 60 items, cpu, rank 0 of 2, loaded in ");
    read_ranked(&s, two);
    for (int i = 0; i < 2 * CANDIDATES; i++)
        if (!(fabs(one[i] - two[i]) <= (i % 2) * 1e-5 * fabs(one[i])))
            FAIL_TEST("number %d is %.9g, not %.9g", i, two[i], one[i]);
    ask(&s, "POST", "/v1/models/shared/reload", "", 200, "\"version\":\"2\"");
    CHECK(kill(s.pid, SIGTERM) == 0);
    CHECK_EQ(serve_end(&s), 0);
    CHECK_CONTAINS(s.said, "draining; a second signal exits at once\n");
    serve_start(&s, "shared --tensor-parallel 2", "/dev/null");
    snprintf(s.said, sizeof s.said, "/proc/%d/task/%d/children", (int)s.pid, (int)s.pid);
    FILE *f = fopen(s.said, "r");
    CHECK(f != NULL && fscanf(f, "%d %d", &rank[0], &rank[1]) == 2 && fclose(f) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&clients[i], NULL, ask_on, &s) == 0);
    usleep(100000);
    CHECK(kill(rank[1], SIGKILL) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(clients[i], NULL);
    CHECK_EQ(serve_end(&s), 1);
    CHECK_CONTAINS(s.said, "rank 1 was killed by signal 9 (Killed) at step ");
    char *text =
        said(1, "serve run --data data --device cpu --tensor-parallel 2"); /* Meta's layers */
    CHECK_CONTAINS(text, "its layers cannot be cut over ranks");
    free(text);
}

/* An engine folder is checked before it answers; without a reader of stdout there is no log. */
TEST(serve_takes_what_build_makes) {
    served s;
    char *text = shell(2, "./hstu build run");
    CHECK_CONTAINS(text, "--out ENGINE is missing");
    free(text);
    text = shell(0, "./hstu build run --out e --json");
    static const char *const keys[] = {
        "\"engine\":\"e\",\"step\":5,\"dtype\":\"float32\",\"items\":60,",
        "\"tables\":0,",
        "\"weight_error\":0,",
        "\"score_error\":0,\"top_10_kept\":1,",
        "\"run_open_s\":0.",
        "\"engine_open_s\":0."};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CHECK_CONTAINS(text, keys[i]);
    free(text);
    text = shell(0, "./hstu build run --out e");
    CHECK_CONTAINS(text, "e: step 5, 60 items, ");
    CHECK_CONTAINS(text, "answers: identical to the run's, bit for bit");
    free(text);
    text = shell(0, "./hstu build run --out half --dtype bfloat16");
    CHECK_CONTAINS(text, "matrices in bfloat16");
    CHECK_CONTAINS(text, "weights: largest error 0.00");
    CHECK_CONTAINS(text, " % of the top ten are the same)\n");
    free(text);
    serve_start(&s, "e half --shadow half", "/dev/null");
    CHECK_CONTAINS(s.said, "note: no access log, as stdout is not a file");
    wait_said(&s, "checked: all weights match their checksums");
    ask(&s, "POST", "/v1/recommend", "{\"user\": 7, \"top_k\": 3}", 200, "\"model\":\"e\"");
    CHECK(kill(s.pid, SIGINT) == 0);
    CHECK_EQ(serve_end(&s), 0);
}
