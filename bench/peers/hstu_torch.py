#!/usr/bin/env python3
"""The research HSTU (Meta's hstu_encoder, retrieval) in PyTorch eager: the peer of `hstu bench train --device cpu`.

Our own code of the same maths, written as people write it in eager PyTorch: padded (B, N, ...) attention
with the relative position and time bias, (tokens, negatives, E) gathered for the sampled softmax, AdamW over all
parameters.  Reads a prepared data set (docs/formats.md).

    python3 bench/peers/hstu_torch.py build/ml-1m [--threads 2] [--steps 48] [--layers 2 --heads 1 --dim 50]
        [--device cpu|cuda] [--sparse] [--eval-users 512]

--sparse: the table's gradient is sparse (nn.Embedding's sparse=True), and SparseAdam updates the rows of a batch.
--eval-users: then ranks the last event of so many users in the whole catalogue, a batch of users at a time.
Prints one JSON object: seconds of an epoch (48 steps on ML-1M; scaled from --steps), tokens/s, mean loss, the peak of
the memory (the process's, or the GPU's) in training, seconds of the evaluation.
"""
import argparse, json, math, os, resource, time

import numpy as np
import torch
import torch.nn.functional as F


def read_seq(path):
    raw = np.memmap(os.path.join(path, "data.seq") if os.path.isdir(path) else path, mode="r")
    n = int(raw[12:16].view("<u4")[0])
    kinds = [None, "u1", "<u2", "<u4", "<u8", "<i8"]
    columns = {}
    for entry in raw[64:64 + 64 * n].reshape(n, 64):
        name = bytes(entry[:32]).rstrip(b"\0").decode()
        count, offset = (int(x) for x in entry[40:56].view("<u8"))
        columns[name] = np.frombuffer(raw, kinds[int(entry[32:36].view("<u4")[0])], count, offset)
    return columns


class Layer(torch.nn.Module):
    def __init__(self, dim, heads, d, n, dropout):
        super().__init__()
        self.heads, self.d, self.n, self.dropout = heads, d, n, dropout
        self.uvqk = torch.nn.Parameter(torch.empty(dim, 4 * heads * d).normal_(0, 0.02))
        self.o = torch.nn.Linear(heads * d, dim)
        self.pos_w = torch.nn.Parameter(torch.empty(2 * n - 1).normal_(0, 0.02))
        self.ts_w = torch.nn.Parameter(torch.empty(129).normal_(0, 0.02))

    def forward(self, x, buckets, distance, causal, lengths_mask):
        b, n, e = x.shape
        h, d = self.heads, self.d
        u, v, q, k = F.silu(F.layer_norm(x, (e,), eps=1e-6) @ self.uvqk).split(h * d, dim=-1)
        q, k, v = (t.view(b, n, h, d).transpose(1, 2) for t in (q, k, v))
        bias = self.pos_w[distance] + self.ts_w[buckets]
        a = F.silu(q @ k.transpose(-1, -2) + bias[:, None]) / n * causal
        o = (a @ v).transpose(1, 2).reshape(b, n, h * d)
        y = u * F.layer_norm(o, (h * d,), eps=1e-6)
        return (self.o(F.dropout(y, self.dropout, self.training)) + x) * lengths_mask


