#!/usr/bin/env python3
"""auto-LiRPA beside `hstu certify`: widths of the bounds of scores, and time, on small models.

Usage: bench/peers/certify_lirpa.py --hstu ./hstu [--events 8] [--dim 16] [--blocks 2] [--users 4] [--eps E,...]

Makes a small log, trains an HSTU model on it for some epochs (research layers, l2-normalised dot product), and bounds the
scores of each user's ten best items while all embeddings of the history move by eps: hstu by `hstu certify --json`,
auto-LiRPA (tried: 0.3 with torch 1.13.1, CPU) on the same network in PyTorch by IBP, CROWN-IBP and CROWN, each from the
rows of the item table to the scores.  Prints for each eps the mean width of an interval and the milliseconds a user, of
the bounds alone for auto-LiRPA, of the whole command without its start for hstu; and checks that --trials random
movements a user, half of them to corners, stay inside the intervals of all.
"""
import argparse
import inspect
import json
import math
import os
import random
import subprocess
import tempfile
import textwrap
import time

import torch
import auto_LiRPA.operators.linear as linear
from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

# 0.3 takes a view of a tensor that is not contiguous; a copy gives the same numbers.
source = textwrap.dedent(inspect.getsource(linear.BoundLinear.bound_backward)).replace("w.view(last", "w.reshape(last")
exec(source, linear.__dict__)
linear.BoundLinear.bound_backward = linear.__dict__["bound_backward"]

GIN = """train_fn.dataset_name = 'own'
train_fn.max_sequence_length = {events}
train_fn.local_batch_size = 32
train_fn.main_module = 'HSTU'
train_fn.item_embedding_dim = {dim}
train_fn.num_negatives = 32
train_fn.sampling_strategy = 'local'
train_fn.item_l2_norm = True
train_fn.learning_rate = 3e-3
hstu_encoder.num_blocks = {blocks}
hstu_encoder.dqk = {dim}
hstu_encoder.dv = {dim}
hstu_encoder.linear_dropout_rate = 0.1
"""


class Net(torch.nn.Module):
    """From the rows of a history (1, T, E) to the scores of some items; biases of time and place are constants."""

    def __init__(self, w, biases, n, items):
        super().__init__()
        self.biases, self.items, self.e = biases, torch.nn.Parameter(items.contiguous()), items.shape[0]
        t = len(biases[0])
        self.place = w["_input_features_preproc._pos_emb.weight"][:t].clone()
        self.mean, self.eps = torch.full((self.e, self.e), 1 / self.e), torch.full((t, self.e), 1e-6)
        self.centre = torch.eye(self.e) - self.mean
        self.n, self.last = n, t - 1
        layer = lambda k, name: w[f"_hstu._attention_layers.{k}.{name}"]
        self.uvqk = [[x.contiguous() for x in layer(k, "_uvqk").split(self.e, 1)] for k in range(len(biases))]
        self.out = [(layer(k, "_o.weight").t().contiguous(), layer(k, "_o.bias").expand(t, self.e).clone()) for k in range(len(biases))]

    def rsqrt(self, x):  # 0.3 bounds a quotient by a square root as a LayerNorm without eps
        return torch.exp(-0.5 * torch.log(x))

    def norm(self, x):  # means as products with matrices: nothing is broadcast, which 0.3 does not bound
        c = torch.matmul(x, self.centre)
        return c * self.rsqrt(torch.matmul(c * c, self.mean) + self.eps)

    def silu(self, x):
        return x * torch.sigmoid(x)

    def forward(self, rows):
        x = rows * math.sqrt(self.e) + self.place
        for bias, uvqk, (w, b) in zip(self.biases, self.uvqk, self.out):
            normed = self.norm(x)
            u, v, q, key = (self.silu(torch.matmul(normed, part)) for part in uvqk)
            weight = self.silu(torch.matmul(q, key.transpose(1, 2)) + bias)
            o = self.norm(torch.matmul(weight, v * (1 / self.n)))
            x = torch.matmul(u * o, w) + b + x
        y = x[:, self.last]
        return torch.matmul(y * self.rsqrt(torch.matmul(y * y, self.mean * self.e)), self.items)


