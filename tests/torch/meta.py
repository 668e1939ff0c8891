#!/usr/bin/env python3
"""Checkpoints of Meta's research models go to hstu and back.

usage: meta.py HSTU FOLDER

HSTU and SASRec are written here once more in PyTorch, by Meta's parameter names and layout; each is
trained for a few steps and saved as Meta's train.py saves it.  hstu imports the file: metrics and
recommendations must be those of PyTorch.  What hstu exports must load here with strict=True and give
the same outputs to the bit, and a second import and export the same file.  Needs torch; the last line
printed is "ok"."""
import json
import math
import os
import random
import subprocess
import sys

import torch
import torch.nn.functional as F

HISTORY, OUTPUT, DIM, TOP = 10, 11, 12, 7
LENGTH = HISTORY + OUTPUT
HSTU, FOLDER = os.path.abspath(sys.argv[1]), sys.argv[2]

COMMON = f"""
train_fn.dataset_name = 'ml-1m'
train_fn.max_sequence_length = {HISTORY}
train_fn.local_batch_size = 16
train_fn.eval_batch_size = 16
train_fn.item_embedding_dim = {DIM}
train_fn.num_negatives = 8
train_fn.sampling_strategy = 'local'
train_fn.item_l2_norm = True
train_fn.num_epochs = 3
"""
CONFIGS = {
    "HSTU": COMMON + """
train_fn.main_module = 'HSTU'
hstu_encoder.num_blocks = 2
hstu_encoder.num_heads = 2
hstu_encoder.dqk = 6
hstu_encoder.dv = 4
hstu_encoder.linear_dropout_rate = 0.2
""",
    "SASRec": COMMON + """
train_fn.main_module = 'SASRec'
sasrec_encoder.num_blocks = 2
sasrec_encoder.num_heads = 2
sasrec_encoder.ffn_hidden_dim = 16
sasrec_encoder.ffn_activation_fn = 'relu'
sasrec_encoder.ffn_dropout_rate = 0.2
""",
}


class Bias(torch.nn.Module):
    """Buckets of time differences, and positions."""

    def __init__(self):
        super().__init__()
        self._ts_w = torch.nn.Parameter(torch.randn(129) * 0.3)
        self._pos_w = torch.nn.Parameter(torch.randn(2 * LENGTH - 1) * 0.3)

    def forward(self, times):
        after = torch.cat([times, times[:, -1:]], dim=1)[:, 1:]
        delta = (after[:, :, None] - times[:, None, :]).abs().clamp(min=1).float()
        bucket = (delta.log() / 0.301).long().clamp(0, 128)
        place = torch.arange(LENGTH)
        return self._pos_w[LENGTH - 1 + place[None, :] - place[:, None]] + self._ts_w[bucket]


class Layer(torch.nn.Module):
    def __init__(self, heads=2, dqk=6, dv=4):
        super().__init__()
        self.heads, self.dqk, self.dv = heads, dqk, dv
        self._rel_attn_bias = Bias()
        self._uvqk = torch.nn.Parameter(torch.randn(DIM, 2 * heads * (dqk + dv)) * 0.3)
        self._o = torch.nn.Linear(heads * dv, DIM)

    def forward(self, x, times, mask):
        users, h, dqk, dv = x.shape[0], self.heads, self.dqk, self.dv
        mixed = F.silu(F.layer_norm(x, (DIM,), eps=1e-6) @ self._uvqk)
        u, v, q, k = mixed.split([h * dv, h * dv, h * dqk, h * dqk], dim=-1)
        q, k = (t.view(users, LENGTH, h, dqk) for t in (q, k))
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) + self._rel_attn_bias(times)[:, None]
        weights = F.silu(scores) / LENGTH * mask
        out = torch.einsum("bhnm,bmhd->bnhd", weights, v.view(users, LENGTH, h, dv))
        out = F.layer_norm(out.reshape(users, LENGTH, h * dv), (h * dv,), eps=1e-6)
        return self._o(u * out) + x


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self._attention_layers = torch.nn.ModuleList([Layer(), Layer()])


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self._conv1d = torch.nn.Sequential(
            torch.nn.Conv1d(DIM, 16, 1), torch.nn.ReLU(), torch.nn.Identity(), torch.nn.Conv1d(16, DIM, 1))

    def forward(self, x):
        return self._conv1d(x.transpose(1, 2)).transpose(1, 2) + x


