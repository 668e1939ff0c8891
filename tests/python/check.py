#!/usr/bin/env python3
"""The Python package as its users meet it, with or without numpy: data, training, models, failures.

usage: check.py HSTU FOLDER

Answers are compared with those of the program HSTU.  The last line printed is "ok"."""
import copy
import datetime
import json
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings

import hstu

try:
    import numpy
except ImportError:
    numpy = None

HSTU, FOLDER = os.path.abspath(sys.argv[1]), sys.argv[2]
GIN = """
train_fn.dataset_name = 'synth'
train_fn.max_sequence_length = 12
train_fn.local_batch_size = 8
train_fn.eval_batch_size = 16
train_fn.main_module = 'HSTU'
train_fn.item_embedding_dim = 8
train_fn.num_negatives = 16
train_fn.sampling_strategy = 'local'
train_fn.item_l2_norm = True
train_fn.num_epochs = 3
hstu_encoder.num_blocks = 1
hstu_encoder.dqk = 8
hstu_encoder.dv = 8
"""


def program(*args):
    done = subprocess.run([HSTU, *args], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"hstu {' '.join(args)}: {done.stderr}")
    return done.stdout


def check(condition, what):
    if not condition:
        sys.exit(f"check.py: {what}")


def other_library():
    """A library without some of our functions, as an older build is."""
    env = dict(os.environ, HSTU_LIBRARY="libm.so.6")
    done = subprocess.run([sys.executable, "-c", "import hstu"], env=env, capture_output=True, text=True)
    check("ImportError: libm.so.6 is a library of another version" in done.stderr, done.stderr)


def fails(kind, part, call):
    try:
        call()
    except kind as e:
        check(part in str(e), f"says '{e}', not '{part}'")
        return
    sys.exit(f"check.py: no {kind.__name__} with '{part}'")


def train(data, run):
    events = []
    options = dict(epochs=2, callback=events.append, device="cpu", overrides=["train_fn.learning_rate=1e-2"])
    done = hstu.train(f"{FOLDER}/m.gin", data=data, out=run, **options)
    check([e["event"] for e in events] == ["start", "epoch", "epoch", "done"], "events")
    with open(f"{run}/log.jsonl") as f:
        log = [json.loads(line) for line in f]
    check([e for e in log if e["event"] in ("start", "epoch", "done")] == events == done.log, "the log")
    check(os.fspath(done) == run and done.last == events[-1] and "hr@10" in done.metrics and "step " in repr(done), "the run")
    check(events[1]["lr"] == 0.01, "the override")
    resumed = dict(data=data, out=run, epochs=10**6, resume=True, device="cpu")
    stopped = hstu.train(None, callback=lambda e: e["event"] != "epoch", **resumed)
    check(stopped.last["event"] == "epoch" and stopped.last["epoch"] == 2, "a callback that says stop")

    def broken(event):
        raise RuntimeError("mine")

    fails(RuntimeError, "mine", lambda: hstu.train(None, callback=broken, **resumed))
    fails(hstu.UsageError, "contains a run already", lambda: hstu.train(f"{FOLDER}/m.gin", data, run, device="cpu"))
    fails(hstu.ConfigError, "unknown option 'train_fn.nothing'", lambda: hstu.train(
        f"{FOLDER}/m.gin", data, run, device="cpu", overrides=["train_fn.nothing=1"]))


