#!/bin/bash
# The server's description of itself: valid (openapi-spec-validator), and true (schemathesis sends what it allows and
# what it forbids, and no answer may be another than it says).  Ends with 77 where Python's packages cannot be had.
# Run by ./run test, from the repository's root:  tests/openapi.sh [PROGRAM]
set -eu
program=$(realpath "${1:-build/release/hstu}")
root=$PWD
bin=$root/build/python/bin
work=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill -9 $server 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "openapi: $*" >&2; exit 1; }
"$bin/python" -c 'import schemathesis, openapi_spec_validator' 2>/dev/null || {
    [ "${HSTU_INSTALL:-1}" != 0 ] && { [ -x "$bin/python" ] || python3 -m venv "$root/build/python"; } &&
        timeout 300 "$bin/python" -m pip install -q --only-binary :all: --timeout 15 --retries 1 schemathesis openapi-spec-validator
} >"$work/pip" 2>&1 || { echo "Python's packages schemathesis and openapi-spec-validator cannot be had here"; exit 77; }

cd "$work"
"$program" synth --out data --users 300 --items 200 --mean-len 20 --seed 1 >out 2>&1 || fail "synth"
ln -s "$root/configs" configs
"$program" train --gin-config-file configs/demo.gin --data data --out run --epochs 1 --device cpu >out 2>&1 || fail "train"
echo "key-of-the-test test 0 read,events,admin" >keys
"$program" serve run --data data --name demo --keys keys --reload-from . --port 0 --device cpu --access-log off >/dev/null 2>ready &
server=$!
for _ in $(seq 500); do grep -qs '^ready: ' ready && break; sleep 0.02; done
url=$(sed -n 's|^ready: \(http://[^ ]*[0-9]\)/.*|\1|p' ready)
[ -n "$url" ] || { cat ready >&2; fail "the server does not start"; }
curl -sf "$url/openapi.json" >openapi.json || fail "no description"
"$bin/openapi-spec-validator" openapi.json || fail "it is not valid"

# Which requests are right depends on the data, too (ids, features, tasks, ratings), so a 400 to one that the schemas
# allow is expected; so is a 503 on a busy machine, to a deadline of 1 ms, say, which the description has (a 500 is not in
# it, and fails).  /v1/stream does not end.
"$bin/schemathesis" run openapi.json --url "$url" -H "Authorization: Bearer key-of-the-test" --exclude-path /v1/stream \
    --exclude-checks positive_data_acceptance,not_a_server_error --max-examples "${EXAMPLES:-6}" --seed "${SEED:-1}" \
    --phases coverage,fuzzing --no-color >found 2>&1 || { sed -n '/FAILURES/,$p' found | cut -c1-2000 >&2; fail "unexpected answers"; }
kill -TERM "$server"
wait "$server" || { cat ready >&2; fail "the server has not ended well"; }
server=''
grep -o '[0-9]* generated, .*' found
