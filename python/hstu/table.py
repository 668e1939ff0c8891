"""Dynamic embedding tables: rows for any 64-bit id."""
import ctypes
import operator
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_uint8, c_uint64, c_void_p

from . import _library as _l


class _Config(Structure):
    _fields_ = [("dim", c_int32), ("optimizer", c_int32), ("eviction", c_int32), ("capacity", c_int64),
                ("host_capacity", c_int64), ("max_batch", c_int64), ("seed", c_uint64), ("first_scale", c_float),
                ("admit_count", c_int32), ("device", c_char_p), ("later", c_uint8 * 256)]  # fields of later versions


class _Step(Structure):
    _fields_ = [("lr", c_float), ("beta1", c_float), ("beta2", c_float), ("eps", c_float), ("weight_decay", c_float),
                ("later", c_uint8 * 256)]


for _name, _types in {
        "hstu_table_create": [POINTER(c_void_p), POINTER(_Config)],
        "hstu_table_size": [c_void_p, POINTER(c_int64)],
        "hstu_table_find": [c_void_p, c_int64, c_void_p, c_void_p, c_void_p],
        "hstu_table_lookup": [c_void_p, c_int64, c_void_p, c_void_p],
        "hstu_table_insert": [c_void_p, c_int64, c_void_p, c_void_p, POINTER(c_int64)],
        "hstu_table_update": [c_void_p, c_int64, c_void_p, c_void_p, POINTER(_Step)],
        "hstu_table_erase": [c_void_p, c_int64, c_void_p, POINTER(c_int64)],
        "hstu_table_save": [c_void_p, c_char_p],
        "hstu_table_load": [c_void_p, c_char_p, POINTER(c_int64)]}.items():
    getattr(_l.lib, _name).argtypes, getattr(_l.lib, _name).restype = _types, c_int32
for _name, _type in {"hstu_table_defaults": POINTER(_Config), "hstu_table_step_defaults": POINTER(_Step),
                     "hstu_table_destroy": c_void_p}.items():
    getattr(_l.lib, _name).argtypes, getattr(_l.lib, _name).restype = [_type], None

_OPTIMIZERS = ["sgd", "adam", "adagrad", "rowwise_adagrad"]
_EVICTIONS = ["none", "lru", "lfu"]


def _number(names, name, what):
    if name not in names:
        raise _l.UsageError(f"{what} {name!r}: it is one of {', '.join(names)}")
    return names.index(name)


def _id(value):
    """An id, where a negative one stands for the unsigned number of the same 64 bits, as in numpy's arrays of int64."""
    try:
        number = operator.index(value)  # numpy's integers overflow where Python's grow
    except TypeError:
        return value  # not an integer: numbers() says so
    return number + 2**64 if -2**63 <= number < 0 else number


def _ids(values):
    """(count, memory of uint64 ids): numpy's arrays as they are, other sequences copied."""
    if hasattr(values, "__array_interface__"):
        import numpy
        array = numpy.asarray(values)
        if array.dtype.kind not in "iu":
            raise _l.UsageError(f"ids are integers, not {array.dtype}")
        array = numpy.ascontiguousarray(array.reshape(-1)).astype(numpy.int64 if array.dtype.kind == "i" else numpy.uint64)
        return array.size, array, array.ctypes.data
    memory = _l.numbers(c_uint64, (_id(v) for v in values), "id")
    return len(memory), memory, ctypes.addressof(memory)


