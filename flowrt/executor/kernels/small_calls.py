"""Compiled calls of small operations that are in no fused loop: matrix product, sum, concat, reshape, gather,
select, row sums, argmax and max; and of scattered rows of any size, each of which takes NumPy 1 us.

Each takes a fraction of NumPy's dispatch time; and it is machine code, so that it can be part of a compiled
loop (`flowrt.executor.lists.compiled_body`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from flowrt.device.llvm.call_sequence import MachineCall, Table, in_sequence
from flowrt.device.llvm.host_jit import vector_registers
from flowrt.device.llvm.host_pool import PARALLEL_NS
from flowrt.executor.kernels.copy_kernels import clear_call, copy_call, elementwise_call, is_fit, rule_call
from flowrt.executor.kernels.loop_layout import compiled
from flowrt.executor.program.arguments import Later
from flowrt.executor.program.instruction import Checked
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.concat_and_split import concat_op, pack
from flowrt.graph.ops.array.gather_scatter import gather_op, scatter_nd
from flowrt.graph.ops.array.reductions import all_op, any_op, max_op, mean_op, min_op, prod_op, sum_op
from flowrt.graph.ops.base.indexing import check_range
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.arithmetic import add_v2
from flowrt.graph.ops.elementwise.comparison import select
from flowrt.graph.ops.linalg.matmul import matmul_op
from flowrt.graph.ops.nn.bias import bias_add_grad
from flowrt.graph.shapes import is_static
from flowrt.loops.llvm_product import Product, Registers, Strides, llvm_product
from flowrt.loops.llvm_rows import NUMBER, REFUSED, gather, scatter_add
from flowrt.loops.loop_program import LoopBuilder, Store

Array: TypeAlias = np.ndarray[Any, Any]

MAX_SMALL = 1 << 15
"""Elements of the outputs."""

MAX_PRODUCT = 1 << 22
"""Maximum number of multiplications of a product: 40 us. A library's two threads take as long for twice as
many; below, it has to wake them, and to copy a factor: for 32x256 by 256x512 OpenBLAS takes 100 us, for 32x32
by 32x32 1.2 and this 0.5.
"""

MAX_ALONG = 1 << 16
"""The same if both factors are contiguous along the sum: 2 us with either."""

NS_PER_PRODUCT = 0.01
"""Time per multiplication."""


NS_PER_ROW, NS_PER_BYTE = 5.0, 0.06
"""Time per row and per byte of a gather, or of rows that are added."""


def small_call(node: Node, arguments: Sequence[Any], out: Sequence[Array]) -> MachineCall | Checked | None:
    """A compiled call for ``node`` on ``arguments``, as for its kernel, into its outputs ``out``; or None."""
    make = _CALLS.get(node.op)
    if (
        make is None
        or (sum(array.size for array in out) > MAX_SMALL and node.op is not scatter_nd)
        or any(isinstance(a, Later) for a in arguments)
    ):
        return None
    attrs = {key: node.attrs[key] for key in node.op.kernel_attrs}
    return make(*arguments, out=out, **attrs)


def may_be_small(subgraph: Subgraph, node: Node) -> bool:
    """Whether there may be one, by the node's shapes."""
    if node.op not in _CALLS or not all(is_static(spec.shape) for spec in node.outputs):
        return False
    return all(is_static(subgraph.spec(ref).shape) for ref in node.inputs)


