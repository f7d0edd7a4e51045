"""Extension: passes over the new part of a subgraph only, when the rest went through them before.

A request often has most nodes of an earlier one, and a few more: a training step with its summaries, or the
accuracy of the model that is trained. What is more is then optimised by itself, as a subgraph whose feeds are
the tensors that it reads of the earlier one, and joined to what the passes made of that; what nobody needs
now is pruned.

Rules of this file:

  1. Nodes that both requests have are the same objects, under the same feeds. If the later one lacks some of
     the earlier one's, none of these has an effect that is still waited for.
  2. What is more is pure and waits for nobody: it stands in no order with the earlier request's effects.
  3. A node that an optimisation took away is one of those that are more, under its old name.
  4. Whose outputs may have other numbers now, because it owns functions, is not read from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, final

from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect, op_def
from flowrt.graph.passes.prune import prune, redirect
from flowrt.graph.topology import sort_topologically

MAX_REMEMBERED = 4
"""An initializer, a training step, the same with summaries, an evaluation. Each is two dictionaries of nodes
that are mostly the graph's or a plan's.
"""


class Optimised(NamedTuple):
    """A subgraph, and what the passes made of it."""

    before: Subgraph
    after: Subgraph


@final
class Recent:
    """Remembers the subgraphs of one graph that were optimised last, always by the same passes."""

    def __init__(self) -> None:
        self._last: deque[Optimised] = deque(maxlen=MAX_REMEMBERED)

    def optimise(self, subgraph: Subgraph, passes: Callable[[Subgraph], Subgraph]) -> Subgraph:
        """``passes(subgraph)``, or what computes the same and took them less."""
        nearest = sorted(self._last, key=lambda earlier: -_count_common(earlier.before, subgraph))
        found = (extend(earlier, subgraph, passes) for earlier in nearest)
        extended = next((after for after in found if after is not None), None)
        after = passes(subgraph) if extended is None else extended
        self._last.append(Optimised(subgraph, after))
        return after


def extend(earlier: Optimised, subgraph: Subgraph, passes: Callable[[Subgraph], Subgraph]) -> Subgraph | None:
    """What ``passes`` make of ``subgraph``, given ``earlier``. None if that is neither a part of it nor has
    half of it, or if one of the rules above is broken.
    """
    common = _count_common(earlier.before, subgraph)
    is_whole = common == len(earlier.before)
    if not (is_whole or 2 * common >= len(subgraph)) or not _agree(earlier.before, subgraph):
        return None
    addition = _Addition(earlier, subgraph)
    if not addition.collect():
        return None
    changed = addition.without_stand_ins(passes(addition.subgraph()))
    known = earlier.after.nodes
    if any(node is not known.get(node.name, node) for node in changed):
        return None  # two nodes that passes made have one name
    targets = tuple(dict.fromkeys([*subgraph.targets, *(earlier.after.targets if is_whole else ())]))
    joined = prune(Subgraph({**known, **changed.nodes}, subgraph.feeds, changed.fetches, targets))
    return joined if is_whole or _has_only_effects_of(joined, subgraph) else None


def _count_common(one: Subgraph, other: Subgraph) -> int:
    """How many names both have."""
    return len(one.nodes.keys() & other.nodes.keys())


def _agree(earlier: Subgraph, later: Subgraph) -> bool:
    """Rule 1, its first half. Feeds are made anew for each request."""
    if earlier.feeds != later.feeds:
        return False
    if any(earlier.nodes[name].outputs != later.nodes[name].outputs for name in earlier.feeds):
        return False
    feeds, nodes = frozenset(earlier.feeds), earlier.nodes
    return all(nodes.get(name, node) is node for name, node in later.nodes.items() if name not in feeds)


def _has_only_effects_of(joined: Subgraph, later: Subgraph) -> bool:
    """Rule 1, its second half. A target that the passes took apart is none."""
    names = [node.name for node in joined if node.op.effect is not Effect.PURE]
    return all(name in later.nodes for name in names) and all(name in joined.nodes for name in later.targets)


class _Addition:
    """What ``whole`` has beyond ``earlier``, as a subgraph of its own."""

    def __init__(self, earlier: Optimised, whole: Subgraph) -> None:
        self._before, self._after, self._whole = *earlier, whole
        self._fetches = dict(zip(self._before.fetches, self._after.fetches, strict=True))
        """Where the earlier request's fetches are now."""
        self._added: dict[str, Node] = {}
        self._known: dict[str, Node] = {}
        """Constants of the earlier request, and feeds for all else that is read of it."""
        self._stands_for: dict[Ref, Ref] = {}
        """From the output of such a feed to the tensor."""

    def collect(self) -> bool:
        """Find the nodes. False if rule 2 or 4 is broken."""
        stack = [name for name, index in self._whole.fetches if (name, index) not in self._fetches]
        stack += [name for name in self._whole.targets if name not in self._before.targets]
        while stack:
            name = stack.pop()
            if name in self._added or self._is_known(name):
                continue
            node = self._whole.nodes[name]
            if node.op.effect is not Effect.PURE or node.controls:
                return False
            self._added[name] = node
            stack += [producer for producer, _ in node.inputs]
        return True

    def _is_known(self, name: str) -> bool:
        node = self._before.nodes.get(name)
        return node is not None and node.op.effect is not Effect.NESTED and name in self._after.nodes

    def subgraph(self) -> Subgraph:
        fetches = [self._fetch(ref) for ref in self._whole.fetches]
        added = [
            node.replace(inputs=tuple([self._local(ref) for ref in node.inputs]))
            for node in self._added.values()
        ]
        nodes = sort_topologically(self._known | {node.name: node for node in added})
        feeds = tuple([name for name, _ in self._stands_for])
        targets = tuple([name for name in self._whole.targets if name in self._added])
        return Subgraph(nodes, feeds, tuple(fetches), targets)

    def _fetch(self, ref: Ref) -> Ref:
        return self._stand_in(self._fetches[ref]) if ref in self._fetches else self._local(ref)

    def _local(self, ref: Ref) -> Ref:
        """``ref`` as nodes of the addition read it."""
        name = ref[0]
        if name in self._added:
            return ref
        node = self._after.nodes[name]
        if node.op.name == "Const" and not node.controls:
            self._known[name] = node
            return ref
        return self._stand_in(ref)

    def _stand_in(self, ref: Ref) -> Ref:
        name, spec = f"_known_{ref[0]}_{ref[1]}", self._after.spec(ref)
        attrs = {"dtype": spec.dtype, "shape": spec.shape}
        self._known[name] = Node(name, op_def("_Feed"), (), (), attrs, "", None, (spec,))
        self._stands_for[name, 0] = ref
        return name, 0

    def without_stand_ins(self, subgraph: Subgraph) -> Subgraph:
        """``subgraph``, which came of `subgraph`, with what it reads of the earlier request's nodes."""
        added = [node for node in subgraph if (node.name, 0) not in self._stands_for]
        return redirect(subgraph, self._stands_for, added)
