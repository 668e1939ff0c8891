/* The report of a run: RUN/report.html, one self-contained page (no script, nothing loaded) with
 * curves of loss, metrics (beside baselines), learning rate and speed, sample recommendations, what
 * --resume changed, all evaluations, the environment and the config.
 *
 * It is made from RUN/log.jsonl and RUN/config.json alone, so it can be made again at any time, and
 * is replaced atomically: a browser that reloads never sees half a page. */
#ifndef HSTU_TRAIN_REPORT_REPORT_H
#define HSTU_TRAIN_REPORT_REPORT_H

#include "base/status.h"

status report_write(const char *run);

#endif
