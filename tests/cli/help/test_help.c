/* hstu help: man pages and completion, from outside. */
#include "hstu.h"
#include "test.h"

static char *help(int code, const char *words) {
    char *text;
    int got = test_command(&text, "%s help %s", test_program(), words);
    if (got != code) FAIL_TEST("help %s gave %d, not %d: %s", words, got, code, text);
    return text;
}

static void says(int code, const char *words, const char *part) {
    char *text = help(code, words);
    CHECK_CONTAINS(text, part);
    free(text);
}

/* Pages of a command, of a part of one, and of all, which list what has a page. */
TEST(help_man_pages) {
    char *text = help(0, "--man state check");
    CHECK_STR(text, ".TH \"HSTU-STATE-CHECK\" 1 \"\" \"hstu " HSTU_VERSION "\" \"User Commands\"\n"
                    ".SH NAME\nhstu\\-state\\-check \\- check a state and count users and events\n"
                    ".SH SYNOPSIS\nhstu state check DIR\n"
                    ".SH DESCRIPTION\nCheck a state: structure, references and checksums. The "
                    "server may be running.\n"
                    ".SH OPTIONS\n.TP\n\\fB\\-\\-json\\fR\nPrint the counts as a JSON object.\n"
                    ".TP\n\\fB\\-\\-help\\fR\nPrint help.\n"
                    ".SH EXIT STATUS\n0 success, 1 failure, 2 wrong usage or config.\n"
                    ".SH SEE ALSO\n.BR hstu (1)\n");
    free(text);
    says(0, "--man train", ".TP\n\\fB\\-\\-gin\\-config\\-file\\fR \\fIFILE\\fR\n");
    says(0, "--man serve", "\n.SS Several models\n.TP\n\\fB\\-\\-name\\fR \\fINAME\\fR\n");
    says(0, "--man serve",
         ".SH NOTES\nSIGTERM or Ctrl\\-C finishes pending requests and exits; a "
         "second one exits at once.\n  curl localhost:8080/v1/recommend \\-d '{");
    text = help(0, "--man state");
    CHECK(strncmp(text, ".TH \"HSTU-STATE\" 1 ", 19) == 0);
    CHECK_CONTAINS(text, ".SH SYNOPSIS\nhstu state WHAT [options]\n.SH COMMANDS\n.TP\n"
                         ".BR hstu\\-state\\-check (1)\ncheck a state and count users and events\n"
                         ".TP\n.BR hstu\\-state\\-backup (1)\n");
    free(text);
    text = help(0, "--man");
    CHECK(strncmp(text, ".TH \"HSTU\" 1 ", 13) == 0);
    CHECK_CONTAINS(text, ".SH NAME\nhstu \\- a generative recommender in C and CUDA\n"
                         ".SH SYNOPSIS\nhstu COMMAND [options]\n.SH COMMANDS\n.SS Data\n.TP\n"
                         ".BR hstu\\-prep (1)\n");
    free(text);
    says(2, "--man tran", "help --man: there is no command 'tran'");
    says(2, "--man bench tran", "help --man: there is no command 'tran'");
    says(2, "--man train all", "help --man: there is no command 'all'");
    says(2, "--man Model", "help --man: there is no command 'Model'"); /* a heading */
    says(2, "--completion tcsh", "--completion bash, zsh or fish");
    says(2, "--completion", "--completion bash, zsh or fish");
    says(2, "--completion bash zsh", "--completion bash, zsh or fish");
}

/* Text at the start of a line is never taken for a macro: what formats the pages finds nothing. */
TEST(help_man_pages_are_roff) {
    char *text;
    if (test_command(NULL, "command -v groff") != 0) SKIP_TEST("groff is not installed");
    CHECK_EQ(test_command(&text,
                          "for page in train serve 'bench latency' 'plan run' state ''; do "
                          "%s help --man $page | groff -man -ww -Tutf8 >/dev/null; done",
                          test_program()),
             0);
    CHECK_STR(text, "");
    free(text);
}

