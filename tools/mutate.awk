# Places of C files where tools/mutate.sh can make a small mistake, one a line, tab separated:
#   kind  file  line  column  length  text to put there instead
# Reads code as clang-format lays it out: operators stand between blanks, a function ends with a brace
# in the first column.  Comments, strings, preprocessor lines and asserts are left alone.

# The line with comments and the inside of strings blanked, so that columns stay.
function code_of(line,    out, i, c, two, n) {
    out = ""
    n = length(line)
    for (i = 1; i <= n; i++) {
        c = substr(line, i, 1)
        two = substr(line, i, 2)
        if (in_comment) {
            if (two == "*/") { in_comment = 0; i++; out = out " " }
            out = out " "
        } else if (two == "/*") { in_comment = 1; i++; out = out "  "
        } else if (two == "//") { break
        } else if (c == "\"" || c == "\047") {
            out = out c
            for (i++; i <= n && substr(line, i, 1) != c; i++) {
                out = out "_"
                if (substr(line, i, 1) == "\\") { i++; out = out "_" }
            }
            out = out c
        } else { out = out c }
    }
    sub(/ +$/, "", out)
    return out
}

function site(kind, at, len, text) {
    print kind "\t" FILENAME "\t" FNR "\t" at "\t" len "\t" text
}

# The column of the parenthesis that closes the one at `at`; 0 where it is on another line.
function closing(code, at,    depth, n) {
    n = length(code)
    for (; at <= n; at++) {
        if (substr(code, at, 1) == "(") depth++
        if (substr(code, at, 1) == ")" && --depth == 0) return at
    }
    return 0
}

# Every place of one operator.
function operator(kind, code, from, to,    at, found) {
    for (at = 1; (found = index(substr(code, at), " " from " ")) > 0; at += found)
        site(kind, at + found, length(from), to)
}

function comparisons(code) {
    operator("compare", code, "<", "<=")
    operator("compare", code, "<=", "<")
    operator("compare", code, ">", ">=")
    operator("compare", code, ">=", ">")
    operator("compare", code, "==", "!=")
    operator("compare", code, "!=", "==")
}

function conditions(code,    at, end, rest) {
    operator("negate", code, "&&", "||")
    operator("negate", code, "||", "&&")
    if (match(code, /(if|while) \(/) == 0) return
    at = RSTART + RLENGTH
    end = closing(code, at - 1)
    if (end > at) site("negate", at, end - at, "!(" substr($0, at, end - at) ")")
}

# x + 1 and x - 1 become x; a loop starts at 1.
function off_by_ones(code,    at, found) {
    for (at = 1; match(substr(code, at), / [+-] 1[^0-9a-zA-Z_.]/) > 0; at += RSTART)
        site("offbyone", at + RSTART - 1, 4, "")
    found = match(code, /for \([a-z0-9_ ]* = 0[;,]/)
    if (found > 0) site("offbyone", found + RLENGTH - 2, 1, "1")
}

# A number that sizes a buffer, or has bits that only a person understands, is left alone.
function constants(code,    at, text, before) {
    for (at = 1; match(substr(code, at), /[0-9][0-9a-zA-Z_.]*|true|false/) > 0; at += RLENGTH) {
        at += RSTART - 1
        text = substr(code, at, RLENGTH)
        before = at > 1 ? substr(code, at - 1, 1) : " "
        if (before ~ /[0-9a-zA-Z_."\047]/) continue
        if (text == "true" || text == "false") {
            if (substr(code, at + RLENGTH, 1) !~ /[0-9a-zA-Z_]/)
                site("constant", at, RLENGTH, text == "true" ? "false" : "true")
        } else if (text ~ /^[0-9]+$/ && !(before == "[" && text > 15)) {
            site("constant", at, RLENGTH, text + 1)
        } else if (text ~ /^[0-9]+\.[0-9]*f?$|^[0-9]+e-?[0-9]+f?$/) {
            site("constant", at, RLENGTH, "(2 * " text ")")
        }
    }
}

# A statement on a line of its own that only calls.  Calls that free memory, close files or write to the
# log are left alone: leaks are for the sanitizers, and the log is for people.
function calls(code,    at) {
    if (code !~ /^ +(TRY\()?[a-z][a-z0-9_]*\(.*\);$/) return
    if (code ~ /^ *(if|for|while|switch|return|sizeof)[ (]/) return
    if (code ~ /(free|fclose|close|munmap|destroy|fini|release|log_[a-z]+|unlock)\(/) return
    match(code, /[^ ]/)
    at = RSTART
    if (closing(code, index(code, "(")) == length(code) - 1) site("call", at, length(code) - at + 1, ";")
}

FNR == 1 { in_comment = in_function = in_data = 0; before = ";" }
{
    code = code_of($0)
    if (code ~ /^}/) in_function = in_data = 0
    is_start = before ~ /[;{}]$/ || before == ""
    if (code != "" && code !~ /^#/ && code !~ /assert/) {
        if (in_function) {
            comparisons(code)
            conditions(code)
            off_by_ones(code)
            if (is_start) calls(code)
        }
        if (in_function || in_data) constants(code)
    }
    if (code ~ /^[a-z].*\) \{$/ || code ~ /^ .*\) \{$/ && !in_function && !in_data) in_function = 1
    if (code ~ /^[a-z].* = \{/) in_data = code !~ /;$/
    if (code ~ /^} [A-Z_]*\[\] = \{$/) in_data = 1
    if (code != "") before = code
}
