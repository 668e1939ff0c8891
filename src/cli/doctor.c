#include "cli/cli.h"
status cmd_doctor(int argc, char **argv) {
    static bool is_json;
    static const arg_option options[] = {
        {"--json", ARG_FLAG, &is_json, NULL, "Print one JSON object.", 0, 0},
        {0},
    };
    static const arg_spec spec = {
        "hstu doctor [--json]", "Tells what this machine has.", options, 0, 0, NULL};
    bool is_help;
    return args_parse(&spec, argc, argv, NULL, NULL, &is_help);
}
