"""Conversion of fed values to arrays that a program can read.

An array of the tensor's dtype is read in place, whatever its library (`flowrt.graph.construction.dlpack`), if
its elements are aligned. One in GPU memory is a `GpuFeed` until the reading device is known: `bring` copies
it from GPU to GPU, or to the host in one transfer, by its own library or by CuPy. Everything else is copied.
`FEED_COUNTS` counts the cases.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt import dtypes
from flowrt.device.cuda.cuda import cuda_array_to_host
from flowrt.device.device import Device, DeviceArray
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import (
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    UnimplementedError,
)
from flowrt.executor.ends.graph_elements import named_element
from flowrt.graph.construction.array_values import as_array, check_unmasked
from flowrt.graph.construction.dlpack import host_array, is_foreign, is_on_host
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.ops.state.session_tensors import TensorHandle
from flowrt.graph.shapes import compatible, format_shape, is_static
from flowrt.graph.source import user_line

Array: TypeAlias = np.ndarray[Any, Any]

DLPACK_GPU = 2
"""DLPack's number of memory that only a CUDA device reads."""

MIN_COUNTED = 65536
"""Minimum size in bytes of counted feeds. Counting takes 0.2 us, a run with a scalar feed 5 in total."""

FEED_COUNTS: Counter[str] = Counter()
"""Number of fed arrays above `MIN_COUNTED` bytes in this process, by their treatment:

    taken        read in place
    left         copied from a GPU's memory to a GPU's
    transferred  copied from a GPU's memory to the host
    dtype        copied, to another dtype
    alignment    copied, because their elements were not aligned
    structure    converted from lists etc.

The counts are not per session or device: a feed is converted before its reader is known. Concurrent updates
may lose a count.
"""

_NUMBERS: Mapping[DType, tuple[type, ...]] = {
    **dict.fromkeys(dtypes.FLOATING, (float, int)),
    **dict.fromkeys(dtypes.INTEGER, (int,)),
    dtypes.bool_: (bool,),
}
"""Types of numbers that NumPy converts to a dtype, or refuses: 0.3 us, other values take 6."""

_OUT_OF_RANGE = OverflowError, TypeError
"""Errors of NumPy for a number that a dtype cannot have; bfloat16's is for one beyond float64."""


class GpuFeed(NamedTuple):
    """A value in GPU memory, declared to be of ``tensor``'s dtype, and not read yet."""

    tensor: Tensor
    value: Any
    shape: tuple[int, ...]


class Feed(NamedTuple):
    """Feeds a program one tensor: ``put(value)`` stores a converted value where the program reads it; on the
    host that may be a buffer, ``array``.
    """

    put: Callable[[Any], None]
    array: Array | None = None


def resolve_feed(graph: Graph, key: Any) -> Tensor:
    """The tensor that a key of ``feed_dict`` means. Raises `DTypeError`, `InvalidArgumentError`
    or `NotFoundError`.
    """
    if hasattr(key, "_as_graph_element"):
        raise InvalidArgumentError(
            f"feed_dict: expected a tensor; got the variable {key!r}, which is read separately by each use. "
            "Use load() or assign(), or feed the tensor that is read"
        )
    tensor: Tensor = named_element(graph, key, "feed_dict", allow_operation=False)
    if not graph.is_feedable(tensor) or tensor.dtype in (dtypes.resource, dtypes.variant):
        message = f"feed_dict: tensor {tensor.name!r} of dtype {tensor.dtype.name} cannot be fed"
        raise tensor.op.error(InvalidArgumentError, message)
    return tensor