def main():
    p = argparse.ArgumentParser()
    p.add_argument("data")
    for name, kind, default in (("threads", int, 2), ("steps", int, 48), ("batch", int, 128), ("layers", int, 2),
                                ("heads", int, 1), ("dim", int, 50), ("head-dim", int, 50), ("max-len", int, 200),
                                ("negatives", int, 128), ("dropout", float, 0.2), ("device", str, "cpu"), ("eval-users", int, 0)):
        p.add_argument("--" + name, type=kind, default=default)
    p.add_argument("--sparse", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.set_default_device(a.device)
    torch.manual_seed(1)
    c = read_seq(a.data)
    offsets, item, times = c["offsets"].astype(np.int64), c["item_index"], c["time"]
    n_items, n_users = len(c["item_id"]) - 1, len(offsets) - 1
    n = a.max_len + 11
    table = torch.nn.Parameter(torch.nn.init.trunc_normal_(torch.empty(n_items + 1, a.dim), 0, 0.02, -0.04, 0.04))
    position = torch.nn.Parameter(torch.nn.init.xavier_normal_(torch.empty(n, a.dim)))
    layers = torch.nn.ModuleList(Layer(a.dim, a.heads, a.head_dim, n, a.dropout) for _ in range(a.layers))
    others = [position, *layers.parameters()]
    settings = dict(lr=1e-3, betas=(0.9, 0.98))
    optimizers = [torch.optim.AdamW(others if a.sparse else [table, *others], weight_decay=0, **settings)]
    if a.sparse:
        optimizers.append(torch.optim.SparseAdam([table], **settings))

    def rows(ids):
        return F.embedding(ids, table, sparse=a.sparse)

    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    distance, causal = n - 1 + j - i, (j <= i).float()
    order = np.random.default_rng(1).permutation(n_users)

    def make_batch(step, held_out=1):
        users = order[step * a.batch:(step + 1) * a.batch]
        ids = torch.zeros(len(users), n, dtype=torch.int64, device="cpu")
        ts = torch.zeros(len(users), n + 1, dtype=torch.int64, device="cpu")
        lengths = torch.zeros(len(users), dtype=torch.int64, device="cpu")
        for row, user in enumerate(users):
            end = offsets[user + 1] - held_out  # leave one out
            begin = max(offsets[user], end - 1 - a.max_len)
            events = int(end - begin)
            ids[row, :events] = torch.from_numpy(item[begin:end].astype(np.int64))
            ts[row, :events] = torch.from_numpy(times[begin:end].copy())
            lengths[row] = events - 1  # the last one is only a label
        return ids.to(a.device), ts.to(a.device), lengths.to(a.device)

    def encode(ids, ts, lengths):
        mask = (torch.arange(n)[None] < lengths[:, None])
        dt = (ts[:, 1:, None] - ts[:, None, :-1]).abs().clamp(min=1).float()
        buckets = (dt.log() / 0.301).long().clamp(0, 128)
        x = F.dropout(rows(ids) * math.sqrt(a.dim) + position, a.dropout, layers.training) * mask[..., None]
        for layer in layers:
            x = layer(x, buckets, distance, causal, mask[..., None])
        return x, mask

    def step_once(step):
        ids, ts, lengths = make_batch(step)
        x, mask = encode(ids, ts, lengths)
        query = F.normalize(x[mask], dim=-1, eps=1e-6)
        positive = ids[:, 1:][mask[:, :-1]]
        negative = torch.randint(1, n_items + 1, (len(positive), a.negatives))
        s0 = (query * F.normalize(rows(positive), dim=-1, eps=1e-6)).sum(-1, keepdim=True) / 0.05
        sr = (F.normalize(rows(negative), dim=-1, eps=1e-6) @ query[:, :, None])[..., 0] / 0.05
        sr = sr.masked_fill(negative == positive[:, None], -5e4)
        loss = -F.log_softmax(torch.cat([s0, sr], 1), dim=1)[:, 0].mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.item() * len(positive), len(positive)

    @torch.no_grad()
    def evaluate(n_left):
        layers.eval()
        corpus, found, step = F.normalize(table[1:], dim=-1, eps=1e-6).T, 0, 0
        while n_left > 0:
            ids, ts, lengths = make_batch(step, 0)
            at = torch.arange(len(ids))
            target = ids[at, lengths]
            x, _ = encode(ids * (torch.arange(n)[None] < lengths[:, None]), ts, lengths)
            scores = F.normalize(x[at, lengths - 1], dim=-1, eps=1e-6) @ corpus
            own = scores[at, target - 1].clone()
            for row in range(len(ids)):
                scores[row, ids[row, :lengths[row]] - 1] = -math.inf
            found += ((scores > own[:, None]).sum(1) < 10).sum().item()
            n_left, step = n_left - len(ids), step + 1
        return found

    step_once(0)  # warm-up, also a step of training
    losses, tokens, start = 0.0, 0, time.time()
    for step in range(a.steps):
        loss, count = step_once(step % (-(-n_users // a.batch)))
        losses, tokens = losses + loss, tokens + count
    seconds = time.time() - start
    epoch = seconds * -(-n_users // a.batch) / a.steps
    peak = torch.cuda.max_memory_allocated() if a.device != "cpu" else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.time()
    if a.eval_users > 0:
        evaluate(min(a.eval_users, n_users))
    more = {"ms_per_step": round(1e3 * seconds / a.steps, 3), "peak_mb": round(peak / 1e6, 1), "eval_seconds": round(time.time() - start, 3)}
    print(json.dumps({**more, "peer": "pytorch " + torch.__version__, "threads": a.threads, "steps": a.steps, "seconds": round(seconds, 3),
                      "epoch_seconds": round(epoch, 3), "tokens_per_s": round(tokens / seconds), "loss": round(losses / tokens, 4)}))


main()
