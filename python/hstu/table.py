"""Dynamic embedding tables: rows for any 64-bit id."""
from __future__ import annotations

import ctypes
import itertools
import operator
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_uint8, c_uint64, c_void_p
from typing import Any, Dict, List, Mapping, Tuple

from . import _library as _l


class _Config(Structure):
    _fields_ = [("dim", c_int32), ("optimizer", c_int32), ("eviction", c_int32), ("capacity", c_int64),
                ("host_capacity", c_int64), ("max_batch", c_int64), ("seed", c_uint64), ("first_scale", c_float),
                ("admit_count", c_int32), ("device", c_char_p), ("later", c_uint8 * 256)]  # fields of later versions


class _Step(Structure):
    _fields_ = [("lr", c_float), ("beta1", c_float), ("beta2", c_float), ("eps", c_float), ("weight_decay", c_float),
                ("later", c_uint8 * 256)]


class _Bags(Structure):
    _fields_ = [("n_bags", c_int64), ("offsets", c_void_p), ("ids", c_void_p), ("weights", c_void_p), ("pooling", c_int32),
                ("is_read_only", c_int32)]


class _Request(Structure):
    _fields_ = [("table", c_void_p), ("name", c_char_p), ("bags", _Bags), ("out", c_void_p)]


for _name, _types in {
        "hstu_table_create": [POINTER(c_void_p), POINTER(_Config)],
        "hstu_table_size": [c_void_p, POINTER(c_int64)],
        "hstu_table_find": [c_void_p, c_int64, c_void_p, c_void_p, c_void_p],
        "hstu_table_lookup": [c_void_p, c_int64, c_void_p, c_void_p],
        "hstu_table_insert": [c_void_p, c_int64, c_void_p, c_void_p, POINTER(c_int64)],
        "hstu_table_update": [c_void_p, c_int64, c_void_p, c_void_p, POINTER(_Step)],
        "hstu_table_lookup_pooled": [c_void_p, POINTER(_Bags), c_void_p],
        "hstu_table_update_pooled": [c_void_p, POINTER(_Bags), c_void_p, POINTER(_Step)],
        "hstu_table_weight_gradients": [c_void_p, POINTER(_Bags), c_void_p, c_void_p],
        "hstu_tables_lookup_pooled": [c_int32, POINTER(_Request)],
        "hstu_table_erase": [c_void_p, c_int64, c_void_p, POINTER(c_int64)],
        "hstu_table_save": [c_void_p, c_char_p],
        "hstu_table_load": [c_void_p, c_char_p, POINTER(c_int64)]}.items():
    getattr(_l.lib, _name).argtypes, getattr(_l.lib, _name).restype = _types, c_int32
for _name, _type in {"hstu_table_defaults": POINTER(_Config), "hstu_table_step_defaults": POINTER(_Step),
                     "hstu_table_destroy": c_void_p}.items():
    getattr(_l.lib, _name).argtypes, getattr(_l.lib, _name).restype = [_type], None

_OPTIMIZERS = ["sgd", "adam", "adagrad", "rowwise_adagrad"]
_EVICTIONS = ["none", "lru", "lfu"]
_MODES = ["sum", "mean"]


def _number(names, name, what):
    if name not in names:
        raise _l.UsageError(f"{what} {name!r}: it is one of {', '.join(names)}")
    return names.index(name)


def pooling_of(mode):
    """The number of "sum" or "mean"."""
    return _number(_MODES, mode, "mode")


def _id(value):
    """An id, where a negative one stands for the unsigned number of the same 64 bits, as in numpy's arrays of int64."""
    try:
        number = operator.index(value)  # numpy's integers overflow where Python's grow
    except TypeError:
        return value  # not an integer: numbers() says so
    return number + 2**64 if -2**63 <= number < 0 else number


def _ids(values, what="id"):
    """(count, memory of uint64 ids): arrays of 64-bit integers as they are, other sequences copied."""
    array = _l.array(values, what + "s")
    if array is not None:
        if array.dtype.kind not in "iu":
            raise _l.UsageError(f"{what}s are integers, not {array.dtype}")
        array = array.reshape(-1).astype(array.dtype.kind + "8", order="C", copy=not array.flags.c_contiguous)
        return array.size, array, array.ctypes.data
    memory = _l.numbers(c_uint64, (_id(v) for v in values), what)
    return len(memory), memory, ctypes.addressof(memory)


