"""Prepared data sets."""
from __future__ import annotations

import os
from ctypes import c_int64, c_uint16, c_uint32, c_uint64, c_void_p
from datetime import timezone
from typing import Any, List, Tuple, Union

from . import _library as _l

_FIRST_SECOND, _LAST_SECOND = -2208988800, 7258118399  # of the years 1900 to 2199


Event = Tuple[_l.Id, int, Union[int, float]]


class _Names(_l.Object):
    """Ids and titles of a data set, whoever owns it: the handle of a model stands for its data, too."""

    def _bind(self, handle):
        self._handle = handle
        self._info = _l.DataInfo()
        _l.call("hstu_data_get_info", handle, _l.reference(self._info))

    def _number(self, kind, name, thing, missing, is_needed):
        """The number of an id; None where there is none and it is not needed."""
        number, text = kind(~missing), _l.text_bytes(thing, name)
        try:
            _l.call(f"hstu_data_find_{name}", self._handle, text, _l.reference(number))
        except _l.UsageError:
            if is_needed or number.value != kind(missing).value:
                raise
            return None
        return number.value

    def _user_number(self, user, is_needed=True):
        return self._number(c_uint64, "user", user, -1, is_needed)

    def _item_number(self, item, is_needed=True):
        return self._number(c_uint32, "item", item, 0, is_needed)

    def _ticks(self, time):
        """A time as the data count it; times are seconds since 1970, as in the program and the server."""
        if hasattr(time, "timestamp"):  # datetime, pandas; without a zone: UTC, as in logs
            time = (time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)).timestamp()
        if not isinstance(time, float):
            time = _l.integer(c_int64, time, "time")
        if not _FIRST_SECOND <= time < _LAST_SECOND + 1:
            raise _l.UsageError(f"time {time} is not in the years 1900 to 2199; give seconds since 1970, not milliseconds")
        return round(time * self._info.time_per_second)

    def _seconds(self, ticks):
        per_second = self._info.time_per_second
        return ticks if per_second == 1 else ticks / per_second

    def _action(self, action):
        """A code, or the code of a name of `hstu prep --action-map`."""
        if not isinstance(action, str):
            return action
        code = c_uint16()
        _l.call("hstu_data_find_action", self._handle, _l.text_bytes(action, "action"), _l.reference(code))
        return code.value

    def _item_id(self, number):
        text = _l.text_of("hstu_data_item_id", self._handle, number)
        return text if self._info.has_text_items else int(text)

    def _user_id(self, number):
        text = _l.text_of("hstu_data_user_id", self._handle, number)
        return text if self._info.has_text_users else int(text)

    def title(self, item: _l.Id) -> str:
        """The title of an item, or its id where the data have none."""
        return _l.text_of("hstu_data_item_title", self._handle, self._item_number(item))

    @property
    def user_ids(self) -> List[_l.Id]:
        return [self._user_id(i) for i in range(self._info.users)]

    @property
    def item_ids(self) -> List[_l.Id]:
        """The catalogue, in the order of embeddings()."""
        return [self._item_id(i) for i in range(1, self._info.catalogue + 1)]


class Dataset(_Names):
    """A data set made by prep(), `hstu prep` or `hstu synth`.  Any number of threads may use one at the same time, and a child
    of fork(), too.

    >>> d = hstu.Dataset(data)
    >>> d
    <hstu.Dataset: 200 users, 100 items, 3,943 events>
    >>> d.history(d.user_ids[0])[0]  # item, action, seconds since 1970
    (91, 1, 1602267753)
    """
    _close = _l.lib.hstu_data_close

    def __init__(self, path: _l.Path) -> None:
        handle = c_void_p()
        _l.call("hstu_data_open", _l.reference(handle), _l.path_bytes(path))
        self._bind(handle)
        self.path = os.fspath(path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<hstu.Dataset: {self.n_users:,} users, {self.n_items:,} items, {self.n_events:,} events>"

    def __len__(self) -> int:
        return int(self._info.users)

    @property
    def n_users(self) -> int:
        return int(self._info.users)

    @property
    def n_items(self) -> int:
        return int(self._info.catalogue)

    @property
    def n_events(self) -> int:
        return int(self._info.events)

    def history(self, user: _l.Id) -> List[Event]:
        """The events of a user, oldest first: [(item id, action, time), ...], times in seconds since 1970."""
        items, actions, times = self._columns(self._user_number(user))
        return [(self._item_id(item), action, self._seconds(time)) for item, action, time in zip(items, actions, times)]

    def _columns(self, number):
        h = _l.History()
        _l.call("hstu_data_history", self._handle, number, _l.reference(h))
        n = h.length  # of a copy: another thread may close the data, and end the view, at any time
        items, actions, times = (c_uint32 * n)(), (c_uint16 * n)(), (c_int64 * n)()
        _l.call("hstu_data_copy_history", self._handle, number, n, items, actions, times)
        return items, actions, times

    def frame(self, library: str = "pandas") -> Any:
        """All events as a frame of pandas or polars: user, item, action and time, in seconds since 1970.

        >>> hstu.Dataset(data).frame().shape
        (3943, 4)
        """
        columns, ids = {"user": [], "item": [], "action": [], "time": []}, [None, *self.item_ids]
        for number, user in enumerate(self.user_ids):
            items, actions, times = self._columns(number)
            columns["user"] += [user] * len(items)
            columns["item"] += [ids[i] for i in items]
            columns["action"] += actions
            columns["time"] += map(self._seconds, times)
        return _l.frame(columns, library)