def _product(
    a: Array, b: Array, transpose_a: bool, transpose_b: bool, out: Sequence[Array], **_: Any
) -> MachineCall | None:
    (c,) = out
    a, b = a.T if transpose_a else a, b.T if transpose_b else b
    (m, k), n = a.shape, b.shape[-1]
    arrays, name = (a, b, c), c.dtype.name
    is_right = k == b.shape[0] and (m, n) == c.shape and all(array.dtype == c.dtype for array in arrays)
    if not is_right or not all(map(is_fit, arrays)) or name not in ("float32", "float64"):
        return None
    lanes, registers = vector_registers()
    held = Registers(lanes * 4 // c.itemsize, registers)
    product = Product(name, m, n, k, _strides(a), _strides(b), _strides(c), held)
    most = MAX_ALONG if product.is_along else MAX_PRODUCT
    if not 0 < m * n * k <= most or product.is_scattered:
        return None
    text = llvm_product(product)
    table = Table.of(arrays, NS_PER_PRODUCT * m * n * k)
    return MachineCall(compiled(text), table, 0, product.extent)


def _strides(array: Array) -> Strides:
    row, column = array.strides
    return Strides(row // array.itemsize, column // array.itemsize)


def _concat(values: Sequence[Array], axis: int, out: Sequence[Array]) -> MachineCall | None:
    (target,) = out
    return _copies(zip(_parts(target, [value.shape[axis] for value in values], axis), values, strict=True))


def _pack(values: Sequence[Array], axis: int, out: Sequence[Array], **_: Any) -> MachineCall | None:
    moved = np.moveaxis(out[0], axis, 0)
    return _copies([(moved[i, ...], value) for i, value in enumerate(values)])


def _gather(
    params: Array, indices: Array, axis: int, batch_dims: int, out: Sequence[Array]
) -> Checked | None:
    """Copy of contiguous rows. Indices are checked afterwards."""
    (target,) = out
    rows, nbytes = len(params), target.nbytes // max(1, indices.size)
    arrays = (params, indices, target)
    is_right = target.shape == indices.shape + params.shape[1:] and params.dtype == target.dtype
    is_plain = all(array.flags.c_contiguous and array.flags.aligned for array in arrays)
    if axis % params.ndim or batch_dims or not (is_right and is_plain and rows and nbytes):
        return None
    if indices.dtype.name not in ("int32", "int64") or params.dtype.kind == "O":
        return None
    return _by_index(gather(indices.dtype.name), arrays, rows, nbytes)


def _scatter(indices: Array, updates: Array, shape: Any, out: Sequence[Array]) -> Checked | None:
    """Rows that are added to rows of zeros. Indices are checked afterwards."""
    (target,) = out
    arrays = (target, indices, updates)
    is_right = target.ndim > 0 and updates.shape == indices.shape[:-1] + target.shape[1:]
    is_plain = all(array.flags.c_contiguous and is_fit(array) for array in arrays)
    if indices.shape[-1:] != (1,) or not (is_right and is_plain and target.size and updates.size):
        return None
    if indices.dtype.name not in ("int32", "int64") or updates.dtype != target.dtype or target.dtype == bool:
        return None
    text = scatter_add(indices.dtype.name, target.dtype.name)
    return _by_index(text, arrays, len(target), updates.size // indices.size, [clear_call(target)])


def _by_index(
    text: str, arrays: Sequence[Array], rows: int, length: int, before: Sequence[MachineCall] = ()
) -> Checked:
    """A loop over the indices, the second of ``arrays``, of ``rows``: see `flowrt.loops.llvm_rows`. It is
    called behind ``before``.
    """
    _, indices, others = arrays
    nanoseconds = NS_PER_ROW * indices.size + NS_PER_BYTE * others.nbytes
    table = Table.of([*arrays, rows, length, 0, 0], nanoseconds)
    call = MachineCall(compiled(text), table, 0, indices.size)
    status = table.words.data  # a look-up takes 40 ns, an array element's 100

    def check() -> None:
        if status[REFUSED]:
            status[REFUSED] = 0
            check_range(np, "indices", indices, rows)  # says where it is, unless a loop has gone on
            check_range(np, "indices", np.array(status[NUMBER]), rows)

    return Checked(in_sequence([*before, call]) if before else call, check)


def _select(condition: Array, t: Array, e: Array, out: Sequence[Array]) -> MachineCall | None:
    """Rows of one or of the other."""
    (target,) = out
    condition = condition.reshape(condition.shape + (1,) * (target.ndim - condition.ndim))
    arrays = (condition, t, e, target)
    if not target.size or not all(map(is_fit, arrays)) or not t.shape == e.shape == target.shape:
        return None
    return elementwise_call(LoopBuilder.select, arrays)


def _sum(x: Array, y: Array, out: Sequence[Array]) -> MachineCall | None:
    """A sum alone: of gradients over micro-batches, between products."""
    (target,) = out
    is_plain = x.shape == y.shape == target.shape and x.dtype == y.dtype == target.dtype
    if not (is_plain and target.size and all(map(is_fit, (x, y, target)))):
        return None
    return elementwise_call(lambda b, *terms: b.emit("add", *terms), [x, y, target])


def _bias_gradient(out_backprop: Array, data_format: str, out: Sequence[Array]) -> MachineCall | None:
    """The sum over rows that it is where the channels are last."""
    (target,) = out
    is_plain = out_backprop.flags.c_contiguous and out_backprop.dtype == target.dtype and is_fit(out_backprop)
    if data_format != "NHWC" or not (is_plain and out_backprop.size):
        return None
    rows = out_backprop.reshape(-1, target.size)
    call = rule_call(lambda b, value: value, [rows, target], rows.shape, Store.SUM_ROWS)
    return in_sequence([clear_call(target), call]) if call.table.nanoseconds <= PARALLEL_NS else None


def _reduction(
    op: str, input: Array, reduction_indices: int | Sequence[int], keep_dims: bool, out: Sequence[Array]
) -> MachineCall | None:
    """Along the last dimensions, all, or none."""
    (target,) = out
    axes = [axis % input.ndim for axis in np.atleast_1d(reduction_indices).tolist()]
    kept = input.ndim - len(axes)
    is_plain = input.flags.c_contiguous and is_fit(input) and input.dtype == target.dtype
    if sorted(axes) != [*range(kept, input.ndim)] or not is_plain:
        return None
    if not 0 < input.size <= MAX_SMALL:
        return None
    rows = input.reshape(target.size, -1)
    return rule_call(lambda b, value: b.emit(op, value), [rows, target.reshape(-1, 1)], rows.shape)


def _unreduced(
    input: Array, reduction_indices: int | Sequence[int], keep_dims: bool, out: Sequence[Array]
) -> MachineCall | None:
    """A sum or mean along no axes, or axes of one element."""
    (target,) = out
    is_one = all(input.shape[axis] == 1 for axis in np.ravel(reduction_indices).tolist())
    is_plain = input.dtype == target.dtype and input.size <= MAX_SMALL
    return _copies([(target, input.reshape(target.shape))]) if is_plain and is_one else None


def _parts(array: Array, sizes: Sequence[int], axis: int) -> list[Array]:
    """Views of ``array``, cut along ``axis``."""
    before = (slice(None),) * (axis % array.ndim)
    ends = itertools.accumulate(sizes)
    return [array[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True)]


def _copies(pairs: Iterable[tuple[Array, Array]]) -> MachineCall | None:
    """One call that copies to each target its source."""
    pairs = [(target, source) for target, source in pairs if target.size]
    if not pairs or not all(is_fit(a) and is_fit(b) and a.shape == b.shape for a, b in pairs):
        return None
    return in_sequence([copy_call(target, source) for target, source in pairs])


def _reshape(tensor: Array, shape: Any, out: Sequence[Array]) -> MachineCall | None:
    """A copy where there is no view: of a transpose, for instance."""
    (target,) = out
    if tensor.size != target.size or not target.flags.c_contiguous:
        return None
    return _copies([(target.reshape(tensor.shape), tensor)])


_CALLS: Mapping[OpDef, Callable[..., MachineCall | Checked | None]] = {
    matmul_op: _product,
    add_v2: _sum,
    concat_op: _concat,
    reshape: _reshape,
    pack: _pack,
    gather_op: _gather,
    scatter_nd: _scatter,
    bias_add_grad: _bias_gradient,
    select: _select,
    sum_op: _unreduced,
    mean_op: _unreduced,
    max_op: partial(_reduction, "row_max"),
    min_op: partial(_reduction, "row_min"),
    prod_op: partial(_reduction, "row_prod"),
    any_op: partial(_reduction, "row_max"),
    all_op: partial(_reduction, "row_min"),
}
"""``make(*arguments, out=outputs, **attrs)``."""
