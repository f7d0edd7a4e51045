"""Lifetimes: live ranges of a partition's tensors, and variables written while they have readers.

Rules of this file:

  1. Positions are places in the partition's order (`StreamSchedule.order`). On one stream that is the order
     in time; with several, the order of two nodes is guaranteed only by `happens_before`.
  2. An alias has no separate lifetime: it counts as its root, the tensor that owns the memory. What may be
     one is one, unless the assignment finds that it is a copy (`Lifetimes.separate`).
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
        self._views: dict[Ref, list[Node]] = {}
        """The nodes of which the outputs are aliases of each root, in order."""
        self._read: dict[Ref, float] = {}
        """The last reader of each tensor, aliases apart; if it has none, the node that makes it."""
        self._users: dict[Ref, list[str]] = {}
        """Writers and readers of each tensor, aliases apart, with several streams."""
        self._sends: dict[Ref, bool] = {}
        """Tensors that are sent, and whether they must stay as they are: all but lent reads of variables."""
        self._writes: dict[Ref, list[int]] = {}
        for position, node in enumerate(schedule.order):
            self._note(node, position)
        self._read.update(dict.fromkeys(subgraph.fetches, NEVER))
        self._last: dict[Ref, float] = {}
        self._sent: set[Ref] = set()
        self._kept: set[Ref] = set()
        """The roots of `_sends`, and of those among them that must stay as they are."""
        self._read_last: dict[float, list[Ref]] = {}
        """The roots with their last reader in this partition at each position."""
        for root in dict.fromkeys(map(self.root, self._read)):
            self._settle(root)

    def _note(self, node: Node, position: int) -> None:
        """Note what ``node``, at ``position``, reads, sends, writes and makes."""
        op, outputs = node.op, _outputs(node)
        for ref in node.inputs:
            self._read[ref] = position
        if op in SENDS:
            (sent,) = node.inputs
            self._sends[sent] = LENT not in node.attrs or self._sends.get(sent, False)
        if op.effect is Effect.WRITE or op.effect is Effect.NESTED:
            self._note_writes(node, position)
        if op.alias and op.effect is not Effect.READ and node.inputs:
            root = self.root(node.inputs[op.aliased])
            self._roots.update(dict.fromkeys(outputs, root))
            self._views.setdefault(root, []).append(node)
        for ref in outputs:
            self._read.setdefault(ref, position)
        if self._schedule.count > 1:
            for ref in (*node.inputs, *outputs):
                self._users.setdefault(ref, []).append(node.name)

    def separate(self, node: Node) -> None:
        """Make the outputs of ``node`` roots, with aliases of their own: they are copies, not views."""
        outputs = _outputs(node)
        before = self.root(outputs[0])
        roots = {ref: ref for ref in outputs}
        views, others = {ref: list[Node]() for ref in outputs}, list[Node]()
        for view in self._views[before]:
            root = roots.get(view.inputs[view.op.aliased])
            if root is not None:
                roots.update(dict.fromkeys(_outputs(view), root))
                views[root].append(view)
            elif view is not node:
                others.append(view)
        self._roots.update(roots)
        self._views.update({**views, before: others})
        for root in (before, *outputs):
            self._settle(root)

    def _settle(self, root: Ref) -> None:
        """Note the last reader of ``root``, and whether it is sent, with its aliases."""
        refs = self._tensors(root)
        last = max([self._read[ref] for ref in refs])
        if root in self._last:
            self._read_last[self._last[root]].remove(root)
        self._last[root] = last
        self._read_last.setdefault(last, []).append(root)
        sends = [self._sends[ref] for ref in refs if ref in self._sends]
        for found, is_in in ((self._sent, bool(sends)), (self._kept, any(sends))):
            (found.add if is_in else found.discard)(root)

    def _tensors(self, root: Ref) -> list[Ref]:
        """``root`` and its aliases."""
        return [root, *[ref for view in self._views.get(root, ()) for ref in _outputs(view)]]

    def _note_writes(self, node: Node, position: int) -> None:
        for handle, writes in touches(node):
            if writes:
                self._writes.setdefault(self.root(handle), []).append(position)

    def root(self, ref: Ref) -> Ref:
        return self._roots.get(ref, ref)

    def ends_at(self, ref: Ref, position: int) -> bool:
        """Whether the tensor's memory has no reader after ``position``, here or on another device."""
        return self.is_read_last_at(ref, position) and self.root(ref) not in self._sent

    def ending_at(self, position: int) -> Sequence[Ref]:
        """The roots for which `ends_at` is true."""
        return [root for root in self.read_last_at(position) if root not in self._sent]

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
            user == before or self._schedule.happens_before(user, before) for user in self.users(ref)
        )

    def lasts(self, ref: Ref) -> bool:
        """Whether the tensor may still be read outside the program when the step ends."""
        return self._last[self.root(ref)] == NEVER

    def is_written(self, handle: Ref) -> bool:
        """Whether a node writes the resource."""
        return self.root(handle) in self._writes

    def users(self, ref: Ref) -> Sequence[str]:
        """Writers and readers of the tensor, with several streams."""
        return [user for each in self._tensors(self.root(ref)) for user in self._users.get(each, ())]

    def is_sent(self, refs: Sequence[Ref]) -> bool:
        return any(self.root(ref) in self._sent for ref in refs)

    def is_overwritten(self, read: Node, position: int) -> bool:
        """Whether the variable is written after the read, and the value read is used at or after that."""
        root = self.root((read.name, 0))
        last = NEVER if root in self._kept else self._last[root]
        return any(position < write <= last for write in self._writes.get(self.root(read.inputs[0]), ()))


def _outputs(node: Node) -> list[Ref]:
    return [(node.name, index) for index in range(len(node.outputs))]
