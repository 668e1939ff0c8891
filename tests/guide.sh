#!/bin/bash
# Runs every command of a page, docs/guide.md or docs/own-data.md, in order, in a folder of its own, as a reader would.
# Run by ./run test, from the repository's root:  tests/guide.sh [PROGRAM [PAGE]]
set -eu
program=$(realpath "${1:-build/release/hstu}")
page=${2:-docs/guide.md}
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "guide: $*" >&2; exit 1; }

# The blocks marked sh, each preceded by a word of what it is.
awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' "$page" >"$work/commands"
[ "$(grep -c '^hstu ' "$work/commands")" -ge 10 ] || fail "the page has hardly any commands"
ln -s "$root/configs" "$work/configs"
cat >"$work/all" <<END
set -eu
hstu() {
    case \$1 in
    train | eval | recommend) "$program" "\$@" --device cpu ;;
    *) "$program" "\$@" ;;
    esac
}
END
cat "$work/commands" >>"$work/all"
cd "$work"
bash ./all >out 2>err || { tail -n 5 out; tail -n 5 err; fail "a command failed"; }

# What the page promises.
if [ "${page##*/}" = own-data.md ]; then
    grep -E '^(config|note|(log|users)[.]csv): ' "$root/$page" >told
    sed -i "s/[0-9,]* events/N events/" told err # awks draw different numbers
    while IFS= read -r line; do grep -qxF "$line" out err || fail "not said: $line"; done <told
    echo "followed: $(grep -c '^hstu ' commands) commands, $(wc -l <told) lines are as printed"
    exit
fi
[ "$(wc -l <recommendations.csv)" -eq 6001 ] || fail "recommendations.csv has $(wc -l <recommendations.csv) lines, not 600 x 10 and a header"
grep -q 'popularity' out || fail "no baselines"
grep -Eq '120 rows kept, 1 new' out err || fail "the retrain does not say what it kept"
"$program" recommend runs/tuesday --data data/tuesday --user customer-003 -k 5 --json --device cpu 2>/dev/null |
    grep -q '"items":\[{"id":"' || fail "no recommendations after the retrain"
echo "followed: $(grep -c '^hstu ' commands) commands"
