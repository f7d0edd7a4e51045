"""Reverse-mode differentiation: `gradients` adds the operations that compute dys/dxs to the graph.

The algorithm is reverse accumulation over a directed acyclic graph (Linnainmaa 1970; Griewank and Walther,
*Evaluating Derivatives*, chapter 3): visit the operations between xs and ys in reverse topological order, sum
the gradients of each output, pass the sums to the op's ``vjp`` rule, and add its results to the gradients of
the inputs. The rules build graph, so gradients can be differentiated again. Work and new operations are
linear in the operations between xs and ys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError, UnimplementedError, nearest
from flowrt.graph.construction.build import constant_tensor, convert_to_tensor
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.construction.list_slices import ListSlices, sum_lists
from flowrt.graph.layouts.attributes import FORWARD, STAGE
from flowrt.graph.op_def import Rule
from flowrt.graph.op_facets import Vjp
from flowrt.graph.ops.array.concat_and_split import concat_op
from flowrt.graph.ops.base.filling import ones_like_op, zeros_like_op
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.arithmetic import add_n_op
from flowrt.graph.ops.lists.tensor_lists import zeros_like_list
from flowrt.graph.ops.state.variable_ops import read_variable_op
from flowrt.graph.shapes import compatible

GradientTensor: TypeAlias = Tensor | IndexedSlices | ListSlices


class UnconnectedGradients:
    """Values that `gradients` can return for an x that no y depends on."""

    NONE = "none"
    ZERO = "zero"


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: Any = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: str = UnconnectedGradients.NONE,
) -> list[Any]:
    """The derivatives of ``sum(ys)``.

    Args:
        ys: A tensor or a list of tensors, of floats or complex numbers.
        xs: A tensor, a variable, or a list of them.
        grad_ys: The incoming gradients, of the shapes of ``ys``; None means ones.
        name: The name scope of the operations.
        colocate_gradients_with_ops: Whether they are on the devices of the operations that they are
            derivatives of.
        gate_gradients: Accepted.
        aggregation_method: Accepted: sums are always built with one AddN.
        stop_gradients: Tensors that are treated as constants.
        unconnected_gradients: "none", or "zero" for zeros where there is no gradient.

    Returns:
        A list with a tensor (of the shape of the x), an `IndexedSlices`, or None for each x.

    Raises:
        DTypeError: A y is not floating or complex.
        InvalidArgumentError: Structures do not match.
        UnimplementedError: An op on the path has no suitable gradient rule.

    Example:
        >>> x = tf.constant(3.0)
        >>> (slope,) = tf.gradients(x ** 2, x)
        >>> slope.eval()
        np.float32(6.0)
    """
    ys, xs = as_tensors(ys), as_tensors(xs)
    if not ys:
        return [None] * len(xs)
    grads = as_list(grad_ys) if grad_ys is not None else [None] * len(ys)
    if len(grads) != len(ys):
        raise InvalidArgumentError(
            f"gradients: expected one grad_y for each of {len(ys)} ys; got {len(grads)}"
        )
    if unconnected_gradients not in (UnconnectedGradients.NONE, UnconnectedGradients.ZERO):
        raise InvalidArgumentError(
            f"gradients: expected unconnected_gradients 'none' or 'zero'; got {unconnected_gradients!r}"
        )
    stopped = [] if stop_gradients is None else as_tensors(stop_gradients)
    current, given = get_default_graph(), ys[0].graph
    graph = current if current.root is given.root else given
    for tensor in [*ys, *xs, *stopped]:
        if tensor.graph is not graph and not graph.is_inside(tensor.graph):
            raise tensor.graph.foreign(tensor)
    stops = {t.ref for t in stopped}
    with graph, graph.name_scope(name), graph.derivatives_of(ys[0].op):
        seeds = [_seed(y, g, i) for i, (y, g) in enumerate(zip(ys, grads, strict=True))]
        shares = backpropagate(graph, ys, seeds, xs, stops, colocate_gradients_with_ops)
        zero = unconnected_gradients == UnconnectedGradients.ZERO
        return [_gradient_of(x, graph, shares, zero) for x in xs]


def _gradient_of(
    x: Tensor, graph: Graph, shares: Mapping[Any, list[GradientTensor]], zero: bool
) -> GradientTensor | None:
    """The sum of what reached ``x``, noted as a derivative of it; zeros, or None, where nothing did."""
    with graph.derivatives_of(x.op):
        if x.ref in shares:
            return total_of(shares[x.ref], x)
        return zeros_of(x) if zero else None


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def as_tensors(values: Any) -> list[Tensor]:
    """Tensors unchanged; variables as their handles, which collect the gradients of all reads."""
    return [
        v if isinstance(v, Tensor) else v.handle if hasattr(v, "handle") else convert_to_tensor(v)
        for v in as_list(values)
    ]


def zeros_of(x: Tensor) -> Tensor:
    if x.dtype is dtypes.variant:
        return zeros_like_list(x)
    if x.dtype.name == "resource":
        x = read_variable_op(x, dtype=x.op.get_attr("dtype"))
    return zeros_like_op(x)


def _seed(y: Tensor, grad: Any, position: int) -> GradientTensor:
    is_given_list = y.dtype is dtypes.variant and grad is not None
    if not (y.dtype.is_floating or y.dtype.is_complex or is_given_list):
        raise DTypeError(f"gradients: expected ys of floating or complex dtype; got {y!r}")
    if grad is None:
        if y.dtype.is_complex:
            raise DTypeError(f"gradients: expected grad_ys for the complex y {y!r}; got None")
        if y.spec.shape == ():  # a loss: then what only depends on its seed folds
            return constant_tensor(np.ones((), y.dtype.np), f"grad_ys_{position}")
        return ones_like_op(y, name=f"grad_ys_{position}")
    if isinstance(grad, (IndexedSlices, ListSlices)):
        return grad
    tensor = convert_to_tensor(grad, y.dtype)
    if not compatible(tensor.spec.shape, y.spec.shape):
        raise InvalidArgumentError(f"gradients: expected grad_ys of shape {y.shape}; got {tensor.shape}")
    return tensor


def backpropagate(
    graph: Graph,
    ys: list[Tensor],
    seeds: list[GradientTensor],
    xs: list[Tensor],
    stops: set[Any],
    colocate: bool,
) -> dict[Any, list[GradientTensor]]:
    """All gradient contributions by tensor, for the tensors between ``xs`` and ``ys``: those of ``graph``,
    and those of enclosing graphs if it captured tensors that depend on an x.
    """
    order = ancestors([y.op for y in ys], stops)
    active = _reached_from(xs, order, stops)
    shares: dict[Any, list[GradientTensor]] = {}
    for y, seed in zip(ys, seeds, strict=True):
        shares.setdefault(y.ref, []).append(seed)
    wanted = {x.ref for x in xs}
    for op in reversed(order):
        if op not in active or not any(t.ref in shares for t in op.outputs):
            continue
        if all(t.ref in stops for t in op.outputs):
            continue
        with graph.derivatives_of(op), _at_its_stage(graph, op):
            dys = [total_of(shares.get(t.ref), t) if t.ref not in stops else None for t in op.outputs]
            for tensor in op.outputs:
                if tensor.ref in shares and tensor.ref not in wanted:
                    del shares[tensor.ref]
            inputs = op.inputs  # an operation that owns functions may have more of them afterwards
            scope = graph.colocate_with(op) if colocate else contextlib.nullcontext()
            with graph.name_scope(f"{op.name}_grad"), scope:
                dxs = apply_vjp(op, dys)
        for tensor, dx in zip(map(_origin, inputs), dxs, strict=True):
            if dx is not None and (tensor.op in active or tensor.ref in wanted):
                _check_shape(op, tensor, dx)
                shares.setdefault(tensor.ref, []).append(dx)
    return shares


def _at_its_stage(graph: Graph, op: Operation) -> contextlib.AbstractContextManager[None]:
    """The scope of the derivatives of ``op``, which belong to its stage if it is of a pipeline."""
    stage = op.node.attrs.get(STAGE)
    if stage is None:
        return contextlib.nullcontext()
    noted = {STAGE: stage, FORWARD: op.name}
    return graph.attributes_by(lambda made: noted)


def ancestors(roots: Sequence[Operation], stops: set[Any]) -> list[Operation]:
    """Every operation that ``roots`` depend on through data edges, producers first; none before ``stops``."""
    order: list[Operation] = []
    state: dict[Operation, bool] = {}
    stack = list(dict.fromkeys(roots))
    while stack:
        op = stack[-1]
        if op not in state:
            state[op] = False
            inputs = map(_origin, op.inputs)
            stack += [t.op for t in inputs if t.op not in state and t.ref not in stops]
            continue
        stack.pop()
        if not state[op]:
            state[op] = True
            order.append(op)
    return order


def _origin(tensor: Tensor) -> Tensor:
    """``tensor``, or the outer tensor that it represents in a function that captured it."""
    return tensor.graph.origin(tensor)


def _reached_from(xs: list[Tensor], order: list[Operation], stops: set[Any]) -> set[Operation]:
    """The operations of ``order`` with outputs that depend on an x."""
    sources = {x.ref for x in xs}
    active: set[Operation] = set()
    for op in order:
        inputs = map(_origin, op.inputs)
        through = any(t.ref in sources or (t.op in active and t.ref not in stops) for t in inputs)
        if through and vjp_rule(op) is not Rule.NONDIFFERENTIABLE:
            active.add(op)
    return active | {x.op for x in xs if x.op in active}


def vjp_rule(op: Operation) -> Vjp | Rule:
    override = op.node.attrs.get("_gradient_op_type")
    if override is None:
        return op.op_def.vjp
    if override in op.graph.gradient_functions:
        return op.graph.gradient_functions[override]
    if override not in _registered:
        raise NotFoundError(
            f"gradient {override!r}: no RegisterGradient with this name.{nearest(override, _registered)}"
        )
    return _registered[override]


def apply_vjp(op: Operation, dys: Sequence[GradientTensor | None]) -> list[GradientTensor | None]:
    """The gradient contributions to ``op``'s inputs, from the gradients of its outputs."""
    rule = vjp_rule(op)
    if isinstance(rule, Rule):
        raise op.error(UnimplementedError, "has no gradient rule")
    dense = [g if g is None or isinstance(g, Tensor) else convert_to_tensor(g) for g in dys]
    count = len(op.inputs)
    dxs = as_list(rule(op, *dense))
    if len(dxs) != count:
        raise op.error(InvalidArgumentError, f"its vjp: expected {count} gradients; got {len(dxs)}")
    return dxs


