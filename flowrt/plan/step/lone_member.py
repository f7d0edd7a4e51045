"""`LoneMember`: a rank of a group in which nobody else is, so that its program runs without the others.

What others would give is there at once: memory of the right size, filled with numbers. What is given to them
is taken from the program as a real member takes it. Results of collectives are written by the program's own
thread: a real member has another one for that, so these seconds are not the program's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from flowrt.dtypes import as_dtype
from flowrt.graph.ops.collective.group_transfer import group_recv_op, tagged_recv_op
from flowrt.graph.resources.groups import add_member, remove_member
from flowrt.plan.step.device_parts import GROUP, DevicePart

GIVEN = 0.01
"""The value of all numbers that others would give: no sum of them overflows, and none is denormal."""


@final
class LoneMember:
    """The member of the device of ``part``: see `flowrt.graph.resources.groups.JoinedMember`."""

    def __init__(self, part: DevicePart) -> None:
        receives = [n for n in part.partition.subgraph if n.op in (group_recv_op, tagged_recv_op)]
        self._messages = {
            node.attrs["edge"]: _given(node.attrs["dtype"], node.attrs["shape"]) for node in receives
        }
        self._results: dict[str, list[Any]] = {}
        self.filling_s = 0.0
        """The seconds of the thread in which results were written so far."""

    def send(self, peer: int, edge: str, array: Any) -> None:
        np.array(array, order="C")

    send_tagged = send

    def receive(self, peer: int, edge: str) -> Any:
        return self._messages[edge].view(np.uint8)

    receive_tagged = receive

    def start(self, edge: str, kind: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        begun = time.thread_time()
        if attrs["outs"] is not None:
            for out in attrs["outs"]:
                out[...] = _value_of(attrs["dtype"])
            self._results[edge] = []
        elif edge not in self._results:
            self._results[edge] = [_given(attrs["dtype"], shape).reshape(shape) for shape in attrs["shapes"]]
        self.filling_s += time.thread_time() - begun

    def wait(self, edge: str) -> Sequence[Any]:
        return self._results[edge]

    def split(self, label: str, ranks: tuple[int, ...]) -> LoneMember:
        return self

    def agree(self, plan: str, given: Callable[[], str]) -> Callable[[], object]:
        return lambda: None

    def meet_at_end(self) -> Callable[[], object]:
        return lambda: None

    def abort(self, error: Exception) -> None:
        raise error

    def settle(self) -> None: ...


def _given(dtype: Any, shape: tuple[int, ...]) -> Any:
    return np.full(math.prod(shape), _value_of(dtype), as_dtype(dtype).np)


def _value_of(dtype: Any) -> float:
    return GIVEN if as_dtype(dtype).np.kind == "f" else 0


@contextmanager
def joined_alone(part: DevicePart, member: LoneMember) -> Iterator[None]:
    """The device of ``part`` is the only one that has joined the group of its step, as ``member``."""
    add_member(GROUP, part.rank, member)
    try:
        yield
    finally:
        remove_member(GROUP, part.rank)
