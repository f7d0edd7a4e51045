"""Section ``ops``: every sample of every op, run by a session on the device, against the reference
interpreter on NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flowrt.cli.selftest.target import Result, Target, describe_error
from flowrt.dtypes import as_dtype
from flowrt.executor.session.session import Session
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.evaluate import evaluate
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect, OpDef, Sample, registered_ops
from flowrt.graph.passes.placement.place import supports
from flowrt.graph.shapes import is_static
from flowrt.variables.graph_scopes import device

TOLERANCES = {
    "float16": 4e-3,
    "bfloat16": 3e-2,  # 4 units in the last place: computed in float32, rounded once or twice
    "float32": 1e-4,
    "complex64": 1e-4,  # about 1000 units: sums in another order, another library's functions
    "float64": 1e-9,
    "complex128": 1e-9,  # a device's special functions are good to about 1e-12; the rest is conditioning
}
"""``|got - expected|`` is at most this times ``1 + |expected|``; elements of other dtypes have to
be equal, or both NaN."""


class Call(NamedTuple):
    """One operation, made from a sample, and the values of its placeholders."""

    operation: Operation
    feeds: dict[Tensor, Any]


def check_ops(target: Target) -> Result:
    """Run all samples. What the device does not support, by op and dtypes, runs where soft placement puts it,
    and counts as host-only if it passes there.
    """
    counts = dict.fromkeys(("passed", "failed", "host-only", "left out"), 0)
    failures = []
    with Graph() as graph, target.session(graph) as hard, target.session(graph, soft=True) as soft:
        for call in [*build_calls(target)]:  # a graph that grows between runs is a warning
            node = call.operation.node
            is_supported = supports(node, target.device.device_type)
            if is_supported and not (target.computes or all(is_static(o.shape) for o in node.outputs)):
                counts["left out"] += 1  # without values the size of the outputs is not known
                continue
            wrong = check_call(hard if is_supported else soft, call, values_count=target.computes)
            counts["failed" if wrong else "passed" if is_supported else "host-only"] += 1
            if wrong:
                failures.append(f"{node.op.name} {node.name!r}: {wrong}")
    figures = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    total = f"{sum(counts.values())} samples of {len(registered_ops())} ops"
    return Result(f"{total}: {figures}", tuple(failures))


def build_calls(target: Target) -> Iterator[Call]:
    """The samples as operations of the default graph that request the device."""
    for op in registered_ops().values():
        for sample in op.samples(np.random.default_rng(0)):
            yield build_call(op, sample, target.name)


def build_call(op: OpDef, sample: Sample, device_name: str) -> Call:
    """``op`` on placeholders of the sample's shapes, and constants for its host inputs."""
    feeds: dict[Tensor, Any] = {}

    def source(value: Any, on_host: bool) -> Tensor:
        array = np.asarray(value)
        if on_host:
            return constant(array)
        tensor = placeholder(as_dtype(array.dtype), array.shape)
        feeds[tensor] = array
        return tensor

    arguments = [
        [source(v, argument.on_host) for v in value] if argument.is_list else source(value, argument.on_host)
        for argument, value in zip(op.inputs, sample.inputs, strict=True)
    ]
    with device(device_name):
        result = op(*arguments, **sample.attrs)
    first = result[0] if isinstance(result, list) else result
    return Call(first if isinstance(first, Operation) else first.op, feeds)


def check_call(session: Session, call: Call, *, values_count: bool) -> str | None:
    """The error in the results of ``session`` for ``call``, or None. Without ``values_count``, and for
    unseeded random ops, only dtypes and shapes are compared.
    """
    tensors = [t for t in call.operation.outputs if t.dtype.name not in ("resource", "variant")]
    try:
        found = session.run(tensors or call.operation, call.feeds) or ()
    except Exception as error:  # noqa: BLE001 (the other samples are worth running)
        return describe_error(error)
    expected = reference(call, tensors)
    is_free = values_count and call.operation.node.op.up_to_phase
    if call.operation.node.op.effect is Effect.RANDOM and not _are_equal(expected, reference(call, tensors)):
        values_count = False
    for tensor, got, wanted in zip(tensors, map(_as_array, found), expected, strict=True):
        wrong = difference(got, wanted, values_count and not is_free)
        if is_free and wrong is None:
            wrong = difference(np.abs(got), np.abs(wanted), values_count)
        if wrong is not None:
            return f"output {tensor.index}: {wrong}"
    return None


def _as_array(value: Any) -> Any:
    return np.asarray(value, object if isinstance(value, bytes) else None)


def _are_equal(one: list[Any], other: list[Any]) -> bool:
    return all(map(np.array_equal, one, other))


def reference(call: Call, tensors: list[Tensor]) -> list[Any]:
    """The values of ``tensors`` by the reference interpreter."""
    operations = [*(tensor.op for tensor in call.operation.inputs), call.operation]
    nodes = {operation.name: operation.node for operation in operations}
    fed = {tensor.op.name: value for tensor, value in call.feeds.items()}

    def state(node: Node) -> Any:
        assert node.op.state is not None
        return node.op.state(node)

    values = evaluate(Subgraph(nodes, fetches=tuple(t.ref for t in tensors)), fed, state)
    return [_as_array(value) for value in values]


def difference(got: Any, expected: Any, values_count: bool) -> str | None:
    """The difference of ``got`` from ``expected`` beyond the dtype's tolerance, or None."""
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"expected {expected.dtype}{list(expected.shape)}; got {got.dtype}{list(got.shape)}"
    if not values_count:
        return None
    tolerance = TOLERANCES.get(got.dtype.name)
    if tolerance is None:
        is_number = (got == got) | (expected == expected)  # float8 has NaN, which differs from itself
        different = np.count_nonzero((got != expected) & is_number)
        return f"{different} of {got.size} elements differ" if different else None
    wide = np.result_type(got.dtype, np.float64)
    a, b = got.astype(wide), expected.astype(wide)
    far = ~np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not far.any():
        return None
    with np.errstate(invalid="ignore"):
        largest = np.nan_to_num(np.abs(a - b)[far], nan=np.inf).max()
    return f"largest difference {largest:.3g}, expected at most {tolerance:g} (1 + |x|) in {got.dtype}"