/* What bash offers after these words. */
TEST(help_completes_in_bash) {
    static const struct {
        const char *words, *offers;
    } cases[] = {
        {"tra", "train"},
        {"Da", ""}, /* a heading */
        {"--v", "--version"},
        {"bench lat", "latency"},
        {"state ''", "check backup restore recover"},
        {"bench masks --si", "--silu"},
        {"state check -", "--json --help"},
        {"mask show -", "--json --svg --bits --n --sequence --help"},
        {"encode --device ''", "auto cpu cuda"},
        {"encode --input tra", ""},
        {"serve --port 8", ""},
        {"mask show --svg -", ""},
    };
    char *text;
    if (test_command(NULL, "command -v bash") != 0) SKIP_TEST("bash is not installed");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[128];
        CHECK_EQ(test_command(&text,
                              "bash -c 'compopt() { :; }; . <(\"$0\" help --completion bash); "
                              "COMP_WORDS=(hstu \"$@\"); COMP_CWORD=$#; _hstu; "
                              "echo \"${COMPREPLY[@]}\"' %s %s",
                              test_program(), cases[i].words),
                 0);
        snprintf(want, sizeof want, "%s\n", cases[i].offers);
        CHECK_STR(text, want);
        free(text);
    }
}

/* Each option is in the files of zsh and fish with what it takes, and its first clause. */
TEST(help_completes_in_zsh_and_fish) {
#define SHOW                                                                                       \
    "complete -c hstu -n '__fish_seen_subcommand_from mask; and __fish_seen_subcommand_from "      \
    "show' "
    char *text = help(0, "--completion zsh");
    CHECK(strncmp(text, "#compdef hstu\n", 14) == 0);
    CHECK_CONTAINS(text, "    'mask show')\n        _arguments \\\n"
                         "            '--n[Tokens of the sequence (default 64, or as many as the "
                         "file has)]:value:' \\\n"
                         "            '--sequence[Sequence to show, for a file with a mask per "
                         "sequence (default 0)]:value:' \\\n"
                         "            '--svg[Write an SVG picture]:value:_files' \\\n"
                         "            '--bits[Write the mask as safetensors, tensor \u2019mask"
                         "\u2019 (N, N), for other programs]:value:_files' \\\n"
                         "            '--json[Print one JSON object]' \\\n"
                         "            '--help[print help]' '*:file:_files' ;;\n");
    CHECK_CONTAINS(text, "            '--device[Device]:device:(auto cpu cuda)' \\\n");
    CHECK_CONTAINS(text,
                   "            '*--name[Name of a model, in the order of the paths]:value:'");
    CHECK_CONTAINS(text, "\n                'check:check a state and count users and events'\n");
    CHECK_CONTAINS(text, "at most a quarter of the items]:value:'"); /* no half of a bracket */
    CHECK(strstr(text, "'Data:") == NULL);
    free(text);
    text = help(0, "--completion fish");
    CHECK_CONTAINS(text, "complete -c hstu -f -n __fish_use_subcommand -a synth -d 'generate a "
                         "synthetic data set'\n");
    CHECK_CONTAINS(text, "complete -c hstu -f -n '__fish_seen_subcommand_from state' -a check -d "
                         "'check a state and count users and events'\n");
    CHECK_CONTAINS(text, SHOW "-l n -x -d 'Tokens of");
    CHECK_CONTAINS(text, SHOW "-l svg -r -F -d 'Write an SVG picture'\n");
    CHECK_CONTAINS(text, SHOW "-l json -d 'Print one JSON object'\n");
    CHECK_CONTAINS(text, "complete -c hstu -n '__fish_seen_subcommand_from train; and not "
                         "__fish_seen_subcommand_from bench' -l device -x -a 'auto cpu cuda' -d ");
    CHECK(strstr(text, "-a Data") == NULL && strstr(text, "-l json -x") == NULL);
    free(text);
}