def _rows(values, n, dim, what):
    """Memory of (n, dim) float32 numbers."""
    array = _l.array(values, what)
    if array is not None:
        import numpy
        if array.dtype.kind not in "fiu":
            raise _l.UsageError(f"{what} are numbers, not {array.dtype}")
        if array.shape != (n, dim):
            raise _l.UsageError(f"{what}: expected shape {(n, dim)}, got {array.shape}")
        with numpy.errstate(over="ignore"):  # the library refuses infinity
            array = numpy.ascontiguousarray(array, dtype=numpy.float32)
        return array, array.ctypes.data
    try:
        rows = [list(row) for row in values]
    except TypeError as e:
        raise _l.UsageError(f"{what} are one list of numbers an id") from e
    if len(rows) != n or any(len(row) != dim for row in rows):
        lengths = sorted({len(row) for row in rows})
        got = (len(rows), *lengths) if len(lengths) < 2 else f"rows of different lengths: {', '.join(map(str, lengths))}"
        raise _l.UsageError(f"{what}: expected shape {(n, dim)}, got {got}")
    try:
        memory = (c_float * (n * dim))(*(x for row in rows for x in row))
    except (TypeError, OverflowError) as e:
        raise _l.UsageError(f"{what} are numbers of float32: {e}") from e
    return memory, ctypes.addressof(memory)


