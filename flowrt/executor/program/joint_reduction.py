"""Joint reductions: all-reduces among devices of one task, computed by the ranks that bring the second of two
values.

    rank 0   _Contribute --+
                           +-- a + b --+
    rank 1   _Contribute --+           |       values meet in pairs, as in `tree_reduce`;
                                       +--     each rank receives the total: _Recv
    rank 2   _Contribute --+           |
                           +-- c + d --+
    rank 3   _Contribute --+

All ranks have the same two operations, so the parts of a step on many devices are equal but for names. The
pairs are fixed, so the bits of a sum do not depend on which device comes when.
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
    """The pair that a value goes to, by number, as its second operand or its first."""

    pair: int
    is_second: bool


class _Pairs(NamedTuple):
    """The pairs of a reduction: where each rank's value goes, and each pair's result; None for the last."""

    of_rank: Sequence[_Meeting | None]
    of_pair: Sequence[_Meeting | None]


@lru_cache(maxsize=64)
def _pairs(size: int) -> _Pairs:
    """The pairs of `tree_reduce` among ``size`` ranks of one task."""
    of_rank: list[_Meeting | None] = [None] * size
    of_pair: list[_Meeting | None] = []
    held: list[Callable[[_Meeting], None]] = [functools.partial(of_rank.__setitem__, r) for r in range(size)]
    for transfer in tree_reduce(Group((0,) * size)).messages():
        pair = len(of_pair)
        of_pair.append(None)
        held[transfer.target](_Meeting(pair, False))
        held[transfer.source](_Meeting(pair, True))
        held[transfer.target] = functools.partial(of_pair.__setitem__, pair)
    return _Pairs(of_rank, of_pair)


@final
class JointReduction:
    """The all-reduce that ``node``, any of its `_Contribute`, describes, in one step at a time. ``empty()``
    allocates a value. ``send``: of the step's rendezvous.
    """

    def __init__(self, node: Node, empty: Callable[[], Any], send: Send) -> None:
        self._keys, self._empty, self._send = contribution_keys(node), empty, send
        self._pairs = _pairs(len(self._keys))
        reduction = node.attrs["reduction"]
        self._combine = functools.partial(COMBINE[reduction].kernel, np)
        self._is_mean = reduction == "mean"
        self._lock = threading.Lock()
        self._waiting: dict[int, Any] = {}
        """The value of each pair of which the other has not come."""

    def contribute(self, rank: int, value: Any) -> None:
        """Bring the ``value`` of ``rank``, which stays as it is until the step ends, and combine it with what
        waits for it. The one with the last pair sends all ranks the total.
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
            value = own = self._combine(*operands, out=self._empty() if own is None else own)
            meeting = self._pairs.of_pair[meeting.pair]
        self._end(value)

    def _end(self, total: Any) -> None:
        count = len(self._keys)
        if self._is_mean:
            divide = np.floor_divide if total.dtype.kind in "iu" else np.divide
            divide(total, total.dtype.type(count), out=total)
        for key in self._keys:
            self._send(key, total)


@final
class JointReductions:
    """The joint reductions of one step at a time, by name."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._of: dict[str, JointReduction] = {}

    def of(self, node: Node, empty: Callable[[], Any]) -> JointReduction:
        """The one in which ``node``, a `_Contribute`, takes part; ``empty()`` allocates its total."""
        name = node.attrs["tensor_name"]
        if name not in self._of:
            self._of[name] = JointReduction(node, empty, self._send)
        return self._of[name]
