"""Keys of values that programs send: tensors to devices of this or other tasks, events to other streams."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import final, overload

from flowrt.device.device import Device
from flowrt.executor.program.control_flow import Frame
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.collective.transfer import contribute_op, recv_op, send_op
from flowrt.graph.passes.placement.partition import task_of
from flowrt.rendezvous import create_key

INCARNATION = 0
"""The devices of one process live as long as it does: in its own keys, theirs is the first life."""


def remote_keys(part: Subgraph) -> list[str]:
    """Keys that one task's ``part`` of a step receives from other tasks, outside of loops and branches."""
    return [tensor_key(node, None) for node in part if node.op is recv_op and is_remote(node)]


def is_remote(node: Node) -> bool:
    """Whether the ends of a send or receive are in different tasks."""
    return _are_in_different_tasks(node.attrs["send_device"], node.attrs["recv_device"])


@functools.lru_cache(maxsize=1024)
def _are_in_different_tasks(device: str, other: str) -> bool:
    return task_of(device) != task_of(other)


@overload
def tensor_key(node: Node, frame: None) -> str: ...
@overload
def tensor_key(node: Node, frame: Frame | None) -> str | Callable[[], str]: ...
def tensor_key(node: Node, frame: Frame | None) -> str | Callable[[], str]:
    """The key of a send or receive; in a loop, a function that computes it: ``frame`` counts iterations."""
    ends = node.attrs
    incarnation = ends.get("send_device_incarnation", INCARNATION) % 2**64
    key = create_key(ends["send_device"], incarnation, ends["recv_device"], ends["tensor_name"], 0, 0)
    return key if frame is None else functools.partial(frame.key, key.removesuffix("0:0"))


def contribution_keys(node: Node) -> list[str]:
    """The keys under which the ranks receive the results of what ``node``, a `_Contribute`, takes part in."""
    name, devices = node.attrs["tensor_name"], node.attrs["devices"]
    return [create_key(d, INCARNATION, d, f"{name}:{rank}", 0, 0) for rank, d in enumerate(devices)]


@final
class SentKeys:
    """The keys under which nodes send tensors, as they run: a collective's with its last contribution."""

    def __init__(self) -> None:
        self._missing: dict[str, set[int]] = {}
        """The ranks that have not contributed to each collective."""

    def of(self, node: Node) -> Sequence[str]:
        """Keys of ``node``, the next one, outside of loops. A node may have several instructions in a row."""
        if node.op is send_op:
            return [tensor_key(node, None)]
        if node.op is not contribute_op:
            return ()
        name, rank = node.attrs["tensor_name"], node.attrs["rank"]
        missing = self._missing.setdefault(name, {*range(len(node.attrs["devices"]))})
        is_last = missing == {rank}
        missing.discard(rank)
        return contribution_keys(node) if is_last else ()


def event_key(device: Device, name: str, reader: int) -> str:
    """The key of the event that tells the stream ``reader`` that the node ``name`` has finished."""
    return create_key(device.name, INCARNATION, device.name, f"{name}^stream{reader}", 0, 0)
