"""Lists of tensors, as one tensor with a dimension in front: ONNX's sequences are slower, and cannot be
replaced in place.

A list must thus have elements of one shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.onnx.emit.call import Call, emits

END = np.iinfo(np.int64).max


def _element_shape(c: Call, index: int) -> list[int]:
    sizes = c.integers(index, "the shape of a list's elements")
    if c.known[index] is None or np.ndim(c.known[index]) == 0 or any(each < 0 for each in sizes):
        c.refuse("expected a list of elements of a shape that is known: give the TensorArray element_shape")
    return sizes


@emits("EmptyTensorList")
def empty(c: Call, shape: str, most: str) -> str:
    return c.constant(np.zeros((0, *_element_shape(c, 0)), c.attrs["element_dtype"].np))


@emits("TensorListReserve")
def reserve(c: Call, shape: str, count: str) -> str:
    value = np.zeros((), c.attrs["element_dtype"].np)
    sizes = c.ints(_element_shape(c, 0))
    return c.add("Expand", c.constant(value), c.add("Concat", c.reshape(c.host_ints(1), [1]), sizes, axis=0))


@emits("TensorListZerosLike")
def zeros_like(c: Call, x: str) -> str:
    return c.add("Expand", c.number(0, c.writer.dtype_of(x)), c.add("Shape", x))


@emits("TensorListLength")
def length(c: Call, x: str) -> str:
    return c.reshape(c.size_of(x, 0), [])


@emits("TensorListFromTensor")
def from_tensor(c: Call, x: str, shape: str) -> str:
    return x


@emits("TensorListStack")
def stacked(c: Call, x: str, shape: str) -> str:
    return x


@emits("TensorListPushBack")
def push(c: Call, x: str, item: str) -> str:
    return c.add("Concat", x, c.unsqueeze(item, [0]), axis=0)


@emits("TensorListPopBack")
def pop(c: Call, x: str, shape: str) -> list[str]:
    last = c.add("Gather", x, c.constant(np.array(-1)), axis=0)
    return [c.slice(x, [0], [-1], [0]), last]


def _at(c: Call, index: int) -> str:
    """A place as a scalar of int64."""
    return c.reshape(c.host_ints(index), [])


@emits("TensorListGetItem")
def get(c: Call, x: str, index: str, shape: str) -> str:
    return c.add("Gather", x, _at(c, 1), axis=0)


@emits("TensorListSetItem", "TensorListAddAt")
def set_(c: Call, x: str, index: str, item: str) -> str:
    """One row is replaced, or added to; a list that grows gets zeros between."""
    how: dict[str, Any] = {"reduction": "add"} if c.op == "TensorListAddAt" else {}
    if c.attrs.get("resize_if_index_out_of_bounds"):
        x = _grown(c, x, _at(c, 1))
    return c.add("ScatterND", x, c.reshape(_at(c, 1), [1, 1]), c.unsqueeze(item, [0]), **how)


def _grown(c: Call, x: str, index: str) -> str:
    """``x`` with rows of zeros up to ``index``."""
    size = c.size_of(x, 0)
    wanted = c.add("Add", c.reshape(index, [1]), c.ints([1]))
    more = c.add("Sub", c.add("Max", wanted, size), size)
    rows = c.add("Concat", more, c.add("Shape", x, start=1), axis=0)
    return c.add("Concat", x, c.add("Expand", c.number(0, c.writer.dtype_of(x)), rows), axis=0)


@emits("TensorListClearAt")
def clear(c: Call, x: str, index: str) -> str:
    row = c.add("Gather", x, c.reshape(_at(c, 1), [1]), axis=0)
    zeros = c.add("Expand", c.number(0, c.writer.dtype_of(x)), c.add("Shape", row))
    return c.add("ScatterND", x, c.reshape(_at(c, 1), [1, 1]), zeros)


@emits("TensorListGather")
def gather(c: Call, x: str, indices: str, shape: str) -> str:
    return c.add("Gather", x, c.host_ints(1), axis=0)


@emits("TensorListScatterV2")
def scatter(c: Call, x: str, indices: str, shape: str, count: str) -> str:
    """A list of ``count`` elements, or as many as the places need."""
    places, number = c.integers(1, "places"), c.integers(3, "a length")[0]
    rows = number if number >= 0 else max(places, default=-1) + 1
    sizes = c.add("Concat", c.ints([rows]), c.add("Shape", x, start=1), axis=0)
    zeros = c.add("Expand", c.number(0), sizes)
    return c.add("ScatterND", zeros, c.reshape(c.ints(places), [len(places), 1]), x)


@emits("TensorListAdd")
def add(c: Call, a: str, b: str) -> str:
    return c.add("Add", a, b)


@emits("TensorListResize")
def resize(c: Call, x: str, size: str) -> str:
    wanted = c.reshape(c.host_ints(1), [1])
    grown = _grown(c, x, c.add("Sub", wanted, c.ints([1])))
    return c.add("Slice", grown, c.ints([0]), wanted, c.ints([0]))
