#!/usr/bin/env python3
"""HSTU-large + MoL on ML-1M by rails' own code (github.com/bailuding/rails, commit 30b1da9), its train_fn as it is.

    python3 bench/peers/rails_ml1m.py RAILS --data data/ladder/mixed --movies ML-1M/movies.dat [options]

Needs torch, numpy, pandas, gin-config and absl-py.  Around train_fn, without a change to its maths: the events of
bench/ladder.sh prep, parsed once and kept on the device (the batches of rails' sampler), no DistributedDataParallel
around one device, no TensorBoard, evaluation on all users only every --every epochs and in the last, fbgemm's jagged
operators in PyTorch.  Beside rails.log: rails.csv, the best 50 of each user, for `hstu eval --recommendations`, and
rails.rails.txt, rails' own log.
"""
import argparse
import csv
import importlib.machinery
import logging
import os
import struct
import sys
import tempfile
import time
import types

start = time.time()
a = argparse.ArgumentParser()
a.add_argument("rails", help="a checkout of github.com/bailuding/rails")
a.add_argument("--data", default="data/ladder/mixed", help="what bench/ladder.sh prep made of ML-1M")
a.add_argument("--movies", required=True, help="movies.dat of ML-1M")
a.add_argument("--seconds", type=float, default=500, help="end by then, counted from the start, with an evaluation")
a.add_argument("--out", default="rails.log")
a.add_argument("--every", type=int, default=10)
a.add_argument("--epochs", type=int)
a.add_argument("--seed", type=int, default=42)
a.add_argument("--compile", action="store_true", help="rails' three @torch.compile as they are (default: eager)")
a.add_argument("--config", default="hstu-mol-sampled-softmax-n128-8x4x64-rails-final.gin")
a.add_argument("--set", action="append", default=[], help="a gin binding")
a.add_argument("--users", type=int, help="only so many users (to try it)")
args = a.parse_args()
if not args.compile:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
out = os.path.abspath(args.out)
os.makedirs(os.path.dirname(out), exist_ok=True)
args.rails, args.data, args.movies = map(os.path.abspath, (args.rails, args.data, args.movies))
sys.path.insert(0, args.rails)

import numpy
import torch

board = types.ModuleType("torch.utils.tensorboard")


class SummaryWriter:
    def __init__(self, *_, **__): pass
    def add_scalar(self, *_, **__): pass
    def flush(self): pass
    def close(self): pass


board.SummaryWriter = SummaryWriter
board.__spec__ = importlib.machinery.ModuleSpec(board.__name__, None)
sys.modules["torch.utils.tensorboard"] = board
# The jagged operators of fbgemm_gpu, in plain PyTorch: rows of a jagged tensor are values[offsets[b] : offsets[b + 1]];
# its dense form has N places a row, padded, and of a longer row the rest is left out.


def _places(offsets, n):
    """(flat places b * n + i of all elements that fit, their indices in values or None if all fit)."""
    memo = offsets.__dict__.setdefault("_places", {})
    if n not in memo:
        lengths = offsets.diff()
        row = torch.repeat_interleave(torch.arange(lengths.numel(), device=offsets.device), lengths)
        i = torch.arange(row.numel(), device=offsets.device) - offsets[row]
        kept = None
        if row.numel() and bool((i >= n).any()):
            kept = (i < n).nonzero().squeeze(1)
            row, i = row[kept], i[kept]
        memo[n] = (row * n + i, kept)
    return memo[n]


def asynchronous_complete_cumsum(t_in):
    return torch.cat([t_in.new_zeros(1), torch.cumsum(t_in, 0, dtype=t_in.dtype)])


def dense_to_jagged(dense, x_offsets, total_L=None):
    (offsets,) = x_offsets
    place, kept = _places(offsets, dense.size(1))
    values = dense.reshape((-1,) + dense.shape[2:]).index_select(0, place)
    if kept is not None:
        values = values.new_zeros((int(offsets[-1]),) + values.shape[1:]).index_copy(0, kept, values)
    return values, x_offsets