def flat_feeds(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """One key of a ``feed_dict`` with its value; where the key is a sparse or ragged tensor, a tuple of
    tensors, or of such, a pair for each. Raises `InvalidArgumentError` for a value of another structure.
    """
    parts = getattr(type(key), "fetched_as", None)
    if parts is not None:
        key = tuple(getattr(key, name) for name in parts._fields)
    if not isinstance(key, tuple):
        yield key, value
        return
    if not isinstance(value, (tuple, list)) or len(value) != len(key):
        raise InvalidArgumentError(
            f"feed_dict: expected {len(key)} values, like {key!r:.120}; got {value!r:.80}", source=user_line()
        )
    for one, its_value in zip(key, value, strict=True):
        yield from flat_feeds(one, its_value)


def converter(tensor: Tensor) -> Callable[[Any], Any]:
    """A function that converts a fed value to an array of ``tensor``'s dtype and of a matching shape, or to a
    `GpuFeed`.

    An array of the right dtype is used without a copy; an array of strings, which may be `str` or `bytes`, is
    converted. The function raises `DTypeError` if the value would lose its kind or precision,
    `InvalidArgumentError` for a shape that does not match.
    """
    dtype, shape = tensor.dtype.np, tensor.spec.shape
    exact = shape if is_static(shape) else None
    numbers = _NUMBERS.get(tensor.dtype, ())
    is_string = tensor.dtype is dtypes.string

    def convert(value: Any) -> Any:
        if type(value) in numbers:
            try:
                value = np.array(value, dtype)
            except _OUT_OF_RANGE:
                value = _convert(tensor, value)
        elif type(value) is not np.ndarray or value.dtype != dtype or is_string:
            value = _convert(tensor, value)
        elif value.nbytes > MIN_COUNTED:
            value = _aligned(value, "taken")
        if value.shape != exact and not compatible(value.shape, shape):
            expected, got = format_shape(shape), format_shape(value.shape)
            wanted, shown = f"{tensor.dtype.name} of shape {expected}", _briefly(value)
            message = f"feed_dict: expected {wanted}; got {shown} of shape {got}"
            raise tensor.op.error(InvalidArgumentError, message)
        return value

    return convert


def direct_put(array: Array) -> Callable[[Any], bool]:
    """A function that copies a fed value into ``array``, a buffer, if no conversion is needed: a number of
    Python of its kind, or an array of the same dtype and shape. Returns whether it did. Takes 0.1 us, while
    convert and put take 0.3.
    """
    dtype, shape = array.dtype, array.shape
    numbers = () if shape else _NUMBERS.get(as_dtype(dtype), ())

    def put(value: Any) -> bool:
        kind = type(value)
        if kind in numbers:
            try:
                array[()] = value
            except _OUT_OF_RANGE:  # the conversion says what was expected
                return False
        elif kind is np.ndarray and value.dtype is dtype and value.shape == shape:
            array[...] = value
        else:
            return False
        return True

    return put


def _aligned(array: Array, origin: str) -> Array:
    """``array``, or a copy if its elements are not aligned to their size; counted accordingly."""
    is_aligned = array.flags.aligned
    FEED_COUNTS[origin if is_aligned else "alignment"] += 1
    return array if is_aligned else array.copy()


def bring(feeds: Sequence[Any], targets: Sequence[Device], devices: Sequence[Device]) -> list[Any]:
    """Converted feeds, as the devices that read them take them: each `GpuFeed` as a `DeviceArray` for a GPU,
    if one of ``devices`` has it in its memory, else as an array of the host.

    Raises as a converter's function.
    """
    pairs = zip(feeds, targets, strict=True)
    return [_brought(feed, to, devices) if type(feed) is GpuFeed else feed for feed, to in pairs]


def _brought(feed: GpuFeed, target: Device, devices: Sequence[Device]) -> Any:
    found = _adopted(feed.value, target, devices)
    array = _read(feed.tensor, feed.value) if found is None else found.array
    if array.shape != feed.shape or array.dtype != feed.tensor.dtype.np:
        message = (
            f"feed_dict: expected a value of shape {format_shape(feed.shape)}, as it declared; got "
            f"{array.dtype} of shape {format_shape(array.shape)}"
        )
        raise feed.tensor.op.error(InvalidArgumentError, message)
    if found is None:
        return array
    if array.nbytes > MIN_COUNTED:
        FEED_COUNTS["left"] += 1
    return found


def _adopted(value: Any, target: Device, devices: Sequence[Device]) -> DeviceArray | None:
    """``value`` where it is, if ``target`` can copy it from there without the host."""
    alike = [d for d in devices if d.device_type == target.device_type and d is not target]
    for device in (target, *alike):
        if (found := device.adopt(value)) is not None:
            return found
    return None


def _convert(tensor: Tensor, value: Any) -> Any:
    if isinstance(value, Tensor) or hasattr(value, "__flowrt_tensor__"):
        raise tensor.op.error(DTypeError, f"feed_dict: expected a value; got the graph element {value!r}")
    if isinstance(value, GpuFeed):  # a partial run's, which was converted when it was given
        return value
    feed = _on_gpu(tensor, value)
    return _read(tensor, value) if feed is None else feed


def _on_gpu(tensor: Tensor, value: Any) -> GpuFeed | None:
    """``value`` if it is in a GPU's memory and of ``tensor``'s dtype. Any other is read on the host."""
    try:
        if isinstance(value, TensorHandle):
            value = value.value()
        shape = _shape_on_gpu(value, tensor.dtype.np)
    except Exception:  # noqa: BLE001 (from the value's own code; `_read` raises it again, with the place)
        return None
    return None if shape is None else GpuFeed(tensor, value, shape)


def _shape_on_gpu(value: Any, dtype: np.dtype[Any]) -> tuple[int, ...] | None:
    interface = getattr(value, "__cuda_array_interface__", None) or {}
    if not interface and not (hasattr(value, "__dlpack__") and value.__dlpack_device__()[0] == DLPACK_GPU):
        return None
    if hasattr(value, "dtype"):
        name = str(value.dtype).rpartition(".")[2]  # float32, torch.float32
    else:
        name = np.dtype(interface["typestr"]).name
    shape = value.shape if hasattr(value, "shape") else interface["shape"]
    return tuple(map(int, shape)) if name == dtype.name else None


def _read(tensor: Tensor, value: Any) -> Array:
    """``value`` as an array of ``tensor``'s dtype on the host."""
    given, origin = _as_array(tensor, value)
    if tensor.dtype is dtypes.string:
        return given
    wanted = tensor.dtype.np
    if given.dtype.kind in "OSU" and tensor.dtype in (*dtypes.FLOATING, *dtypes.INTEGER):
        given = _parsed(given, wanted)
    if (
        given.dtype.kind in "OSU"
        or given.dtype.type is np.void
        or (given.dtype.kind == "c" and wanted.kind != "c")
    ):
        message = (
            f"feed_dict: expected {tensor.spec}; got {_briefly(value)}, a {type(value).__name__} of dtype "
            f"{given.dtype}"
        )
        raise tensor.op.error(DTypeError, message)
    if given.dtype == wanted:
        return _aligned(given, origin) if given.nbytes > MIN_COUNTED else given
    with np.errstate(all="ignore"):
        array: Array = given.astype(wanted)
    if tensor.dtype.is_integer and not np.array_equal(array, given):
        message = (
            f"feed_dict: expected {tensor.spec}; got {_briefly(value)}: values of dtype {given.dtype} that "
            f"{tensor.dtype.name} cannot hold"
        )
        raise tensor.op.error(DTypeError, message)
    if array.nbytes > MIN_COUNTED:
        FEED_COUNTS["dtype" if origin == "taken" else origin] += 1
    return array


def _parsed(given: Array, dtype: np.dtype[Any]) -> Array:
    """The numbers that an array of strings spells, such as fields of a CSV file; ``given`` where one spells
    none.
    """
    if not given.size or not all(isinstance(each, (str, bytes)) for each in given.flat):
        return given
    try:
        strings = given.astype("U")
        return strings.astype(dtype if dtype.isbuiltin == 1 else np.float64)  # bfloat16 reads no strings
    except (ValueError, UnicodeDecodeError, OverflowError):
        return given


def _as_array(tensor: Tensor, value: Any) -> tuple[Array, str]:
    """``value`` as a NumPy array, of any dtype unless strings are expected, and the conversion applied."""
    try:
        if isinstance(value, TensorHandle):
            value = value.value()
        if tensor.dtype is dtypes.string:
            return as_array(value, dtypes.string), "structure"
        if is_foreign(value):
            given = _on_host(value)
            return given, "taken" if is_on_host(value) else "transferred"
        check_unmasked(value)
        given = _stacked(value)
    except OpError as error:
        raise tensor.op.error(type(error), f"feed_dict: {error.message}") from error
    except MemoryError as error:
        message = f"feed_dict: expected memory for a copy of a {type(value).__name__} ({error})"
        raise tensor.op.error(ResourceExhaustedError, message) from error
    except Exception as error:  # any error raised by the value's own code
        message = f"feed_dict: expected {_wanted_instead(value, error)}"
        raise tensor.op.error(InvalidArgumentError, message) from error
    return given, "taken" if isinstance(value, np.ndarray) else "structure"


def _briefly(value: Any) -> str:
    """A value on one line, shortened. Of an array in a GPU's memory only the type."""
    if isinstance(value, GpuFeed):
        return type(value.value).__name__
    text = (
        np.array2string(value, threshold=6, edgeitems=2)
        if isinstance(value, np.ndarray)
        else reprlib.repr(value)
    )
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _wanted_instead(value: Any, error: Exception) -> str:
    if isinstance(value, (list, tuple)) and isinstance(error, ValueError):
        return f"a rectangular array; got the ragged sequence {_briefly(value)} ({error})"
    return f"a value that NumPy can read; got a {type(value).__name__} ({error!r})"


def _on_host(value: Any) -> Array:
    """The foreign array ``value`` on the host; by CuPy if it only exposes its GPU memory."""
    try:
        return host_array(value)
    except UnimplementedError as error:
        if not hasattr(value, "__cuda_array_interface__"):
            raise
        try:
            return cuda_array_to_host(value)
        except FailedPreconditionError as missing:
            raise UnimplementedError(f"{error.message}, or let CuPy: {missing.message}") from error


def _stacked(value: Any) -> Array:
    """``value``, which may be a nested list, as an array."""
    try:
        given = np.asarray(value)
    except (TypeError, ValueError):  # arrays may refuse implicit conversion or look like scalars
        return np.asarray(_with_host_arrays(value))
    return np.asarray(_with_host_arrays(value)) if given.dtype.kind == "O" else given


def _with_host_arrays(value: Any) -> Any:
    """A nested list with its foreign arrays on the host."""
    if isinstance(value, (list, tuple)):
        return [_with_host_arrays(item) for item in value]
    return _on_host(value) if is_foreign(value) else value
