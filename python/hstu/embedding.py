"""Dynamic tables as torch modules: EmbeddingBag and a collection of them.

    bag = hstu.embedding.EmbeddingBag(hstu.Table(64), mode="mean")
    loss(bag(ids, offsets)).backward()
    bag.step(lr=1e-3)          # one update of the table with the gradients since the last step

Rows are the table's, not parameters: no torch optimizer sees them.  Needs numpy beside torch."""
import itertools
from typing import Any, Dict

import numpy
import torch

from . import _library as _l
from .table import Table, TableCollection, bags_by_name, pooling_of

__all__ = ["EmbeddingBag", "EmbeddingBagCollection"]


def _host(tensor, kind=None):
    return None if tensor is None else numpy.asarray(tensor.detach().cpu() if torch.is_tensor(tensor) else tensor, dtype=kind)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _, weights, bag, ids, offsets):
        device = ids.device if torch.is_tensor(ids) else None
        ctx.bag, ctx.kind = bag, None if weights is None else (weights.device, weights.dtype)
        ctx.bags = _host(ids), _host(offsets), _host(weights, numpy.float32)
        rows = bag.table.lookup_pooled(*ctx.bags[:2], mode=bag.mode, weights=ctx.bags[2], read_only=not bag.training)
        return torch.from_numpy(rows).to(device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradients):
        g = _host(gradients, numpy.float32)
        if ctx.needs_input_grad[0]:
            ctx.bag.pending.append((*ctx.bags, g))
        if not ctx.needs_input_grad[1]:
            return (None,) * 5
        dw = ctx.bag.table.weight_gradients(*ctx.bags[:2], g, mode=ctx.bag.mode, read_only=not ctx.needs_input_grad[0])
        return None, torch.from_numpy(dw).to(*ctx.kind), None, None, None


class EmbeddingBag(torch.nn.Module):
    """torch.nn.EmbeddingBag (sum, mean) on a Table: ids are any 64-bit integers, and in training new ones get a row; in eval()
    the table is not changed.  The result is float32 on the device of the ids.

    Unlike torch's, a mean takes per_sample_weights, too: their products with the rows are divided by the number of ids."""

    def __init__(self, table: Table, mode: str = "sum", include_last_offset: bool = False) -> None:
        super().__init__()
        pooling_of(mode)  # refuses what is none
        self.table, self.mode, self.include_last_offset = table, mode, include_last_offset
        self.pending = []  # (ids, offsets, weights, gradients) of each backward since the last step; clear() drops them

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> torch.Tensor:
        if input.dim() == 2 and offsets is None:
            offsets = torch.arange(0, input.numel() + 1, input.shape[1]) if input.shape[1] else torch.zeros(len(input) + 1)
        elif input.dim() != 1 or offsets is None:
            raise _l.UsageError("EmbeddingBag: ids of one dimension with offsets, or of two without")
        elif not self.include_last_offset:
            offsets = torch.cat([offsets, offsets.new_tensor([input.numel()])])
        if per_sample_weights is not None:
            if per_sample_weights.shape != input.shape:
                raise _l.UsageError(f"EmbeddingBag: weights {tuple(per_sample_weights.shape)} for ids {tuple(input.shape)}")
            per_sample_weights = per_sample_weights.reshape(-1)
        return self._pool(input.reshape(-1), offsets.long(), per_sample_weights)

    def _pool(self, ids, offsets, weights):
        anchor = torch.zeros((), requires_grad=self.training)  # the rows in autograd's graph
        return _Pool.apply(anchor, weights, self, ids, offsets)

    def step(self, **step: Any) -> None:
        """One update of the table (Table.update's lr, betas, eps, weight_decay) with the gradients of every backward since the
        last step, added up.  They are dropped, also where the update fails."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        ids, offsets, weights, gradients = zip(*pending)
        starts = itertools.accumulate((len(i) for i in ids), initial=0)
        offsets = [o[:-1] + start for o, start in zip(offsets, starts)]
        if any(w is not None for w in weights):
            weights = numpy.concatenate([numpy.ones(len(i)) if w is None else w for i, w in zip(ids, weights)])
        else:
            weights = None
        ids = numpy.concatenate(ids)
        self.table.update_pooled(ids, numpy.append(numpy.concatenate(offsets), len(ids)), numpy.concatenate(gradients),
                                 mode=self.mode, weights=weights, **step)


class EmbeddingBagCollection(torch.nn.Module):
    """EmbeddingBags by name: {name: (bags, dim)} of what TableCollection.lookup_pooled takes, with tensors."""

    def __init__(self, tables: Any, mode: str = "sum") -> None:
        super().__init__()
        self.collection = tables if isinstance(tables, TableCollection) else TableCollection(tables)
        self.names = list(self.collection.tables)
        self.bags = torch.nn.ModuleList(EmbeddingBag(self.collection[name], mode) for name in self.names)

    def forward(self, features: Any) -> Dict[str, torch.Tensor]:
        features = bags_by_name(features)
        for name in features:
            self.collection[name]  # says which there are, before a table is changed
        return {name: self.bags[self.names.index(name)]._pool(*parts) for name, parts in features.items()}

    def step(self, **step: Any) -> None:
        """EmbeddingBag.step of each table."""
        for bag in self.bags:
            bag.step(**step)