def jagged_to_padded_dense(values, offsets, max_lengths, padding_value=0.0):
    (n,) = max_lengths
    n = int(n)
    place, kept = _places(offsets[0], n)
    rows = offsets[0].numel() - 1
    if kept is not None:
        values = values.index_select(0, kept)
    out = values.new_full((rows * n,) + values.shape[1:], padding_value).index_copy(0, place, values)
    return out.reshape((rows, n) + values.shape[1:])


for _f in (asynchronous_complete_cumsum, dense_to_jagged, jagged_to_padded_dense):
    setattr(torch.ops.fbgemm, _f.__name__, _f)
sys.modules["fbgemm_gpu"] = types.ModuleType("fbgemm_gpu")  # rails imports it for the operators
import gin



def write_sequences(data, out, n_users):
    """data.seq (docs/formats.md) as rails' sasrec_format.csv: the same events in the same order."""
    raw, columns = open(os.path.join(data, "data.seq"), "rb").read(), {}
    types_of = {1: "u1", 2: "<u2", 3: "<u4", 4: "<u8", 5: "<i8", 6: "<f4", 7: "<f8"}
    for i in range(struct.unpack_from("<I", raw, 12)[0]):
        at = 64 + 64 * i
        kind, _, n, begin = struct.unpack_from("<IIQQ", raw, at + 32)
        columns[raw[at : at + 32].rstrip(b"\0").decode()] = numpy.frombuffer(raw, types_of[kind], n, begin)
    offsets, users = columns["offsets"], columns["user_id"]
    values = columns["item_id"][columns["item_index"]], columns["action"] + 1, columns["time"]
    with open(out, "w") as f:
        f.write("index,user_id,sequence_item_ids,sequence_ratings,sequence_timestamps\n")
        for i in range(len(users) if n_users is None else n_users):
            part = slice(int(offsets[i]), int(offsets[i + 1]))
            lists = ('"' + ",".join(str(int(v)) for v in x[part]) + '"' for x in values)
            f.write(f"{i},{users[i]},{','.join(lists)}\n")


work = tempfile.mkdtemp()
os.chdir(work)
os.makedirs("tmp/ml-1m")
os.makedirs("tmp/processed/ml-1m")
write_sequences(args.data, "tmp/ml-1m/sasrec_format.csv", args.users)
with open(args.movies, encoding="latin-1") as src, open("tmp/processed/ml-1m/movies.csv", "w", encoding="utf-8") as dst:
    table = csv.writer(dst)
    table.writerow(["movie_id", "title", "genres", "year", "cleaned_title"])
    for movie, title, genres in (line.rstrip().split("::") for line in src):
        table.writerow([movie, title, genres, title[-5:-1], title[:-7]])

import train

log_file = open(out, "w")


def log(text):
    for f in (log_file, sys.stdout):
        print(text, file=f, flush=True)


class Stop(Exception):
    pass


cuda = torch.cuda.is_available()
device = 0 if cuda else torch.device("cpu")


def sync():
    if cuda:
        torch.cuda.synchronize()


class State:
    epoch_start = None      # of the epoch being trained
    training = 0.0          # seconds of training alone
    epoch = 0
    last_epoch_seconds = 0.0
    full_seconds = 10.0     # of the last full evaluation
    full = False
    ending = False
    eval_start = 0.0
    users, ranks, lists = [], [], []


class Loader:
    """The batches of rails' DataLoader, from tensors that are on the device already."""

    def __init__(self, dataset, batch_size, sampler, is_train):
        rows = [dataset[i] for i in range(len(dataset))]
        self.columns = torch.utils.data.default_collate(rows)
        self.columns = {k: v.to(device) for k, v in self.columns.items()}
        self.batch_size, self.sampler, self.is_train = batch_size, sampler, is_train

    def __iter__(self):
        if self.is_train:
            finish_evaluation()
            if S.ending:
                raise Stop
            S.epoch, S.epoch_start = self.sampler.epoch, time.time()
        else:
            sync()
            S.last_epoch_seconds = time.time() - S.epoch_start
            S.training += S.last_epoch_seconds
            left = args.seconds - (time.time() - start)
            last = S.epoch + 1 >= epochs
            S.ending = last or left < S.last_epoch_seconds * 1.1 + 2 * S.full_seconds + 5
            S.full = S.ending or S.epoch % args.every == 0
            S.users, S.ranks, S.lists = [], [], []
            S.eval_start = time.time()
            if S.epoch < 2 or not S.full:
                log(f"epoch {S.epoch}: {S.last_epoch_seconds:.2f} s of training; {time.time() - start:.0f} s in all")
        order = torch.tensor(list(self.sampler), device=device)
        for i in range(0, len(order), self.batch_size):
            index = order[i : i + self.batch_size]
            yield {k: v[index] for k, v in self.columns.items()}
            if not self.is_train and not S.full:
                return


