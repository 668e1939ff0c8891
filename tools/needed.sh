#!/bin/sh
# needed.sh FROM SOURCE...: which objects the programs of these sources would take from an archive of all objects of the
# build FROM: paths below FROM, without ".o".  It says nothing where FROM has no tests/unit, or a source is newer.  For the
# Makefile's NEEDED: half of the library has nothing to do with any parser, and is not worth compiling for the fuzzer.
from=$1
shift
[ -e "$from/tests/unit" ] && [ -z "$(find src -name '*.[ch]' -newer "$from/tests/unit")" ] || exit 0
{
    cat "$@" | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u | sed 's/^/wanted - /'
    # Functions and data that an object defines, and those that it uses.
    find "$from/src" -name '*.o' ! -name '*.cu.o' | sort | xargs nm -A 2>/dev/null | sed "s|^$from/||; s|\.o:| |" |
        awk 'NF == 3 && $2 == "U" { print "uses", $1, $3 } NF == 4 && $3 ~ /[TDBRVWC]/ { print "has", $1, $4 }'
} | awk '
    $1 == "wanted" { wanted[$3] = 1 }
    $1 == "has" { home[$3] = $2 }
    $1 == "uses" { uses[$2] = uses[$2] " " $3 }
    function take(name,    object, n, i, list) {
        if (!(name in home) || home[name] in taken) return
        object = home[name]
        taken[object] = 1
        n = split(uses[object], list, " ")
        for (i = 1; i <= n; i++) take(list[i])
    }
    END {
        for (name in wanted) take(name)
        for (object in taken) print object
    }' | sort
