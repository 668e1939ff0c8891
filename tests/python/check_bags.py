#!/usr/bin/env python3
"""Pooled lookups of hstu.Table, hstu.TableCollection and hstu.embedding against torch.nn.EmbeddingBag in float64.

usage: check_bags.py [DEVICE]     of the tables: cpu, or cuda, where the tensors are then, too

Values, gradients of rows and of weights of random bags, some empty, within 2e-6 of the largest; exit code 77 without
torch.  The last line is "ok"."""
import sys

try:
    import numpy
    import torch
except ImportError as e:
    print(f"check_bags.py: skipped: {e}")
    sys.exit(77)

import hstu
from hstu.embedding import EmbeddingBag, EmbeddingBagCollection

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
WORST = 0.0


def near(what, got, want):
    global WORST
    got, want = torch.as_tensor(got).cpu().double(), want.detach().double()
    error = ((got - want).abs().max() / want.abs().max().clamp(min=1)).item() if want.numel() else 0.0
    if got.shape != want.shape or not error < 2e-6:
        sys.exit(f"check_bags.py: {what}: shapes {tuple(got.shape)} and {tuple(want.shape)}, off by {error}")
    WORST = max(WORST, error)


def refuses(part, work, kind=hstu.Error):
    try:
        work()
    except kind as e:
        if part not in str(e):
            sys.exit(f"check_bags.py: says '{e}', not '{part}'")
    else:
        sys.exit(f"check_bags.py: not refused: {part}")


