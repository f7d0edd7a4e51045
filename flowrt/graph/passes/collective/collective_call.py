"""What a collective asks for: which ranks and devices, which algorithm, and how its messages are named."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.collectives.algorithms import Group
from flowrt.graph.collectives.cost import Links, cheapest, schedule_of
from flowrt.graph.node import Node, Ref, TensorSpec
from flowrt.graph.passes.collective.expand_collective import Call
from flowrt.graph.passes.placement.partition import task_of
from flowrt.graph.shapes import Shape, is_static, merge, normalize_axis, num_elements

LOCAL = "local"
"""The key of groups that are whole in their graph and have no other name."""

_UNEVEN = ("AllGather", "Gather", "AllToAll")
"""Kinds whose ranks have chunks of their own: their values may differ along the axis."""


_CUT = ("Scatter", "ReduceScatter", "AllToAll")
"""Kinds that cut a value into a part a rank."""


class Asked(NamedTuple):
    """Of one collective: the ``lowering`` that it gets, "native" or an algorithm, the ranks' ``devices``, and
    ``payload``, one rank's whole value.
    """

    lowering: str
    group: Group
    devices: tuple[str, ...]
    payload: TensorSpec
    axis: int


def asked(node: Node, specs: Sequence[TensorSpec], devices: tuple[str, ...], links: Links) -> Asked:
    """What ``node`` asks for, whose ranks on ``devices`` give values of ``specs``.

    Between graphs "auto" is native wherever it can be: the processes know their links. All graphs choose
    alike, since they only look at what they have to agree on. Raises `InvalidArgumentError` for a native
    collective of a shape that it cannot have, `FailedPreconditionError` for one of no joined group.
    """
    attrs, kind = node.attrs, node.op.name
    payload = _payload(kind, node, specs)
    group = Group(_tasks(node, devices), attrs.get("root", 0))
    axis, lowering = _axis(attrs, payload), attrs["lowering"]
    if lowering == "native" or (lowering == "auto" and not is_whole(node)):
        lowering = _native(node, payload, axis, group.tasks)
    if lowering == "auto":
        lowering = cheapest(kind, group, _payload_bytes(kind, payload, group.size), links)
    return Asked(lowering, group, devices, payload, axis)


def call_of(node: Node, specs: Sequence[TensorSpec], what: Asked) -> Call:
    """The call that `expand` takes. Raises `InvalidArgumentError` for an algorithm that the kind has not."""
    attrs, kind = node.attrs, node.op.name
    schedule = schedule_of(kind, what.lowering, what.group)
    reduction = attrs.get("reduction", "max" if kind == "Barrier" else "sum")
    call = Call(
        kind,
        schedule,
        attrs["ranks"],
        what.devices,
        tuple(specs),
        what.payload,
        reduction,
        what.group.root,
        what.axis,
    )
    return call if is_whole(node) else call._replace(group_key=attrs["group_key"], edge=edge_of(node, what))


def edge_of(node: Node, what: Asked) -> str:
    """The name of the collective among graphs. It says what they have to agree on: where they do not, the
    first message that comes has another name than the one that is waited for.
    """
    attrs = node.attrs
    options = [f"{key}={attrs[key]}" for key in ("reduction", "root", "axis") if key in attrs]
    text = " ".join([node.op.name, repr(node.name), str(what.payload), *options, what.lowering])
    return f"{attrs['group_key']};{attrs['instance_key']};{text}"


def is_whole(node: Node) -> bool:
    """Whether the graph has all ranks of the group."""
    return len(node.attrs["ranks"]) == int(node.attrs["group_size"])


def _native(node: Node, payload: TensorSpec, axis: int, tasks: Sequence[int]) -> str:
    """The lowering where native was asked for, or where it is preferred if it can be."""
    is_asked_for, attrs = node.attrs["lowering"] == "native", node.attrs
    lacks = _why_not_native(node.op.name, payload.shape, axis, attrs["group_size"])
    if is_asked_for and attrs["group_key"] == LOCAL:
        if len(set(tasks)) > 1:
            raise FailedPreconditionError(
                "native: expected a Group that its processes have joined; got ranks in several tasks. Within "
                "a session collectives between tasks are expanded"
            )
        lacks = _lacks_shape(payload.shape)
    if is_asked_for and lacks:
        raise InvalidArgumentError(f"native: expected {lacks}; got {payload}. Use lowering='auto'")
    return "auto" if lacks else "native"


def _why_not_native(kind: str, payload: Shape, axis: int, size: int) -> str | None:
    """What a native collective of ``size`` ranks would need of the payload's shape; None if it has that."""
    if not is_static(payload):
        return _lacks_shape(payload)
    if kind in _CUT and payload[axis] % size:
        return f"a dimension {axis} that {size} ranks divide"
    return None


def values_of(node: Node) -> tuple[Ref, ...]:
    """What the ranks of this graph give."""
    if not _has_places(node):
        return node.inputs
    return node.inputs[: node.attrs["M"]] if node.attrs["root"] in node.attrs["ranks"] else ()


def places_of(node: Node) -> tuple[Ref, ...]:
    """One tensor a rank of this graph that is where the rank is."""
    return node.inputs[node.attrs["M"] :] if _has_places(node) else node.inputs


def _lacks_shape(payload: Shape) -> str | None:
    return None if is_static(payload) else "a shape known before the step"


def _has_places(node: Node) -> bool:
    return "places" in [argument.name for argument in node.op.inputs]


def _tasks(node: Node, devices: Sequence[str]) -> tuple[int, ...]:
    """A number a rank, alike for those in one task. Where other graphs have ranks, all must say the same:
    what the group was made with.
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
    """Of one rank's whole value; where they may differ, of the first there is."""
    if not specs:
        return TensorSpec(node.attrs["T"], node.attrs["shape"])
    if kind in _UNEVEN:
        return specs[0]
    return TensorSpec(specs[0].dtype, functools.reduce(merge, [spec.shape for spec in specs]))


def _payload_bytes(kind: str, payload: TensorSpec, size: int) -> int | None:
    """Of what the schedule's chunks are together."""
    count = num_elements(payload.shape)
    if count is None:
        return None
    parts = size if kind in _UNEVEN else 1
    return count * int(payload.dtype.np.itemsize) * parts


def _axis(attrs: Mapping[str, Any], payload: TensorSpec) -> int:
    axis: int = attrs.get("axis", 0)
    return axis if payload.shape is None or not payload.shape else normalize_axis(axis, len(payload.shape))
