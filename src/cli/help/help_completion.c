/* Completion for bash, zsh and fish.  Each command adds its options while it prints its page; the
 * value of an option is a file name if its placeholder says so. */
#include <stdio.h>
#include <string.h>

#include "cli/help/help_int.h"

enum { MAX_TEXT = 72 }; /* of a description */

static bool takes_file(const arg_option *o) {
    static const char *const words[] = {"FILE", "DIR", "PATH", "RUN", "FOLDER", "CHECKPOINT"};
    for (size_t i = 0; o->placeholder != NULL && i < sizeof words / sizeof words[0]; i++)
        if (strstr(o->placeholder, words[i]) != NULL) return true;
    return false;
}

static bool is_option(const arg_option *o) {
    return !help_is_heading(o);
}

/* The beginning of a sentence, to its first full stop, semicolon or colon, for use inside single
 * quotes: a quote in it becomes a typographic one; `bad` are characters that become spaces. */
static void print_short(const char *text, const char *bad) {
    size_t n = strcspn(text, ";:\n");
    const char *stop = strstr(text, ". ");
    if (stop != NULL && (size_t)(stop - text) < n) n = (size_t)(stop - text);
    while (n > 0 && text[n - 1] == '.')
        n--;
    if (n > MAX_TEXT)
        for (n = MAX_TEXT; n > 0 && text[n] != ' ';)
            n--;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\'')
            fputs("\u2019", stdout);
        else
            putchar(strchr(bad, text[i]) != NULL ? ' ' : text[i]);
    }
}

static void print_names(const command *commands) {
    for (const command *c = commands; c->name != NULL; c++)
        if (help_is_command(c)) printf("%s ", c->name);
}

/* The options of a kind, in quotes: 0 flags, 1 with a file, 2 with another value. */
static void print_bash_options(const char *name, const arg_spec *spec, int kind) {
    printf("%s='", name);
    for (const arg_option *o = spec->options; o->name != NULL; o++)
        if (is_option(o) && (o->placeholder == NULL ? 0 : takes_file(o) ? 1 : 2) == kind)
            printf(" %s", o->name);
    printf("' ");
}

static void print_bash(const help_page *page, const arg_spec *spec) {
    printf("    '%s%s%s')\n        ", page->whole != NULL ? page->whole->name : "",
           page->whole != NULL ? " " : "", page->command->name);
    print_bash_options("flags", spec, 0);
    print_bash_options("files", spec, 1);
    print_bash_options("values", spec, 2);
    printf(";;\n");
}

status help_write_bash(const command *commands) {
    printf("# bash completion of hstu, written by 'hstu help --completion bash'\n"
           "_hstu() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local command=${COMP_WORDS[1]} flags= files= values=\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        COMPREPLY=($(compgen -W '");
    print_names(commands);
    printf("help --version --help' -- \"$cur\"))\n        return\n    fi\n");
    for (const command *c = commands; c->name != NULL; c++) {
        if (help_parts(c) == NULL) continue;
        printf("    if [ \"$command\" = %s ]; then\n"
               "        if [ \"$COMP_CWORD\" -eq 2 ]; then\n"
               "            COMPREPLY=($(compgen -W '",
               c->name);
        print_names(help_parts(c));
        printf("' -- \"$cur\"))\n            return\n        fi\n"
               "        command=\"$command ${COMP_WORDS[2]}\"\n    fi\n");
    }
    printf("    case $command in\n");
    TRY(help_visit(HELP_BASH, commands));
    /* With nothing in COMPREPLY, bash completes file names. */
    printf("    esac\n"
           "    if [ \"$prev\" = --device ]; then\n"
           "        COMPREPLY=($(compgen -W 'auto cpu cuda' -- \"$cur\"))\n"
           "        return\n    fi\n"
           "    case \" $values \" in *\" $prev \"*) compopt +o default; return ;; esac\n"
           "    case \" $files \" in *\" $prev \"*) return ;; esac\n"
           "    case $cur in\n"
           "    -*) COMPREPLY=($(compgen -W \"$flags $files $values --help\" -- \"$cur\")) ;;\n"
           "    esac\n}\n"
           "complete -o default -F _hstu hstu\n");
    return OK;
}

