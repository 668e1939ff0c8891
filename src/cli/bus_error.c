#include "cli/bus_error.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

/* Everything here may be called by a signal handler. */
static void say(const char *text) {
    ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n; /* there is nobody left to tell */
}

/* The first thread speaks and ends the process; the others wait for that. */
static atomic_flag is_said = ATOMIC_FLAG_INIT;

static void explain(int signal_number, siginfo_t *info, void *context) {
    const char *path = file_map_at(info->si_addr);
    (void)signal_number, (void)context;
    while (atomic_flag_test_and_set(&is_said))
        pause();
    say("\nhstu: ");
    say(path != NULL ? path : "memory that is a file");
    say(": the file was cut short, or cannot be read any more, while it was in use. Checkpoints "
        "and "
        "files that were finished before are complete; make the file again, then repeat the "
        "command (a training: with --resume)\n");
    _exit(1);
}

void bus_error_watch(void) {
    struct sigaction action = {.sa_sigaction = explain, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
