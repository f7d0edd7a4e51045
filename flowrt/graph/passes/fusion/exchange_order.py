"""Order of exchanges: on each device, a receive waits for the sends that it depends on through other devices.

    device 0   a -> _Send ............ _Recv -> b      one loop of a and b would wait for the answer
    device 1          _Recv -> c -> _Send              to what it has not sent yet

`fuse` sees one device at a time, in which nothing connects the send with the receive. The control edges added
here do. They are implied by the step, so they delay nothing. What other tasks do is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from flowrt.graph.node import Node, Subgraph
from flowrt.graph.topology import sort_topologically

Place: TypeAlias = tuple[str, str]
"""A device, and the name of a node there."""


def order_exchanges(parts: Mapping[str, Subgraph]) -> dict[str, Subgraph]:
    """``parts``, by device, with these control edges."""
    sends = {
        _edge(node): (device, node.name) for device, part in parts.items() for node in part if _sends(node)
    }
    if len(parts) < 2 or not sends:
        return dict(parts)
    producers = _producers(parts, sends)
    number: dict[Place, int] = {}
    earlier: dict[Place, dict[str, int]] = {}
    names: dict[str, list[str]] = {device: [] for device in parts}
    waits: dict[Place, list[str]] = {}
    for place in _sorted(producers):
        device, name = place
        found: dict[str, int] = {}
        for before in producers[place]:
            for other, mask in earlier[before].items():
                found[other] = found.get(other, 0) | mask
            if before in number:
                found[before[0]] = found.get(before[0], 0) | 1 << number[before]
        earlier[place] = found
        node = parts[device].nodes[name]
        if _sends(node):
            number[place] = len(names[device])
            names[device].append(name)
        elif node.op.name == "_Recv" and device in found:
            own = [names[device][i] for i in _bits(found[device])]
            implied = 0
            for send in own:
                implied |= earlier[device, send].get(device, 0)
            waits[place] = [send for send in own if not implied >> number[device, send] & 1]
    return {device: _waiting(device, part, waits) for device, part in parts.items()}


def _sends(node: Node) -> bool:
    return node.op.name == "_Send"


def _edge(node: Node) -> tuple[str, str, str]:
    """The edge between devices that a _Send or _Recv is an end of."""
    return node.attrs["tensor_name"], node.attrs["send_device"], node.attrs["recv_device"]


def _producers(
    parts: Mapping[str, Subgraph], sends: Mapping[tuple[str, str, str], Place]
) -> dict[Place, list[Place]]:
    found: dict[Place, list[Place]] = {}
    for device, part in parts.items():
        for node in part:
            before = [(device, name) for name in node.predecessors]
            if node.op.name == "_Recv" and _edge(node) in sends:
                before.append(sends[_edge(node)])
            found[device, node.name] = before
    return found


def _sorted(producers: Mapping[Place, list[Place]]) -> list[Place]:
    missing = {place: len(before) for place, before in producers.items()}
    readers: dict[Place, list[Place]] = {place: [] for place in producers}
    for place, before in producers.items():
        for each in before:
            readers[each].append(place)
    order = [place for place, count in missing.items() if not count]
    for place in order:
        for reader in readers[place]:
            missing[reader] -= 1
            if not missing[reader]:
                order.append(reader)
    return order


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _waiting(device: str, part: Subgraph, waits: Mapping[Place, list[str]]) -> Subgraph:
    changed = {
        node.name: node.replace(controls=tuple(dict.fromkeys([*node.controls, *waits[device, node.name]])))
        for node in part
        if waits.get((device, node.name))
    }
    if not changed:
        return part
    nodes = {name: changed.get(name, node) for name, node in part.nodes.items()}
    return part.replace(nodes=dict(sort_topologically(nodes)))
