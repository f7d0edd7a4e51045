"""Branches and loops (If, Loop, Scan): known conditions and counts are decided while building."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.onnx.node import Node
from flowrt.onnx.proto import dtype_of as dtype_of_element
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import (
    NeedsValueError,
    Value,
    axis_of,
    dtype_of,
    has_static_shape,
    is_known,
    rank_of,
    shape_of,
    tensor,
)

MAX_UNROLLED = 64
"""The number of iterations, if it is known, up to which a loop is unrolled."""


@handles("If")
def if_(node: Node, condition: Value) -> Any:
    branches = [node.graph("else_branch"), node.graph("then_branch")]
    if is_known(condition):
        return tuple(node.scope.inner().run(branches[bool(np.asarray(condition).reshape(()))], {}))

    def build(index: int) -> Any:
        def branch() -> list[Any]:
            try:
                found = node.scope.inner().run(branches[index], {})
            except NeedsValueError:
                raise
            except (InvalidArgumentError, UnimplementedError) as error:  # it may be for other shapes
                raise NeedsValueError(f"a branch cannot be built: {error}", condition) from error
            if any(each is None or isinstance(each, list) for each in found):
                node.known(condition, "a condition of branches with sequences or optionals")
            return [tensor(each) for each in found]

        return branch

    found = tf.cond(tf.reshape(condition, []), build(1), build(0))
    return tuple(found) if isinstance(found, list | tuple) else (found,)


@handles("Loop")
def loop(node: Node, count: Value, condition: Value, *carried: Value) -> Any:
    """Unrolled if it has to be: a known number of times, with sequences, or with shapes that change."""
    body = node.graph("body")
    if _is_fixed(body, condition) and is_known(count) and count is not None:
        times = int(np.asarray(count).reshape(()))
        if (condition is None or bool(np.asarray(condition).reshape(()))) and times <= MAX_UNROLLED:
            return _unrolled(node, body, times, list(carried))
        if condition is not None and not bool(np.asarray(condition).reshape(())):
            return _unrolled(node, body, 0, list(carried))
    if any(each is None or isinstance(each, list) for each in carried):
        return _unrolled_until(node, body, count, condition, list(carried))
    return _while(node, body, count, condition, list(carried))


def _is_fixed(body: Any, condition: Value) -> bool:
    """Whether the body hands its condition on."""
    if not (condition is None or is_known(condition)):
        return False
    name, given = body.output[0].name, body.input[1].name
    while name != given:
        makers = [each for each in body.node if name in each.output]
        if len(makers) != 1 or makers[0].op_type not in ("Identity", "Cast"):
            return any(
                each.op_type == "Constant" and each.attribute[0].t.raw_data == b"\x01" for each in makers
            )
        name = makers[0].input[0]
    return True


def _inputs(body: Any, iteration: Value, condition: Value, carried: Sequence[Value]) -> dict[str, Value]:
    names = [each.name for each in body.input]
    return dict(zip(names, [iteration, condition, *carried], strict=True))


def _unrolled(node: Node, body: Any, times: int, carried: list[Value]) -> Any:
    scanned: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    for i in range(times):
        _, *found = node.scope.inner().run(body, _inputs(body, np.array(i), np.array(True), carried))
        carried, outs = found[: len(carried)], found[len(carried) :]
        for rows, out in zip(scanned, outs, strict=True):
            rows.append(out)
    return (*carried, *(_stacked(body, rows, i + len(carried)) for i, rows in enumerate(scanned)))


def _unrolled_until(node: Node, body: Any, count: Value, condition: Value, carried: list[Value]) -> Any:
    """The loop, as long as each condition is known."""
    limit = (
        MAX_UNROLLED * 16 if count is None else int(node.known(count, "a number of iterations").reshape(()))
    )
    going = True if condition is None else bool(node.known(condition, "a condition").reshape(()))
    scanned: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    i = 0
    while going and i < limit:
        after, *found = node.scope.inner().run(body, _inputs(body, np.array(i), np.array(True), carried))
        carried, outs = found[: len(carried)], found[len(carried) :]
        for rows, out in zip(scanned, outs, strict=True):
            rows.append(out)
        going, i = bool(node.known(after, "a condition").reshape(())), i + 1
    return (*carried, *(_stacked(body, rows, j + len(carried)) for j, rows in enumerate(scanned)))


def _stacked(body: Any, rows: list[Value], index: int) -> Value:
    if rows:
        return tf.stack(rows)
    kind = body.output[index + 1].type.tensor_type
    dims = [each.dim_value for each in kind.shape.dim]
    return np.zeros([0, *dims], dtype_of_element(kind.elem_type))


def _while(node: Node, body: Any, count: Value, condition: Value, carried: list[Value]) -> Any:
    """A loop of the graph; rows of scan outputs are collected in TensorArrays."""
    first = [tensor(each) for each in carried]
    number = len(first)
    scans = len(body.output) - 1 - number
    limit = tf.constant(np.iinfo(np.int64).max) if count is None else tf.cast(tf.reshape(count, []), tf.int64)
    going = tf.constant(True) if condition is None else tf.reshape(condition, [])
    probed = _probe(node, body, first)
    rows = [_row_type(out) for out in probed[1 + number :]]
    arrays = [tf.TensorArray(kind, 0, dynamic_size=True, element_shape=shape) for kind, shape in rows]

    def step(i: Any, going: Any, *values: Any) -> Any:
        now, collected = list(values[:number]), values[number:]
        after, *found = node.scope.inner().run(body, _inputs(body, i, going, now))
        outs = [tensor(each) for each in found[number:]]
        written = [a.write(tf.cast(i, tf.int32), out) for a, out in zip(collected, outs, strict=True)]
        return (i + 1, tf.reshape(tensor(after), []), *map(tensor, found[:number]), *written)

    variables = (tf.constant(0, tf.int64), going, *first, *arrays)
    invariants = [tf.TensorShape([]), tf.TensorShape([])]
    invariants += [_invariant(*pair) for pair in zip(first, probed[1 : 1 + number], strict=True)]
    invariants += [tf.TensorShape(None)] * scans
    found = tf.while_loop(
        lambda i, going, *_: tf.logical_and(going, i < limit), step, variables, shape_invariants=invariants
    )
    return (*found[2 : 2 + number], *(each.stack() for each in found[2 + number :]))


def _probe(node: Node, body: Any, first: list[Value]) -> list[Value]:
    """The outputs of one iteration, built aside, for their types."""
    i, going = tf.placeholder(tf.int64, []), tf.placeholder(tf.bool, [])
    inputs = [tf.placeholder(each.dtype, each.shape) for each in first]
    return node.scope.inner().run(body, _inputs(body, i, going, inputs))


def _row_type(out: Value) -> tuple[Any, Any]:
    """The dtype and the shape, if it is known, of a row of a scan output."""
    return tf.as_dtype(dtype_of(out)), list(shape_of(out)) if has_static_shape(out) else None


def _invariant(first: Value, out: Value) -> Any:
    """The shape that a carried value has in all iterations; sizes that the first one changes are unknown."""
    before, after = first.shape, tf.TensorShape(np.shape(out)) if is_known(out) else out.shape
    if before.ndims is None or after.ndims is None or before.ndims != after.ndims:
        return tf.TensorShape(None)
    sizes = zip(before.as_list(), after.as_list(), strict=True)
    return tf.TensorShape([b if b == a else None for b, a in sizes])


@handles("Scan")
def scan_in_opset_8(node: Node, lengths: Value, *inputs: Value) -> Any:
    """The scan of each entry of a leading batch axis; all have all steps."""
    if lengths is not None:
        node.refuse("sequence lengths of a Scan in opset 8 are not supported")
    body, number = node.graph("body"), node.get("num_scan_inputs")
    batch = shape_of(inputs[0])[0]
    results = []
    for entry in range(batch):
        parts = [tf.convert_to_tensor(each)[entry] for each in inputs]
        results.append(_scanned(node, body, parts, number, [0] * number, None, None, None))
    return tuple(tf.stack(each) for each in zip(*results, strict=True))


@handles("Scan", since=9)
def scan(node: Node, *inputs: Value) -> Any:
    number = node.get("num_scan_inputs")
    axes = node.get("scan_input_axes") or [0] * number
    return _scanned(
        node, node.graph("body"), list(inputs), number, axes, node.get("scan_input_directions"),
        node.get("scan_output_axes"), node.get("scan_output_directions"),
    )  # fmt: skip


def _scanned(
    node: Node,
    body: Any,
    inputs: list[Value],
    number: int,
    axes: Any,
    turned: Any,
    out_axes: Any,
    out_turned: Any,
) -> Any:
    states, rows = inputs[: len(inputs) - number], inputs[len(inputs) - number :]
    fronts = []
    for k, each in enumerate(rows):
        axis = axis_of(axes[k], rank_of(each))
        order = [axis, *[i for i in range(rank_of(each)) if i != axis]]
        front = each if axis == 0 else tf.transpose(each, order)
        fronts.append(tf.reverse(front, [0]) if turned and turned[k] else front)
    steps = shape_of(fronts[0])[0]
    names = [each.name for each in body.input]

    def iterate(i: Value, now: list[Value]) -> list[Value]:
        parts = [tf.gather(each, i) for each in fronts]
        return node.scope.inner().run(body, dict(zip(names, [*now, *parts], strict=True)))

    finals, outs = _steps(iterate, [tensor(s) for s in states], steps, len(body.output) - len(states))
    placed = []
    for k, each in enumerate(outs):
        each = tf.reverse(each, [0]) if out_turned and out_turned[k] else each
        axis = axis_of(out_axes[k], rank_of(each)) if out_axes else 0
        order = [*range(1, axis + 1), 0, *range(axis + 1, rank_of(each))]
        placed.append(tf.transpose(each, order) if axis else each)
    return (*finals, *placed)


def _steps(iterate: Any, states: list[Value], steps: int, scans: int) -> tuple[list[Value], list[Value]]:
    number = len(states)
    if steps <= MAX_UNROLLED:
        rows: list[list[Value]] = [[] for _ in range(scans)]
        for i in range(steps):
            found = iterate(np.array(i), states)
            states = found[:number]
            for each, out in zip(rows, found[number:], strict=True):
                each.append(out)
        return states, [tf.stack(each) for each in rows]
    probe = iterate(np.array(0), states)
    arrays = [tf.TensorArray(tf.as_dtype(dtype_of(out)), steps) for out in probe[number:]]

    def body(i: Any, *values: Any) -> Any:
        found = [tensor(each) for each in iterate(i, list(values[:number]))]
        written = [a.write(i, out) for a, out in zip(values[number:], found[number:], strict=True)]
        return (i + 1, *found[:number], *written)

    found = tf.while_loop(lambda i, *_: i < steps, body, (tf.constant(0), *states, *arrays))
    return list(found[1 : 1 + number]), [each.stack() for each in found[1 + number :]]
