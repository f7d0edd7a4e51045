"""Lifetimes: live ranges of a partition's tensors, and variables written while they have readers.

Rules of this file:

  1. Positions are places in the partition's order (`StreamSchedule.order`). On one stream that is the order
     in time; with several, the order of two nodes is guaranteed only by `happens_before`.
  2. An alias has no separate lifetime: it counts as its root, the tensor that owns the memory.
  3. Fetched and sent tensors are live until the step ends; what a function sends is copied there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.executor.analysis.streams import StreamSchedule
from flowrt.graph.effects import touches
from flowrt.graph.node import LENT, Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.transfer import SENDS

NEVER = float("inf")
"""End position of a tensor that may still be read outside the program."""


@final
class Lifetimes:
    """The last reader of each tensor. Aliases count as their root: the tensor that owns the memory."""

    def __init__(self, subgraph: Subgraph, schedule: StreamSchedule) -> None:
        self._schedule = schedule
        self._roots: dict[Ref, Ref] = {}
        self._last: dict[Ref, float] = {}
        self._users: dict[Ref, list[str]] = {}
        """Writers and readers of each root, with several streams."""
        self._sent: set[Ref] = set()
        self._kept: set[Ref] = set()
        """Tensors that were sent and must stay as they are: all but lent reads of variables."""
        self._writes: dict[Ref, list[int]] = {}
        for position, node in enumerate(schedule.order):
            self._note(node, position)
        for ref in subgraph.fetches:
            self._last[self.root(ref)] = NEVER
        self._read_last: dict[float, list[Ref]] = {}
        """The roots with their last reader in this partition at each position."""
        for root, last in self._last.items():
            self._read_last.setdefault(last, []).append(root)
        self._ending = dict(self._read_last)
        """The roots among them that no other device reads."""
        for last in {self._last[root] for root in self._sent}:
            self._ending[last] = [root for root in self._read_last[last] if root not in self._sent]
        if schedule.count > 1:
            for node in schedule.order:
                for ref in (*node.inputs, *[(node.name, i) for i in range(len(node.outputs))]):
                    self._users.setdefault(self.root(ref), []).append(node.name)

    def _note(self, node: Node, position: int) -> None:
        """Note what ``node``, at ``position``, reads, sends, writes and makes."""
        op = node.op
        for ref in node.inputs:
            self._last[self.root(ref)] = position
        if op in SENDS:
            self._note_sent(node)
        if op.effect is Effect.WRITE or op.effect is Effect.NESTED:
            self._note_writes(node, position)
        if op.alias and op.effect is not Effect.READ and node.inputs:
            root = self.root(node.inputs[op.aliased])
            self._roots.update({(node.name, index): root for index in range(len(node.outputs))})
        for index in range(len(node.outputs)):
            self._last.setdefault(self.root((node.name, index)), position)

    def _note_writes(self, node: Node, position: int) -> None:
        for handle, writes in touches(node):
            if writes:
                self._writes.setdefault(self.root(handle), []).append(position)

    def _note_sent(self, node: Node) -> None:
        root = self.root(node.inputs[0])
        self._sent.add(root)
        if LENT not in node.attrs:
            self._kept.add(root)

    def root(self, ref: Ref) -> Ref:
        return self._roots.get(ref, ref)

    def ends_at(self, ref: Ref, position: int) -> bool:
        """Whether the tensor's memory has no reader after ``position``, here or on another device."""
        return self.is_read_last_at(ref, position) and self.root(ref) not in self._sent

    def ending_at(self, position: int) -> Sequence[Ref]:
        """The roots for which `ends_at` is true."""
        return self._ending.get(position, ())

    def is_read_last_at(self, ref: Ref, position: int) -> bool:
        """Whether no node of this partition reads the tensor after ``position``."""
        return self._last[self.root(ref)] == position

    def read_last_at(self, position: int) -> Sequence[Ref]:
        """The roots for which `is_read_last_at` is true."""
        return self._read_last.get(position, ())

    def is_read_before(self, ref: Ref, position: int) -> bool:
        """Whether all readers of the tensor's memory precede ``position``, and none is on another device."""
        return self._last[self.root(ref)] < position and self.root(ref) not in self._sent

    def are_done(self, ref: Ref, before: str) -> bool:
        """Whether all writers and readers of the tensor have certainly finished when ``before`` runs, which
        may be one of them.
        """
        return self._schedule.count == 1 or all(
            user == before or self._schedule.happens_before(user, before)
            for user in self._users[self.root(ref)]
        )

    def lasts(self, ref: Ref) -> bool:
        """Whether the tensor may still be read outside the program when the step ends."""
        return self._last[self.root(ref)] == NEVER

    def is_written(self, handle: Ref) -> bool:
        """Whether a node writes the resource."""
        return self.root(handle) in self._writes

    def users(self, ref: Ref) -> Sequence[str]:
        """Writers and readers of the tensor, with several streams."""
        return self._users.get(self.root(ref), ())

    def is_sent(self, refs: Sequence[Ref]) -> bool:
        return any(self.root(ref) in self._sent for ref in refs)

    def is_overwritten(self, read: Node, position: int) -> bool:
        """Whether the variable is written after the read, and the value read is used at or after that."""
        root = self.root((read.name, 0))
        last = NEVER if root in self._kept else self._last[root]
        return any(position < write <= last for write in self._writes.get(self.root(read.inputs[0]), ()))
