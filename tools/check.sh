#!/bin/sh
# make check: the rules of CONTRIBUTING.md that a script can check.  Prints one line a rule, followed by
# the places that break it.  `--count FILE` leaves "passed failed skipped" there for ./run test.
cd "$(dirname "$0")/.." || exit 1
count_file=
[ "$1" = --count ] && count_file=$2
passed=0 failed=0 skipped=0
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

sources=$(find src include tests bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort)
tests=$(find tests -name 'test_*.c' | sort)
rooms=$(find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' | sort)

# rule LABEL COMMAND...: the rule holds if the command succeeds and prints nothing.
rule() {
    label=$1
    shift
    if "$@" >"$dir/found" 2>&1 && [ ! -s "$dir/found" ]; then
        passed=$((passed + 1))
        echo "  ok    $label"
    else
        failed=$((failed + 1))
        echo "  FAIL  $label"
        head -n 20 "$dir/found" | sed 's/^/        /'
    fi
}

skip() {
    skipped=$((skipped + 1))
    printf '  skip  %-46s %s\n' "$1" "$2"
}

# The code of every source file, as "file:line:text", without comments and the content of strings: so
# that words in prose break no rule.  Made once.
awk '
    FNR == 1 { in_comment = 0 }
    {
        out = ""
        n = length($0)
        for (i = 1; i <= n; i++) {
            c = substr($0, i, 1)
            two = substr($0, i, 2)
            if (in_comment) {
                if (two == "*/") { in_comment = 0; i++ }
            } else if (two == "/*") { in_comment = 1; i++
            } else if (two == "//") { break
            } else if (c == "\"" || c == "\047") {
                for (i++; i <= n && substr($0, i, 1) != c; i++)
                    if (substr($0, i, 1) == "\\") i++
                out = out c c
            } else { out = out c }
        }
        print FILENAME ":" FNR ":" out
    }' $rooms >"$dir/code"

# calls NAMES FILES: uses of these functions outside the files (two patterns of grep -E).
calls() {
    grep -E "^[^:]*:[0-9]*:(.*[^A-Za-z0-9_.>])?($1) *\(" "$dir/code" | grep -vE "^($2)"
    return 0
}

# Includes run one way.  What each folder may include besides itself:
include_order() {
    awk '
        BEGIN {
            see["base"] = ""
            see["format"] = "base"
            see["ops"] = "base format"
            see["cpu"] = see["cuda"] = "base ops"
            see["config"] = see["data"] = see["embed"] = "base format ops"
            see["nn"] = see["data"] " config data embed"
            see["model"] = see["nn"] " nn"
            see["encode"] = see["model"] " model"
            see["dist"] = see["profile"] = see["encode"] " encode"
            see["train"] = see["serve"] = see["tune"] = see["dist"] " dist profile"
            see["api"] = see["train"] " train serve tune"
            see["cli"] = see["api"] " api"
        }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split(FILENAME, part, "/")
            split($0, quoted, "\"")
            room = part[2]
            if (!(room in see)) { print FILENAME ": src/" room " is not in the order of tools/check.sh"; next }
            if (quoted[2] ~ /\.\./) print FILENAME ":" FNR ": " quoted[2] " (write it from src/)"
            if (split(quoted[2], to, "/") < 2 || to[1] == room) next
            if (quoted[2] == "cpu/attn_naive.h") next # the formula that others are checked against
            if (index(" " see[room] " ", " " to[1] " ") == 0)
                print FILENAME ":" FNR ": src/" room " must not see " quoted[2]
        }' $rooms
    grep -nE '# *include *<(cuda|cublas|cub/|nvrtc|nccl|cupti|mma|device_launch)' $rooms |
        grep -vE '^src/(cuda/|dist/nccl|profile/cupti)'
    return 0
}