def make(dim, n_rows, g, max_batch=65536):
    """A table and torch's of the same rows; row i is that of id i - n_rows // 2, some of them negative."""
    table = hstu.Table(dim, 4096, optimizer="sgd", device=DEVICE, max_batch=max_batch)
    rows = torch.from_numpy(g.standard_normal((n_rows, dim)).astype(numpy.float32))
    table.insert(numpy.arange(n_rows) - n_rows // 2, rows.numpy())
    return table, rows


def reference(mode, rows, ids, offsets, weights):
    """torch's takes weights with a sum alone: a mean of products is their sum divided by the number of ids."""
    if weights is not None and mode == "mean":
        counts = (offsets[1:] - offsets[:-1]).clamp(min=1)
        return reference("sum", rows, ids, offsets, weights) / counts[:, None]
    return torch.nn.functional.embedding_bag(ids, rows, offsets, mode=mode, per_sample_weights=weights, include_last_offset=True)


def case(seed, mode, has_weights):
    g = numpy.random.default_rng(seed)
    dim, n_rows, n_bags = (1, 4, 7, 64, 128)[seed % 5], 40, 50
    table, rows = make(dim, n_rows, g)
    small = make(dim, n_rows, numpy.random.default_rng(seed), max_batch=11)[0]  # the largest bag
    module, want_rows = EmbeddingBag(table, mode, include_last_offset=True), rows.double().requires_grad_()
    for _ in range(2):  # two backwards, one step
        lengths = g.integers(0, 12, n_bags)
        offsets = torch.from_numpy(numpy.concatenate([[0], numpy.cumsum(lengths)]))
        index = torch.from_numpy(g.integers(0, n_rows, int(offsets[-1])))
        weights = torch.from_numpy(g.standard_normal(len(index)).astype(numpy.float32)) if has_weights else None
        dy = torch.from_numpy(g.standard_normal((n_bags, dim)).astype(numpy.float32))
        w = weights.to(DEVICE, copy=True).requires_grad_() if has_weights else None
        want_w = weights.double().requires_grad_() if has_weights else None
        ids = index - n_rows // 2
        y, want = module(ids.to(DEVICE), offsets, w), reference(mode, want_rows, index, offsets, want_w)
        numpys = ids.numpy(), offsets.numpy(), weights.numpy() if has_weights else None
        near("a lookup in pieces", small.lookup_pooled(*numpys[:2], mode=mode, weights=numpys[2]), want)
        near("values", y.detach(), want)
        y.backward(dy.to(DEVICE))
        want.backward(dy.double())
        if has_weights:
            near("gradients of the weights", w.grad, want_w.grad)
    module.step(lr=0.25)
    ids = numpy.arange(n_rows) - n_rows // 2
    near("rows after a step", table.find(ids)[0], rows.double() - 0.25 * want_rows.grad)
    if module.pending:
        sys.exit("check_bags.py: gradients are left after a step")


def forms():
    """Ids of two dimensions, offsets without the last, eval()."""
    table, rows = make(8, 20, numpy.random.default_rng(1))
    bag, theirs = EmbeddingBag(table, "mean"), torch.nn.EmbeddingBag.from_pretrained(rows.double(), mode="mean")
    ids = torch.tensor([[1, 2, 3], [9, 9, 0]])
    near("ids of two dimensions", bag(ids - 10).detach(), theirs(ids))
    offsets = torch.tensor([0, 2, 2])
    near("offsets", bag(ids[0] - 10, offsets).detach(), theirs(ids[0], offsets))
    near("no ids", bag(torch.zeros(3, 0, dtype=torch.int64)).detach(), torch.zeros(3, 8))
    n = len(table)
    bag.eval()
    y = bag(torch.tensor([5000]), torch.tensor([0]))
    if len(table) != n or y.requires_grad or y.abs().sum() != 0:
        sys.exit("check_bags.py: eval() changes the table, or has gradients")
    bag.train()
    bag(torch.tensor([5000]), torch.tensor([0]))
    if len(table) != n + 1:
        sys.exit("check_bags.py: an id without a row got none in training")
    refuses("mode 'max': it is one of sum, mean", lambda: EmbeddingBag(table, mode="max"))
    refuses("of one dimension with offsets", lambda: bag(ids[0]))
    refuses("weights (2,) for ids (3,)", lambda: bag(ids[0], offsets, torch.ones(2)))
    refuses("of the weights is nan", lambda: bag(ids[0], offsets, torch.full((3,), float("nan"))))
    bag(ids[0] - 10, offsets).mul(float("nan")).sum().backward()
    refuses("of the gradients is nan", lambda: bag.step())


def collection():
    """Two tables, a KeyedJaggedTensor's parts, one step of both."""
    g = numpy.random.default_rng(5)
    made = {"user": make(4, 20, g), "item": make(6, 30, g)}
    module = EmbeddingBagCollection({name: table for name, (table, _) in made.items()}, "mean")
    lengths, values = torch.tensor([2, 0, 1, 3, 1, 1]), torch.tensor([1, 2, 3, 4, 5, 4, 0, 6])
    got = module((["user", "item"], lengths, values))
    numpys = module.collection.lookup_pooled((["user", "item"], lengths.numpy(), values.numpy()), mode="mean")
    sum((y * y).sum() for y in got.values()).backward()
    module.step(lr=0.5)
    for name, ids, offsets in (("user", values[:3], [0, 2, 2, 3]), ("item", values[3:], [0, 3, 4, 5])):
        table, rows = made[name]
        rows, index = rows.double().requires_grad_(), ids + len(rows) // 2
        want = reference("mean", rows, index, torch.tensor(offsets), None)
        (want * want).sum().backward()
        near(f"{name} of the collection", got[name].detach(), want)
        near(f"{name} of numpy's collection", numpys[name], want)
        near(f"{name} after a step", table.find(ids.numpy())[0], (rows - 0.5 * rows.grad)[index])
    for parts, sentence in (((["user", "user"], [1, 1], [1, 2]), "keys must be distinct, got ['user', 'user']"),
                            ((["user", "item"], [1, 1, 1], [1, 2, 3]), "number of lengths, 3, must be a multiple of the number of keys, 2"),
                            (([], [1], [5]), "number of lengths, 1, must be a multiple of the number of keys, 0"),
                            ((["user"], [2, -1], [1]), "lengths must not be negative, got -1"),
                            ((["user"], [1, 2], [1, 2]), "must add up to the number of ids, 2; they add up to 3")):
        refuses(sentence, lambda: module(parts))
    refuses("no table 'shop'", lambda: module({"shop": (values, torch.tensor([0, 8]))}))


for mode in ("sum", "mean"):
    for seed in range(20):
        case(seed, mode, seed // 2 % 2 == 1)
forms()
collection()
print(f"40 cases on {DEVICE}, torch {torch.__version__}: at most {WORST:.1e} of the largest number off")
print("ok")
