"""Lifetimes: how long each tensor of a partition is needed, and which variables change under their readers.

Rules of this file:

  1. Positions are places in the partition's order, which is the order in which its program runs.
  2. An alias has no life of its own: it counts as its root, the tensor whose memory it shares.
  3. What is fetched or sent is needed until the step ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect


@final
class Lifetimes:
    """Who reads each tensor last. Aliases count as their root: the tensor whose memory they share."""

    def __init__(self, subgraph: Subgraph) -> None:
        self._roots: dict[Ref, Ref] = {}
        self._last: dict[Ref, float] = {}
        self._sent: set[Ref] = set()
        self._writes: dict[Ref, list[int]] = {}
        for position, node in enumerate(subgraph):
            op = node.op
            for ref in node.inputs:
                self._last[self.root(ref)] = position
            if op.name == "_Send":
                self._sent.add(self.root(node.inputs[0]))
            if op.effect is Effect.WRITE:
                for ref in node.inputs:
                    self._writes.setdefault(self.root(ref), []).append(position)
            if op.alias and op.effect is not Effect.READ and node.inputs:
                self._roots[node.name, 0] = self.root(node.inputs[0])
            for index in range(len(node.outputs)):
                self._last.setdefault(self.root((node.name, index)), position)
        for ref in subgraph.fetches:
            self._last[self.root(ref)] = float("inf")

    def root(self, ref: Ref) -> Ref:
        return self._roots.get(ref, ref)

    def ends_at(self, ref: Ref, position: int) -> bool:
        """Whether nobody reads the tensor's memory after ``position``, here or on another device."""
        return self.is_read_last_at(ref, position) and self.root(ref) not in self._sent

    def is_read_last_at(self, ref: Ref, position: int) -> bool:
        """Whether no node of this partition reads the tensor after ``position``."""
        return self._last[self.root(ref)] == position

    def is_sent(self, refs: Sequence[Ref]) -> bool:
        return any(self.root(ref) in self._sent for ref in refs)

    def is_overwritten(self, read: Node, position: int) -> bool:
        """Whether the variable is written after the read, and the value that was read is used at or after
        that.
        """
        root = self.root((read.name, 0))
        last = float("inf") if root in self._sent else self._last[root]
        return any(position < write <= last for write in self._writes.get(self.root(read.inputs[0]), ()))
