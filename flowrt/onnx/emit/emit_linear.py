"""Products and parts of matrices."""

from __future__ import annotations

import numpy as np

from flowrt.onnx.emit.call import Call, emits


def _turned(c: Call, x: str, index: int) -> str:
    """The last two dimensions in the other order."""
    order = list(range(c.rank(index)))
    return c.transpose(x, [*order[:-2], order[-1], order[-2]])


@emits("MatMul", "BatchMatMulV2")
def product(c: Call, a: str, b: str) -> str:
    left, right = ("transpose_a", "transpose_b") if c.op == "MatMul" else ("adj_x", "adj_y")
    a = _turned(c, a, 0) if c.attrs[left] else a
    return c.add("MatMul", a, _turned(c, b, 1) if c.attrs[right] else b)


@emits("Einsum")
def einsum(c: Call, *inputs: str) -> str:
    return c.add("Einsum", *inputs, equation=c.attrs["equation"])


@emits("Cross")
def cross(c: Call, a: str, b: str) -> str:
    """The product of vectors in the last dimension."""

    def moved(x: str, order: list[int]) -> str:
        return c.add("Gather", x, c.ints(order), axis=-1)

    one, two = [1, 2, 0], [2, 0, 1]
    left = c.add("Mul", moved(a, one), moved(b, two))
    return c.add("Sub", left, c.add("Mul", moved(a, two), moved(b, one)))


@emits("MatrixDiag", "Diag")
def diagonal_matrix(c: Call, x: str) -> str:
    shape = c.shape()
    if c.op == "Diag":
        return c.reshape(_on_diagonal(c, c.reshape(x, [-1 if 0 not in shape else 0])), [*shape, *shape])
    return _on_diagonal(c, x)


def _on_diagonal(c: Call, x: str) -> str:
    size = int(np.prod(c.shape())) if c.op == "Diag" else c.shape()[-1]
    zero = c.number(0)
    return c.add("Where", c.constant(np.eye(size, dtype=bool)), c.unsqueeze(x, [-1]), zero)


@emits("MatrixDiagPart")
def diagonal(c: Call, x: str) -> str:
    *batch, rows, columns = c.shape()
    flat = c.reshape(x, [*batch, rows * columns])
    return c.add("Gather", flat, c.ints(np.arange(min(rows, columns)) * (columns + 1)), axis=len(batch))


@emits("DiagPart")
def diagonal_of_tensor(c: Call, x: str) -> str:
    half = c.shape()[: c.rank() // 2]
    size = int(np.prod(half))
    flat = c.add("Gather", c.reshape(x, [size * size]), c.ints(np.arange(size) * (size + 1)), axis=0)
    return c.reshape(flat, half)


@emits("MatrixSetDiag")
def with_diagonal(c: Call, x: str, diagonal: str) -> str:
    *_, rows, columns = c.shape()
    if not rows or not columns:
        return x
    places = np.minimum(np.arange(columns), max(min(rows, columns) - 1, 0))
    spread = c.unsqueeze(c.add("Gather", diagonal, c.ints(places), axis=c.rank(1) - 1), [-2])
    return c.add("Where", c.constant(np.eye(rows, columns, dtype=bool)), spread, x)


@emits("MatrixBandPart")
def band(c: Call, x: str, lower: str, upper: str) -> str:
    *_, rows, columns = c.shape()
    low, high = (c.integers(i, "a width of the band")[0] for i in (1, 2))
    offset = np.arange(columns) - np.arange(rows)[:, None]
    kept = ((offset >= -low) | (low < 0)) & ((offset <= high) | (high < 0))
    return c.add("Where", c.constant(kept), x, c.number(0))


@emits("MatrixDeterminant")
def determinant(c: Call, x: str) -> str:
    return c.add("Det", x)


@emits("LogMatrixDeterminant")
def log_determinant(c: Call, x: str) -> list[str]:
    found = c.add("Det", x)
    return [c.add("Sign", found), c.add("Log", c.add("Abs", found))]