def _check_shape(op: Operation, tensor: Tensor, dx: GradientTensor) -> None:
    if (
        isinstance(dx, Tensor)
        and not compatible(dx.spec.shape, tensor.spec.shape)
        and tensor.dtype.name != "resource"
    ):
        message = f"gradient of {tensor.name!r}: expected shape {tensor.shape}; got {dx.shape}"
        raise op.error(InvalidArgumentError, message)


def total_of(shares: list[GradientTensor] | None, tensor: Tensor) -> GradientTensor | None:
    """The sum of the contributions: sparse if all are sparse."""
    if not shares:
        return None
    if tensor.dtype is dtypes.variant:
        shares[:] = [sum_lists(shares)]
    if len(shares) == 1:
        return shares[0]
    sparse = [s for s in shares if isinstance(s, IndexedSlices)]
    if len(sparse) == len(shares):
        total: GradientTensor = _concat_slices(sparse)
    else:
        total = add_n_op([convert_to_tensor(s) for s in shares])
    shares[:] = [total]
    return total


def _concat_slices(slices: list[IndexedSlices]) -> IndexedSlices:
    indices = [s.indices for s in slices]
    if len({i.dtype for i in indices}) > 1:
        indices = [cast_op(i, DstT="int64") for i in indices]
    return IndexedSlices(
        concat_op([s.values for s in slices], 0), concat_op(indices, 0), slices[0].dense_shape
    )


# --- gradients by name, as TensorFlow has them

_registered: dict[str, Vjp | Rule] = {}


class RegisterGradient:
    """Decorator: register a gradient function ``(op, *dys) -> dxs`` for use with
    `Graph.gradient_override_map`.
    """

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type

    def __call__(self, function: Any) -> Any:
        if self.op_type in _registered:
            raise InvalidArgumentError(f"RegisterGradient: {self.op_type!r} is registered already")
        _registered[self.op_type] = function
        return function