def commands(data, run):
    """Every option of a command, refused by name; results with types; frames in, where pandas and polars are there."""
    fails(hstu.UsageError, "unknown option 'patiense'; did you mean 'patience'?", lambda: hstu.train(data=data, patiense=3))
    fails(hstu.UsageError, "unknown option 'init_form'; did you mean 'init_from'?", lambda: hstu.train(data=data, init_form=run))
    fails(hstu.UsageError, "--patience", lambda: hstu.train(data=data, patience=0))
    fails(hstu.UsageError, "NUL", lambda: hstu.train(data=data, out="a\0b"))
    fails(hstu.Error, "/nothing", lambda: hstu.evaluate("/nothing"))
    best = hstu.train(f"{FOLDER}/m.gin", data, f"{run}-best", epochs=30, validate=True, patience=2, split="leave-two-out", seed=5,
                      ranks=2, device="cpu")
    check(best.last["event"] == "done" and best.last["best_by"] == "ndcg@10" and best.last["part"] == "test", "options")
    warm = hstu.train(f"{FOLDER}/m.gin", hstu.Dataset(data), f"{run}-warm", init_from=best, epochs=1, device="cpu",
                      overrides={"train_fn.random_seed": 7, "train_fn.dataset_name": "own"})
    check(warm.log[0]["seed"] == 7, "bindings as a dict, a Run and a Dataset as paths")
    e = hstu.evaluate(best, metrics=["HR@5", "MRR"], baselines=True, by="length", device="cpu")
    line = json.loads(program("eval", f"{run}-best", "--metrics", "HR@5,MRR", "--device", "cpu", "--json"))
    check(e.metrics == {k: line[k] for k in ("hr@5", "mrr")} and list(e.intervals["mrr"]) == line["intervals"]["mrr"], "evaluate")
    check("popularity" in e.baselines and sum(g.users for g in e.groups) == e.users and e["mrr"] == e.metrics["mrr"], "its parts")
    one, two = hstu.compare(done := f"{run}-best", best)
    check(one.path == done and not one.differences and two.differences["mrr"].verdict == "unclear", "compare")
    check("unclear" in repr(two) and "hr@5" not in repr(e) and "mrr" in repr(e), "reprs")
    rows = "user,item,time,note\n" + "".join(f"{u},i{i},{1600000000 + 60 * i},x\n" for u in range(9) for i in range(u, u + 5))
    with open(f"{FOLDER}/log.csv", "w") as f:
        f.write(rows)
    made = hstu.prep(f"{FOLDER}/log.csv", f"{FOLDER}/from-csv", min_user_events=2)
    check((len(made), made.n_items, made.n_events) == (9, 13, 45) and "9 users" in repr(made), "prep of a path")
    fails(hstu.UsageError, "did you mean 'min_user_events'", lambda: hstu.prep(f"{FOLDER}/log.csv", FOLDER, min_user_event=2))
    for name in ("pandas", "polars"):
        try:
            library = __import__(name)
        except ImportError:
            continue
        frame = library.read_csv(f"{FOLDER}/log.csv")
        items = library.DataFrame({"item_id": [f"i{i}" for i in range(13)], "title": [f"Item, {i}" for i in range(13)]})
        got = hstu.prep(frame, f"{FOLDER}/from-{name}", items=items, action_col="none")
        check(got.history(3) == made.history(3) and got.title("i4") == "Item, 4", f"prep of a frame of {name}")
        back = hstu.prep(got.frame(name), f"{FOLDER}/again-{name}", action_col="none")
        check([back.history(u) for u in back.user_ids] == [got.history(u) for u in got.user_ids], f"a frame of {name}, out and in")
        with hstu.Model(run, data=data, device="cpu") as m:
            users = library.Series([1, 2, 3])
            rows = m.recommend_frame(users, k=2, library=name, deny=library.Series([5]))
            want = [(u, r, *pair) for u, pairs in zip([1, 2, 3], m.recommend(users, k=2, deny=[5])) for r, pair in enumerate(pairs, 1)]
            check([tuple(rows[c].to_list()[i] for c in ("user", "rank", "item", "score")) for i in range(6)] == want, f"{name}, out")
        print(f"frames of {name} {library.__version__}")


def data_set(data):
    with hstu.Dataset(data) as d:
        info = json.loads(program("info", data, "--json"))
        check((len(d), d.n_items, d.n_events) == (info["users"], info["catalogue"], info["events"]), "counts")
        check(len(d.user_ids) == len(d) and len(d.item_ids) == d.n_items, "ids")
        history = d.history(d.user_ids[0])
        check(len(history) > 2 and all(item in d.item_ids for item, _, _ in history), "a history")
        check(isinstance(d.title(d.item_ids[0]), str), "a title")
        return d.user_ids, d.item_ids, history
    fails(hstu.FormatError, "not a sequence file", lambda: hstu.Dataset(f"{FOLDER}/m.gin"))


def one_score(m, data, run, history):
    """A history without times gives the same bits here, in the program and, where it can serve, over HTTP."""
    ours = m.recommend(history=history, k=4)
    line = json.loads(program("recommend", run, "--data", data, "--history", json.dumps(history), "-k", "4", "--device", "cpu", "--json"))
    same = [(i["item"], struct.unpack("f", struct.pack("f", i["score"]))[0]) for i in line["items"]]
    check(ours == same, f"a history in Python {ours}, in the program {same}")
    try:
        server = hstu.serve(run, data=data, device="cpu")
    except hstu.Error as e:
        check("no HTTP server" in str(e), f"serve: {e}")
        print("skipped: hstu.serve, as this build has no HTTP server")
        return
    with server:
        answer = server.request("v1/recommend", {"history": history, "top_k": 4})
        popular = server.request("v1/recommend", {"user": "nobody", "top_k": 4})
        check([i["item"] for i in popular["items"]] == [i for i, _ in m.recommend("nobody", k=4)], "popular items over HTTP")
        check(server.request("/v2/health/ready") is not None and server.url in repr(server), "GET")
        fails(hstu.UsageError, "40", lambda: server.request("v1/recommend", {"users": 1}))
    check(server.process.returncode == 0 and server.url is None, "a server stops with its context")
    server.close()
    fails(hstu.UsageError, "did you mean 'deadline'", lambda: hstu.serve(run, dedline=3))
    fails(hstu.Error, "/nothing", lambda: hstu.serve("/nothing"))
    server = hstu.serve(run, data=data, device="cpu")
    server.process.kill()
    server.reader.join(20)
    fails(hstu.Error, "SIGKILL", lambda: server.request("v2"))
    fails(hstu.Error, "SIGKILL", server.close)
    same = [(i["item"], struct.unpack("f", struct.pack("f", i["score"]))[0]) for i in answer["items"]]
    check(ours == same, f"a history in Python {ours}, over HTTP {same}")


