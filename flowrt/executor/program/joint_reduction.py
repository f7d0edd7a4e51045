"""Joint reductions: an all-reduce among devices of one task, added up by whoever brings the second value.

    rank 0   _Contribute --+
                           +-- a + b --+
    rank 1   _Contribute --+           |       values meet in pairs, as in `tree_reduce`;
                                       +--     each rank receives the total: _Recv
    rank 2   _Contribute --+           |
                           +-- c + d --+
    rank 3   _Contribute --+

All ranks have the same two operations, so the parts of a step on many devices are equal but for names. The
pairs are fixed, so the bits of the total do not depend on which device comes when.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.executor.program.edge_keys import contribution_keys
from flowrt.graph.collectives.algorithms import Group, tree_reduce
from flowrt.graph.node import Node
from flowrt.graph.passes.collective.expand_collective import COMBINE

Send: TypeAlias = Callable[[str, Any], None]


class _Meeting(NamedTuple):
    """Where a value goes: to the pair with this number, as its second operand or its first."""

    pair: int
    is_second: bool


class _Pairs(NamedTuple):
    """The pairs of a reduction: where each rank's value goes, and each pair's sum; None for the total."""

    of_rank: Sequence[_Meeting | None]
    of_sum: Sequence[_Meeting | None]


@lru_cache(maxsize=64)
def _pairs(size: int) -> _Pairs:
    """The additions of `tree_reduce` among ``size`` ranks of one task."""
    of_rank: list[_Meeting | None] = [None] * size
    of_sum: list[_Meeting | None] = []
    held: list[Callable[[_Meeting], None]] = [functools.partial(of_rank.__setitem__, r) for r in range(size)]
    for transfer in tree_reduce(Group((0,) * size)).messages():
        pair = len(of_sum)
        of_sum.append(None)
        held[transfer.target](_Meeting(pair, False))
        held[transfer.source](_Meeting(pair, True))
        held[transfer.target] = functools.partial(of_sum.__setitem__, pair)
    return _Pairs(of_rank, of_sum)


@final
class JointReduction:
    """The all-reduce of one collective, which ``node``, any of its `_Contribute`, describes, in one step at a
    time. ``empty()`` allocates a value. ``send``: of the step's rendezvous.
    """

    def __init__(self, node: Node, empty: Callable[[], Any], send: Send) -> None:
        self._keys, self._empty, self._send = contribution_keys(node), empty, send
        self._pairs = _pairs(len(self._keys))
        self._combine = functools.partial(COMBINE[node.attrs["reduction"]].kernel, np)
        self._is_mean = node.attrs["reduction"] == "mean"
        self._lock = threading.Lock()
        self._waiting: dict[int, Any] = {}
        """The value of each pair of which the other has not come."""

    def contribute(self, rank: int, value: Any) -> None:
        """Bring the ``value`` of ``rank``, which stays as it is until the step ends, and add what waits for
        it. The last one to come sends the total to all ranks.
        """
        meeting, own = self._pairs.of_rank[rank], None
        while meeting is not None:
            with self._lock:
                other = self._waiting.pop(meeting.pair, None)
                if other is None:
                    self._waiting[meeting.pair] = value, own
                    return
            operands = (other[0], value) if meeting.is_second else (value, other[0])
            own = own if own is not None else other[1]
            if own is None:
                own = self._empty()
            value = self._combine(*operands, out=own)
            meeting = self._pairs.of_sum[meeting.pair]
        self._end(value)

    def _end(self, total: Any) -> None:
        if self._is_mean:
            divide = np.floor_divide if total.dtype.kind in "iu" else np.divide
            divide(total, total.dtype.type(len(self._keys)), out=total)
        for key in self._keys:
            self._send(key, total)


@final
class JointReductions:
    """Those of one step at a time, by collective."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._of: dict[str, JointReduction] = {}

    def of(self, node: Node, empty: Callable[[], Any]) -> JointReduction:
        """The one that ``node``, a `_Contribute`, has a part in."""
        name = node.attrs["tensor_name"]
        if name not in self._of:
            self._of[name] = JointReduction(node, empty, self._send)
        return self._of[name]
