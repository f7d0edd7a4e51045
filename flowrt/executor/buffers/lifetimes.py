"""Lifetimes: how long each tensor of a partition is needed, and which variables change under their readers.

Rules of this file:

  1. Positions are places in the partition's order (`StreamSchedule.order`). On one stream that is the order
     in time; with several, one node is before another for certain only if `happens_before` says so.
  2. An alias has no life of its own: it counts as its root, the tensor whose memory it shares.
  3. What is fetched or sent is needed until the step ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.executor.analysis.streams import StreamSchedule
from flowrt.graph.effects import touches
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect

NEVER = float("inf")
"""The position at which a tensor ends that somebody outside the program may still be reading."""


@final
class Lifetimes:
    """Who reads each tensor last. Aliases count as their root: the tensor whose memory they share."""

    def __init__(self, subgraph: Subgraph, schedule: StreamSchedule) -> None:
        self._schedule = schedule
        self._roots: dict[Ref, Ref] = {}
        self._last: dict[Ref, float] = {}
        self._users: dict[Ref, list[str]] = {}
        """Of each root, with several streams: who writes or reads it."""
        self._sent: set[Ref] = set()
        self._writes: dict[Ref, list[int]] = {}
        for position, node in enumerate(schedule.order):
            op = node.op
            for ref in node.inputs:
                self._last[self.root(ref)] = position
            if op.name == "_Send":
                self._sent.add(self.root(node.inputs[0]))
            for handle, writes in touches(node):
                if writes:
                    self._writes.setdefault(self.root(handle), []).append(position)
            if op.alias and op.effect is not Effect.READ and node.inputs:
                root = self.root(node.inputs[op.aliased])
                self._roots.update({(node.name, index): root for index in range(len(node.outputs))})
            for index in range(len(node.outputs)):
                self._last.setdefault(self.root((node.name, index)), position)
        for ref in subgraph.fetches:
            self._last[self.root(ref)] = NEVER
        self._ending = self._by_end()
        if schedule.count > 1:
            for node in schedule.order:
                for ref in (*node.inputs, *[(node.name, i) for i in range(len(node.outputs))]):
                    self._users.setdefault(self.root(ref), []).append(node.name)

    def _by_end(self) -> dict[float, list[Ref]]:
        """For each position the roots that nobody reads after it."""
        ending: dict[float, list[Ref]] = {}
        for root, last in self._last.items():
            if root not in self._sent:
                ending.setdefault(last, []).append(root)
        return ending

    def root(self, ref: Ref) -> Ref:
        return self._roots.get(ref, ref)

    def ends_at(self, ref: Ref, position: int) -> bool:
        """Whether nobody reads the tensor's memory after ``position``, here or on another device."""
        return self.is_read_last_at(ref, position) and self.root(ref) not in self._sent

    def ending_at(self, position: int) -> Sequence[Ref]:
        """The roots of which `ends_at` holds."""
        return self._ending.get(position, ())

    def is_read_last_at(self, ref: Ref, position: int) -> bool:
        """Whether no node of this partition reads the tensor after ``position``."""
        return self._last[self.root(ref)] == position

    def is_read_before(self, ref: Ref, position: int) -> bool:
        """Whether all who read the tensor's memory come before ``position``, none of them elsewhere."""
        return self._last[self.root(ref)] < position and self.root(ref) not in self._sent

    def are_done(self, ref: Ref, before: str) -> bool:
        """Whether all that write or read the tensor have done so for certain when ``before`` runs, which may
        be one of them.
        """
        return self._schedule.count == 1 or all(
            user == before or self._schedule.happens_before(user, before)
            for user in self._users[self.root(ref)]
        )

    def lasts(self, ref: Ref) -> bool:
        """Whether somebody outside may still be reading the tensor when the step ends."""
        return self._last[self.root(ref)] == NEVER

    def is_written(self, handle: Ref) -> bool:
        """Whether a node writes the resource."""
        return self.root(handle) in self._writes

    def users(self, ref: Ref) -> Sequence[str]:
        """With several streams: who writes or reads the tensor."""
        return self._users.get(self.root(ref), ())

    def is_sent(self, refs: Sequence[Ref]) -> bool:
        return any(self.root(ref) in self._sent for ref in refs)

    def is_overwritten(self, read: Node, position: int) -> bool:
        """Whether the variable is written after the read, and the value that was read is used at or after
        that.
        """
        root = self.root((read.name, 0))
        last = NEVER if root in self._sent else self._last[root]
        return any(position < write <= last for write in self._writes.get(self.root(read.inputs[0]), ()))
