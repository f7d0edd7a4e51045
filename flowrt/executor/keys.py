"""The keys of what the programs of one process send: tensors to other devices, events to other streams."""

from __future__ import annotations

import functools
from collections.abc import Callable

from flowrt.device.device import Device
from flowrt.executor.control import Frame
from flowrt.graph.node import Node
from flowrt.rendezvous import create_key

INCARNATION = 0
"""The devices of one process live as long as it does: in keys, theirs is the first life."""


def tensor_key(node: Node, frame: Frame | None) -> str | Callable[[], str]:
    """The key of a send or receive; in a loop, whose ``frame`` counts the iterations, what says it."""
    ends = node.attrs
    key = create_key(ends["send_device"], INCARNATION, ends["recv_device"], ends["tensor_name"], 0, 0)
    return key if frame is None else functools.partial(frame.key, key.removesuffix("0:0"))


def event_key(device: Device, name: str, reader: int) -> str:
    """The key by which the stream ``reader`` hears that the node ``name`` is done."""
    return create_key(device.name, INCARNATION, device.name, f"{name}^stream{reader}", 0, 0)
