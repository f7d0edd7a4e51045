"""`einsum`: sums of products over labelled dimensions.

One Einsum op contracts one or two tensors. `einsum` cuts longer products into such pairs, in the order that
opt_einsum finds for the shapes known when the graph is built. A pair is transposed (views) and reshaped to
one batched matrix product, so that BLAS does the work; a pair without a common summed label is a broadcast
multiplication. Gradients are einsums of the same labels. This module is the only one that imports opt_einsum,
and does it at the first call that needs it.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.array.slicing import strided_slice
from flowrt.graph.ops.base.filling import fill, unbroadcast
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2, conjugated
from flowrt.graph.ops.linalg.matmul import product
from flowrt.graph.ops.linalg.matrix_parts import matrix_diag
from flowrt.graph.shapes import Shape, broadcast

NOMINAL_SIZE = 64
"""Assumed size of an unknown dimension when the order of contraction is chosen."""

ELLIPSIS = "..."
_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")

Labels: TypeAlias = tuple[Any, ...]
"""One label per dimension: a letter, or -1, -2, ... for dimensions covered by an ellipsis, from its right
end.
"""


class Equation(NamedTuple):
    """``"ij,jk->ik"`` as its terms."""

    inputs: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return f"{','.join(self.inputs)}->{self.output}"


@functools.lru_cache(maxsize=1024)
def parse_equation(text: str) -> Equation:
    """``text`` without spaces and with its output, if it is implicit: the ellipsis and the letters that occur
    once, sorted.

    Raises `InvalidArgumentError`.
    """
    left, arrow, output = text.replace(" ", "").partition("->")
    terms = tuple(left.split(","))
    letters = left.replace(ELLIPSIS, "").replace(",", "")
    if not arrow:
        output = ELLIPSIS * (ELLIPSIS in left) + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    if bad := [term for term in (*terms, output) if not _TERM.fullmatch(term)]:
        raise InvalidArgumentError(
            f"equation {text!r}: expected letters and at most one '...' per term; got {bad[0]!r}"
        )
    wanted = output.replace(ELLIPSIS, "")
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(letters):
        raise InvalidArgumentError(
            f"equation {text!r}: expected labels of the inputs in the output, each once; got {output!r}"
        )
    if ELLIPSIS in output and ELLIPSIS not in left:
        raise InvalidArgumentError(f"equation {text!r}: expected '...' in an input, as in the output")
    return Equation(terms, output)


@functools.lru_cache(maxsize=1024)
def resolve(equation: str, ranks: tuple[int, ...]) -> tuple[tuple[Labels, ...], Labels]:
    """The labels of every input's and the output's dimensions. Raises `InvalidArgumentError` for ranks that
    do not fit.
    """
    terms, output = parse_equation(equation)
    widths = []
    for term, rank in zip(terms, ranks, strict=True):
        width = rank - len(term.replace(ELLIPSIS, ""))
        if width < 0 or (width and ELLIPSIS not in term):
            raise InvalidArgumentError(
                f"equation {equation!r}: expected a tensor of dimensions {term!r}; got rank {rank}"
            )
        widths.append(width if ELLIPSIS in term else 0)
    if max(widths) and ELLIPSIS not in output:
        raise InvalidArgumentError(f"equation {equation!r}: expected '...' in the output, as in the inputs")
    inputs = tuple(_labels(term, width) for term, width in zip(terms, widths, strict=True))
    return inputs, _labels(output, max(widths))


def _labels(term: str, width: int) -> Labels:
    before, dots, after = term.partition(ELLIPSIS)
    return (*before, *(range(-width, 0) if dots else ()), *after)


# --- the kernel


class _Pair(NamedTuple):
    """Contraction of two tensors with distinct labels, as one batched matrix product."""

    left: tuple[int, ...]  # transposes the left tensor to [batch, rows, summed]
    right: tuple[int, ...]  # the right one to [batch, summed, columns]
    batch: int  # how many dimensions each group has
    rows: int
    summed: int
    columns: int
    broadcasts: bool  # whether an ellipsis is in both
    result: tuple[int, ...]  # transposes [batch, rows, columns] to the output


def _pair(left: Labels, right: Labels, output: Labels) -> _Pair:
    common = [label for label in left if label in right]
    batch, summed = [c for c in common if c in output], [c for c in common if c not in output]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    made = batch + rows + columns
    return _Pair(
        tuple(left.index(c) for c in batch + rows + summed),
        tuple(right.index(c) for c in batch + summed + columns),
        len(batch), len(rows), len(summed), len(columns),
        any(isinstance(c, int) for c in batch),
        tuple(made.index(c) for c in output),
    )  # fmt: skip


class _Plan(NamedTuple):
    """Contraction plan of an equation for tensors of certain ranks."""

    inputs: tuple[Labels, ...]
    kept: tuple[Labels, ...]  # their labels when diagonals are taken and labels of one input summed
    pair: _Pair | None  # for two inputs
    result: tuple[int, ...]  # for one input: transposes it to the output


@functools.lru_cache(maxsize=1024)
def _plan(equation: str, ranks: tuple[int, ...]) -> _Plan:
    inputs, output = resolve(equation, ranks)
    if len(inputs) == 1:
        kept = _kept(inputs[0], output)
        return _Plan(inputs, (kept,), None, tuple(kept.index(c) for c in output))
    left = _kept(inputs[0], (*inputs[1], *output))
    right = _kept(inputs[1], (*left, *output))
    return _Plan(inputs, (left, right), _pair(left, right, output), ())


def _kept(labels: Labels, wanted: Labels) -> Labels:
    """The labels of ``labels`` in ``wanted``: repeated ones last, where `numpy.diagonal` puts them."""
    return tuple(sorted((c for c in dict.fromkeys(labels) if c in wanted), key=lambda c: labels.count(c) > 1))


def _simplify(xp: Any, x: Any, labels: Labels, kept: Labels) -> Any:
    """``x`` with repeated labels taken along the diagonal, and labels outside ``kept`` summed."""
    if labels == kept:
        return x
    for label in dict.fromkeys(c for c in labels if labels.count(c) > 1):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            x = xp.diagonal(x, axis1=first, axis2=second)
            labels = (*(c for i, c in enumerate(labels) if i not in (first, second)), label)
    alone = tuple(i for i, c in enumerate(labels) if c not in kept)
    return x.sum(axis=alone, dtype=x.dtype) if alone else x


def _einsum(xp: Any, inputs: Any, equation: str, out: Any = None) -> Any:
    dtype, target = inputs[0].dtype, out
    if dtype in (dtypes.float16.np, dtypes.bfloat16.np):
        inputs, target = [x.astype(np.float32) for x in inputs], None
    plan = _plan(equation, tuple([x.ndim for x in inputs]))
    simple = [_simplify(xp, x, *labels) for x, *labels in zip(inputs, plan.inputs, plan.kept, strict=True)]
    if plan.pair is None:
        result = xp.transpose(simple[0], plan.result)
        if out is None and result.base is not None:
            result = result.copy()  # a kernel's result is its own memory
    else:
        result = _contract(xp, simple[0], simple[1], plan.pair, target)
    return delivered(xp, result, dtype, out)


def _contract(xp: Any, x: Any, y: Any, pair: _Pair, out: Any) -> Any:
    """The product of two tensors: ``out`` itself if it has the layout of the product."""
    if out is not None and not (pair.result == tuple(range(out.ndim)) and out.flags.c_contiguous):
        out = None
    x, y = xp.transpose(x, pair.left), xp.transpose(y, pair.right)
    batch, rows, summed, columns = pair.batch, pair.rows, pair.summed, pair.columns
    if x.shape[batch + rows :] != y.shape[batch : batch + summed] or (
        x.shape[:batch] != y.shape[:batch] and not pair.broadcasts
    ):
        raise InvalidArgumentError(f"expected one size per label; got shapes {x.shape}, {y.shape}")
    if rows == summed == columns == 1:
        return _arranged(xp, product(xp, x, y, out), pair.result, out)
    row_dims, column_dims = x.shape[batch : batch + rows], y.shape[batch + summed :]
    if not summed:
        left, right = x.shape + (1,) * columns, y.shape[:batch] + (1,) * rows + column_dims
        return _arranged(xp, xp.multiply(x.reshape(left), y.reshape(right), out), pair.result, out)
    inner = math.prod(y.shape[batch : batch + summed])
    x = x.reshape((*x.shape[:batch], math.prod(row_dims), inner))
    y = y.reshape((*y.shape[:batch], inner, math.prod(column_dims)))
    if out is not None:
        product(xp, x, y, out.reshape((*out.shape[:batch], math.prod(row_dims), math.prod(column_dims))))
        return out
    made = product(xp, x, y)
    return xp.transpose(made.reshape(made.shape[:batch] + row_dims + column_dims), pair.result)


def _arranged(xp: Any, made: Any, order: tuple[int, ...], out: Any) -> Any:
    return xp.transpose(made, order) if out is None else out


# --- the op


def _einsum_shape(s: ShapeContext) -> Sequence[Shape]:
    equation = s.attrs["equation"]
    terms, output = parse_equation(equation)
    if len(terms) != len(s.shapes) or len(terms) > 2:
        raise InvalidArgumentError(
            f"equation {equation!r}: expected one or two inputs, one per term; got {len(s.shapes)}"
        )
    known = [
        (None,) * len(term) if dims is None and ELLIPSIS not in term else dims
        for term, dims in zip(terms, s.shapes, strict=True)
    ]
    if None in known:
        return [None if ELLIPSIS in output else (None,) * len(output)]
    labels, wanted = resolve(equation, tuple(len(dims) for dims in known if dims is not None))
    sizes: dict[Any, int | None] = {}
    for names, dims in zip(labels, known, strict=True):
        for name, dim in zip(names, dims or (), strict=True):
            sizes[name] = _joined(equation, name, sizes.get(name, 1 if isinstance(name, int) else None), dim)
    return [tuple(sizes[name] for name in wanted)]


def _joined(equation: str, name: Any, known: int | None, dim: int | None) -> int | None:
    if isinstance(name, int):
        return (broadcast((known,), (dim,)) or (None,))[0]
    if known is None or dim is None or known == dim:
        return dim if known is None else known
    raise InvalidArgumentError(f"equation {equation!r}: expected one size of {name!r}; got {known} and {dim}")


def _einsum_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    equation = parse_equation(op.get_attr("equation"))
    return [_gradient(op, equation, dy, i) for i in range(len(op.inputs))]


def _gradient(op: Operation, equation: Equation, dy: Tensor, position: int) -> Tensor:
    """The einsum of ``dy`` and the other input that has the labels of input ``position``.

    A label that only this input has was summed, so its gradient is repeated: a factor of ones. A repeated
    label was a diagonal, so its gradient is one: a factor that is an identity matrix.
    """
    x, term = op.inputs[position], equation.inputs[position]
    others = [i for i in range(len(op.inputs)) if i != position]
    if ELLIPSIS in equation.output and ELLIPSIS not in term:
        equation = _spelled_out(op, equation, others[0])
    terms = [equation.output, *(equation.inputs[i] for i in others)]
    factors = [dy, *(conjugated(op.inputs[i]) for i in others)]
    before, dots, after = term.partition(ELLIPSIS)
    present, target = set("".join(terms)), ""
    for place, label in enumerate(before + after):
        axis = place if place < len(before) else place - len(before + after)
        if label in target:
            other = _unused(1, [*terms, term, target])
            terms.append(label + other)
            factors.append(matrix_diag(_ones(x, axis)))
            label = other
        elif label not in present:
            terms.append(label)
            factors.append(_ones(x, axis))
        target += label
    if not dots:
        return einsum(str(Equation(tuple(terms), target)), *factors)
    gradient = einsum(str(Equation(tuple(terms), ELLIPSIS + target)), *factors)
    if not before:
        return unbroadcast(gradient, x)
    leading, own = ELLIPSIS + target, target[: len(before)] + ELLIPSIS + target[len(before) :]
    return einsum(f"{leading}->{own}", unbroadcast(gradient, einsum(f"{own}->{leading}", x)))


def _spelled_out(op: Operation, equation: Equation, position: int) -> Equation:
    """``equation`` with letters for its ellipsis, which only input ``position`` has: so it can be summed."""
    dims = op.inputs[position].spec.shape
    if dims is None:
        raise op.error(UnimplementedError, "has a gradient for '...' only if the rank is known")
    width = len(dims) - len(equation.inputs[position].replace(ELLIPSIS, ""))
    letters = _unused(width, [*equation.inputs])
    terms = tuple(term.replace(ELLIPSIS, letters) for term in equation.inputs)
    return Equation(terms, equation.output.replace(ELLIPSIS, letters))


def _unused(count: int, terms: Sequence[str]) -> str:
    """``count`` letters that no term has."""
    return "".join(c for c in string.ascii_letters if not any(c in term for term in terms))[:count]


def _ones(x: Tensor, axis: int) -> Tensor:
    """A vector of ones as long as ``x`` along ``axis``."""
    dims = x.spec.shape
    known = None if dims is None else dims[axis]
    if known is not None:
        return fill([known], np.ones((), x.dtype.np))
    end = axis + 1 if axis != -1 else np.iinfo(np.int32).max
    return fill(strided_slice(shape(x), [axis], [end]), np.ones((), x.dtype.np))


def _einsum_jvp(op: Operation, *dxs: Tensor | None) -> list[Tensor]:
    equation, xs = op.get_attr("equation"), list(op.inputs)
    terms = [
        einsum_op([*xs[:i], dx, *xs[i + 1 :]], equation=equation)
        for i, dx in enumerate(dxs)
        if dx is not None
    ]
    return [functools.reduce(add_v2, terms)]


def _cost(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> float:
    """Cost of a batched matrix product with the common leading dimensions as the batch."""
    shapes = [[d or 1 for d in spec.shape or ()] for spec in (*inputs, *outputs)]
    batch = 1
    for dims in zip(*shapes, strict=False):
        if len(set(dims)) > 1:
            break
        batch *= dims[0]
    sizes = math.prod(math.prod(dims) / batch for dims in shapes)
    return 2 * batch * (math.sqrt(sizes) if len(inputs) == 2 else sizes)


def _einsum_samples(rng: np.random.Generator) -> Iterable[Sample]:
    draw = rng.standard_normal
    yield sample((draw((2, 3)), draw((3, 4))), equation="ij,jk->ik")
    yield sample((draw((2, 3, 2)), draw((2, 4, 2))), equation="bqd,bkd->bqk")
    yield sample((draw((2, 3)), draw((2, 3))), equation="ij, ij")
    yield sample((draw((3, 3)),), equation="ii->i")
    yield sample((draw((3, 3)), draw((3,))), equation="ii,i->")
    yield sample((draw((2, 3)),), equation="ij->j")
    yield sample((draw((2, 1, 2, 3)), draw((3, 3, 2))), equation="...ij,...jk->...ik")
    yield sample((draw((3, 2, 1)), draw((3, 2))), equation="i...,ij->j...")
    yield sample((draw(()), draw((2,))), equation=",i->i")
    yield sample((draw((2, 3, 4)), draw((4, 2))), equation="abc,cd->da")
    for dtype in (np.float32, np.float16, dtypes.bfloat16.np, np.int32, np.complex64):
        yield sample((rng.integers(-3, 3, (2, 3)).astype(dtype), np.ones(3, dtype)), equation="ij,j->i")
    yield sample((np.zeros((2, 0)), np.zeros((0, 3))), equation="ij,jk->ki")


def _batch_einsum(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """The batch gets a letter that the equation has not."""
    terms, output = parse_equation(op.get_attr("equation"))
    free = [c for c in string.ascii_letters if not any(c in term for term in (*terms, output))]
    if not free:
        return None
    pairs = zip(terms, values, strict=True)
    left = ",".join(free[0] * v.is_batched + term for term, v in pairs)
    return b.apply(op, [v.tensor for v in values], equation=f"{left}->{free[0]}{output}")


def _einsum_axes(s: ShapeContext) -> str | None:
    """The equation, letter by letter; None for a diagonal, which cannot be cut."""
    left, arrow, right = s.attrs["equation"].replace(" ", "").partition("->")
    operands = left.split(",")
    if not arrow or any(len(set(o.replace("...", ""))) < len(o.replace("...", "")) for o in operands):
        return None
    groups = [" ".join(re.findall(r"\.\.\.|\w", operand)) for operand in (*operands, right)]
    return f"{', '.join(groups[:-1])} -> {groups[-1]}"


einsum_op = define_op(
    "Einsum",
    "inputs: N * T in NUMERIC -> T",
    attrs="equation: string",
    shape=_einsum_shape,
    kernel=_einsum,
    vjp=_einsum_vjp,
    jvp=_einsum_jvp,
    samples=_einsum_samples,
    cost=_cost,
    batch=_batch_einsum,
    axes=_einsum_axes,
    traits=Traits(linear_in=(0, 1)),
    doc="The sum of products of one or two tensors over the labels that the output does not have.",
)


def einsum(equation: str, *inputs: Any, name: str | None = None, optimize: Any = "auto") -> Tensor:
    """The sum of products that ``equation`` describes in Einstein's notation, such as ``"bqd,bkd->bqk"``.

    A label not in the output is summed; ``...`` denotes dimensions that broadcast; without ``->`` the output
    has the labels that occur once, sorted. ``optimize`` selects opt_einsum's strategy for the order of
    contraction. Raises `InvalidArgumentError` for an equation that does not parse and for shapes that do not
    match it.

    Example:
        >>> tf.einsum('ij,j->i', [[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0]).eval()
        array([3., 7.], dtype=float32)
    """
    terms, output = parse_equation(equation)
    if len(terms) != len(inputs):
        raise InvalidArgumentError(f"einsum {equation!r}: expected {len(terms)} inputs; got {len(inputs)}")
    with get_default_graph().name_scope(name or "einsum") as scope:
        tensors = [convert_to_tensor(inputs[0])]
        tensors += [convert_to_tensor(x, tensors[0].dtype) for x in inputs[1:]]
        left = list(zip(terms, tensors, strict=True))
        for group in _order(Equation(terms, output), tensors, optimize):
            (term, x), *rest = [left.pop(i) for i in sorted(group, reverse=True)][::-1]
            for count, (other, y) in enumerate(rest, 1):
                last = not left and count == len(rest)
                later = [t for t, _ in left + rest[count:]]
                made = output if last else _intermediate(term, other, [*later, output])
                x = einsum_op([x, y], equation=f"{term},{other}->{made}", name=scope if last else None)
                term = made
            left.append((term, x))
        if len(tensors) == 1:
            return einsum_op(tensors, equation=f"{terms[0]}->{output}", name=scope)
        return left[0][1]


def _intermediate(left: str, right: str, later: Iterable[str]) -> str:
    """The labels of a pair that are still needed, in the order in which the product has them: common ones
    first.
    """
    needed = set("".join(later)) - {"."}
    kept = [c for c in dict.fromkeys(left + right) if c in needed]
    kept.sort(key=lambda c: 0 if c in left and c in right else 1 if c in left else 2)
    return ELLIPSIS * (ELLIPSIS in left + right) + "".join(kept)


def _order(equation: Equation, tensors: Sequence[Tensor], optimize: Any) -> list[tuple[int, ...]]:
    """The operands to contract, step by step; results are appended to the list."""
    if len(tensors) < 3:
        return [(0, 1)] * (len(tensors) - 1)
    shapes = [t.spec.shape for t in tensors]
    if any(dims is None for dims in shapes):
        return [(0, 1)] * (len(tensors) - 1)
    import opt_einsum

    sizes = [tuple(NOMINAL_SIZE if d is None else d for d in dims or ()) for dims in shapes]
    return opt_einsum.contract_path(str(equation), *sizes, shapes=True, optimize=optimize)[0]