def _step(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    s = _Step()
    _l.lib.hstu_table_step_defaults(_l.reference(s))
    s.lr, (s.beta1, s.beta2), s.eps, s.weight_decay = lr, betas, eps, weight_decay
    return _l.reference(s)


def _bags(ids, offsets, mode, weights, read_only=False):
    """(the struct of C, number of ids, memory that must outlive it)."""
    n, *keep = _ids(ids)
    n_offsets, offset_memory, at = _ids(offsets, "offset")
    last = ctypes.c_int64.from_address(at + 8 * (n_offsets - 1)).value if n_offsets else None
    if last != n:
        raise _l.UsageError(f"offsets: one more than there are bags, the last of them the number of ids, {n}, not {last}")
    if weights is not None:
        rows = weights.reshape(-1, 1) if hasattr(weights, "reshape") else [[w] for w in weights]
        if len(rows) != n:
            raise _l.UsageError(f"weights: expected one for each id, {n} in all; got {len(rows)}")
        weights, weights_at = _rows(rows, n, 1, "weights")
    bags = _Bags(n_offsets - 1, at, keep[1], None if weights is None else weights_at, pooling_of(mode), bool(read_only))
    return bags, n, (keep, offset_memory, weights)


class Table(_l.Object):
    """A dynamic embedding table.

    >>> table = hstu.Table(4, device="cpu", first_scale=0)
    >>> table.lookup([7, 8]).tolist(), table
    ([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], <hstu.Table: 2 rows of 4>)
    >>> table.insert([7], [[1, 2, 3, 4]])
    0
    >>> table.lookup_pooled([7, 7, 8], offsets=[0, 2, 3]).tolist()
    [[2.0, 4.0, 6.0, 8.0], [0.0, 0.0, 0.0, 0.0]]

    optimizer: sgd, adam, adagrad or rowwise_adagrad; eviction: none, lru or lfu; capacity: rows on the device, host_capacity:
    more of them in host memory.  Rows come as numpy's arrays where numpy is there, (ids, dim) float32; they are given as arrays
    of that shape or as one list of numbers an id.  Arrays of int64 and float32 in host memory, also of torch, JAX and whatever
    speaks DLPack, are not copied.

    ids: integers from -2**63 to 2**64 - 1; -1 and 2**64 - 1 are the same id.  Calls of several threads run one after the other;
    a child of fork() must make its own table."""
    _close = _l.lib.hstu_table_destroy

    def __init__(self, dim: int, capacity: int = 65536, *, optimizer: str = "adam", eviction: str = "lru", host_capacity: int = 0,
                 max_batch: int = 65536, seed: int = 0, first_scale: float = 0.01, admit_count: int = 1,
                 device: str = "auto") -> None:
        c = _Config()
        _l.lib.hstu_table_defaults(_l.reference(c))
        for kind, names in ((c_int32, {"dim": dim, "admit_count": admit_count}), (c_uint64, {"seed": seed}),
                            (c_int64, {"capacity": capacity, "host_capacity": host_capacity, "max_batch": max_batch})):
            for name, value in names.items():
                setattr(c, name, _l.integer(kind, value, name))
        c.optimizer, c.eviction = _number(_OPTIMIZERS, optimizer, "optimizer"), _number(_EVICTIONS, eviction, "eviction")
        c.first_scale, c.device = first_scale, _l.text_bytes(device, "device")
        handle = c_void_p()
        _l.call("hstu_table_create", _l.reference(handle), _l.reference(c))
        self.dim, self._handle = c.dim, handle

    def __repr__(self) -> str:
        return f"<hstu.Table: {f'{len(self):,} rows' if '_handle' in self.__dict__ else 'closed, rows'} of {self.dim}>"

    def __len__(self) -> int:
        n = c_int64()
        _l.call("hstu_table_size", self._handle, _l.reference(n))
        return n.value

    def find(self, ids: Any) -> Tuple[_l.Floats, List[bool]]:
        """(rows, found): rows of ids, zeros where there is none, and a list that says where there is one.  Changes nothing."""
        n, keep, address = _ids(ids)
        rows, to = _l.floats((n, self.dim))
        found = (c_uint8 * max(n, 1))()
        _l.call("hstu_table_find", self._handle, n, address, to, ctypes.addressof(found))
        return rows, [bool(x) for x in found[:n]]

    def lookup(self, ids: Any) -> _l.Floats:
        """Rows of ids; an id without one gets it."""
        n, keep, address = _ids(ids)
        rows, to = _l.floats((n, self.dim))
        _l.call("hstu_table_lookup", self._handle, n, address, to)
        return rows

    def insert(self, ids: Any, rows: Any) -> int:
        """Inserts distinct ids with these rows, or replaces them; the number of ids that found no place."""
        n, keep, address = _ids(ids)
        values, at = _rows(rows, n, self.dim, "rows")
        rejected = c_int64()
        _l.call("hstu_table_insert", self._handle, n, address, at, _l.reference(rejected))
        return rejected.value

    def update(self, ids: Any, gradients: Any, *, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
               weight_decay: float = 0.0) -> None:
        """One step of the optimizer; gradients of an id that repeats are added up.  eps is above 0, except for sgd."""
        n, keep, address = _ids(ids)
        values, at = _rows(gradients, n, self.dim, "gradients")
        _l.call("hstu_table_update", self._handle, n, address, at, _step(lr, betas, eps, weight_decay))

    def lookup_pooled(self, ids: Any, offsets: Any, *, mode: str = "sum", weights: Any = None, read_only: bool = False) -> _l.Floats:
        """(bags, dim): the sum or mean of the rows of each bag, times their weights; a bag without ids is zeros.

        Bag b has ids[offsets[b]:offsets[b + 1]]: offsets are one more than there are bags, as torch's with include_last_offset.
        The mean divides by the number of ids.  An id without a row gets it; with read_only it counts as zeros."""
        bags, _, keep = _bags(ids, offsets, mode, weights, read_only)
        rows, to = _l.floats((bags.n_bags, self.dim))
        _l.call("hstu_table_lookup_pooled", self._handle, _l.reference(bags), to)
        return rows

    def update_pooled(self, ids: Any, offsets: Any, gradients: Any, *, mode: str = "sum", weights: Any = None,
                      **step: Any) -> None:
        """update() by the gradients of the bags, (bags, dim); step: its lr, betas, eps and weight_decay."""
        bags, _, keep = _bags(ids, offsets, mode, weights)
        values, at = _rows(gradients, bags.n_bags, self.dim, "gradients")
        _l.call("hstu_table_update_pooled", self._handle, _l.reference(bags), at, _step(**step))

    def weight_gradients(self, ids: Any, offsets: Any, gradients: Any, *, mode: str = "sum",
                         read_only: bool = False) -> _l.Floats:
        """(ids): gradients of the weights by those of the bags, for the rows as they are now.  Changes nothing."""
        bags, n, keep = _bags(ids, offsets, mode, None, read_only)
        values, at = _rows(gradients, bags.n_bags, self.dim, "gradients")
        result, to = _l.floats((n,))
        _l.call("hstu_table_weight_gradients", self._handle, _l.reference(bags), at, to)
        return result

    def erase(self, ids: Any) -> int:
        """The number of ids that were there."""
        n, keep, address = _ids(ids)
        erased = c_int64()
        _l.call("hstu_table_erase", self._handle, n, address, _l.reference(erased))
        return erased.value

    def save(self, folder: _l.Path) -> None:
        """Writes rows and optimizer state to a new folder; 'hstu info FOLDER' shows it."""
        _l.call("hstu_table_save", self._handle, _l.path_bytes(folder))

    def load(self, folder: _l.Path) -> int:
        """Replaces the content; the number of rows that found no place."""
        rejected = c_int64()
        _l.call("hstu_table_load", self._handle, _l.path_bytes(folder), _l.reference(rejected))
        return rejected.value


def bags_by_name(features):
    """{name: (ids, offsets, weights or None)} of what TableCollection takes."""
    if isinstance(features, dict):
        return {name: (*parts, None)[:3] for name, parts in features.items()}
    if hasattr(features, "lengths"):  # TorchRec's KeyedJaggedTensor
        features = features.keys(), features.lengths(), features.values(), features.weights_or_none()
    keys, lengths, values, weights = (*features, None)[:4]
    keys, lengths = list(keys), lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    if len(set(keys)) != len(keys):
        raise _l.UsageError(f"keys must be distinct, got {keys}")
    if len(lengths) % len(keys) if keys else lengths:
        raise _l.UsageError(f"the number of lengths, {len(lengths)}, must be a multiple of the number of keys, {len(keys)}")
    if min(lengths, default=0) < 0:
        raise _l.UsageError(f"lengths must not be negative, got {min(lengths)}")
    if sum(lengths) != len(values):
        raise _l.UsageError(f"the lengths must add up to the number of ids, {len(values)}; they add up to {sum(lengths)}")
    result, first, size = {}, 0, len(lengths) // max(len(keys), 1)
    for k, name in enumerate(keys):
        offsets = list(itertools.accumulate(lengths[k * size:(k + 1) * size], initial=0))
        end = first + offsets[-1]
        result[name] = values[first:end], offsets, None if weights is None else weights[first:end]
        first = end
    return result


class TableCollection:
    """Named tables whose bags are looked up in one call.

    tables: {name: Table}.  features: {name: (ids, offsets)} or {name: (ids, offsets, weights)}; or (keys, lengths, values) or
    (keys, lengths, values, weights), in which each key has as many bags and their ids follow each other key by key; or
    TorchRec's KeyedJaggedTensor.  Arguments and results a name are those of Table."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.tables = dict(tables)

    def __getitem__(self, name: str) -> Table:
        if name not in self.tables:
            raise _l.UsageError(f"no table {name!r}; there are {', '.join(map(str, self.tables))}")
        return self.tables[name]

    def lookup_pooled(self, features: Any, *, mode: str = "sum", read_only: bool = False) -> Dict[str, _l.Floats]:
        """{name: (bags, dim)}.  All arguments are checked first: if one is wrong, no table is changed."""
        features = bags_by_name(features)
        requests, result, keep = (_Request * len(features))(), {}, []
        for request, (name, (ids, offsets, weights)) in zip(requests, features.items()):
            table = self[name]
            request.table, request.name = table._handle, _l.text_bytes(name, "name")
            request.bags, _, memory = _bags(ids, offsets, mode, weights, read_only)
            result[name], request.out = _l.floats((request.bags.n_bags, table.dim))
            keep.append(memory)
        _l.call("hstu_tables_lookup_pooled", len(requests), requests)
        return result

    def update_pooled(self, features: Any, gradients: Mapping[str, Any], *, mode: str = "sum", **step: Any) -> None:
        """Table.update_pooled of each name; gradients: {name: (bags, dim)}."""
        for name, (ids, offsets, weights) in bags_by_name(features).items():
            self[name].update_pooled(ids, offsets, gradients[name], mode=mode, weights=weights, **step)