static void print_zsh(const help_page *page, const arg_spec *spec) {
    printf("    '%s%s%s')\n        _arguments \\\n", page->whole != NULL ? page->whole->name : "",
           page->whole != NULL ? " " : "", page->command->name);
    for (const arg_option *o = spec->options; o->name != NULL; o++) {
        if (!is_option(o)) continue;
        printf("            '%s%s[", o->type == ARG_LIST ? "*" : "", o->name);
        print_short(o->help, "[]:\\");
        printf("]");
        if (strcmp(o->name, "--device") == 0)
            printf(":device:(auto cpu cuda)");
        else if (o->placeholder != NULL)
            printf(":value:%s", takes_file(o) ? "_files" : "");
        printf("' \\\n");
    }
    printf("            '--help[print the options]' '*:file:_files' ;;\n");
}

static void print_zsh_names(const char *indent, const command *commands) {
    printf("%slocal -a names=(\n", indent);
    for (const command *c = commands; c->name != NULL; c++) {
        if (!help_is_command(c)) continue;
        printf("%s    '%s:", indent, c->name);
        print_short(c->summary, ":\\");
        printf("'\n");
    }
    printf("%s)\n%s_describe command names\n%sreturn\n", indent, indent, indent);
}

status help_write_zsh(const command *commands) {
    printf("#compdef hstu\n# zsh completion of hstu, written by 'hstu help --completion zsh'\n"
           "_hstu() {\n    local command=$words[2]\n    if (( CURRENT == 2 )); then\n");
    print_zsh_names("        ", commands);
    printf("    fi\n");
    for (const command *c = commands; c->name != NULL; c++) {
        if (help_parts(c) == NULL) continue;
        printf("    if [[ $command == %s ]]; then\n        if (( CURRENT == 3 )); then\n", c->name);
        print_zsh_names("            ", help_parts(c));
        printf("        fi\n        command=\"$command $words[3]\"\n    fi\n");
    }
    printf("    shift words\n    (( CURRENT-- ))\n    case $command in\n");
    TRY(help_visit(HELP_ZSH, commands));
    printf("    esac\n}\n_hstu \"$@\"\n");
    return OK;
}

/* Names of parts are also names of commands (`bench train`), so a command without parts must not
 * follow one that has them. */
static void print_fish_condition(const command *whole, const command *c) {
    if (whole != NULL)
        printf("'__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s'", whole->name,
               c->name);
    else
        printf("'__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from bench'",
               c->name);
}

static void print_fish(const help_page *page, const arg_spec *spec) {
    for (const arg_option *o = spec->options; o->name != NULL; o++) {
        if (!is_option(o)) continue;
        bool is_long = strncmp(o->name, "--", 2) == 0;
        printf("complete -c hstu -n ");
        print_fish_condition(page->whole, page->command);
        printf(" -%c %s", is_long ? 'l' : 's', o->name + (is_long ? 2 : 1));
        if (o->placeholder != NULL) printf(takes_file(o) ? " -r -F" : " -x");
        if (strcmp(o->name, "--device") == 0) printf(" -a 'auto cpu cuda'");
        printf(" -d '");
        print_short(o->help, "\\");
        printf("'\n");
    }
}

static void print_fish_names(const command *whole, const command *commands) {
    for (const command *c = commands; c->name != NULL; c++) {
        if (!help_is_command(c)) continue;
        printf("complete -c hstu -f -n ");
        if (whole == NULL)
            printf("__fish_use_subcommand");
        else
            printf("'__fish_seen_subcommand_from %s'", whole->name);
        printf(" -a %s -d '", c->name);
        print_short(c->summary, "\\");
        printf("'\n");
        if (help_parts(c) != NULL) print_fish_names(c, help_parts(c));
    }
}

status help_write_fish(const command *commands) {
    printf("# fish completion of hstu, written by 'hstu help --completion fish'\n");
    print_fish_names(NULL, commands);
    return help_visit(HELP_FISH, commands);
}

void help_print_completion(const help_page *page, const arg_spec *spec) {
    if (page->form == HELP_BASH)
        print_bash(page, spec);
    else if (page->form == HELP_ZSH)
        print_zsh(page, spec);
    else
        print_fish(page, spec);
}
