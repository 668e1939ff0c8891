/* hstu train: reads a config, shows it, and (with the trainer) trains. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "config/config.h"
#include "config/options.h"

typedef struct train_args {
    const char *file, *task;
    const char *data, *out; /* read now, used by the trainer */
    arg_list overrides;
    bool is_print, is_json;
} train_args;

static status print_buf(const buf *text) {
    if (fwrite(buf_str(text), 1, text->n_bytes, stdout) != text->n_bytes || fflush(stdout) != 0)
        return fail_errno("standard output");
    return OK;
}

/* --help-config, or --help-config=markdown: an option whose value may be left out, which args_parse
 * does not know; so it is looked for first. */
static bool find_help_config(int argc, char **argv, const char **format) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--help-config", 13) != 0) continue;
        if (argv[i][13] == '\0' || argv[i][13] == '=') {
            *format = argv[i][13] == '=' ? argv[i] + 14 : "text";
            return true;
        }
    }
    return false;
}

static status print_help_config(const char *format) {
    buf text;
    bool is_markdown = strcmp(format, "markdown") == 0;
    if (!is_markdown && strcmp(format, "text") != 0)
        return fail(ERR_USAGE, "--help-config=%s: the formats are text and markdown", format);
    buf_init(&text);
    status st = options_write_help(&text, is_markdown);
    if (st == OK) st = print_buf(&text);
    buf_fini(&text);
    return st;
}

static status print_config(const config *c, bool is_json) {
    buf text;
    buf_init(&text);
    status st = config_write_json(c, &text, is_json ? 0 : 2);
    if (st == OK) st = buf_char(&text, '\n');
    if (st == OK) st = print_buf(&text);
    buf_fini(&text);
    return st;
}

static status run(const train_args *args) {
    config *c;
    config_source source = {.path = args->file,
                            .overrides = args->overrides.item,
                            .n_overrides = args->overrides.n_items,
                            .task = args->task};
    if (args->file == NULL)
        return fail(ERR_USAGE,
                    "--gin-config-file FILE is needed; configs/ has files to start from");
    TRY(config_load(&c, &source));
    status st = args->is_print ? print_config(c, args->is_json) : config_check_trainable(c);
    if (st == OK && !args->is_print)
        st = fail(ERR_UNSUPPORTED, "training arrives with the CPU trainer; --print-config works "
                                   "today");
    config_destroy(c);
    return st;
}

status cmd_train(int argc, char **argv) {
    train_args args = {0};
    const char *format;
    const arg_option options[] = {
        {"--gin-config-file", ARG_TEXT, &args.file, "FILE",
         "The config: a gin file of Meta's or NVIDIA's kind, such as those in configs/.", 0, 0},
        {"--gin_config_file", ARG_TEXT, &args.file, "FILE", "The same, as Meta spells it.", 0, 0},
        {"--set", ARG_LIST, &args.overrides, "Class.field=value",
         "Overrides one binding of the file; may be given several times.", 0, 0},
        {"--task", ARG_TEXT, &args.task, "TASK",
         "ranking or retrieval, where the config leaves it open.", 0, 0},
        {"--data", ARG_TEXT, &args.data, "DIR", "Prepared data ('hstu prep', 'hstu synth').", 0, 0},
        {"--out", ARG_TEXT, &args.out, "RUN", "Folder of the run: log, report, checkpoints.", 0, 0},
        {"--print-config", ARG_FLAG, &args.is_print, NULL,
         "Prints the effective config, defaults included, as JSON, and ends.", 0, 0},
        {"--json", ARG_FLAG, &args.is_json, NULL, "One line of JSON.", 0, 0},
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu train --gin-config-file FILE [--set Class.field=value]... [options]",
        .summary = "Trains a ranking or retrieval model from a gin config.  Until the trainer is "
                   "here, it reads, checks and prints the config.",
        .options = options,
        .notes = "--help-config lists every option a config may bind (--help-config=markdown:\n"
                 "as docs/config.md).\n",
    };
    int n_positional;
    bool is_help;
    if (find_help_config(argc, argv, &format)) return print_help_config(format);
    status st = args_parse(&spec, argc, argv, NULL, &n_positional, &is_help);
    if (st == OK && !is_help) st = run(&args);
    mem_free(args.overrides.item);
    return st;
}
