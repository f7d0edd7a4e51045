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

    ``requested /device:CPU:1``, ``colocated with w, which requests …``, ``only CPU has a kernel for it``,
    ``requested …, moved: …``, ``on the device of its input x``, ``default device``.
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
            return "placed by an earlier step"
        return self._of_group(node) or self._of_kernels(node) or self._of_neighbours(node, device)

    def _of_request(self, node: Node, device: DeviceSpec) -> str:
        request = parse_device(node.device)
        if request.matches(device):
            return f"requested {node.device}"
        if not any(map(request.matches, self._devices)):
            return f"requested {node.device}, moved: no such device"
        if not supports(node, request.device_type or ""):
            return f"requested {node.device}, moved: {request.device_type} has no kernel for it"
        tied = [n.name for n in self._others(node) if not supports(n, request.device_type or "")]
        why = (
            f"{tied[0]}, colocated, has no kernel there" if tied else "by the operations it is colocated with"
        )
        return f"requested {node.device}, moved: {why}"

    def _others(self, node: Node) -> list[Node]:
        """Nodes that must share the device of ``node``."""
        names = [name for name in self._group_of.get(node.name, ()) if name != node.name]
        return [self._before.nodes[name] for name in names if name in self._before.nodes]

    def _of_group(self, node: Node) -> str:
        others = self._others(node)
        reasons = [
            *[f"{n.name}, which an earlier step placed there" for n in others if n.name in self._assigned],
            *[f"{n.name}, which requests {n.device}" for n in others if n.device],
            *[
                f"{n.name}, for which only {only} has a kernel"
                for n in others
                if (only := self._only_types(n))
            ],
            *[n.name for n in others],
        ]
        return f"colocated with {reasons[0]}" if reasons else ""

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
            return f"on the device of its input {node.inputs[0][0]}"
        reader = next((n for n in self._consumers[node.name] if self._placed.nodes[n].device == device), None)
        return "first device that can run it" if reader is None else f"on the device of its consumer {reader}"