S = State()


def finish_evaluation():
    """After a full evaluation: its line and the lists, before the next epoch starts."""
    if not S.full or not S.users:
        return
    sync()
    S.full_seconds = time.time() - S.eval_start
    ranks = torch.cat(S.ranks).double()
    n = ranks.numel()
    hr = lambda k: (ranks <= k).double().mean().item()
    ndcg = lambda k: torch.where(ranks <= k, 1 / torch.log2(ranks + 1), torch.zeros_like(ranks)).mean().item()
    gb = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0
    log(f"full epoch {S.epoch} ({S.epoch + 1} trained): users {n} HR@10 {hr(10):.4f} NDCG@10 {ndcg(10):.4f} "
        f"HR@50 {hr(50):.4f} NDCG@50 {ndcg(50):.4f} MRR {(1 / ranks).mean().item():.4f}; "
        f"training {S.training:.1f} s, evaluation "
        f"{S.full_seconds:.1f} s, in all {time.time() - start:.0f} s, {gb:.1f} GiB")
    part = out + ".part"
    with open(part, "w") as f:
        f.write("user,item\n")
        for user, items in zip(torch.cat(S.users).tolist(), torch.cat(S.lists).tolist()):
            f.writelines(f"{user},{item}\n" for item in items)
    os.replace(part, os.path.splitext(out)[0] + ".csv")
    S.users = []


def create_data_loader(dataset, batch_size, world_size, rank, shuffle, drop_last=False):
    sampler = torch.utils.data.distributed.DistributedSampler(
        dataset, num_replicas=1, rank=0, shuffle=shuffle, seed=0, drop_last=drop_last)
    return sampler, Loader(dataset, batch_size, sampler, dataset._ignore_last_n > 0)


measure = train.eval_metrics_v2_from_tensors


def eval_metrics(state, model, features, target_ids, **rest):
    result = measure(state, model, features, target_ids=target_ids, include_eval_top_k_ids=True, **rest)
    ids = result.pop("eval_top_k_ids")
    if S.full and S.epoch_start is not None:
        S.users.append(features.past_payloads["user_ids"])
        S.lists.append(ids[:, :50])
        S.ranks.append(1.0 / result["mrr"])
    return result


class OneDevice(torch.nn.Module):  # in place of DistributedDataParallel, and like it without the buffers' broadcast
    def __init__(self, module, **_):
        super().__init__()
        self.module = module

    def forward(self, **inputs):
        return self.module(**inputs)


train.setup = lambda *_: None
train.cleanup = lambda: None
train.DDP = OneDevice
train.create_data_loader = create_data_loader
train.eval_metrics_v2_from_tensors = eval_metrics
train.torch.save = lambda *_, **__: None

logging.getLogger().addHandler(logging.StreamHandler(open(os.path.splitext(out)[0] + ".rails.txt", "w")))
gin.parse_config_file(os.path.join(args.rails, "configs/ml-1m", args.config))
for binding in args.set:
    gin.parse_config(binding)
gin.bind_parameter("train_fn.eval_interval", 10**9)
gin.bind_parameter("train_fn.random_seed", args.seed)
if args.epochs:
    gin.bind_parameter("train_fn.num_epochs", args.epochs)
epochs = gin.query_parameter("train_fn.num_epochs")
log(f"torch {torch.__version__}, {torch.cuda.get_device_name() if cuda else 'CPU'}, seed {args.seed}, "
    f"{epochs} epochs, {'compiled' if args.compile else 'eager'}")
try:
    train.train_fn(device, 1, 0)
    finish_evaluation()
    log("done: all epochs")
except Stop:
    log("done" + (": all epochs" if S.epoch + 1 >= epochs else f": {S.epoch + 1} of {epochs} epochs, time is over"))
