#!/bin/bash
# Runs the blocks of docs/serving.md and docs/server.md, in order, against the server that the first one starts: shell, Python with
# tritonclient and C; the page is driven in headless Chromium.  Run by ./run test, from the repository's root:  tests/serving.sh [PROGRAM]
set -eu
program=$(realpath "${1:-build/release/hstu}")
root=$PWD
python=$root/build/python/bin/python
work=$(mktemp -d)
server=''
reader=''
trap 'kill -9 $server $reader 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "serving: $*" >&2; [ ! -s "$work/err" ] || tail -n 5 "$work/err" >&2; exit 1; }

# block KIND: the blocks of a language, one after the other.
block() { awk -v kind="$1" '$0 == "```" kind { on = 1; next } /^```$/ { on = 0 } on' docs/serving.md docs/server.md; }
block sh >"$work/sh"
block python >"$work/client.py"
block c >"$work/client.c"
[ "$(grep -c '^curl ' "$work/sh")" -ge 10 ] || fail "the page has hardly any commands"
ln -s "$root/configs" "$work/configs"
cd "$work"

# The server takes any free port; the examples say 8080.
grep '^hstu ' sh | grep -v '^hstu serve\|--server' | sed "s|^hstu \(.*\)|'$program' \1|; s|^\('[^']*' train .*\)|\1 --device cpu|" >prepare
bash -eu prepare >out 2>err || fail "a command failed"
serve=$(grep '^hstu serve' sh | sed "s|^hstu||; s|--port 8080|--port 0|; s|&$||")
# shellcheck disable=SC2086
"$program" $serve --device cpu >access 2>ready &
server=$!
for _ in $(seq 100); do grep -q '^ready: ' ready && break; sleep 0.1; done
port=$(sed -n 's|^ready: http://127.0.0.1:\([0-9]*\)/.*|\1|p' ready)
[ -n "$port" ] || { cat ready >&2; fail "the server does not start"; }

# Every command answers with what is no error.
grep '^curl ' sh | sed "s|localhost:8080|127.0.0.1:$port|g; s|^curl -s|curl -sf|" >asks
while IFS= read -r line; do
    bash -c "$line" >answer 2>err || fail "failed: $line"
    [ -s answer ] || fail "no answer: $line"
    cat answer >>answers
done <asks
grep -q '"item":' answers || fail "no items"

# What asks the server itself.
grep '^hstu .*--server' sh | sed "s|^hstu|'$program'|; s|127.0.0.1:8080|127.0.0.1:$port|" >loads
[ -s loads ] || fail "no bench asks the server"
bash -eu loads >out 2>err || fail "a bench of the server failed"
grep -q '(300 answered, 0 refused, 0 failed)' out || { cat out >&2; fail "the bench was not answered"; }
grep -q '"duplicates":1' answers || fail "a repeated event was added twice"
grep -q '"erased":true' answers || fail "nothing was erased"
grep -q '"version":"2"' answers || fail "reload changed nothing"

promtool=$(command -v promtool || true)
if [ -n "$promtool" ]; then
    curl -sf "127.0.0.1:$port/metrics" | "$promtool" check metrics 2>err || fail "promtool does not accept /metrics"
    echo "promtool accepts /metrics"
else
    echo "skipped: promtool is not here (Debian: prometheus)"
fi

if "$python" -c 'import tritonclient.http' 2>/dev/null ||
    { [ "${HSTU_INSTALL:-1}" != 0 ] && { [ -x "$python" ] || python3 -m venv "$root/build/python"; } &&
        timeout 300 "$python" -m pip install -q --only-binary :all: --timeout 15 --retries 1 'tritonclient[http]' numpy; } >pip 2>&1; then
    sed "s|localhost:8080|127.0.0.1:$port|" client.py >run.py
    "$python" run.py >triton 2>err || fail "the Python example failed"
    [ -s triton ] || fail "the Python example prints nothing"
    echo "tritonclient infers"
else
    echo "skipped: tritonclient cannot be had here"
fi

if echo '#include <curl/curl.h>' | cc -E - >/dev/null 2>&1; then
    sed "s|localhost:8080|127.0.0.1:$port|" client.c >run.c
    cc -Wall -Wextra -Werror run.c -lcurl -o client 2>err || fail "the C example does not compile"
    ./client >c-answer 2>err || fail "the C example failed"
    grep -q '"items":\[{' c-answer || fail "the C example got no items"
    echo "the C example asks"
else
    echo "skipped: libcurl's header is not here"
fi

if command -v chromium >/dev/null && command -v node >/dev/null; then
    node "$root/tests/page.js" "http://127.0.0.1:$port/" >page 2>err || { cat page >&2; fail "the page does not work"; }
    echo "the page works in chromium"
else
    echo "skipped: the page needs chromium and node to be driven"
fi

# SIGTERM: everything is answered, code 0; the access log is JSON.
kill -TERM "$server"
wait "$server" || fail "SIGTERM: exit code $?"
server=''
grep -q '"path":"/v1/recommend","code":200' access || fail "no access log"
[ "$(grep -vc '^{.*}$' access)" -eq 0 ] || fail "a line of the access log is not JSON"

# The same of an engine folder as soon as it is ready, whose content may still be checked then.
# A file of its own: the shell empties an old one only when the new process runs, and what the last server wrote is not this one's word.
"$program" serve engine --port 0 --device cpu --access-log off >/dev/null 2>ready-engine &
server=$!
for _ in $(seq 3000); do grep -qs '^ready: ' ready-engine && break; sleep 0.02; done
kill -TERM "$server"
wait "$server" || { code=$?; cat ready-engine >&2; fail "SIGTERM after the start: exit code $code"; }
server=''
# A reader of the access log that does not read stops neither requests nor the end.
mkfifo stuck
sleep 120 <stuck >/dev/null 2>&1 &
reader=$!
disown "$reader"
"$program" serve engine --port 0 --device cpu --access-log - >stuck 2>ready-stuck &
server=$!
for _ in $(seq 3000); do grep -qs '^ready: ' ready-stuck && break; sleep 0.02; done
port=$(sed -n 's|^ready: http://127.0.0.1:\([0-9]*\)/.*|\1|p' ready-stuck)
timeout 120 curl -sf "127.0.0.1:$port/v2/health/live?[1-12000]" >lives 2>err || fail "a stuck reader of the log stops the server"
curl -sf -m 20 "127.0.0.1:$port/v1/status" | grep -q '"dropped":[1-9]' || fail "dropped lines of the log are not counted"
curl -sf -m 20 "127.0.0.1:$port/metrics" | grep -q '^hstu_access_log_dropped_total [1-9]' || fail "no metric counts the dropped lines"
kill -TERM "$server"
for _ in $(seq 1000); do kill -0 "$server" 2>/dev/null || break; sleep 0.02; done
kill -0 "$server" 2>/dev/null && fail "SIGTERM does not end a server with a stuck reader of the log"
wait "$server" || fail "SIGTERM with a stuck reader of the log: exit code $?"
server=''
echo "followed: $(wc -l <asks) requests"
