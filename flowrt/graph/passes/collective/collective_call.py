"""Parameters of a collective: its ranks and devices, its algorithm, and the names of its messages."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.device.spec import parse_device
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.collectives.algorithms import Group
from flowrt.graph.collectives.cost import Links, cheapest, schedule_of
from flowrt.graph.node import Node, Ref, TensorSpec
from flowrt.graph.ops.collective.collectives import COALESCED, all_reduce_op
from flowrt.graph.passes.collective.expand_collective import Call
from flowrt.graph.passes.placement.partition import task_of
from flowrt.graph.shapes import is_static, merge, normalize_axis, num_elements

LOCAL = "local"
"""Group key of groups inside one graph without another name."""

_UNEVEN = ("AllGather", "Gather", "AllToAll")
"""Kinds with separate chunks per rank: the values of ranks may differ in size along the axis."""


_EVENLY_CUT = ("Scatter", "ReduceScatter")
"""Kinds that split a value into one part per rank; native ones into equal parts."""


def apart(node: Node) -> list[Node]:
    """The collectives of one tensor each that the coalesced ``node`` is of."""
    count, op = tensors_of(node), COALESCED[node.op]
    known = {key: value for key, value in node.attrs.items() if key in op.attrs}
    return [
        node.replace(
            name=f"{node.name}/{number}",
            op=op,
            inputs=node.inputs[number::count],
            attrs={**known, "axis": axis, "N": len(node.attrs["ranks"])},
            outputs=node.outputs[number::count],
        )
        for number, axis in enumerate(node.attrs["axes"])
    ]


def tensors_of(node: Node) -> int:
    """The number of tensors of each rank, if each has some."""
    return len(node.attrs["axes"]) if node.op in COALESCED else 1


class Asked(NamedTuple):
    """Resolved parameters of one collective: the ``lowering``, "native" or an algorithm, the ranks'
    ``devices``, and ``payload``, the whole value of one rank. It ``is_even`` if all ranks are known to have
    values of one shape, with a dimension ``axis`` that they divide.
    """

    lowering: str
    group: Group
    devices: tuple[str, ...]
    payload: TensorSpec
    axis: int
    is_even: bool


def asked(node: Node, specs: Sequence[TensorSpec], devices: tuple[str, ...], links: Links) -> Asked:
    """The resolved parameters of ``node``; its ranks on ``devices`` have values of ``specs``.

    Between graphs "auto" is native if possible: the processes know their links. All graphs choose the same,
    since the choice depends only on parameters that they must agree on. Raises `InvalidArgumentError` for a
    native collective of an unsupported shape, `FailedPreconditionError` for one of a group that was not
    joined.
    """
    attrs, kind = node.attrs, node.op.name
    payload = _payload(kind, node, specs)
    group = Group(_tasks(node, devices), attrs.get("root", 0))
    axis, lowering = _axis(attrs, payload), attrs["lowering"]
    if lowering == "native" or (lowering == "auto" and not is_whole(node)):
        lowering = _native(node, payload, axis, group.tasks)
    if lowering == "auto":
        lowering = cheapest(kind, group, _payload_bytes(kind, payload, group.size), links)
    is_even = _is_cut_evenly(payload, axis, group.size) and len({spec.shape for spec in specs}) <= 1
    return Asked(lowering, group, devices, payload, axis, is_even)


def call_of(node: Node, specs: Sequence[TensorSpec], what: Asked) -> Call:
    """The argument of `expand`. Raises `InvalidArgumentError` for an algorithm that the kind lacks."""
    attrs, kind = node.attrs, node.op.name
    schedule = schedule_of(kind, what.lowering, what.group)
    reduction = attrs.get("reduction", "max" if kind == "Barrier" else "sum")
    call = Call(
        kind, schedule, attrs["ranks"], what.devices, tuple(specs), what.payload, reduction,
        what.group.root, what.axis,
    )  # fmt: skip
    return call if is_whole(node) else call._replace(group_key=attrs["group_key"], edge=edge_of(node, what))


def edge_of(node: Node, what: Asked) -> str:
    """The name of the collective across graphs. It contains everything that graphs must agree on: on a
    mismatch, the first message received does not have the expected name.
    """
    attrs = node.attrs
    options = [f"{key}={attrs[key]}" for key in ("reduction", "root", "axis", "axes") if key in attrs]
    text = " ".join([node.op.name, repr(node.name), str(what.payload), *options, what.lowering])
    return f"{attrs['group_key']};{attrs['instance_key']};{text}"


def is_whole(node: Node) -> bool:
    """Whether the graph has all ranks of the group."""
    return len(node.attrs["ranks"]) == int(node.attrs["group_size"])


def is_joint(node: Node, what: Asked) -> bool:
    """Whether it is a reduction computed for all ranks together: on several CPUs of one task, by no algorithm
    that was asked for by its name. Gathers and scatters are not: that saves memory, which has to be bounded
    on each device, and a joint one would take it where the last rank is.
    """
    if node.op is not all_reduce_op or node.attrs["lowering"] != "auto" or not is_whole(node):
        return False
    if len(set(what.devices)) == 1 or not is_static(what.payload.shape):
        return False
    return len(set(what.group.tasks)) == 1 and all(parse_device(d).device_type == "CPU" for d in what.devices)


def _native(node: Node, payload: TensorSpec, axis: int, tasks: Sequence[int]) -> str:
    """The lowering if native was requested, or if it is preferred and possible."""
    is_asked_for, attrs = node.attrs["lowering"] == "native", node.attrs
    shapeless = None if is_static(payload.shape) else "a shape known before the step"
    lacks, size, kind = shapeless, attrs["group_size"], node.op.name
    if shapeless is None and kind in _EVENLY_CUT and not _is_cut_evenly(payload, axis, size):
        lacks = f"a dimension {axis} divisible by {size} ranks"
    if is_asked_for and attrs["group_key"] == LOCAL:
        if len(set(tasks)) > 1:
            raise FailedPreconditionError(
                "native: expected a Group joined by its processes; got ranks in several tasks. Within a "
                "session, collectives between tasks are expanded"
            )
        lacks = shapeless
    if is_asked_for and lacks:
        raise InvalidArgumentError(f"native: expected {lacks}; got {payload}. Use lowering='auto'")
    return "auto" if lacks else "native"


def _is_cut_evenly(payload: TensorSpec, axis: int, size: int) -> bool:
    return is_static(payload.shape) and bool(payload.shape) and payload.shape[axis] % size == 0


def values_of(node: Node) -> tuple[Ref, ...]:
    """Input values of the ranks of this graph."""
    if not _has_places(node):
        return node.inputs
    return node.inputs[: node.attrs["M"]] if node.attrs["root"] in node.attrs["ranks"] else ()


def places_of(node: Node) -> tuple[Ref, ...]:
    """One tensor per rank of this graph, located on the rank's device."""
    return node.inputs[node.attrs["M"] :] if _has_places(node) else node.inputs