def _rows(values, n, dim, what):
    """Memory of (n, dim) float32 numbers."""
    if hasattr(values, "__array_interface__"):
        import numpy
        array = numpy.asarray(values)
        if array.dtype.kind not in "fiu":
            raise _l.UsageError(f"{what} are numbers, not {array.dtype}")
        if array.shape != (n, dim):
            raise _l.UsageError(f"{what} of shape {array.shape} for {n} ids and rows of {dim}")
        with numpy.errstate(over="ignore"):  # the library refuses infinity
            array = numpy.ascontiguousarray(array, dtype=numpy.float32)
        return array, array.ctypes.data
    try:
        rows = [list(row) for row in values]
    except TypeError as e:
        raise _l.UsageError(f"{what} are one list of numbers an id") from e
    if len(rows) != n or any(len(row) != dim for row in rows):
        raise _l.UsageError(f"{what}: {len(rows)} lists of {sorted({len(row) for row in rows})} numbers for {n} ids and rows of {dim}")
    try:
        memory = (c_float * (n * dim))(*(x for row in rows for x in row))
    except (TypeError, OverflowError) as e:
        raise _l.UsageError(f"{what} are numbers of float32: {e}") from e
    return memory, ctypes.addressof(memory)


class Table(_l.Object):
    """A dynamic embedding table.

    optimizer: sgd, adam, adagrad or rowwise_adagrad; eviction: none, lru or lfu; capacity: rows on the device, host_capacity:
    more of them in host memory.  Rows come as numpy's arrays where numpy is there, (ids, dim) float32; they are given as arrays
    of that shape or as one list of numbers an id.

    ids: integers from -2**63 to 2**64 - 1; -1 and 2**64 - 1 are the same id.  Calls of several threads run one after the other;
    a child of fork() must make its own table."""
    _close = _l.lib.hstu_table_destroy

    def __init__(self, dim, capacity=65536, *, optimizer="adam", eviction="lru", host_capacity=0, max_batch=65536, seed=0,
                 first_scale=0.01, admit_count=1, device="auto"):
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

    def __len__(self):
        n = c_int64()
        _l.call("hstu_table_size", self._handle, _l.reference(n))
        return n.value

    def find(self, ids):
        """(rows, found): rows of ids, zeros where there is none, and a list that says where there is one.  Changes nothing."""
        n, keep, address = _ids(ids)
        rows, to = _l.floats((n, self.dim))
        found = (c_uint8 * max(n, 1))()
        _l.call("hstu_table_find", self._handle, n, address, to, ctypes.addressof(found))
        return rows, [bool(x) for x in found[:n]]

    def lookup(self, ids):
        """Rows of ids; an id without one gets it."""
        n, keep, address = _ids(ids)
        rows, to = _l.floats((n, self.dim))
        _l.call("hstu_table_lookup", self._handle, n, address, to)
        return rows

    def insert(self, ids, rows):
        """Inserts distinct ids with these rows, or replaces them; the number of ids that found no place."""
        n, keep, address = _ids(ids)
        values, at = _rows(rows, n, self.dim, "rows")
        rejected = c_int64()
        _l.call("hstu_table_insert", self._handle, n, address, at, _l.reference(rejected))
        return rejected.value

    def update(self, ids, gradients, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        """One step of the optimizer; gradients of an id that repeats are added up.  eps is above 0, except for sgd."""
        n, keep, address = _ids(ids)
        values, at = _rows(gradients, n, self.dim, "gradients")
        s = _Step()
        _l.lib.hstu_table_step_defaults(_l.reference(s))
        s.lr, (s.beta1, s.beta2), s.eps, s.weight_decay = lr, betas, eps, weight_decay
        _l.call("hstu_table_update", self._handle, n, address, at, _l.reference(s))

    def erase(self, ids):
        """The number of ids that were there."""
        n, keep, address = _ids(ids)
        erased = c_int64()
        _l.call("hstu_table_erase", self._handle, n, address, _l.reference(erased))
        return erased.value

    def save(self, folder):
        """Writes rows and optimizer state to a new folder; 'hstu info FOLDER' shows it."""
        _l.call("hstu_table_save", self._handle, _l.path_bytes(folder))

    def load(self, folder):
        """Replaces the content; the number of rows that found no place."""
        rejected = c_int64()
        _l.call("hstu_table_load", self._handle, _l.path_bytes(folder), _l.reference(rejected))
        return rejected.value
