"""Reductions over dimensions, and sums along one."""

from __future__ import annotations

import numpy as np

from flowrt.onnx.emit.call import Call, emits

REDUCTIONS = {
    "Sum": "ReduceSum", "Prod": "ReduceProd", "Max": "ReduceMax", "Min": "ReduceMin",
    "EuclideanNorm": "ReduceL2",
}  # fmt: skip


def _axes(c: Call) -> list[int]:
    """The dimensions, in order."""
    return sorted({axis % c.rank() for axis in c.integers(1, "axes")}) if c.rank() else []


@emits(*REDUCTIONS)
def reduced(c: Call, x: str, axes: str) -> str:
    if not _axes(c) and c.op == "EuclideanNorm":
        return c.add("Abs", x)
    return c.reduce(REDUCTIONS[c.op], x, _axes(c), c.attrs["keep_dims"])


@emits("Mean")
def mean(c: Call, x: str, axes: str) -> str:
    along = _axes(c)
    if c.dtype().kind not in "iu":
        return c.reduce("ReduceMean", x, along, c.attrs["keep_dims"])
    total = c.reduce("ReduceSum", c.cast(x, np.int64), along, c.attrs["keep_dims"])
    return c.add("Div", total, c.number(np.prod([c.shape()[axis] for axis in along]), np.int64))


@emits("All", "Any")
def logical(c: Call, x: str, axes: str) -> str:
    """The smallest or the largest of 0 and 1; of no elements that is a number outside."""
    op = {"All": "ReduceMin", "Any": "ReduceMax"}[c.op]
    found = c.reduce(op, c.cast(x, np.int32), _axes(c), c.attrs["keep_dims"])
    return c.add("Greater", found, c.number(0, np.int32))


@emits("ArgMax", "ArgMin")
def extreme(c: Call, x: str, axis: str) -> str:
    return c.add(c.op, x, axis=c.integers(1, "an axis")[0], keepdims=0)


@emits("L2Loss")
def half_square(c: Call, x: str) -> str:
    total = c.add("ReduceSumSquare", x, keepdims=0)
    return c.add("Mul", total, c.number(0.5))


@emits("Cumsum")
def cumulative_sum(c: Call, x: str, axis: str) -> str:
    return _cumulative(c, "CumSum", x)


@emits("Cumprod")
def cumulative_product(c: Call, x: str, axis: str) -> str:
    """A scan, since ONNX's own operation is newer than most runtimes."""
    return along_axis(c, [x], "Mul", 1, c.attrs["exclusive"])


def _cumulative(c: Call, op: str, x: str) -> str:
    axis = c.constant(np.array(c.integers(1, "an axis")[0], np.int64))
    return c.add(op, x, axis, exclusive=int(c.attrs["exclusive"]), reverse=int(c.attrs["reverse"]))


def along_axis(c: Call, inputs: list[str], op: str, first: float, exclusive: bool) -> str:
    """``y[i] = op(y[i - 1], x[i])`` along an axis by a Scan; of two inputs ``y[i] = a[i] y[i - 1] + b[i]``.
    Exclusive, the rows are those before each step.
    """
    axis = c.integers(len(inputs), "an axis")[0] % c.rank()
    dtype = c.dtype()
    wide = np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype
    if wide.kind in "iu":
        wide = np.dtype(np.int64 if wide.itemsize == 8 else np.int32)
    given = [c.cast(x, wide) for x in inputs]
    rest = c.add("Gather", given[-1], c.constant(np.array(0)), axis=axis) if c.dims()[axis] else None
    if rest is None:
        return inputs[-1]
    start = c.add("Expand", c.number(first, wide), c.add("Shape", rest))
    body = c.writer.scan_body(op, wide, len(inputs), exclusive)
    directions = [int(c.attrs["reverse"])] * len(inputs)
    _, found = c.several(
        "Scan", 2, start, *given, body=body, num_scan_inputs=len(inputs), dtype=wide,
        scan_input_axes=[axis] * len(inputs), scan_input_directions=directions,
        scan_output_axes=[axis], scan_output_directions=directions[:1],
    )  # fmt: skip
    return found


@emits("LinearRecurrence")
def recurrence(c: Call, a: str, b: str, axis: str) -> str:
    return along_axis(c, [a, b], "Add", 0, exclusive=True)


@emits("CumulativeLogsumexp")
def cumulative_log_sum_exp(c: Call, x: str, axis: str) -> str:
    """Sums with the largest of all taken away, so that nothing overflows."""
    along = c.integers(1, "an axis")[0] % c.rank()
    if not c.dims()[along]:
        return x
    top = c.reduce("ReduceMax", x, [along], keep=True)
    total = _cumulative(c, "CumSum", c.add("Exp", c.add("Sub", x, top)))
    return c.add("Add", c.add("Log", total), top)