def _has_places(node: Node) -> bool:
    return "places" in [argument.name for argument in node.op.inputs]


def _tasks(node: Node, devices: Sequence[str]) -> tuple[int, ...]:
    """A task number per rank, equal within a task. Ranks in other graphs must have the same numbers: those
    that the group was created with.
    """
    attrs = node.attrs
    if len(attrs["ranks"]) < attrs["group_size"]:
        return tuple(attrs["tasks"]) or tuple(range(attrs["group_size"]))
    numbers: dict[str, int] = {}
    found = {
        rank: numbers.setdefault(task_of(device), len(numbers))
        for rank, device in zip(attrs["ranks"], devices, strict=True)
    }
    return tuple([found[rank] for rank in range(attrs["group_size"])])


def _payload(kind: str, node: Node, specs: Sequence[TensorSpec]) -> TensorSpec:
    """Spec of the whole value of one rank; of the first known one if ranks may differ."""
    if not specs:
        return TensorSpec(node.attrs["T"], node.attrs["shape"])
    if kind in _UNEVEN:
        return specs[0]
    return TensorSpec(specs[0].dtype, functools.reduce(merge, [spec.shape for spec in specs]))


def _payload_bytes(kind: str, payload: TensorSpec, size: int) -> int | None:
    """Total size of the schedule's chunks in bytes."""
    count = num_elements(payload.shape)
    if count is None:
        return None
    parts = size if kind in _UNEVEN else 1
    return count * int(payload.dtype.np.itemsize) * parts


def _axis(attrs: Mapping[str, Any], payload: TensorSpec) -> int:
    axis: int = attrs.get("axis", 0)
    return axis if payload.shape is None or not payload.shape else normalize_axis(axis, len(payload.shape))
