/* Man pages, section 1, in roff with the man macros. */
#include <ctype.h>
#include <stdio.h>

#include "cli/help/help_int.h"
#include "hstu.h"

/* Text with what roff would take for its own escaped: backslashes, hyphens (so that options can be
 * copied), and lines that begin with a dot or a quote. */
static void print_roff(const char *text) {
    bool is_line_start = true;
    for (; *text != '\0'; text++) {
        if (is_line_start && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
        is_line_start = *text == '\n';
    }
}

static void print_upper(const char *text) {
    for (; *text != '\0'; text++)
        putchar(toupper((unsigned char)*text));
}

/* .TH and NAME; part names the second word of `bench attention`, or is NULL. */
static void print_head(const char *name, const char *part, const char *summary) {
    printf(".TH \"HSTU");
    for (int i = 0; i < 2; i++) {
        const char *word = i == 0 ? name : part;
        if (word == NULL) continue;
        putchar('-');
        print_upper(word);
    }
    printf("\" 1 \"\" \"hstu %s\" \"User Commands\"\n.SH NAME\nhstu", HSTU_VERSION);
    if (name != NULL) printf("\\-%s", name);
    if (part != NULL) printf("\\-%s", part);
    printf(" \\- ");
    print_roff(summary);
    putchar('\n');
}

static void print_option(const arg_option *o) {
    printf(".TP\n\\fB");
    print_roff(o->name);
    printf("\\fR");
    if (o->placeholder != NULL) {
        printf(" \\fI");
        print_roff(o->placeholder);
        printf("\\fR");
    }
    putchar('\n');
    print_roff(o->help);
    putchar('\n');
}

/* A line break in our notes is one in the page. */
static void print_notes(const char *notes) {
    printf(".SH NOTES\n.nf\n.fi\n");
    for (; *notes != '\0'; notes++) {
        const char text[2] = {*notes, '\0'};
        if (*notes == '\n' && notes[1] == '\n')
            printf("\n.PP");
        else
            print_roff(text);
    }
    putchar('\n');
}

void help_print_man(const help_page *page, const arg_spec *spec) {
    const command *whole = page->whole, *c = page->command;
    print_head(whole != NULL ? whole->name : c->name, whole != NULL ? c->name : NULL, c->summary);
    printf(".SH SYNOPSIS\n");
    print_roff(spec->usage);
    printf("\n.SH DESCRIPTION\n");
    print_roff(spec->summary);
    printf("\n.SH OPTIONS\n");
    for (const arg_option *o = spec->options; o->name != NULL; o++) {
        if (!help_is_heading(o)) {
            print_option(o);
            continue;
        }
        printf(".SS ");
        print_roff(o->name);
        putchar('\n');
    }
    printf(".TP\n\\fB\\-\\-help\\fR\nPrint the options.\n");
    if (spec->notes != NULL) print_notes(spec->notes);
    printf(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage or config.\n"
           ".SH SEE ALSO\n.BR hstu (1)\n");
}

static void print_entry(const char *name, const command *c) {
    printf(".TP\n.BR hstu%s%s\\-%s (1)\n", name != NULL ? "\\-" : "", name != NULL ? name : "",
           c->name);
    print_roff(c->summary);
    putchar('\n');
}

void help_print_man_list(const char *name, const char *summary, const command *commands) {
    print_head(name, NULL, summary != NULL ? summary : "a generative recommender in C and CUDA");
    printf(".SH SYNOPSIS\nhstu %s%s [options]\n.SH COMMANDS\n", name != NULL ? name : "",
           name != NULL ? " WHAT" : "COMMAND");
    for (const command *c = commands; c->name != NULL; c++) {
        if (help_is_command(c))
            print_entry(name, c);
        else
            printf(".SS %s\n", c->name);
    }
    printf(".SH ENVIRONMENT\n.TP\nHSTU_LOG\ndebug, info, warn or quiet: how much to tell on "
           "stderr.\n.TP\nHSTU_THREADS\nThreads to use; default: the cores that it may use, and "
           "not more than the quota of its container.\n.TP\n"
           "HSTU_STALL_SECONDS\nSeconds after which a job ends whose ranks all only wait for each "
           "other; default: 30, or 120 by mpirun and TCP; 0: never.\n.TP\nNO_COLOR\nAny value: no "
           "colours.\n.SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage or config.\n");
}
