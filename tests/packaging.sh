#!/bin/bash
# The files of packaging/, each with the program that reads it: systemd-analyze, kubernetes-validate, promtool, Prometheus,
# nginx, and the packages of the image in a root of their own.  SECTIONS=oci: the image of `make image`.  Programs that are not installed are taken out of Debian's
# packages into build/tools; what cannot be had is skipped with a word.
# Run by ./run test, from the repository's root:  tests/packaging.sh [PROGRAM]
set -eu
program=$(realpath "${1:-build/release/hstu}")
root=$PWD
tools=$root/build/tools
python=$root/build/python/bin/python
work=$(mktemp -d)
started=()
trap 'kill -9 "${started[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$work"' EXIT
fail() { echo "packaging: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; }
may_install() { [ "${HSTU_INSTALL:-1}" != 0 ]; }

# unpack FOLDER PACKAGE...: Debian's packages, without installing them.
unpack() {
    may_install && command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    mkdir -p "$tools/deb" "$1"
    (cd "$tools/deb" && timeout 120 apt-get download "${@:2}") >"$work/apt" 2>&1 || return 1
    local package
    for package in "${@:2}"; do dpkg -x "$tools/deb/$package"_*.deb "$1" || return 1; done
}
# tool NAME PACKAGE: its path.
tool() {
    command -v "$1" && return
    [ -e "$tools/$2" ] || unpack "$tools/$2" "$2" || return 1
    find "$tools/$2/usr" -path "*bin/$1" | grep .
}

# start_server OPTION...: the url of a server on the test's run.
start_server() {
    : >ready
    "$program" serve run --data data --name demo --port 0 --device cpu --access-log off "$@" >/dev/null 2>ready &
    started+=($!)
    for _ in $(seq 500); do grep -qs '^ready: ' ready && break; sleep 0.02; done
    url=$(sed -n 's|^ready: \(http://[^ ]*[0-9]\)/.*|\1|p' ready)
    [ -n "$url" ] || { cat ready >&2; fail "the server does not start"; }
}

check_systemd() {
    command -v systemd-analyze >/dev/null || { skip "systemd-analyze is not here"; return; }
    sed "s|/usr/bin/hstu|$program|" "$root/packaging/systemd/hstu.service" >hstu.service
    systemd-analyze verify ./hstu.service >out 2>&1 && ! [ -s out ] || { cat out >&2; fail "hstu.service"; }
    systemd-analyze security --offline=true --threshold=30 ./hstu.service >out 2>&1 || { tail -n 1 out >&2; fail "hstu.service is exposed"; }
    echo "systemd: $(tail -n 1 out | grep -o 'level.*[0-9]')"
    # Every option of the unit is one of the program.
    for option in $(grep ^ExecStart "$root/packaging/systemd/hstu.service" | grep -o -e '--[a-z-]*'); do
        "$program" serve --help | grep -q -e "^ *$option" || fail "hstu.service: serve has no $option"
    done
}

check_kubernetes() {
    "$python" -c 'import kubernetes_validate' 2>/dev/null || { may_install && { [ -x "$python" ] || python3 -m venv "$root/build/python"; } &&
        timeout 120 "$python" -m pip install -q --timeout 15 --retries 1 kubernetes-validate; } >pip 2>&1 ||
        { skip "Python's package kubernetes-validate cannot be had here"; return; }
    "${python%python}kubernetes-validate" --strict "$root/packaging/kubernetes/hstu.yaml" >out 2>&1 || { cat out >&2; fail "hstu.yaml"; }
    echo "kubernetes: $(grep -c passed out) resources"
}

# Alerts by promtool; each query of the dashboard asked of a Prometheus that scrapes a server under load.
check_prometheus() {
    local promtool server port
    promtool=$(tool promtool prometheus) && server=$(tool prometheus prometheus) || { skip "Prometheus is not here"; return; }
    cp "$root"/packaging/prometheus/*.yml .
    "$promtool" check config prometheus.yml >out 2>&1 && "$promtool" test rules alerts_test.yml >out 2>&1 || { cat out >&2; fail "alerts"; }
    start_server --state state
    sed -i "s|127.0.0.1:8080|${url#http://}|; s|15s|1s|" prometheus.yml
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "$server" --config.file=prometheus.yml --storage.tsdb.path=tsdb --web.listen-address="127.0.0.1:$port" >prometheus.log 2>&1 &
    started+=($!)
    for _ in $(seq 300); do curl -sf "127.0.0.1:$port/-/ready" >/dev/null && break; sleep 0.1; done
    while :; do # the load
        curl -sf "$url/v1/recommend#[1-100]" -d '{"user": 7}' >/dev/null
        curl -s "$url/v1/recommend" -d '{"user": 7, "wrong": 1}' >/dev/null
        curl -sf "$url/v1/events" -d '{"user": 7, "events": [12]}' >/dev/null
        sleep 0.3
    done &
    started+=($!)
    python3 - "$root/packaging/grafana/hstu.json" "http://127.0.0.1:$port" <<'END' || { tail -n 3 prometheus.log >&2; fail "dashboard"; }
import json, sys, time, urllib.parse, urllib.request
n = 0
for panel in json.load(open(sys.argv[1]))["panels"]:
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", "10s").replace("$instance", ".*")
        assert "$" not in query, query
        url = sys.argv[2] + "/api/v1/query?" + urllib.parse.urlencode({"query": query})
        for _ in range(100):  # rates need some scrapes
            found = json.load(urllib.request.urlopen(url, timeout=10))["data"]["result"]
            values = [float(series["value"][1]) for series in found]
            if values and all(v == v for v in values): break
            time.sleep(0.3)
        else: sys.exit(f"{panel['title']}: {query}: {values}")
        labels = [w.split("}}")[0] for w in target["legendFormat"].split("{{")[1:]]
        assert all(label in series["metric"] for series in found for label in labels), f"{panel['title']}: labels"
        n += 1
print(f"prometheus: alerts, {n} queries of the dashboard")
END
}

# TLS and keys: a request with a key passes, one without does not, and neither do the routes that are to stay inside.
check_nginx() {
    local nginx port code
    nginx=$(tool nginx nginx) && "$nginx" -v 2>/dev/null && command -v openssl >/dev/null || { skip "nginx or openssl is not here"; return; }
    echo "key-of-the-test test 0 read,events,admin" >keys
    start_server --keys keys
    openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=reco.example.com -addext subjectAltName=DNS:reco.example.com \
        -keyout reco.key -out reco.crt 2>/dev/null
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    {
        echo "pid $work/pid; error_log $work/error; events {} http { access_log off;"
        for folder in client_body proxy fastcgi uwsgi scgi; do echo "${folder}_temp_path $work/$folder;"; done
        sed "s|127.0.0.1:8080|${url#http://}|; s|listen 443|listen 127.0.0.1:$port|; s|/etc/nginx|$work|" "$root/packaging/nginx/hstu.conf"
        echo "}"
    } >nginx.conf
    "$nginx" -p "$work" -c "$work/nginx.conf" -g 'daemon off;' 2>nginx.err &
    started+=($!)
    ask() { curl -s -o answer -w '%{http_code}' --cacert reco.crt --resolve "reco.example.com:$port:127.0.0.1" "https://reco.example.com:$port$1" "${@:2}" || true; }
    for _ in $(seq 100); do [ "$(ask /health)" = 200 ] && break; sleep 0.05; done
    expect() { code=$(ask "${@:2}"); [ "$code" = "$1" ] || { cat answer nginx.err >&2; fail "nginx: $2: $code"; }; }
    key="Authorization: Bearer key-of-the-test"
    expect 200 /health
    expect 401 /v1/recommend -d '{"user": 7}'
    expect 200 /v1/recommend -d '{"user": 7}' -H "$key"
    expect 200 /v1/events -d '{"user": 7, "events": [12]}' -H "$key" -H "Origin: https://reco.example.com:$port"
    expect 403 /v1/events -d '{"user": 7, "events": [12]}' -H "$key" -H "Origin: https://evil.example"
    expect 404 /metrics -H "$key"
    expect 404 /v1/models/demo/reload -X POST -H "$key"
    trace=$(ask /health -D - -H 'traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')
    grep -qi '^traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-' <<<"$trace" || fail "nginx: the trace is lost"
    echo "nginx: TLS, keys, traces"
}

# serves_and_drains WHAT: process $pid, whose stderr is in the file ready; it fails where port 8080 is in use.
serves_and_drains() {
    local code=0
    for _ in $(seq 600); do grep -qs '^ready: ' ready && break; sleep 0.05; done
    grep -q "Address already in use\|port 8080" ready && { skip "port 8080 is in use"; return 1; }
    curl -sf http://127.0.0.1:8080/v1/recommend -d '{"user": 7}' | grep -q '"items":\[{' || { cat ready >&2; fail "$1: it does not answer"; }
    kill -TERM $pid
    wait $pid || code=$?
    [ $code = 0 ] || fail "$1: SIGTERM ends it with $code"
}

# The second stage of Containerfile.cpu without a registry: its packages, and what they depend on, in a folder; the program
# in it serves on 0.0.0.0:8080 as there, and drains on SIGTERM.
check_image() {
    local packages image=$tools/image pid
    [ "$(id -u)" = 0 ] && grep -q '^VERSION_ID="12"' /etc/os-release && may_install || { skip "the image's packages need root and Debian 12"; return; }
    packages=$(sed -n '/^FROM.*slim$/,$p' "$root/packaging/container/Containerfile.cpu" | tr -d '\\' | grep -o 'ca-certificates lib.*\|^ *lib[^&]*' | tr '\n' ' ')
    [ -e "$image/done" ] || {
        # shellcheck disable=SC2086
        packages=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
            $packages 2>/dev/null | grep -E '^z?lib' | sort -u)
        # shellcheck disable=SC2086
        unpack "$image" $packages libc6 && touch "$image/done" || { skip "the image's packages cannot be had"; return; }
    }
    rm -rf "$image/data" && mkdir -p "$image/data" && cp -r data run "$image/data" && cp "$program" "$image/hstu"
    : >ready
    (cd "$image/data" && exec chroot "$image" /hstu serve /data/run --data /data/data --host 0.0.0.0 --port 8080 --device cpu) >out 2>ready &
    pid=$!
    started+=($pid)
    serves_and_drains image || return 0
    echo "image: $(find "$image" -type f | wc -l) files; it serves and drains"
}

# The image of `make image`: its digests hold, and its command serves as its user, in a chroot, and in podman where that can run.
check_oci() {
    local code=0 version pid image=$root/build/image/$(uname -m)
    version=$(sed -n 's/^#define HSTU_VERSION "\(.*\)"/\1/p' "$root/include/hstu.h")
    may_install || { skip "HSTU_INSTALL=0: nothing is installed"; return; }
    [ -e "$root/build/dist/hstu-$version-linux-$(uname -m)" ] || { skip "the image needs the program of make dist"; return; }
    "$root/tools/image.sh" "$version" >oci 2>&1 || code=$?
    [ $code != 77 ] || { skip "$(tail -n 1 oci)"; return; }
    [ $code = 0 ] || { cat oci >&2; fail "make image"; }
    cat >run.py <<'END'
import gzip, hashlib, json, os, subprocess, sys
image, root, data = sys.argv[1:]
def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()
def blob(at):
    data = open(f"{image}/blobs/" + at["digest"].replace(":", "/"), "rb").read()
    assert (len(data), sha256(data)) == (at["size"], at["digest"]), at
    return data
manifest = json.loads(blob(json.load(open(f"{image}/index.json"))["manifests"][0]))
everything = json.loads(blob(manifest["config"]))
for layer, diff in zip(manifest["layers"], everything["rootfs"]["diff_ids"], strict=True):
    layer = gzip.decompress(blob(layer))
    assert sha256(layer) == diff, diff
    subprocess.run(["tar", "-x", "-C", root], input=layer, check=True)
if os.getuid() != 0:
    sys.exit(77)
subprocess.run(["cp", "-r", *data.split(), f"{root}/data"], check=True)
config = everything["config"]
uid, gid = map(int, config["User"].split(":"))
assert uid > 0 and "8080/tcp" in config["ExposedPorts"], config
os.chroot(root)
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
os.chdir(config["WorkingDir"])
os.execvpe(config["Entrypoint"][0], config["Entrypoint"] + config["Cmd"], dict(word.split("=", 1) for word in config["Env"]))
END
    mkdir -p oci-root && chmod -R a+rX data run
    : >ready
    python3 run.py "$image" oci-root "data run" >out 2>ready &
    pid=$!
    started+=($pid)
    if [ "$(id -u)" != 0 ]; then
        code=0 && wait $pid || code=$?
        [ $code = 77 ] || { cat ready >&2; fail "oci: the layout"; }
        skip "the image is whole, and a chroot needs root"
        return
    fi
    serves_and_drains oci || return 0
    echo "oci: $(stat -c %s "$root/build/image/hstu-$version-oci-$(uname -m).tar") bytes; it serves as its user and drains"
    check_podman "$root/build/image/hstu-$version-oci-$(uname -m).tar" "localhost/hstu:$version"
}
check_podman() {
    local podman limits=(--network host --ulimit nofile=1024:1024 --ulimit nproc=1000:1000)
    podman=(podman --storage-driver vfs --root "$work/containers" --runroot "$work/running" --cgroup-manager cgroupfs --events-backend none
        --runtime "$(command -v runc || command -v crun || echo runc)")
    command -v podman >/dev/null && "${podman[@]}" load -q -i "$1" >out 2>&1 && "${podman[@]}" run --rm "${limits[@]}" "$2" --version >out 2>&1 ||
        { skip "podman is not here, or may not run here"; return; }
    : >ready
    "${podman[@]}" run --name hstu "${limits[@]}" -v "$work/oci-root/data:/data" --read-only "$2" >out 2>ready &
    pid=$!
    started+=($pid)
    serves_and_drains podman || return 0
    echo "podman: it serves from a read-only root and drains"
}

cd "$work"
"$program" synth --out data --users 300 --items 200 --mean-len 20 --seed 1 >out 2>&1 || fail "synth"
ln -s "$root/configs" configs
"$program" train --gin-config-file configs/demo.gin --data data --out run --epochs 1 --device cpu >out 2>&1 || fail "train"
for section in ${SECTIONS:-systemd kubernetes prometheus nginx image}; do "check_$section"; done
