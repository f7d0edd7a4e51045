"""Human-readable reasons for the placement of each node, derived from the constraints of `place`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.passes.placement.place import colocated_groups, device_rank, is_metadata, supports


def placement_reasons(
    before: Subgraph, placed: Subgraph, devices: Sequence[DeviceSpec], assigned: Mapping[str, str]
) -> dict[str, str]:
    """One line for each node of ``placed``, the result of `place` for ``before`` with these arguments:

    ``requested /device:CPU:1``, ``colocated with w, which asks for …``, ``only CPU has a kernel for it``,
    ``asked for …, moved: …``, ``beside what it reads, x``, ``default device``.
    """
    return _Reasons(before, placed, devices, assigned).all()


@final
class _Reasons:
    def __init__(
        self, before: Subgraph, placed: Subgraph, devices: Sequence[DeviceSpec], assigned: Mapping[str, str]
    ) -> None:
        self._before, self._placed, self._assigned = before, placed, assigned
        self._devices = sorted(devices, key=lambda device: device_rank(device, devices[0]))
        self._types = list(dict.fromkeys(device.device_type or "" for device in devices))
        self._consumers = before.consumers()
        self._group_of = {name: group for group in colocated_groups(before) for name in group}

    def all(self) -> dict[str, str]:
        return {node.name: self._reason(self._before.nodes[node.name], node.device) for node in self._placed}

    def _reason(self, node: Node, device: str) -> str:
        if node.device:
            return self._of_request(node, parse_device(device))
        if node.name in self._assigned:
            return "an earlier step placed it there"
        return self._of_group(node) or self._of_kernels(node) or self._of_neighbours(node, device)

    def _of_request(self, node: Node, device: DeviceSpec) -> str:
        request = parse_device(node.device)
        if request.matches(device):
            return f"requested {node.device}"
        if not any(map(request.matches, self._devices)):
            return f"asked for {node.device}, moved: there is no such device"
        if not supports(node, request.device_type or ""):
            return f"asked for {node.device}, moved: {request.device_type} has no kernel for it"
        tied = next(
            (other for other in self._others(node) if not supports(other, request.device_type or "")), None
        )
        why = (
            "by those it is colocated with"
            if tied is None
            else f"{tied.name}, colocated, has no kernel there"
        )
        return f"asked for {node.device}, moved: {why}"

    def _others(self, node: Node) -> list[Node]:
        """Nodes that must share the device of ``node``."""
        names = [name for name in self._group_of.get(node.name, ()) if name != node.name]
        return [self._before.nodes[name] for name in names if name in self._before.nodes]

    def _of_group(self, node: Node) -> str:
        others = self._others(node)
        earlier = next((other for other in others if other.name in self._assigned), None)
        if earlier is not None:
            return f"colocated with {earlier.name}, which an earlier step placed there"
        asking = next((other for other in others if other.device), None)
        if asking is not None:
            return f"colocated with {asking.name}, which asks for {asking.device}"
        bound = next((other for other in others if self._only_types(other)), None)
        if bound is not None:
            return f"colocated with {bound.name}, for which only {self._only_types(bound)} has a kernel"
        return f"colocated with {others[0].name}" if others else ""

    def _only_types(self, node: Node) -> str:
        """The device types that can run it, if others cannot."""
        able = [kind for kind in self._types if supports(node, kind)]
        return ", ".join(able) if len(able) < len(self._types) else ""

    def _of_kernels(self, node: Node) -> str:
        able = self._only_types(node)
        return f"only {able} has a kernel for it" if able else ""

    def _of_neighbours(self, node: Node, device: str) -> str:
        if device == self._devices[0].to_string():
            return "default device"
        if is_metadata(node):
            return f"beside what it reads, {node.inputs[0][0]}"
        reader = next((n for n in self._consumers[node.name] if self._placed.nodes[n].device == device), None)
        return "first device that can run it" if reader is None else f"beside its reader, {reader}"
