#include <stdatomic.h>

#include "cli/signals.h"

volatile sig_atomic_t stop_signal;

static void ask_to_stop(int signal_number) {
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

/* Everything here may be called by a signal handler. */
static void say(const char *text) {
    ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n; /* there is nobody left to tell */
}

/* The first thread speaks and ends the process; the others wait for that. */
static atomic_flag is_said = ATOMIC_FLAG_INIT;

static void leave(const char *path, const char *why) {
    while (atomic_flag_test_and_set(&is_said))
        pause();
    say("\nhstu: ");
    say(path);
    say(why);
    say(" Checkpoints and files that were finished before are complete; make the file again, then "
        "repeat the command (a training: with --resume)\n");
    _exit(1);
}

static void explain_bus_error(int signal_number, siginfo_t *info, void *context) {
    const char *path = file_map_at(info->si_addr);
    leave(path != NULL ? path : "memory that is a file",
          ": the file was cut short, or cannot be read any more, while it was in use.");
}

static struct sigaction before; /* of SIGSEGV */

/* Where no file has changed, the access is repeated under the handler from before. */
static void explain_fault(int signal_number, siginfo_t *info, void *context) {
    const char *path = file_map_written();
    if (path != NULL)
        leave(path, ": somebody wrote into this file while it was in use, and what it says now "
                    "makes no sense.");
    sigaction(signal_number, &before, NULL);
}

void bus_error_watch(void) {
    struct sigaction action = {.sa_sigaction = explain_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
    action.sa_sigaction = explain_fault;
    sigaction(SIGSEGV, &action, &before);
}
