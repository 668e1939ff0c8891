#!/bin/bash
# Runs every command of a page, docs/guide.md or docs/own-data.md, in order, in a folder of its own, as a reader would.
# Run by ./run test, from the repository's root:  tests/guide.sh [PROGRAM [PAGE]]
set -eu
program=$(realpath "${1:-build/release/hstu}")
page=${2:-docs/guide.md}
root=$PWD
work=$(mktemp -d)
trap '[ ! -f "$work/server" ] || kill "$(cat "$work/server")" 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "guide: $*" >&2; exit 1; }

# The blocks marked sh, each preceded by a word of what it is.
awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' "$page" >"$work/commands"
[ "$(grep -c '^hstu ' "$work/commands")" -ge 10 ] || fail "the page has hardly any commands"
ln -s "$root/configs" "$work/configs"
# The server takes a free port; the page says 8080.  Without what a server needs the page ends before it.
port=$((20000 + RANDOM % 20000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
sed -i "s|localhost:8080|localhost:$port|; s|--port 8080|--port $port|" "$work/commands"
has_server=yes
if "$program" doctor --json 2>/dev/null | grep -Eq '"(libmicrohttpd|SQLite)","version":null' || ! command -v curl >/dev/null; then
    has_server=no
    sed -i '/^hstu serve/,$d' "$work/commands"
fi
cat >"$work/all" <<END
set -eu
hstu() {
    case \$1 in
    train | eval | recommend) "$program" "\$@" --device cpu ;;
    serve) sh -c 'echo \$\$ >server; exec "\$@"' sh "$program" "\$@" --device cpu ;;
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
grep -q ' 1 *sku-100 ' out || fail "the pinned item is not first"
if [ $has_server = yes ]; then
    grep -Eq '120 rows kept, 1 new' out err || fail "the retrain does not say what it kept"
    grep -q '"version":"2".*"users":619' out || fail "the server has not taken model and data of the night"
    grep -q '"user":"customer-620","model":"shop","model_version":"2"\|"model_version":"2","source":"model"' out ||
        fail "no recommendations after the night"
    [ "$("$program" prep --from-state state --with data/tuesday --out again --json 2>/dev/null | grep -o '"events":[0-9]*')" = \
        "$("$program" info data/tuesday --json | grep -o '"events":[0-9]*' | head -1)" ] || fail "a second night counts events twice"
    cmp data/tuesday/data.seq again/data.seq || fail "a second night writes other bytes"
else
    echo "skipped: the night needs curl, and a build with libmicrohttpd and SQLite"
fi
echo "followed: $(grep -c '^hstu ' commands) commands"
