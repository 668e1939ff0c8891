#!/usr/bin/env python3
"""The Python package under threads that use, close and open the same objects, while the process forks and is interrupted.

usage: python_stress.py HSTU FOLDER [--calls N] [--seconds S] [--seed N]

Eight threads share a few models, data sets and tables; any thread closes any of them at any time.  A call gives the right answer
or says that the object is closed.  Meanwhile the main thread forks (the child uses and closes what it inherited) and trains
until Ctrl-C (the run is then resumed).  Ends after N calls of the threads (10000) or S seconds (600).  FOLDER is for its files.
With a library of the address sanitizer:

    make VARIANT=asan build/asan/libhstu.so
    HSTU_LIBRARY=build/asan/libhstu.so PYTHONPATH=python ASAN_OPTIONS=detect_leaks=0 \\
        LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" tools/python_stress.py ./hstu /tmp/stress

The last line printed says what was done; exit code 1: what went wrong."""
import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import threading
import time

import hstu

GIN = """
train_fn.dataset_name = 'synth'
train_fn.max_sequence_length = 12
train_fn.local_batch_size = 8
train_fn.eval_batch_size = 16
train_fn.main_module = 'HSTU'
train_fn.item_embedding_dim = 8
train_fn.num_negatives = 16
train_fn.sampling_strategy = 'local'
train_fn.num_epochs = 1
hstu_encoder.num_blocks = 1
hstu_encoder.dqk = 8
hstu_encoder.dv = 8
"""
N_THREADS, N_USERS, N_SHARED = 8, 40, 3
IDS = list(range(100, 150))