# A test is named after the file, the family of files (seq_*), the ops (ops.def) or the folder it tests, or after the folder of tests/ it reads;
# a fuzz target also after what it calls, as a header of src declares it.  Where two rooms have a file of one name, the
# tests of the command are test_NAME_command.c or test_NAME_bench.c: a name of a test file leads to one file.
test_stems() {
    for file in $tests tests/fuzz/fuzz_*.c; do
        [ -e "$file" ] || continue
        stem=$(basename "$file" .c)
        stem=${stem#test_}
        stem=${stem#fuzz_} stem=${stem%_command} stem=${stem%_bench}
        [ -n "$(find src -type d -name "$stem")" ] || [ -d "tests/$stem" ] || [ -n "$(find src -name "$stem*.[ch]*")" ] ||
            grep -q ", $stem)" src/ops/*.def ||
            { [ "${file#tests/fuzz/}" != "$file" ] && grep -rqE --include='*.h' "\\b$stem[a-z_]*\\b" src; } ||
            echo "$file: what in src does it test?"
    done
    printf '%s\n' $tests | sed 's|.*/||' | sort | uniq -d | sed 's/$/: two tests have this name/'
    for file in tests/fuzz/fuzz_*.c; do
        [ -e "$file" ] || continue
        stem=$(basename "$file" .c)
        [ -n "$(ls "tests/fuzz/seeds/${stem#fuzz_}" 2>/dev/null)" ] || echo "$file: it has no seeds"
    done
}

# A test file that opens the device under test, itself or through a helper, is the test of an op or on the list
# in tests/device.c.
device_tests() {
    grep -lE '\<(test_backend|test_real_backend|open_backends|toy_model_open|sample_run|soft_sample_\w+|rig_init)\(' $tests |
        while read -r file; do
            stem=$(basename "$file" .c)
            grep -q "\"${stem#test_}\"" tests/device.c || grep -q ", ${stem#test_})" src/ops/*.def || echo "$file: not on the list of tests/device.c"
        done
}

# `--device auto` takes a GPU where there is one, whose sums have no fixed order: so our tests and scripts name
# their device (./run demo and ./run bench are for users, and use what is there).  Commands that a test composes
# from parts are checked when it runs, by test_command.
devices() {
    verbs='(train|eval|recommend|score|bench (attention|embedding|train))( |$)'
    for file in tests/*.[ch] $tests tools/*.sh bench/*.sh Makefile .ci/run; do
        case $file in
        *.[ch]) # A line a string: adjacent ones are one, and the program is their %s.
            tr '\n' ' ' <"$file" | sed -e "s/\\\\\"/'/g" -e 's/" *"//g' | tr '";&|' '\n\n\n\n' |
                grep -E "(^|[ (])'?%s'? $verbs" ;;
        *)
            sed -e ':a' -e '/\\$/N' -e 's/\\\n//' -e 'ta' "$file" | tr ';&|' '\n\n\n' |
                grep -E "(^|[ (])[^ ]*hstu[\"']? $verbs" ;;
        esac | grep -vE -e '--device (cpu|mirror|cuda|%s|"\$device")|--help|^ *#' | sed "s|^|$file: |"
    done
}

long_files() {
    wc -l $sources run tools/* Makefile | awk '$2 != "total" && $1 > 1000 { print $2 ": " $1 " lines" }'
    wc -l tests/harness.c | awk '$1 > 100 { print $2 ": " $1 " lines; a harness has at most 100" }'
}

# A kernel is named <op>_<pass>_<arch>_kernel, so that a profile's line leads to one place.  The arch is
# the folder of an attention kernel, or `any` where every card runs the same kernel.
kernel_names() {
    awk '
        /^src\/cuda\// {
            line = $0
            sub(/^[^:]*:[0-9]*:/, "", line)
            if (index(line, "__global__")) {
                split($0, part, ":")
                place = part[1] ":" part[2]
                text = ""
                is_open = 1
            }
            if (!is_open) next
            text = text " " line
            if (!index(line, "{")) next
            is_open = 0
            if (!match(text, /[A-Za-z0-9_]+ *\([^()]*\) *\{/)) { print place ": what is its name?"; next }
            name = substr(text, RSTART)
            sub(/ *\(.*/, "", name)
            if (name !~ /^[a-z0-9]+_[a-z0-9_]+_(any|f32|sm80|sm90)_kernel$/)
                print place ": " name " is not <op>_<pass>_<arch>_kernel"
            if (name in seen) print place ": " name " is also in " seen[name]
            seen[name] = place
        }' "$dir/code"
}

# A header includes what it uses; the public one is C++ as well.  Those of src/cuda need the folders that
# nvcc looks in.
headers() {
    cc=$(command -v gcc || command -v cc || command -v clang)
    nvcc=$(command -v nvcc)
    found=$([ -z "$nvcc" ] || nvcc -dryrun -x cu -c /dev/null 2>&1 | sed -n 's/^#\$ INCLUDES=//p' | tr -d '"')
    # One compiler for many: each file is a source that includes one header.
    mkdir "$dir/headers"
    for file in $(printf '%s\n' $rooms include/*.h | grep '\.h$'); do
        [ -e "$file" ] || continue
        case $file in src/cuda/*) [ -n "$nvcc" ] || continue ;; esac
        echo "#include \"$file\"" >"$dir/headers/$(echo "$file" | tr / -).c"
    done
    ls "$dir"/headers/*.c | xargs -P "$(nproc)" -n 40 "$cc" -std=c11 -D_GNU_SOURCE -fopenmp-simd -Wall -Wextra -Werror -I. -Isrc \
        -Iinclude $found -fsyntax-only
    if [ -e include/hstu.h ] && command -v g++ >/dev/null; then
        echo '#include "include/hstu.h"' | g++ -std=c++17 -Wall -Wextra -Werror -I. -fsyntax-only -x c++ -
    fi
    return 0
}

# Another compiler or another set of libraries rebuilds everything.
flags_rebuild() {
    make -n CFLAGS=-DANOTHER_FLAG hstu 2>/dev/null | grep -q -e '-DANOTHER_FLAG.* -c ' ||
        echo "make CFLAGS=-DANOTHER_FLAG compiles nothing"
}

# A card without code is refused.
cards() {
    for sm in 75 80,90 ''; do
        make -n CUDA_SM="$sm" hstu 2>&1 | grep -q 'CUDA_SM="'"$sm"'" is not supported; use 80, 90' ||
            echo "make CUDA_SM=$sm is not refused"
    done
}

# No kernel spills registers: if the CUDA code was built, ptxas's reports say so.
registers() {
    tools/spills.sh worst >"$dir/worst"
    case $? in
    0) ;;
    3) skip "no kernel spills registers" "no kernels were built here" && return ;;
    *) rule "tools/spills.sh runs" false && return ;;
    esac
    rule "no kernel spills registers (most: $(cat "$dir/worst"))" tools/spills.sh spills
    tools/spills.sh losses | sed 's/^/  warn  /'
}

# clang-tidy and gcc's analyzer, on files that have changed since they passed.
lint() {
    make --no-print-directory -k lint 2>&1 | grep -E 'warning:|error:'
    return 0
}

# What the documents of the code name exists: paths in backquotes, from here or the end of one.
doc_paths() {
    for doc in docs/architecture.md docs/recipes.md docs/tour.md CONTRIBUTING.md; do
        grep -oE '`[a-z]+/[A-Za-z0-9_/.*{},-]+`' "$doc" | tr -d '`' | grep -vE 'STEM|NAME|ROOM|FILE|MACHINE|^build/|\.\.\.' | sort -u | while read -r path; do
            [ -e "$path" ] || for one in $(bash -fc "echo $path"); do
                [ -n "$(find src bench tests -path "*/$one" | head -n 1)" ] || echo "$doc: $one"
            done
        done
    done
}

# Prose of the documents, outside of code, tables, pictures and quoted messages.
long_prose() {
    for doc in README.md CONTRIBUTING.md SECURITY.md docs/*.md docs/*/*.md; do
        LC_ALL=C.UTF-8 sed -n '/^ *```/,/^ *```/d; /^[|!<>]/d; s/^\(.\{60\}\).\{61,\}/\1.../p' "$doc" | sed "s|^|$doc: over 120 characters: |"
    done
}

# README, the guide and the how-to pages stay short; the site's navigation says which those are.
short_pages() {
    pages=$(sed -n '/^  - Start:/,/^  - Reference:/s/^.* \([A-Za-z/-]*\.md\)$/\1/p' mkdocs.yml)
    # shellcheck disable=SC2086
    cat $pages | wc -w | awk '$1 > 15000 { print "README, guide and how-to have " $1 " words; at most 15000" }'
}

# Every route of the server stands in the table of docs/server.md: NAME, ID and V for *, [/part] where it may be left out.
route_doc() {
    grep -oE '`[^`]*`' docs/server.md | tr -d '`' | sed 's/^[A-Z]* //' | sed -E 's/^(.*)\[([^]]*)\](.*)/\1\3\n\1\2\3/' |
        sed -E 's#/(NAME|ID|V)\b#/*#g' | sort -u >"$dir/told"
    sed -n 's/^    R("[A-Z]*", "\([^"?]*\)[^"]*", .*/\/\1/p' src/serve/http/server_int.h | sort -u >"$dir/routes"
    [ -s "$dir/routes" ] || echo "no routes found in src/serve/http/server_int.h"
    comm -23 "$dir/routes" "$dir/told" | sed 's/^/docs\/server.md does not name /'
}

config_doc() {
    ./hstu train --help-config=markdown | diff docs/config.md - ||
        echo "docs/config.md is old: make docs"
}

version=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
if [ "$version" = 14 ]; then
    rule "format: clang-format 14" sh -c 'printf "%s\n" "$@" | xargs -P "$(nproc)" -n 100 clang-format --dry-run -Werror' - $sources
else
    skip "format: clang-format 14" "here: ${version:-none}; other versions lay out differently"
fi
rule "includes run one way" include_order
rule "headers include what they use" headers
rule "getenv only in src/base/env.c" calls 'getenv|secure_getenv|setenv|putenv' 'src/base/env\.c:'
rule "fsync only in src/base/file.c" calls 'fsync|fdatasync|sync_file_range' \
    'src/base/file\.c:'
rule "exit and printf only in src/cli" calls 'exit|_exit|printf|vprintf|puts|putchar' 'src/cli/'
rule "stderr only in the log and the progress bar" \
    calls 'fprintf|vfprintf|fputs|perror' 'src/cli/|src/base/log\.c:|src/base/progress\.c:'
rule "memory only from src/base/mem.c" \
    calls 'malloc|calloc|realloc|reallocarray|free|strn?dup|v?asprintf|getline|getdelim|posix_memalign|aligned_alloc' \
    'src/base/mem\.c:'
rule "nothing left for later" \
    sh -c 'grep -nE "TO''DO|FIX''ME" $* run Makefile tools/*.sh; true' - $sources
rule "every test has its source, every fuzz target its seeds" test_stems
rule "tests of a device run on it" device_tests
rule "tests and scripts name their device" devices
rule "no file over 1000 lines, the harness within 100" long_files
rule "kernels are <op>_<pass>_<arch>_kernel, each name once" kernel_names
rule "other flags rebuild" flags_rebuild
rule "CUDA_SM is 80, 90 or both" cards
if command -v clang-tidy >/dev/null && command -v gcc >/dev/null; then
    rule "lint: clang-tidy, gcc -fanalyzer" lint
else
    skip "lint: clang-tidy, gcc -fanalyzer" "they are not here"
fi
rule "documents of the code name files that exist" doc_paths
rule "no line of prose over 120 characters" long_prose
rule "README, guide and how-to have at most 15,000 words" short_pages
rule "docs/server.md names every route" route_doc
rule "docs/config.md is what the option table says" config_doc
registers

if [ -n "$count_file" ]; then
    echo "$passed $failed $skipped" >"$count_file"
else
    printf '\n%d passed, %d failed, %d skipped\n' $passed $failed $skipped
fi
[ $failed -eq 0 ]
