/* Any text as a list of metrics, of both tasks: what is read has cut-offs within the limits and no
 * metric twice, and the names of its metrics are read as the same list. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/metric_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *text, config_task task) {
    metric_list list, again;
    char names[METRIC_MAX * (METRIC_NAME_BYTES + 1)] = "", name[METRIC_NAME_BYTES];
    if (metric_list_parse(&list, text, task) != OK) {
        if (status_reason()[0] == '\0') abort();
        return;
    }
    if (list.n < 1 || list.n > METRIC_MAX) abort();
    for (int i = 0; i < list.n; i++) {
        if (list.item[i].k < 0 || list.item[i].k > METRIC_MAX_K) abort();
        for (int j = 0; j < i; j++)
            if (list.item[i].kind == list.item[j].kind && list.item[i].k == list.item[j].k) abort();
        if (i > 0) strcat(names, ",");
        strcat(names, metric_name(&list.item[i], name));
    }
    if (metric_list_parse(&again, names, task) != OK || again.n != list.n) abort();
    for (int i = 0; i < list.n; i++)
        if (list.item[i].kind != again.item[i].kind || list.item[i].k != again.item[i].k) abort();
    metric best = metric_list_main(&list, task);
    if (metric_parse(&best, metric_name(&best, name), task) != OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (text == NULL) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    check(text, TASK_RETRIEVAL);
    check(text, TASK_RANKING);
    free(text);
    return 0;
}
