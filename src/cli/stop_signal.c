#include "cli/stop_signal.h"

#include <stddef.h>

volatile sig_atomic_t stop_signal;

static void ask_to_stop(int signal_number) {
    (void)signal_number;
    stop_signal = 1;
}

void stop_signal_watch(void) {
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool stop_signal_came(void) {
    return stop_signal != 0;
}