class Campaign:
    def __init__(self, args):
        self.args, self.data, self.run = args, f"{args.folder}/data", f"{args.folder}/run"
        self.counts, self.wrong, self.is_over = collections.Counter(), [], False
        # The address sanitizer's own locks are not free in a child that is forked while another thread allocates: with it,
        # forks wait until all threads are outside the library.
        self.forks_wait = "libasan" in os.environ.get("LD_PRELOAD", "")
        self.gate, self.n_inside, self.is_forking = threading.Condition(), 0, False
        self.prepare()
        self.open = {"model": lambda: hstu.Model(self.run, data=self.data, device="cpu"),
                     "data": lambda: hstu.Dataset(self.data), "table": self.open_table}
        self.shared = {kind: [make() for _ in range(N_SHARED)] for kind, make in self.open.items()}
        self.users, self.items = self.shared["data"][0].user_ids, self.shared["data"][0].item_ids
        self.calls = [(kind, call) for kind, call in self.all_calls()]
        self.right = [call(self.shared[kind][0]) for kind, call in self.calls]

    def prepare(self):
        os.makedirs(self.args.folder, exist_ok=True)
        plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        subprocess.run([self.args.hstu, "synth", "--out", self.data, "--users", str(N_USERS), "--items", "60", "--mean-len",
                        "9"], check=True, env=plain, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(f"{self.args.folder}/m.gin", "w") as f:
            f.write(GIN)
        hstu.train(f"{self.args.folder}/m.gin", data=self.data, out=self.run, device="cpu")

    @staticmethod
    def open_table():
        """Rows are a function of seed and id, so that each new table has the same."""
        return hstu.Table(4, 512, seed=3, device="cpu", max_batch=64)

    def all_calls(self):
        """Calls whose answers never change: (kind of object, call)."""
        for i in range(0, N_USERS, 5):
            user, some = self.users[i], self.users[i:i + 3]
            yield "model", lambda m, u=user, k=2 + i % 7: m.recommend(u, k=k)
            yield "model", lambda m, u=some: m.recommend(u, k=4, keep_seen=True)
            yield "model", lambda m, u=some: str(m.score(u, self.items[:9]).tolist())
            yield "model", lambda m, u=some: str(m.encode(u).tolist())
            yield "model", lambda m, i=i: m.recommend(history=self.items[i:i + 6], k=3)
            yield "data", lambda d, u=user: d.history(u)
            yield "data", lambda d, i=i: d.title(self.items[i])
            yield "table", lambda t, i=i: str(t.lookup(IDS[i % 40:i % 40 + 7]).tolist())
        yield "model", lambda m: (m.title(self.items[3]), str(m.embeddings().tolist()), m.score_names)
        yield "data", lambda d: d.item_ids

    def note(self, text):
        self.wrong.append(text)
        self.is_over = True

    def is_done(self):
        return self.is_over or self.counts["calls"] >= self.args.calls

    def enter(self, n):
        with self.gate:
            while n > 0 and self.is_forking:
                self.gate.wait()
            self.n_inside += n
            self.gate.notify_all()

    def use(self, seed):
        """A thread: calls, and now and then a close or a new object."""
        rng = random.Random(seed)
        while not self.is_done():
            self.enter(1)
            self.use_once(rng)
            self.enter(-1)

    def use_once(self, rng):
        i = rng.randrange(len(self.calls))
        kind, call = self.calls[i]
        at = rng.randrange(N_SHARED)
        self.counts["calls"] += 1
        try:
            if rng.random() < 0.02:
                self.shared[kind][at].close()
                self.counts["closes"] += 1
            elif call(self.shared[kind][at]) != self.right[i]:
                self.note(f"call {i} on a {kind}: a wrong answer")
        except hstu.UsageError as e:
            if "closed" not in str(e):
                self.note(f"call {i} on a {kind}: {e!r}")
            self.counts["refused"] += 1
            self.shared[kind][at] = self.open[kind]()
        except BaseException as e:
            self.note(f"call {i} on a {kind}: {e!r}")

    def child(self):
        """In a child of fork(): data are as they were, models and tables are refused, all can be closed and opened."""
        signal.alarm(60)
        for kind, objects in self.shared.items():
            i = next(i for i, c in enumerate(self.calls) if c[0] == kind)
            for o in objects:
                try:
                    if self.calls[i][1](o) != self.right[i] or kind != "data":
                        os._exit(2)
                except hstu.UsageError as e:
                    if "fork" not in str(e) and "closed" not in str(e):
                        os._exit(3)
                o.close()
            if self.calls[i][1](self.open[kind]()) != self.right[i]:
                os._exit(4)
        os._exit(0)

    def fork(self):
        with self.gate:
            self.is_forking = self.forks_wait
            while self.forks_wait and self.n_inside > 0:
                self.gate.wait()
            pid = os.fork()
            self.is_forking = False
            self.gate.notify_all()
        if pid == 0:
            try:
                self.child()
            finally:
                os._exit(5)
        status = os.waitpid(pid, 0)[1]
        self.counts["forks"] += 1
        if status != 0:
            self.note(f"a child of fork() ended with status {status} (14: it hung)")

    def interrupt(self, number):
        """Trains until Ctrl-C, which must come through; resumes; the checkpoint must open."""
        run, sent = f"{self.args.folder}/run-{number % 3}", []

        def press():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.2 + 0.2 * random.random(), press)
        is_new = not os.path.exists(run)
        timer.start()
        try:
            hstu.train(f"{self.args.folder}/m.gin" if is_new else None, data=self.data, out=run, epochs=10**6, resume=not is_new,
                       device="cpu")
            self.note("training went on after Ctrl-C")
        except KeyboardInterrupt:
            late = time.monotonic() - sent[0]
            self.counts["interrupts"] += 1
            self.counts["slowest interrupt, ms"] = max(self.counts["slowest interrupt, ms"], round(1000 * late))
        timer.join()
        if os.path.exists(f"{run}/last"):
            hstu.Model(run, device="cpu").close()

    def go(self):
        threads = [threading.Thread(target=self.use, args=(self.args.seed * 100 + i,), daemon=True) for i in range(N_THREADS)]
        end = time.monotonic() + self.args.seconds
        for t in threads:
            t.start()
        number = 0
        while not self.is_done() and time.monotonic() < end:
            self.fork()
            self.interrupt(number)
            number += 1
        self.is_over = True
        for t in threads:
            t.join(60)
        if any(t.is_alive() for t in threads):
            self.note("a thread hangs")
        print(", ".join(f"{n} {what}" for what, n in sorted(self.counts.items())), *self.wrong[:5], sep="\n")
        return 1 if self.wrong else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hstu")
    parser.add_argument("folder")
    parser.add_argument("--calls", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(Campaign(parser.parse_args()).go())


main()