def model(data, run, users, items, history):
    m = hstu.Model(run, data=data, device="cpu")
    check(repr(m).startswith(f"<hstu.Model {run}: retrieval, 1,1") and "step " in repr(m), repr(m))
    check(m.is_retrieval and m.dim == 8 and m.score_names == ["score"] and m.step > 0, "facts")
    wanted = [json.loads(line) for line in
              program("recommend", run, "--data", data, "--all-users", "-k", "4", "--device", "cpu", "--json").splitlines()]
    got = m.recommend(users, k=4)
    check([w["user"] for w in wanted] == users, "users")
    for ours, theirs in zip(got, wanted):
        check([i for i, _ in ours] == [i["id"] for i in theirs["items"]], "recommendations")
        check(all(abs(s - i["score"]) < 1e-6 for (_, s), i in zip(ours, theirs["items"])), "scores")
    check(m.recommend(users[1], k=4) == got[1], "one user")
    check(m.recommend(history=[i for i, _, _ in history], times=[t for _, _, t in history], k=4) == got[0], "a history")
    seconds = [datetime.datetime.fromtimestamp(t, datetime.timezone.utc) for _, _, t in history]
    check(m.recommend(history=[i for i, _, _ in history], times=seconds, k=4) == got[0], "times as datetimes")
    fails(hstu.UsageError, "not milliseconds", lambda: m.recommend(history=items[:1], times=[1690000000000]))
    one_score(m, data, run, items[3:8])
    line = json.loads(program("recommend", run, "--data", data, "--user", "nobody", "-k", "4", "--device", "cpu", "--json"))
    popular = [i["item"] for i in line["items"]]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check([i for i, _ in m.recommend("nobody", k=4)] == popular, "popular items for a user who is not in the data")
    check(len(said) == 1 and "most popular items: nobody" in str(said[0].message), "a warning that they are popular")
    check(m.recommend([users[1], "nobody", users[0]], k=4)[::2] == [got[1], got[0]], "known users beside an unknown one")
    line = json.loads(program("recommend", run, "--data", data, "--similar", str(items[2]), "-k", "4", "--device", "cpu", "--json"))
    check([i for i, _ in m.similar(items[2], k=4)] == [i["item"] for i in line["items"]], "similar items")
    fails(hstu.UsageError, "is not in the catalogue", lambda: m.similar("none"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check(m.recommend(history=["none", items[3]], k=4) == m.recommend(history=[items[3]], k=4), "an unknown item")
        check("left out: none" in str(said[0].message), "a warning of it")
    scores, rows, states = m.score(users[:2], items), m.embeddings(), m.encode(users[:2])
    check(tuple(scores.shape) == (2, len(items), 1) and tuple(rows.shape) == (len(items), 8), "shapes")
    check(tuple(states.shape) == (2, 8), "the shape of states")
    check((numpy is None) == isinstance(rows, memoryview), "numpy's arrays where numpy is there")
    for i, item in enumerate(items[:5]):
        product = sum(rows[i, d] * states[1, d] for d in range(8))
        check(math.isclose(product, scores[1, i, 0], abs_tol=1e-5), f"score of {item}")
    best = dict(got[0])
    check(all(abs(scores[0, items.index(i), 0] - s) < 1e-6 for i, s in best.items()), "score and recommend")
    first, second, third, last = [i for i, _ in got[1]]
    check(m.recommend(users[1], k=3, deny=[first], pin=[last]) == [got[1][3], got[1][1], got[1][2]], "deny and pin")
    check(m.recommend(users[1], k=4, allow=[third, second]) == got[1][1:3], "allow")
    line = json.loads(program("recommend", run, "--data", data, "--user", str(users[1]), "-k", "4", "--device", "cpu", "--json",
                              "--filter", 'topic == "Space Opera"'))
    check([i for i, _ in m.recommend(users[1], k=4, filter='topic == "Space Opera"')] == [i["id"] for i in line["items"]], "filter")
    fails(hstu.UsageError, "boost: expected a list", lambda: m.recommend(users[1], boost=1))
    fails(hstu.UsageError, "filter: character 1", lambda: m.recommend(history=items[:1], filter="year > 1"))
    fails(hstu.UsageError, "user 'nobody' is not in the data", lambda: m.score("nobody", items[:1]))
    fails(hstu.UsageError, "k is 0", lambda: m.recommend(users[0], k=0))
    fails(hstu.UsageError, "either users or a history", lambda: m.recommend())
    fails(OSError, "/nothing", lambda: hstu.Model("/nothing"))
    fails(hstu.UsageError, "auto, cpu, cuda", lambda: hstu.Model(run, device="quantum"))
    m.close()
    m.close()


def misuse(data, run, users, items):
    """Texts that C would cut at a NUL, numbers that it would cut to a field, objects after close()."""
    m, d = hstu.Model(run, data=data, device="cpu"), hstu.Dataset(data)
    one = str(users[0])
    fails(hstu.UsageError, "NUL", lambda: m.recommend(f"{one}\0evil"))
    fails(hstu.UsageError, "NUL", lambda: m.title(f"{items[0]}\0"))
    fails(hstu.UsageError, "NUL", lambda: hstu.Dataset(f"{data}\0/nothing"))
    fails(hstu.UsageError, "NUL", lambda: hstu.Model(run, device="cpu\0"))
    fails(hstu.UsageError, "Unicode", lambda: m.recommend("\ud800"))
    check(m.recommend(one.encode(), k=2) == m.recommend(users[0], k=2), "an id as bytes")
    for wrong in (65536, -1):
        fails(hstu.UsageError, f"action {wrong} is out of range", lambda: m.recommend(history=items[:1], actions=[wrong]))
    for wrong in (2**63, -2**63 - 1):
        fails(hstu.UsageError, f"time {wrong} is out of range", lambda: m.recommend(history=items[:1], times=[wrong]))
    fails(hstu.UsageError, "k 4294967301 is out of range", lambda: m.recommend(one, k=2**32 + 5))
    fails(hstu.UsageError, "k is 2147483647", lambda: m.recommend(users, k=2**31 - 1))
    fails(hstu.UsageError, "18446744073709551617 is out of range", lambda: hstu.train(None, data, run, epochs=2**64 + 1))
    fails(hstu.UsageError, "-1 is out of range", lambda: hstu.train(None, data, run, epochs=-1, resume=True))
    copies((m, d))
    names = m.score_names
    for o in (m, d):
        o.close()
        o.close()
    for call in (lambda: m.recommend(one), lambda: m.recommend([]), lambda: m.recommend(history=items[:1]),
                 lambda: m.score(users, items), lambda: m.encode(users), m.embeddings, lambda: m.item_ids, lambda: m.user_ids,
                 lambda: m.title(items[0]), lambda: d.history(one), lambda: d.title(items[0]), lambda: d.item_ids):
        fails(hstu.UsageError, "closed", call)
    check("closed" in repr(m) and m.score_names == names and m.dim == 8 and len(d) == len(users), "facts outlive the object")


def threads(data, run, users):
    """One model under eight threads gives the answers of one thread; closed meanwhile, it says so."""
    m = hstu.Model(run, data=data, device="cpu")
    right = {(u, k): m.recommend(u, k=k) for u in users for k in (2, 3, 5)}
    scores = str(m.score(users, m.item_ids[:9]).tolist())
    wrong, closed = [], []

    def ask(number):
        try:
            for i in range(300):
                u, k = users[(number * 7 + i) % len(users)], (2, 3, 5)[(number + i) % 3]
                if m.recommend(u, k=k) != right[u, k] or i % 30 == 0 and str(m.score(users, m.item_ids[:9]).tolist()) != scores:
                    wrong.append((u, k))
            while True:
                m.recommend(users, k=3)
        except hstu.UsageError as e:
            closed.append(str(e))

    started = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(8)]
    for t in started:
        t.start()
    time.sleep(0.5)
    m.close()
    for t in started:
        t.join(60)
    check(not any(t.is_alive() for t in started), "a thread hangs after close()")
    check(not wrong, f"wrong answers under threads: {wrong[:3]}")
    check(len(closed) == 8 and all("closed" in c for c in closed), f"closed during calls: {closed}")


def in_child(work):
    """The exit code of a child of fork() that did the work; it has 30 seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            work()
            os._exit(0)
        except BaseException as e:
            print(f"check.py: in a child of fork(): {e!r}", flush=True)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def fork(data, run, users):
    m, d, t = hstu.Model(run, data=data, device="cpu"), hstu.Dataset(data), hstu.Table(2, 64, device="cpu")
    right, history, row = m.recommend(users, k=3), d.history(users[2]), t.lookup([5]).tolist()
    if numpy:
        from hstu.dlpack import attn_varlen
        q, cu = numpy.ones((6, 2, 4), numpy.float32), numpy.array([0, 6], numpy.int32)
        out = attn_varlen(q, q, q, cu, cu, max_seqlen_q=6, max_seqlen_k=6).tolist()

    def child():
        fails(hstu.UsageError, "opened before fork()", lambda: m.recommend(users, k=3))
        fails(hstu.UsageError, "opened before fork()", lambda: t.lookup([5]))
        check(d.history(users[2]) == history, "data in a child of fork()")
        for o in (m, d, t):
            o.close()
        check(hstu.Model(run, data=data, device="cpu").recommend(users, k=3) == right, "a model of the child's own")
        check(hstu.Table(2, 64, device="cpu").lookup([5]).tolist() == row, "a table of the child's own")
        if numpy:
            again = attn_varlen(q, q, q, cu, cu, max_seqlen_q=6, max_seqlen_k=6).tolist()
            check(again == out, "attention in a child of fork()")

    check(in_child(child) == 0, "a child of fork() fails or hangs")
    parent = os.getpid()

    def fork_here(event):
        if event["event"] == "start" and os.fork() == 0:
            signal.alarm(30)
        elif os.getpid() == parent:
            return event["event"] == "start"

    try:
        last = hstu.train(f"{FOLDER}/m.gin", data=data, out=f"{run}-fork", device="cpu", callback=fork_here)
    except BaseException as e:
        os._exit(0 if os.getpid() != parent and isinstance(e, hstu.UsageError) and "forked by a callback" in str(e) else 1)
    if os.getpid() != parent:
        os._exit(2)
    check(os.wait()[1] == 0, "train() in a child that its callback forked")
    check(last.last["event"] == "epoch", "train() goes on in the parent")
    check(m.recommend(users, k=3) == right and d.history(users[2]) == history, "the parent after fork()")


def interrupt(data, run, users):
    """Ctrl-C ends training within a second, with the run saved; long calls on a model come in pieces."""
    sent = []

    def press():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    # An epoch of a minute: no line of the log, with its callback into Python, comes in between.
    program("synth", "--out", f"{data}-large", "--users", "50000", "--items", "60", "--mean-len", "9")
    threading.Timer(1, press).start()
    try:
        hstu.train(f"{FOLDER}/m.gin", data=f"{data}-large", out=f"{run}-sigint", device="cpu",
                   overrides=["train_fn.local_batch_size=1"])
        sys.exit("check.py: no KeyboardInterrupt")
    except KeyboardInterrupt:
        late = time.monotonic() - sent[0]
    check(late < 1, f"Ctrl-C took {late:.1f} s")
    step = hstu.Model(f"{run}-sigint", device="cpu").step
    again = hstu.train(None, data=f"{data}-large", out=f"{run}-sigint", resume=True, device="cpu", callback=lambda _: False)
    check(step > 0 and again.last["event"] == "start", "the run can be resumed after Ctrl-C")

    m, pieces, original = hstu.Model(run, data=data, device="cpu"), [], hstu._library.call

    def watched(name, *args):
        original(name, *args)
        if name.startswith("hstu_model"):
            pieces.append(args[2])
            os.kill(os.getpid(), signal.SIGINT)

    hstu._library.call = watched
    for call in (lambda: m.recommend(users * 10), lambda: m.score(users * 10, m.item_ids), lambda: m.encode(users * 10)):
        fails(KeyboardInterrupt, "", call)
    hstu._library.call = original
    check(len(pieces) == 3 and max(pieces) < len(users) * 10, f"calls of {pieces} users")


def copies(objects):
    """A copy would close the same handle; a pickle would name one of another process."""
    for o in objects:
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            fails(TypeError, "cannot be copied or pickled", lambda: make(o))


def bags():
    """Pooled lookups, their gradients, and collections; check_bags.py compares them with torch."""
    with hstu.Table(2, 512, optimizer="sgd", device="cpu") as t, hstu.Table(1, 512, device="cpu") as u:
        t.insert([1, 2], [[1, 2], [3, 5]])
        u.insert([7], [[9]])
        check(t.lookup_pooled([1, 2, 2], [0, 2, 2, 3]).tolist() == [[4, 7], [0, 0], [3, 5]], "sums; an empty bag")
        got = t.lookup_pooled([1, 2, 2], [0, 2, 2, 3], mode="mean", weights=[2, 1, -1]).tolist()
        check(got == [[2.5, 4.5], [0, 0], [-3, -5]], f"weighted means: {got}")
        check(t.weight_gradients([1, 2, 2], [0, 2, 3], [[1, 1], [2, 0]], mode="mean").tolist() == [1.5, 4, 6], "weights' gradients")
        check(t.lookup_pooled([8], [0, 1], read_only=True).tolist() == [[0, 0]] and len(t) == 2, "read_only makes no row")
        both, want = hstu.TableCollection({"a": t, "b": u}), {"a": [[1, 2], [3, 5]], "b": [[9], [0]]}
        for features in ({"a": ([1, 2], [0, 1, 2]), "b": ([7], [0, 1, 1])}, (["a", "b"], [1, 1, 1, 0], [1, 2, 7])):
            check({k: v.tolist() for k, v in both.lookup_pooled(features).items()} == want, "a collection")
        both.update_pooled({"a": ([1], [0, 1], [0.5])}, {"a": [[2, 4]]}, lr=0.5)
        check(t.find([1])[0].tolist() == [[0.5, 1.0]], "an update by gradients of bags")
        for offsets in ([0, 2], [0, 4], [], [0, 1, 2]):
            fails(hstu.UsageError, "number of ids, 3", lambda: t.lookup_pooled([1, 2, 90], offsets))
        fails(hstu.UsageError, "decrease", lambda: t.lookup_pooled([1, 90], [0, 3, 2]))
        fails(hstu.UsageError, "must be 0", lambda: t.lookup_pooled([1, 90], [-1, 2]))
        fails(hstu.UsageError, "offset 0.5 is not an integer", lambda: t.lookup_pooled([90], [0.5, 1]))
        fails(hstu.UsageError, "one of sum, mean", lambda: t.lookup_pooled([90], [0, 1], mode="max"))
        fails(hstu.UsageError, "weights", lambda: t.lookup_pooled([90], [0, 1], weights=[1, 2]))
        fails(hstu.NumericError, "must be finite", lambda: t.lookup_pooled([90], [0, 1], weights=[float("nan")]))
        fails(hstu.UsageError, "no table 'c'", lambda: both.lookup_pooled({"a": ([90], [0, 1]), "c": ([1], [0, 1])}))
        fails(hstu.UsageError, "table b: bags: offsets", lambda: both.lookup_pooled({"a": ([90], [0, 1]), "b": ([1], [0, 3, 1])}))
        fails(hstu.UsageError, "add up", lambda: both.lookup_pooled((["a", "b"], [1, 1], [1, 2, 7])))
        check(len(t) == 2 and len(u) == 1, "what is refused makes no row")


class Tensor:
    """An array that speaks DLPack alone, and counts how often it is asked."""
    def __init__(self, array):
        self.array, self.asked = array, 0

    def __dlpack__(self, **given):
        self.asked += 1
        return self.array.__dlpack__(**given)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def tensors(t):
    """DLPack in and out, without copies."""
    ids, rows = Tensor(numpy.array([21, 22])), Tensor(numpy.array([[1, 2], [3, 4]], numpy.float32))
    t.insert(ids, rows)
    check(ids.asked == rows.asked == 1 and t.find([21, 22])[0].tolist() == rows.array.tolist(), "ids and rows by DLPack")
    count, memory, at = hstu.table._ids(ids)
    check(at == ids.array.ctypes.data and hstu.table._rows(rows, 2, 2, "rows")[1] == rows.array.ctypes.data, "not copied")
    out = t.lookup(ids)
    check(numpy.from_dlpack(Tensor(out)).ctypes.data == out.ctypes.data, "results speak DLPack")
    fails(hstu.UsageError, "ids are integers", lambda: t.find(rows))
    fails(hstu.UsageError, "expected shape (2, 2), got (2,)", lambda: t.insert(ids, ids))


def table():
    """Dynamic tables: rows come and go, optimizer steps, files."""
    ids = [3, 2**64 - 1, 3]
    with hstu.Table(2, 512, optimizer="sgd", device="cpu") as t:
        rows = [list(r) for r in (t.lookup(ids).tolist())]
        check(len(t) == 2 and rows[0] == rows[2] != rows[1], "lookup makes a row an id")
        check(t.insert([9, 10], [[1.0, 2.0], [0.0, 0.0]]) == 0, "insert has room")
        t.update([9, 10, 9], [[1, 1], [5, 6], [2, 3]], lr=0.5)
        got, found = t.find([9, 10, 77])
        check(got.tolist() == [[-0.5, 0.0], [-2.5, -3.0], [0.0, 0.0]], f"update: {got.tolist()}")
        check(found == [True, True, False], "find says what is there")
        check(t.erase([10, 77]) == 1 and len(t) == 3, "erase")
        t.save(f"{FOLDER}/table")
        other = hstu.Table(2, 512, optimizer="sgd", device="cpu")
        check(other.load(f"{FOLDER}/table") == 0 and len(other) == 3, "load")
        check(other.find(ids + [9])[0].tolist() == t.find(ids + [9])[0].tolist(), "what is loaded is what was saved")
        fails(hstu.UsageError, "more than once", lambda: t.insert([1, 1], [[0, 0], [0, 0]]))
        fails(hstu.UsageError, "rows: expected shape (1, 2), got (1, 3)", lambda: t.insert([1], [[0, 0, 0]]))
        fails(hstu.UsageError, "got rows of different lengths: 1, 3", lambda: t.insert([1, 2], [[1, 2, 3], [4]]))
        fails(hstu.UsageError, "weights: expected one for each id, 2 in all; got 1",
              lambda: t.lookup_pooled([1, 2], [0, 2], weights=[1.0]))
        copies([t])
        for ragged in ([[1, 2, 3], [4]], [[1, 2]], [[1, 2]] * 3, [1, 2, 3, 4]):
            fails(hstu.UsageError, "an id" if ragged[0] == 1 else "expected shape (2, 2), got", lambda: t.insert([1, 2], ragged))
        for wrong in ("x", 1j, None, 10**400):
            fails(hstu.UsageError, "rows are numbers", lambda: t.insert([1], [[wrong, 0]]))
            fails(hstu.UsageError, "gradients are numbers", lambda: t.update([1], [[wrong, 0]]))
        fails(hstu.UsageError, "one of sgd, adam", lambda: hstu.Table(2, optimizer="sdg"))
        fails(hstu.UsageError, "id 18446744073709551616 is out of range", lambda: t.lookup([2**64]))
        fails(hstu.UsageError, "id 1.5 is not an integer", lambda: t.lookup([1.5]))
        check(t.find([-1])[0].tolist() == t.find([2**64 - 1])[0].tolist(), "a negative id is the same 64 bits")
        for bad in (float("nan"), float("inf")):
            fails(hstu.NumericError, "must be finite", lambda: t.update([9], [[bad, 0]]))
            fails(hstu.NumericError, "must be finite", lambda: t.insert([9], [[0, bad]]))
            fails(hstu.UsageError, "must be finite", lambda: t.update([9], [[0, 0]], lr=bad))
            fails(hstu.UsageError, "first_scale", lambda: hstu.Table(2, first_scale=bad, device="cpu"))
        fails(hstu.UsageError, "dim 4294967298 is out of range", lambda: hstu.Table(2**32 + 2))
        other.close()
        for call in (lambda: len(other), lambda: other.lookup([1]), lambda: other.save(f"{FOLDER}/none")):
            fails(hstu.UsageError, "the table is closed", call)
        if numpy:
            a = numpy.array([[3, 9]], dtype=numpy.int64)
            check((t.find(a)[0] == numpy.stack([t.find([3])[0][0], t.find([9])[0][0]])).all(), "ids as numpy's array")
            fails(hstu.UsageError, "ids are integers", lambda: t.find(numpy.zeros(2)))
            check(t.find([numpy.int64(-1)])[1] == t.find([-1])[1] == [True], "an id of numpy")
            check(t.insert([1, 2, 4], numpy.ones((3, 2), dtype=numpy.int16)) == 0, "rows of integers")
            for wrong in (numpy.ones((2, 3)), numpy.ones(6), numpy.ones((1, 3, 2))):
                fails(hstu.UsageError, "expected shape", lambda: t.insert([1, 2, 4], wrong))
                fails(hstu.UsageError, "expected shape", lambda: t.update([1, 2, 4], wrong))
            for kind in ("U4", "c8", bool, object):
                fails(hstu.UsageError, "rows are numbers, not", lambda: t.insert([1, 2, 4], numpy.ones((3, 2)).astype(kind)))
            fails(hstu.NumericError, "must be finite", lambda: t.insert([1], numpy.full((1, 2), 1e300)))
            tensors(t)


def naive(q, k, v, alpha, scaling):
    """Causal, one sequence, float64."""
    s = alpha * numpy.einsum("ihd,jhd->hij", q.astype(float), k.astype(float))
    s = s / (1 + numpy.exp(-s)) / scaling * numpy.tri(len(q))
    return numpy.einsum("hij,jhd->ihd", s, v.astype(float))


def dlpack(library, make):
    """Attention on arrays of numpy, or of another library that can be made of numpy's."""
    import hstu.dlpack
    g = numpy.random.default_rng(5)
    q, k, v, dout = (g.standard_normal((17, 2, 8), dtype=numpy.float32) for _ in range(4))
    cu = numpy.array([0, 17], dtype=numpy.int32)
    args = [make(x) for x in (q, k, v, cu, cu)]
    rest = dict(max_seqlen_q=17, max_seqlen_k=17, window_size=(-1, 0), alpha=0.3)
    out = hstu.dlpack.attn_varlen(*args, **rest)
    check(type(out) is type(args[0]), f"{library}: the result is of its library")
    check(numpy.abs(numpy.asarray(out) - naive(q, k, v, 0.3, 17)).max() < 1e-6, f"{library}: attention")
    dq, dk, dv = (numpy.asarray(x) for x in hstu.dlpack.attn_varlen_backward(make(dout), *args, **rest))
    eps = 1e-4  # the slope along the gradient itself, by differences of the float64 formula
    for x, dx, at in ((q, dq, 0), (k, dk, 1), (v, dv, 2)):
        def loss(step):
            moved = [q, k, v]
            moved[at] = x.astype(float) + step * dx
            return (naive(*moved, 0.3, 17) * dout).sum()
        slope, want = (loss(eps) - loss(-eps)) / (2 * eps), (dx.astype(float) ** 2).sum()
        check(abs(slope - want) < 1e-4 * want, f"{library}: gradient {at}: {slope} {want}")
    if library == "numpy":
        parts = numpy.stack([q, k, v], axis=1)  # rows apart, as of one array
        apart = hstu.dlpack.attn_varlen(parts[:, 0], parts[:, 1], parts[:, 2], cu, cu, **rest)
        check((apart == out).all(), "strided rows")
        fails(hstu.UsageError, "follow each other", lambda: hstu.dlpack.attn_varlen(q[:, :, ::2], k, v, cu, cu, **rest))
        fails(hstu.UsageError, "of one type", lambda: hstu.dlpack.attn_varlen(q.astype(float), k, v, cu, cu, **rest))
        fails(hstu.UsageError, "int32", lambda: hstu.dlpack.attn_varlen(q, k, v, cu.astype(numpy.int64), cu, **rest))
        for kind in (numpy.int32, numpy.int64, numpy.uint16, bool):
            fails(hstu.UsageError, "of one type", lambda: hstu.dlpack.attn_varlen(*[x.astype(kind) for x in (q, k, v)], cu, cu, **rest))
        for ends in ([0, 16], [1, 17], [17], []):
            some = numpy.array(ends, dtype=numpy.int32)
            fails(hstu.UsageError, "cu_seqlens" if ends else "empty", lambda: hstu.dlpack.attn_varlen(q, k, v, some, some, **rest))
        fails(hstu.UsageError, "max_seqlen_q 4294967313", lambda: hstu.dlpack.attn_varlen(
            q, k, v, cu, cu, max_seqlen_q=2**32 + 17, max_seqlen_k=17))
        fails(hstu.UsageError, "alpha is nan", lambda: hstu.dlpack.attn_varlen(q, k, v, cu, cu, **{**rest, "alpha": math.nan}))
        fails(hstu.UsageError, "DLPack", lambda: hstu.dlpack.attn_varlen([1], k, v, cu, cu, **rest))


def main():
    os.makedirs(FOLDER, exist_ok=True)
    data, run = f"{FOLDER}/data", f"{FOLDER}/run"
    with open(f"{FOLDER}/m.gin", "w") as f:
        f.write(GIN)
    program("synth", "--out", data, "--users", "40", "--items", "60", "--mean-len", "9")
    users, items, history = data_set(data)
    train(data, run)
    commands(data, run)
    model(data, run, users, items, history)
    table()
    bags()
    misuse(data, run, users, items)
    other_library()
    threads(data, run, users)
    fork(data, run, users)
    interrupt(data, run, users)
    if numpy:
        dlpack("numpy", lambda x: x)
    for name, to in (("jax", "numpy.asarray"), ("torch", "from_numpy")):  # where they are installed
        try:
            make = __import__(name)
        except ImportError:
            continue
        for part in to.split("."):
            make = getattr(make, part)
        dlpack(name, make)
        print(f"DLPack with {name}")
    print(f"hstu {hstu.library_version()}, {'numpy ' + numpy.__version__ if numpy else 'without numpy'}")
    print("ok")


main()