def read_weights(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    return {k: torch.frombuffer(data[v["data_offsets"][0]:v["data_offsets"][1]], dtype=torch.float32).reshape(v["shape"])
            for k, v in head.items() if k != "__metadata__"}


def bias_of(w, k, times):
    """(T, T): position and time bias of a layer; the silu of what a mask hides is -5e-25."""
    t = len(times)
    place, late = (w[f"_hstu._attention_layers.{k}._rel_attn_bias.{name}"] for name in ("_pos_w", "_ts_w"))
    asked, n = times[1:] + times[-1:], (len(place) + 1) // 2
    bucket = lambda d: min(128, int(math.log(max(abs(d), 1)) / 0.301))
    return torch.tensor([[float(place[n - 1 + j - i] + late[bucket(asked[i] - times[j])]) if j <= i else -60.0
                          for j in range(t)] for i in range(t)])


def make(a, folder):
    """A log whose users mostly go round the catalogue, and a model of it; (user, items, times) of the last users."""
    rng, log = random.Random(1), []
    for user in range(1, 201):
        at, now, step = rng.randrange(60), 10 ** 9, rng.choice([1, 2, 5])
        for _ in range(a.events):
            at, now = (at + (step if rng.random() < .8 else rng.randrange(60))) % 60, now + rng.randrange(10, 100000)
            log.append((user, at + 1, now))
    with open(f"{folder}/log.csv", "w") as f:
        f.write("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in log))
    with open(f"{folder}/m.gin", "w") as f:
        f.write(GIN.format(events=a.events, dim=a.dim, blocks=a.blocks))
    run = lambda *words: subprocess.run([os.path.abspath(a.hstu), *words], cwd=folder, check=True, capture_output=True, text=True).stdout
    run("prep", "csv", "--input", "log.csv", "--out", "data")
    run("train", "m.gin", "--data", "data", "--out", "run", "--epochs", str(a.epochs), "--device", "cpu")
    run("export", "run", "--what", "weights", "--out", "w.safetensors")
    histories = {}
    for u, i, t in log:
        histories.setdefault(u, []).append((i, t))
    return run, {u: h for u, h in histories.items() if u <= a.users}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hstu", default="./hstu")
    for name, value in (("events", 8), ("dim", 16), ("blocks", 2), ("users", 4), ("epochs", 20), ("trials", 1000)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--eps", default="1e-5,1e-4,1e-3,1e-2")
    p.add_argument("--methods", default="IBP,CROWN-IBP,backward")  # backward: CROWN
    a = p.parse_args()
    torch.set_num_threads(1)
    os.environ["HSTU_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        run, histories = make(a, folder)
        w = read_weights(f"{folder}/w.safetensors")
        users = [x for u in histories for x in ("--user", str(u))]
        ask = lambda eps: [json.loads(x) for x in run("certify", "run", *users, "--eps", eps, "--json").splitlines()]
        began = time.time()
        ask("1e-9")  # the start of the command, and one ball a user
        start, ours, seconds = time.time() - began, {}, {}
        for eps in a.eps.split(","):
            began = time.time()
            ours[eps] = ask(eps)
            seconds[eps] = time.time() - began
        nets = []
        for line in next(iter(ours.values())):
            history = histories[line["user"]][-a.events:]
            table = w["_embedding_module._item_emb.weight"]
            chosen = torch.nn.functional.normalize(table[[x["item"] for x in line["items"]]], dim=1).t()
            biases = [bias_of(w, k, [t for _, t in history]) for k in range(a.blocks)]
            n = (len(w["_hstu._attention_layers.0._rel_attn_bias._pos_w"]) + 1) // 2
            rows = table[[i for i, _ in history]].unsqueeze(0)
            net = Net(w, biases, n, chosen)
            off = max(abs(float(s) - x["score"]) for s, x in zip(net(rows)[0], line["items"]))
            assert off < 1e-5, f"PyTorch's scores differ by {off}"
            nets.append((net, rows, BoundedModule(net, rows, bound_opts={"conv_mode": "matrix"}, device="cpu")))
        print(f"{a.blocks} blocks of {a.dim}, {a.events} events, {len(nets)} users; hstu starts in {1e3 * start:.0f} ms")
        for eps in a.eps.split(","):
            report(a, eps, nets, ours[eps], seconds[eps])


def report(a, eps, nets, lines, seconds):
    e = float(eps)
    found = {"hstu": [([x["low"][0] for x in line["items"]], [x["high"][0] for x in line["items"]]) for line in lines]}
    took = {"hstu": seconds}
    for method in a.methods.split(","):
        found[method], began = [], time.time()
        for net, rows, bounded in nets:
            x = BoundedTensor(rows, PerturbationLpNorm(norm=math.inf, eps=e))
            low, high = bounded.compute_bounds(x=(x,), method=method)
            found[method].append((low[0].tolist(), high[0].tolist()))
        took[method] = time.time() - began
    reached = 0
    for u, (net, rows, _) in enumerate(nets):
        by = torch.rand(a.trials, *rows.shape[1:]) * 2 - 1
        by[::2] = by[::2].sign()
        with torch.no_grad():
            scores = torch.cat([net(rows + e * b.unsqueeze(0)) for b in by])
        reached += float((scores.max(0)[0] - scores.min(0)[0]).mean()) / len(nets)
        for name, of in found.items():
            low, high = torch.tensor(of[u][0]), torch.tensor(of[u][1])
            if not bool(((scores >= low - 1e-5) & (scores <= high + 1e-5)).all()):
                print(f"  {name}: a movement leaves the bounds")
    for name, of in found.items():
        width = sum(sum(h - l for l, h in zip(*x)) / len(x[0]) for x in of) / len(of)
        print(f"  eps {eps:6s} {name:10s} mean width {width:10.3e}   {1e3 * took[name] / len(nets):9.1f} ms a user")
    print(f"  eps {eps:6s} random     mean width {reached:10.3e}")


if __name__ == "__main__":
    main()
