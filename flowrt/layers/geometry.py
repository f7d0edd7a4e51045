"""Arguments of layers with windows: sizes (one or one per dimension), paddings, data formats, lengths."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import numpy as np

from flowrt.graph.source import misuse

_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


class Windowed:
    """A layer with windows over ``spatial`` dimensions, computed by ``op``: a class names what it changes."""

    rank: ClassVar[int | None]
    spatial: ClassVar[int]
    _op: ClassVar[Any]

    def __init_subclass__(cls, spatial: int | None = None, op: Any = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if spatial is not None:
            cls.spatial, cls.rank = spatial, spatial + 2
        if op is not None:
            cls._op = staticmethod(op)


def sizes(value: Any, rank: int, name: str) -> tuple[int, ...]:
    """``value``, one positive number or one per spatial dimension, as a tuple. Raises
    `InvalidArgumentError`.
    """
    given = tuple(value) if isinstance(value, (list, tuple)) else (value,) * rank
    if len(given) != rank or not all(isinstance(v, (int, np.integer)) and v > 0 for v in given):
        raise misuse(f"{name}: expected a positive number or {rank} of them; got {value!r}")
    return tuple(map(int, given))


def count(value: Any, name: str, least: int = 0) -> int:
    """``value``, the number of outputs of a layer: 32, or 32.0 from a division. Raises
    `InvalidArgumentError` below ``least``.
    """
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < least or isinstance(value, str) or (isinstance(value, float) and number != value):
        raise misuse(f"{name}: expected an integer >= {least}; got {value!r}")
    return number


def padding_mode(value: Any, causal: bool = False) -> str:
    """ "VALID", "SAME" or, where it is allowed, "CAUSAL". Raises `InvalidArgumentError`."""
    allowed = ("VALID", "SAME", "CAUSAL") if causal else ("VALID", "SAME")
    mode = str(value).upper()
    if mode not in allowed:
        raise misuse(f"padding: expected {' or '.join(allowed).lower()}; got {value!r}")
    return mode


def layout(data_format: str, rank: int) -> str:
    """The layout's letters, for instance "NHWC". Raises `InvalidArgumentError`."""
    if data_format not in ("channels_last", "channels_first"):
        raise misuse(f"data_format: expected channels_last or channels_first; got {data_format!r}")
    return (_LAST if data_format == "channels_last" else _FIRST)[rank]


def padded_ends(value: Any, strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """``value``, a number of rows at the end or one for each of ``strides``, as a tuple; None if it is None.
    Raises `InvalidArgumentError` unless they are less than the strides.
    """
    if value is None:
        return None
    given = tuple(value) if isinstance(value, (list, tuple)) else (value,) * len(strides)
    is_whole = all(isinstance(v, (int, np.integer)) and v >= 0 for v in given)
    if len(given) != len(strides) or not is_whole or any(map(operator.ge, given, strides)):
        raise misuse(f"output_padding: expected less than the strides {strides}; got {value!r}")
    return tuple(map(int, given))


def transposed_length(length: Any, kernel: int, stride: int, padding: str, end: int | None = None) -> Any:
    """The length that a transposed convolution makes of ``length`` (an int or a tensor): the one of Keras's
    ``output_padding`` if ``end`` is given.
    """
    if end is not None:
        window = kernel % 2 if padding == "SAME" else kernel
        return (length - 1) * stride + window + end
    extra = max(kernel - stride, 0) if padding == "VALID" else 0
    return length * stride + extra if extra else length * stride
