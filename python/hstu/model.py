"""Trained models."""
from __future__ import annotations

import json
import warnings
from ctypes import addressof, c_float, c_int32, c_int64, c_uint16, c_uint32, c_uint64, c_void_p, cast
from operator import index
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union, overload

from . import _library as _l
from .data import _Names


_MAX_K = 1024  # HSTU_MAX_K
Pairs = List[Tuple[_l.Id, float]]  # ids and scores, best first
Ids = Union[_l.Id, Iterable[_l.Id]]


def _is_one(values):
    return isinstance(values, (str, bytes)) or hasattr(values, "__index__") and not hasattr(values, "__len__")


def _as_list(values):
    return [values] if _is_one(values) else list(values)


def _address(array, first, size):
    return addressof(array) + first * size


class Model(_Names):
    """A run or a checkpoint, with the data whose users it is asked about.

    Items and users are named by the ids of the data.  Without data a model knows its items alone: recommend() then
    takes a history.

    Calls of several threads on one model run one after the other; for calls at the same time open a model a thread.  A child
    of fork() must open its own.

    >>> model = hstu.Model(run, data=data, device="cpu")
    >>> [len(items) for items in model.recommend([1, 2], k=3)]
    [3, 3]
    >>> best, score = model.recommend(1, k=1, deny=[5, 6])[0]
    >>> model.recommend(1, k=1, allow=[5])[0][0]
    5
    >>> model.score([1, 2], items=[5, 6]).shape  # users, items, model.score_names
    (2, 2, 1)
    """
    _close = _l.lib.hstu_model_close

    def __init__(self, run: _l.Path, data: Optional[_l.Path] = None, device: str = "auto") -> None:
        handle = c_void_p()
        _l.call("hstu_model_open", _l.reference(handle), _l.path_bytes(run), _l.path_bytes(data),
                _l.text_bytes(device, "device"))
        self._bind(handle)
        self._facts = _l.ModelInfo()
        _l.call("hstu_model_get_info", handle, _l.reference(self._facts))
        self._run = str(_l.os.fspath(run))
        self._score_names = [_l.lib.hstu_model_score_name(handle, i).decode() for i in range(self._facts.n_scores)]

    def __repr__(self) -> str:
        kind, state = "retrieval" if self.is_retrieval else "ranking", "" if "_handle" in self.__dict__ else ", closed"
        return f"<hstu.Model {self._run}: {kind}, {self.n_parameters:,} parameters, {self._facts.items:,} items, " \
               f"step {self.step:,}{state}>"

    @property
    def dim(self) -> int:
        return int(self._facts.dim)

    @property
    def n_parameters(self) -> int:
        return int(self._facts.parameters)

    @property
    def step(self) -> int:
        return int(self._facts.step)

    @property
    def is_retrieval(self) -> bool:
        return bool(self._facts.is_retrieval)

    @property
    def score_names(self) -> List[str]:
        """What score() gives for a candidate: ["score"], or tasks, or a rating and its classes."""
        return list(self._score_names)

    def _users(self, users):
        return _l.numbers(c_uint64, [self._user_number(u) for u in _as_list(users)], "user")

    def _pairs(self, items, scores, row, k):
        found = ((items[row * k + i], scores[row * k + i]) for i in range(k))
        return [(self._item_id(item), score) for item, score in found if item != 0]

    @staticmethod
    def _rules(rules):
        """The rules that were given, as JSON."""
        given = {key: value for key, value in rules.items() if value is not None}
        for key in ("allow", "deny", "pin"):
            if key in given:
                given[key] = [i if isinstance(i, str) else index(i) for i in _as_list(given[key])]
        return json.dumps(given).encode() if given else None

    @overload
    def recommend(self, users: _l.Id, k: int = 10, *, keep_seen: Optional[bool] = None, **rules: Any) -> Pairs: ...

    @overload
    def recommend(self, users: Iterable[_l.Id], k: int = 10, *, keep_seen: Optional[bool] = None, **rules: Any) -> List[Pairs]: ...

    @overload
    def recommend(self, users: None = None, k: int = 10, *, history: Ids, times: Optional[Sequence[Any]] = None,
                  actions: Optional[Ids] = None, keep_seen: Optional[bool] = None, **rules: Any) -> Pairs: ...

    def recommend(self, users: Optional[Ids] = None, k: int = 10, history: Optional[Ids] = None,
                  times: Optional[Sequence[Any]] = None, actions: Optional[Ids] = None, keep_seen: Optional[bool] = None, *,
                  filter: Optional[str] = None, allow: Optional[Ids] = None, deny: Optional[Ids] = None,
                  boost: Optional[List[Dict[str, Any]]] = None, max_per: Optional[Dict[str, int]] = None,
                  pin: Optional[Ids] = None) -> Union[Pairs, List[Pairs]]:
        """The k best items, best first.

        users: an id, or some: [(item id, score), ...] for each user, in a list where several are given; popular items,
        scored by their events and with a warning, for a user whom the data do not have.  history: instead, item ids of
        somebody who is not in the data, oldest first, with times (seconds since 1970, or datetimes) and actions (codes
        or names) where the model wants them; unknown items are left out with a warning.  Without times the events are a minute apart, as in `hstu recommend`
        and the server.  keep_seen: whether items of the history may be in the list; None: they may if the model was
        trained with --target-action.

        filter: an expression over item features, 'genre in ("Drama", "Crime") and year >= 2000'.  allow, deny: item
        ids.  boost: [{"filter": ..., "add": .1}, {"filter": ..., "times": 1.2}], of the score.  max_per: {"genre": 2}.
        pin: item ids for the first places.  The list is the exact best under these rules (docs/rules.md)."""
        rules = self._rules({"filter": filter, "allow": allow, "deny": deny, "boost": boost, "max_per": max_per,
                             "pin": pin})
        if (users is None) == (history is None):
            raise _l.UsageError("give either users or a history")
        keeps = -1 if keep_seen is None else int(bool(keep_seen))
        if history is not None:
            return self._recommend_history(_as_list(history), times, actions, k, keeps, rules)
        k, asked, popular = self._count(k), _as_list(users), []
        found = [self._user_number(u, is_needed=False) for u in asked]
        numbers = _l.numbers(c_uint64, [n for n in found if n is not None], "user")
        items, scores = (c_uint32 * (len(numbers) * k))(), (c_float * (len(numbers) * k))()

        def some(first, n):
            _l.call("hstu_model_recommend_by_rules", self._handle, _address(numbers, first, 8), n, k,
                    keeps, rules, _address(items, first * k, 4),
                    _address(scores, first * k, 4))

        _l.in_pieces(len(numbers), some)
        known = iter([self._pairs(items, scores, row, k) for row in range(len(numbers))])
        if None in found:
            unknown = ", ".join(str(u) for u, n in zip(asked[:10000], found) if n is None)
            warnings.warn(f"not in the data, so these users get the most popular items: {unknown[:200]}", stacklevel=2)
            popular = self._recommend_history([], None, None, k, keeps, rules)
        lists = [next(known) if n is not None else list(popular) for n in found]
        return lists[0] if _is_one(users) else lists

    def recommend_frame(self, users: Iterable[_l.Id], k: int = 10, library: str = "pandas", **rules: Any) -> Any:
        """recommend() as a frame of pandas or polars: user, rank, item and score; a frame's column may be `users`.

        >>> hstu.Model(run, data=data, device="cpu").recommend_frame([1, 2], k=3).columns.tolist()
        ['user', 'rank', 'item', 'score']
        """
        found = list(zip(users, self.recommend(users, k, **rules)))
        rows = [(user, rank, item, score) for user, pairs in found for rank, (item, score) in enumerate(pairs, 1)]
        columns = zip(*rows) if rows else ((), (), (), ())
        return _l.frame(dict(zip(("user", "rank", "item", "score"), map(list, columns))), library)

    def similar(self, item: _l.Id, k: int = 10) -> Pairs:
        """The k items most similar to one, by cosine of their embeddings: [(item id, cosine), ...]."""
        k = self._count(k)
        items, scores = (c_uint32 * k)(), (c_float * k)()
        _l.call("hstu_model_similar", self._handle, self._item_number(item), k, items, scores)
        return self._pairs(items, scores, 0, k)

    @staticmethod
    def _count(k):
        """The length of a list, before there is memory for it."""
        if not 1 <= _l.integer(c_int32, k, "k") <= _MAX_K:
            raise _l.UsageError(f"k is {k}; it must be 1 to {_MAX_K}")
        return int(k)

    def _recommend_history(self, history, times, actions, k, keeps, rules):
        found = [self._item_number(i, is_needed=False) for i in history]
        unknown = [item for item, number in zip(history, found) if number is None]
        if unknown:
            warnings.warn(f"unknown items of the history are left out: {', '.join(map(str, unknown[:10]))}", stacklevel=3)
        actions = None if actions is None else [self._action(x) for x in _as_list(actions)]
        k, h = self._count(k), _l.History(length=len(history) - len(unknown))
        kept = [_l.numbers(c_uint32, [number for number in found if number is not None], "item")]
        h.item = cast(kept[0], type(h.item))
        times = None if times is None else [self._ticks(t) for t in times]
        for name, kind, values in (("time", c_int64, times), ("action", c_uint16, actions)):
            if values is None:
                continue
            if len(values) != len(history):
                raise _l.UsageError(f"{len(values)} {name}s for {len(history)} events")
            kept.append(_l.numbers(kind, [v for v, number in zip(values, found) if number is not None], name))
            setattr(h, name, cast(kept[-1], type(getattr(h, name))))
        items, scores = (c_uint32 * k)(), (c_float * k)()
        _l.call("hstu_model_recommend_history_by_rules", self._handle, _l.reference(h), k, keeps, rules,
                items, scores)
        return self._pairs(items, scores, 0, k)

    def score(self, users: Ids, items: Ids) -> _l.Floats:
        """(users, items, scores): the numbers of each candidate for each user; NaN where there is none."""
        numbers = self._users(users)
        candidates = _l.numbers(c_uint32, [self._item_number(i) for i in _as_list(items)], "item")
        out, address = _l.floats((len(numbers), len(candidates), self._facts.n_scores))
        width = 4 * len(candidates) * self._facts.n_scores
        _l.in_pieces(len(numbers), lambda first, n: _l.call(
            "hstu_model_score", self._handle, _address(numbers, first, 8), n, candidates, len(candidates),
            address + first * width))
        return out

    def encode(self, users: Ids) -> _l.Floats:
        """(users, dim): the state of each user after its history, which items are compared with."""
        numbers = self._users(users)
        out, address = _l.floats((len(numbers), self._facts.dim))
        _l.in_pieces(len(numbers), lambda first, n: _l.call(
            "hstu_model_encode", self._handle, _address(numbers, first, 8), n, address + first * 4 * self._facts.dim))
        return out

    def embeddings(self) -> _l.Floats:
        """(items, dim): the rows of item_ids as they are scored; zeros where a dynamic table has none.

        As all arrays here they are numpy's, which torch.from_dlpack, jax.dlpack.from_dlpack, ... take without a copy."""
        out, address = _l.floats((self._facts.items + 1, self._facts.item_dim))
        _l.call("hstu_model_item_embeddings", self._handle, address)
        return out[1:]
