#!/usr/bin/env python3
"""Everything that clients can ask of a server, at once, for some seconds.

    tools/serve_mixed.py PORT [--seconds 60] [--models a,b] [--threads 8] [--seed 1]

Threads send recommendations (with events, filters, vectors, reasons, short deadlines), ranks, tensors, events, erasures,
nonsense and half requests, watch the stream, ask for pages of the page, and reload models, against a server on this
machine. Exit code 1: an answer that should not have come (500, or none to a whole request), or no answer at the end."""
import argparse, collections, http.client, json, random, socket, struct, sys, threading, time

p = argparse.ArgumentParser()
p.add_argument("port", type=int)
p.add_argument("--seconds", type=float, default=60)
p.add_argument("--models", default="m")
p.add_argument("--threads", type=int, default=8)
p.add_argument("--seed", type=int, default=1)
a = p.parse_args()
models = a.models.split(",")
end = time.time() + a.seconds
lock = threading.Lock()
codes, wrong = collections.Counter(), []


def events(r):
    return [{"item": r.randrange(1, 400), "time": r.randrange(1, 2000000000)} for _ in range(r.randrange(1, 9))]


def recommend(r):
    body = {"user": r.randrange(700), "top_k": r.choice([1, 10, 200])}
    extra = r.randrange(8)
    if extra == 0:
        body["events"] = events(r)
    elif extra == 1:
        body["allow"] = r.sample(range(1, 400), 30)
    elif extra == 2:
        body["deny"] = r.sample(range(1, 400), 30)
    elif extra == 3:
        body["vector"] = True
    elif extra == 4:
        body["what_if"] = events(r)
    elif extra == 5:
        body["deadline_ms"] = r.choice([1, 5, 50])
    elif extra == 6 and r.randrange(5) == 0:
        body["explain"] = True
    elif extra == 7:
        del body["user"]
        body["history"] = events(r)
    return "POST", "/v1/recommend", body


def rank(r):
    return "POST", "/v1/rank", {"user": r.randrange(700), "candidates": r.sample(range(1, 400), 20)}


def infer(r):
    n = r.randrange(1, 5)
    tensor = {"name": "USER_IDS", "shape": [n], "datatype": "INT64", "data": [r.randrange(700) for _ in range(n)]}
    return "POST", f"/v2/models/{models[0]}/infer", {"inputs": [tensor]}


def add(r):
    return "POST", "/v1/events", {"user": r.randrange(700), "events": events(r)}


def erase(r):
    return "DELETE", f"/v1/users/{r.randrange(700)}", None


def look(r):
    path = r.choice(["/v1/models", "/metrics", "/health", "/v1/cache", "/v1/map", "/v1/users?prefix=1", "/v1/items?search=1", "/",
                     f"/v1/users/{r.randrange(700)}", "/v2/models/stats", "/nothing", "/v2/health/ready"])
    return "GET", path, None


def reload(r):
    return "POST", f"/v1/models/{r.choice(models)}/reload", None


def nonsense(r):
    return "POST", r.choice(["/v1/recommend", "/v1/rank", "/v1/events", "/rerank"]), r.choice([{}, [], {"user": {}}, {"top_k": -1}])


kinds = [recommend] * 12 + [rank] * 4 + [infer] * 2 + [add] * 6 + [erase] + [look] * 3 + [nonsense]


def ask(c, method, path, body):
    data = None if body is None else json.dumps(body)
    c.request(method, path, data)
    answer = c.getresponse()
    answer.read()
    with lock:
        codes[answer.status] += 1
        if answer.status >= 500 and answer.status != 503:
            wrong.append(f"{method} {path} {data}: {answer.status}")


def client(seed):
    r = random.Random(seed)
    c = http.client.HTTPConnection("127.0.0.1", a.port, timeout=120)
    while time.time() < end:
        request = reload(r) if seed % a.threads == 0 and r.randrange(60) == 0 else r.choice(kinds)(r)
        try:
            ask(c, *request)
        except (OSError, http.client.HTTPException) as e:
            with lock:
                wrong.append(f"{request}: {e!r}")
            return
        if r.randrange(50) == 0:
            c.close()


def dropper(seed):
    """Whole and half requests of clients that do not wait for the answer."""
    r = random.Random(seed)
    request = b'POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 24\r\n\r\n{"user": 7, "top_k": 10}'
    while time.time() < end:
        s = socket.create_connection(("127.0.0.1", a.port), 60)
        s.sendall(request[: r.choice([0, 10, 60, len(request), len(request)])])
        if r.randrange(2):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        with lock:
            codes["dropped"] += 1
        time.sleep(.002)


def watcher(seed):
    r = random.Random(seed)
    while time.time() < end:
        s = socket.create_connection(("127.0.0.1", a.port), 60)
        s.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(r.randrange(6)):
            if b" 503 " in s.recv(65536)[:16]:  # too many watch: nothing more comes
                break
        s.close()
        with lock:
            codes["watched"] += 1


threads = [threading.Thread(target=client, args=(a.seed * a.threads + i,)) for i in range(a.threads)]
threads += [threading.Thread(target=dropper, args=(a.seed + 1000,))] + [threading.Thread(target=watcher, args=(a.seed + i,)) for i in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join()
try:
    ask(http.client.HTTPConnection("127.0.0.1", a.port, timeout=60), "GET", "/health", None)
except OSError as e:
    wrong.append(f"the server does not answer at the end: {e!r}")
print(", ".join(f"{k}: {v}" for k, v in sorted(codes.items(), key=str)))
if wrong:
    sys.exit("\n".join(wrong[:20]))
