"""Trained models."""
from ctypes import c_float, c_int64, c_uint16, c_uint32, c_uint64, c_void_p, cast

from . import _library as _l
from .data import _Names


def _as_list(values):
    return [values] if isinstance(values, (str, bytes, int)) else list(values)


class Model(_Names):
    """A run or a checkpoint, with the data whose users it is asked about.

    Items and users are named by the ids of the data.  Without data a model knows its items alone: recommend() then
    takes a history."""

    def __init__(self, run, data=None, device="auto"):
        handle = c_void_p()
        self._model = None
        _l.call("hstu_model_open", _l.reference(handle), _l.path_bytes(run), _l.path_bytes(data), device.encode())
        self._model = handle
        self._bind(c_void_p(_l.lib.hstu_model_data(handle)))
        self._facts = _l.ModelInfo()
        _l.lib.hstu_model_get_info(handle, _l.reference(self._facts))

    def close(self):
        if self._model is not None:
            _l.lib.hstu_model_close(self._model)
        self._model = self._data = None

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    dim = property(lambda self: self._facts.dim)
    n_parameters = property(lambda self: self._facts.parameters)
    step = property(lambda self: self._facts.step)
    is_retrieval = property(lambda self: bool(self._facts.is_retrieval))

    @property
    def score_names(self):
        """What score() gives for a candidate: ["score"], or tasks, or a rating and its classes."""
        return [_l.lib.hstu_model_score_name(self._model, i).decode() for i in range(self._facts.n_scores)]

    def _users(self, users):
        return _l.numbers(c_uint64, [self._user_number(u) for u in _as_list(users)])

    def _pairs(self, items, scores, row, k):
        found = ((items[row * k + i], scores[row * k + i]) for i in range(k))
        return [(self._item_id(item), score) for item, score in found if item != 0]

    def recommend(self, users=None, k=10, history=None, times=None, actions=None, keep_seen=False):
        """The k best items, best first.

        users: an id, or some: [(item id, score), ...] for each user, in a list where several are given.  history:
        instead, item ids of somebody who is not in the data, oldest first, with times (in the data's unit) and
        actions where the model wants them."""
        if (users is None) == (history is None):
            raise _l.UsageError("give either users or a history")
        if history is not None:
            return self._recommend_history(_as_list(history), times, actions, k, keep_seen)
        numbers = self._users(users)
        items, scores = (c_uint32 * (len(numbers) * k))(), (c_float * (len(numbers) * k))()
        _l.call("hstu_model_recommend", self._model, numbers, len(numbers), k, int(keep_seen), items, scores)
        lists = [self._pairs(items, scores, row, k) for row in range(len(numbers))]
        return lists[0] if isinstance(users, (str, bytes, int)) else lists

    def _recommend_history(self, history, times, actions, k, keep_seen):
        h = _l.History(length=len(history))
        kept = [_l.numbers(c_uint32, [self._item_number(i) for i in history])]
        h.item = cast(kept[0], type(h.item))
        for name, kind, values in (("time", c_int64, times), ("action", c_uint16, actions)):
            if values is None:
                continue
            kept.append(_l.numbers(kind, values))
            if len(kept[-1]) != len(history):
                raise _l.UsageError(f"{len(kept[-1])} {name}s for {len(history)} events")
            setattr(h, name, cast(kept[-1], type(getattr(h, name))))
        items, scores = (c_uint32 * k)(), (c_float * k)()
        _l.call("hstu_model_recommend_history", self._model, _l.reference(h), k, int(keep_seen), items, scores)
        return self._pairs(items, scores, 0, k)

    def score(self, users, items):
        """(users, items, scores): the numbers of each candidate for each user; NaN where there is none."""
        numbers = self._users(users)
        candidates = _l.numbers(c_uint32, [self._item_number(i) for i in _as_list(items)])
        out, address = _l.floats((len(numbers), len(candidates), self._facts.n_scores))
        _l.call("hstu_model_score", self._model, numbers, len(numbers), candidates, len(candidates), address)
        return out

    def encode(self, users):
        """(users, dim): the state of each user after its history, which items are compared with."""
        numbers = self._users(users)
        out, address = _l.floats((len(numbers), self._facts.dim))
        _l.call("hstu_model_encode", self._model, numbers, len(numbers), address)
        return out

    def embeddings(self):
        """(items, dim): the rows of item_ids as they are scored; zeros where a dynamic table has none."""
        out, address = _l.floats((self._facts.items + 1, self._facts.item_dim))
        _l.call("hstu_model_item_embeddings", self._model, address)
        return out[1:]
