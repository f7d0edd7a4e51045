"""Values that stay on their device between the steps of a session, and the handles that name them.

`get_session_handle` keeps a tensor's value where it was computed and returns a `TensorHandle` to the caller
of ``Session.run``. The handle may be fed in the value's place, or to the placeholder that
`get_session_tensor` creates: then the value is read on its device. The handle owns the value, which is freed
with the handle, by `delete`, or with the session.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, final
from weakref import WeakValueDictionary

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.dlpack import dlpack_of
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import Effect, Effects, OpDef, define_op

_keys = itertools.count(1)
_stores: WeakValueDictionary[int, _Store] = WeakValueDictionary()
"""The store of each key: keys are unique in the process, values belong to sessions."""


@final
class _Store:
    """The values that one operation has stored in one session, by key."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._values: dict[int, Any] = {}

    def put(self, value: Any) -> TensorHandle:
        key = next(_keys)
        self._values[key] = value
        _stores[key] = self
        return TensorHandle(self, key, as_dtype(value.dtype))

    def get(self, key: int) -> Any:
        if key not in self._values:
            raise _gone(key)
        return self._values[key]

    def discard(self, key: int) -> None:
        self._values.pop(key, None)

    def close(self) -> None:
        """The session's end."""
        self._values.clear()


def _store(key: int) -> _Store:
    store = _stores.get(key)
    if store is None:
        raise _gone(key)
    return store


def _gone(key: int) -> NotFoundError:
    return NotFoundError(
        f"tensor handle {key}: expected a value; it was deleted, its TensorHandle is no longer referenced, "
        "or its session was closed"
    )


class TensorHandle:
    """A value that a session keeps on its device. Other libraries may read it without a copy (``__dlpack__``,
    ``__array__``, and ``__cuda_array_interface__`` on a GPU), but must not modify it.
    """

    def __init__(self, store: _Store, key: int, dtype: DType) -> None:
        self._store, self._key, self.dtype = store, key, dtype
        self._owns = weakref.finalize(self, store.discard, key)
        self._owns.atexit = False

    @property
    def handle(self) -> int:
        """The argument of `get_session_tensor` and `delete_session_tensor`, and the value to feed to their
        placeholders: a number, valid as long as the `TensorHandle` is kept.
        """
        return self._key

    @property
    def device(self) -> str:
        """The full name of the device that the value is on."""
        return self._store.device

    def value(self) -> Any:
        """The value in its device's memory, without a copy. Raises `NotFoundError` if it was freed."""
        return self._store.get(self._key)

    def eval(self) -> Any:
        """A host copy of the value. Raises `NotFoundError` if it was freed."""
        return np.array(self.__array__())[()]

    def delete(self) -> None:
        """Free the value. Raises `NotFoundError` if it was already freed."""
        self.value()
        self._owns.detach()
        self._store.discard(self._key)

    def get_raw_handle(self) -> int:
        """The handle; the value lives until `delete_session_tensor`, or its session's end, from now on."""
        self._owns.detach()
        return self._key

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        value = self.value()
        array = value if isinstance(value, np.ndarray) else value.get()
        return np.array(array, dtype, copy=copy)

    def __dlpack__(self, **how: Any) -> Any:
        return dlpack_of(self.value(), **how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.value().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.value().__cuda_array_interface__

    def __repr__(self) -> str:
        return f"<TensorHandle {self._key} {self.dtype.name} {self.device}>"


# --- ops

get_session_handle_op = define_op(
    "GetSessionHandleV2",
    "value: T in ANY -> handle: resource",
    shape=lambda s: [()],
    kernel=lambda xp, value, state: state.put(xp.array(value)),  # the step's buffer is used again
    effects=Effects(Effect.WRITE, state=lambda node: _Store(node.device)),
    doc="Keeps a value in the session; the output, when it is fetched, is its TensorHandle.",
)


def _read(xp: Any, handle: int, dtype: DType) -> Any:
    value = _store(handle).get(handle)
    if value.dtype != dtype.np:
        raise DTypeError(f"tensor handle {handle}: expected {dtype.name}; got {as_dtype(value.dtype).name}")
    return value


get_session_tensor_op = define_op(
    "GetSessionTensor",
    "handle: host int64 -> value: dtype in ANY",
    attrs="dtype: type",
    shape=lambda s: [None],
    kernel=_read,
    effects=Effects(Effect.READ),
    doc="A value that the session keeps, on its device.",
)

delete_session_tensor_op: OpDef[Operation] = define_op(
    "DeleteSessionTensor",
    "handle: host int64 ->",
    kernel=lambda xp, handle: _delete(handle),
    effects=Effects(Effect.WRITE),
    doc="Frees a value that the session keeps.",
)


def _delete(key: int) -> None:
    store = _store(key)
    store.get(key)
    store.discard(key)


def get_session_handle(data: Any, name: str | None = None) -> Tensor:
    """A tensor that returns, when fetched, the `TensorHandle` of ``data``'s value, which stays on its device.

    Each run stores a separate value. Raises `DTypeError` unless ``data`` is a tensor.
    """
    if not isinstance(data, Tensor):
        raise DTypeError(f"get_session_handle: expected a Tensor; got {data!r}")
    with get_default_graph().colocate_with(data):
        return get_session_handle_op(data, name=name or "GetSessionHandle")


def get_session_tensor(handle: int, dtype: DTypeLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """A placeholder for handles, and the tensor of the fed handle's value, of ``dtype`` and on the device of
    ``handle``'s value, which need not be the same one.

    Raises `NotFoundError` if the value of ``handle`` was freed; so does a step for the handle that is fed.
    """
    with get_default_graph().device(None), get_default_graph().device(_store(_key(handle)).device):
        holder = placeholder(dtypes.int64, ())
        return holder, get_session_tensor_op(holder, dtype=as_dtype(dtype), name=name or "GetSessionTensor")


def delete_session_tensor(handle: int, name: str | None = None) -> tuple[Tensor, Operation]:
    """A placeholder for handles, and the operation that frees the value of the fed handle.

    Raises as `get_session_tensor`.
    """
    with get_default_graph().device(None), get_default_graph().device(_store(_key(handle)).device):
        holder = placeholder(dtypes.int64, ())
        return holder, delete_session_tensor_op(holder, name=name or "DeleteSessionTensor")


def _key(handle: Any) -> int:
    if isinstance(handle, TensorHandle):
        return handle.handle
    if not isinstance(handle, (int, np.integer)):
        raise InvalidArgumentError(f"expected the handle of a TensorHandle; got {handle!r}")
    return int(handle)