class Holder(torch.nn.Module):
    """A module with one embedding under Meta's name."""

    def __init__(self, name, rows):
        super().__init__()
        setattr(self, name, torch.nn.Embedding(rows, DIM))


class Model(torch.nn.Module):
    def __init__(self, kind, max_id):
        super().__init__()
        self.kind = kind
        self._embedding_module = Holder("_item_emb", max_id + 1)
        self._input_features_preproc = Holder("_pos_emb", LENGTH)
        if kind == "HSTU":
            self._hstu = Layers()
        else:
            self.attention_layers = torch.nn.ModuleList(
                [torch.nn.MultiheadAttention(DIM, 2, batch_first=True) for _ in range(2)])
            self.forward_layers = torch.nn.ModuleList([FeedForward(), FeedForward()])
        self.register_buffer("_attn_mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), diagonal=1))

    def items(self):
        return F.normalize(self._embedding_module._item_emb.weight, dim=-1, eps=1e-6)

    def forward(self, ids, times):
        """(B, N) ids and times, 0 after the history; states (B, N, D)."""
        valid = (ids != 0).float()[:, :, None]
        x = self._embedding_module._item_emb(ids) * math.sqrt(DIM) + self._input_features_preproc._pos_emb.weight
        x = x * valid
        if self.kind == "HSTU":
            for layer in self._hstu._attention_layers:
                x = layer(x, times, 1.0 - self._attn_mask.float())
        else:
            for attention, forward in zip(self.attention_layers, self.forward_layers):
                q = F.layer_norm(x, (DIM,), eps=1e-8)
                mixed, _ = attention(q, x, x, attn_mask=self._attn_mask)
                x = forward(F.layer_norm(q + mixed, (DIM,), eps=1e-8)) * valid
        return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


def make_events():
    """Users with histories shorter and longer than the model's window, over ids that are no numbers in a row."""
    draw = random.Random(5)
    catalogue = [3 + 7 * i + (i % 3) for i in range(40)]
    events = {}
    for user in range(1, 61):
        time, events[user] = 1_000_000_000 + draw.randrange(10**6), []
        for item in draw.sample(catalogue, draw.randrange(3, 17)):
            time += draw.randrange(1, 10 ** draw.randrange(1, 7))
            events[user].append((item, time))
    return events


def batch(histories, targets):
    ids = torch.zeros(len(histories), LENGTH, dtype=torch.long)
    times = torch.zeros(len(histories), LENGTH, dtype=torch.long)
    for row, history in enumerate(histories):
        for place, (item, time) in enumerate(history[-HISTORY:]):
            ids[row, place], times[row, place] = item, time
        times[row, min(len(history), HISTORY)] = targets[row]
    return ids, times


def states(model, histories, targets):
    """The state after each history; the query's time is that of the target."""
    ids, times = batch(histories, targets)
    with torch.no_grad():
        x = model(ids, times)
    return x[torch.arange(len(histories)), [min(len(h), HISTORY) - 1 for h in histories]]


def rankings(model, catalogue, histories, targets, seen):
    scores = states(model, histories, targets) @ model.items()[catalogue].T
    ranked = []
    for row in range(len(histories)):
        order = sorted(range(len(catalogue)), key=lambda i: -scores[row, i].item())
        ranked.append([(catalogue[i], scores[row, i].item()) for i in order if catalogue[i] not in seen[row]])
    return ranked


def train(model, events):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.98), weight_decay=0)
    histories = [h[:-1] for h in events.values()]
    ids, times = batch(histories, [h[-1][1] for h in events.values()])
    for _ in range(4):
        logits = model(ids, times)[:, :-1] @ model.items().T / 0.05
        labels, valid = ids[:, 1:], ids[:, 1:] != 0
        loss = F.cross_entropy(logits[valid], labels[valid])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return optimizer


def hstu(*args):
    done = subprocess.run([HSTU, *args], capture_output=True, text=True, cwd=FOLDER)
    if done.returncode != 0:
        sys.exit(f"hstu {' '.join(args)}: {done.stderr}{done.stdout}")
    return done.stdout


def check(condition, what):
    if not condition:
        sys.exit(f"meta.py: {what}")


