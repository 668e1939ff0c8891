"""Prepared data sets."""
from ctypes import c_uint32, c_uint64, c_void_p

from . import _library as _l


class _Names:
    """Ids and titles of a data set, whoever owns it."""

    def _bind(self, handle):
        self._data = handle
        self._info = _l.DataInfo()
        _l.lib.hstu_data_get_info(handle, _l.reference(self._info))

    def _user_number(self, user):
        number = c_uint64()
        _l.call("hstu_data_find_user", self._data, str(user).encode(), _l.reference(number))
        return number.value

    def _item_number(self, item):
        number = c_uint32()
        _l.call("hstu_data_find_item", self._data, str(item).encode(), _l.reference(number))
        return number.value

    def _item_id(self, number):
        text = _l.text_of("hstu_data_item_id", self._data, number)
        return text if self._info.has_text_items else int(text)

    def _user_id(self, number):
        text = _l.text_of("hstu_data_user_id", self._data, number)
        return text if self._info.has_text_users else int(text)

    def title(self, item):
        """The title of an item, or its id where the data have none."""
        return _l.text_of("hstu_data_item_title", self._data, self._item_number(item))

    @property
    def user_ids(self):
        return [self._user_id(i) for i in range(self._info.users)]

    @property
    def item_ids(self):
        """The catalogue, in the order of embeddings()."""
        return [self._item_id(i) for i in range(1, self._info.catalogue + 1)]


class Dataset(_Names):
    """A data set made by `hstu prep` or `hstu synth`: Dataset("ml-1m")."""

    def __init__(self, path):
        handle = c_void_p()
        self._data = None
        _l.call("hstu_data_open", _l.reference(handle), _l.path_bytes(path))
        self._bind(handle)

    def close(self):
        if self._data is not None:
            _l.lib.hstu_data_close(self._data)
        self._data = None

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __len__(self):
        return self._info.users

    n_users = property(lambda self: self._info.users)
    n_items = property(lambda self: self._info.catalogue)
    n_events = property(lambda self: self._info.events)

    def history(self, user):
        """The events of a user, oldest first: [(item id, action, time), ...]."""
        h = _l.History()
        _l.call("hstu_data_history", self._data, self._user_number(user), _l.reference(h))
        return [(self._item_id(h.item[i]), h.action[i], h.time[i]) for i in range(h.length)]
