#!/usr/bin/env python3
"""What a server must survive: clients that connect and go, send slowly, send nonsense, or cut their tensors short.

    tools/serve_attack.py PORT [--pid PID] [--dropped 100000] [--slow 1000] [--random 2000]

Against a server on this machine (`hstu serve ... --port PORT`). After each attack the server must answer, with as many
open files as before; with --pid its memory is printed, too. Exit code 1: it does not."""
import argparse, json, os, random, socket, struct, sys, threading, time, urllib.request

p = argparse.ArgumentParser()
p.add_argument("port", type=int)
p.add_argument("--pid", type=int)
p.add_argument("--dropped", type=int, default=100000)
p.add_argument("--slow", type=int, default=1000)
p.add_argument("--random", type=int, default=2000)
a = p.parse_args()
r = random.Random(1)


def connect(timeout=10):
    s = socket.socket()
    s.settimeout(timeout)
    s.connect(("127.0.0.1", a.port))
    return s


def facts():
    if a.pid is None:
        return "", 0
    rss = [l.split()[1] for l in open(f"/proc/{a.pid}/status") if l.startswith("VmRSS")][0]
    n = len(os.listdir(f"/proc/{a.pid}/fd"))
    return f"memory {int(rss) / 1024:.1f} MiB, {n} open files", n


def check(what, start):
    body = json.dumps({"user": 7, "top_k": 3}).encode()
    for _ in range(100):  # connections that were closed need a moment to be noticed
        text, n = facts()
        if a.pid is None or n <= before + 4:
            break
        time.sleep(.1)
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{a.port}/v1/recommend", body), timeout=20) as f:
        assert f.status == 200 and b'"items"' in f.read()
    assert a.pid is None or n <= before + 4, f"{n} open files, {before} before"
    print(f"{what}: {time.time() - start:.1f} s; the server answers; {text}", flush=True)


def drop():
    """Connections that end at once, after a part of a request, or by a reset."""
    request = b'POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 24\r\n\r\n{"user": 7, "top_k": 10}'
    for i in range(a.dropped):
        s = connect()
        kind = i % 4
        if kind > 0:
            s.sendall(request[: r.randrange(1, len(request) + 1)] if kind < 3 else request)
        if kind > 1:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


def slow():
    """A byte a second each: the server must end them by its total deadline, and answer others meanwhile."""
    held = []
    for _ in range(a.slow):
        try:
            held.append(connect())
        except OSError:
            break
    begin, worst, n_answers = time.time(), 0, 0
    while held and time.time() - begin < 30:
        for s in list(held):
            try:
                s.sendall(b"P")
                s.setblocking(False)
                if s.recv(4096, socket.MSG_PEEK) is not None:
                    held.remove(s)
                    s.close()
            except BlockingIOError:
                s.setblocking(True)
            except OSError:
                held.remove(s)
                s.close()
        start = time.time()
        with urllib.request.urlopen(f"http://127.0.0.1:{a.port}/health", timeout=20) as f:
            assert f.status == 200
        worst = max(worst, time.time() - start)
        n_answers += 1
        time.sleep(1)
    assert not held, f"{len(held)} slow senders are still connected after 30 s"
    print(f"  {a.slow} slow senders: all ended after {time.time() - begin:.0f} s; {n_answers} others answered, {1e3 * worst:.0f} ms at most")


def nonsense():
    """Random bytes, random bodies, binary tensors with wrong lengths."""
    codes = {}
    for i in range(a.random):
        s = connect()
        if i % 3 == 0:
            data = r.randbytes(r.randrange(1, 2000))
        elif i % 3 == 1:
            body = r.randbytes(r.randrange(0, 500))
            path = r.choice([b"/v1/recommend", b"/v1/rank", b"/v1/events", b"/rerank", b"/v2/models/m/infer"])
            data = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        else:
            head = json.dumps({"inputs": [{"name": "USER_IDS", "shape": [r.randrange(-2, 1 << r.randrange(1, 62))], "datatype": "INT64",
                                           "parameters": {"binary_data_size": r.randrange(0, 64)}}]}).encode()
            body = head + r.randbytes(r.randrange(0, 40))
            data = (b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
                    % (r.choice([len(head), len(head) + 3, 0, 1 << 40]), len(body)) + body)
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            answer = s.recv(64)
            code = answer.split(b" ")[1].decode() if answer.startswith(b"HTTP/") else "closed"
        except OSError:
            code = "closed"
        codes[code] = codes.get(code, 0) + 1
        s.close()
    assert not any(c.startswith("5") and c != "503" for c in codes), codes
    print("  answers:", ", ".join(f"{c}: {n}" for c, n in sorted(codes.items())))


text, before = facts()
print("before:", text, flush=True)
for name, attack in ((f"{a.dropped} dropped connections", drop), (f"{a.slow} slow senders", slow), (f"{a.random} times nonsense", nonsense)):
    start = time.time()
    try:
        attack()
        check(name, start)
    except (AssertionError, OSError) as e:
        sys.exit(f"{name}: {e!r}")