def check_metrics(kind, model, catalogue, events, run):
    histories = [h[:-1] for h in events.values()]
    targets = [h[-1] for h in events.values()]
    seen = [{i for i, _ in h[-HISTORY:]} for h in histories]
    ranks = []
    for (item, _), ranked in zip(targets, rankings(model, catalogue, histories, [t for _, t in targets], seen)):
        ranks.append(1 + [i for i, _ in ranked].index(item))
    got = json.loads(hstu("eval", run, "--data", "data", "--device", "cpu", "--json"))
    for k in (1, 10, 50):
        hr = sum(r <= k for r in ranks) / len(ranks)
        check(abs(got[f"hr@{k}"] - hr) < 1e-6, f"{kind}: hr@{k} is {got[f'hr@{k}']}, in torch {hr}")
    ndcg = sum(1 / math.log2(r + 1) for r in ranks if r <= 10) / len(ranks)
    mrr = sum(1 / r for r in ranks) / len(ranks)
    check(abs(got["ndcg@10"] - ndcg) < 1e-6, f"{kind}: ndcg@10 is {got['ndcg@10']}, in torch {ndcg}")
    check(abs(got["mrr"] - mrr) < 1e-6, f"{kind}: mrr is {got['mrr']}, in torch {mrr}")
    print(f"{kind}: hr@10 {got['hr@10']:.4f}, ndcg@10 {ndcg:.4f}, mrr {mrr:.4f} here and there")


def check_lists(kind, model, catalogue, events, run):
    histories = list(events.values())
    seen = [{i for i, _ in h} for h in histories]
    wanted = rankings(model, catalogue, histories, [h[-1][1] for h in histories], seen)
    text = hstu("recommend", run, "--data", "data", "--all-users", "-k", str(TOP), "--device", "cpu", "--json")
    lines = [json.loads(line) for line in text.splitlines()]
    check(len(lines) == len(histories), f"{kind}: {len(lines)} lists")
    for line, user, ranked in zip(lines, events, wanted):
        check(int(line["user"]) == user, f"{kind}: user {line['user']}")
        for got, (item, score) in zip(line["items"], ranked):
            check(int(got["id"]) == item and abs(got["score"] - score) < 2e-6,
                  f"{kind}: user {user}: {got}, in torch {item} with {score}")
        check(len(line["items"]) == TOP, f"{kind}: user {user}")


def check_return(kind, model, max_id, events, run):
    hstu("export", run, "--what", "weights", "--layout", "meta", "--format", "pt", "--out", f"{run}.pt")
    back = Model(kind, max_id)
    back.load_state_dict(torch.load(f"{FOLDER}/{run}.pt", weights_only=True), strict=True)
    histories, times = list(events.values()), [h[-1][1] for h in events.values()]
    check(torch.equal(states(model, histories, times), states(back, histories, times)), f"{kind}: other states")
    hstu("import", "meta", f"{run}.pt", "--gin-config-file", f"{kind}.gin", "--data", "data", "--out", f"{run}-2",
         "--device", "cpu")
    hstu("export", f"{run}-2", "--what", "weights", "--layout", "meta", "--format", "pt", "--out", f"{run}-2.pt")
    with open(f"{FOLDER}/{run}.pt", "rb") as one, open(f"{FOLDER}/{run}-2.pt", "rb") as two:
        check(one.read() == two.read(), f"{kind}: a second import and export differ")


def main():
    torch.manual_seed(1)
    os.makedirs(FOLDER, exist_ok=True)
    events = make_events()
    catalogue = sorted({item for history in events.values() for item, _ in history})
    max_id = catalogue[-1]
    with open(f"{FOLDER}/events.csv", "w") as f:
        f.write("user,item,time\n")
        for user, history in events.items():
            f.writelines(f"{user},{item},{time}\n" for item, time in history)
    hstu("prep", "csv", "--input", "events.csv", "--out", "data")
    for kind, config in CONFIGS.items():
        with open(f"{FOLDER}/{kind}.gin", "w") as f:
            f.write(config)
        model = Model(kind, max_id)
        optimizer = train(model, events)
        model.eval()
        torch.save({"epoch": 4, "model_state_dict": {f"module.{k}": v for k, v in model.state_dict().items()},
                    "optimizer_state_dict": optimizer.state_dict()}, f"{FOLDER}/{kind}_ep4")
        text = hstu("import", "meta", f"{kind}_ep4", "--gin-config-file", f"{kind}.gin", "--data", "data", "--out",
                    kind, "--device", "cpu")
        check("epoch 4" in text, f"import says: {text}")
        check_metrics(kind, model, catalogue, events, kind)
        check_lists(kind, model, catalogue, events, kind)
        check_return(kind, model, max_id, events, kind)
    print("ok")


main()
