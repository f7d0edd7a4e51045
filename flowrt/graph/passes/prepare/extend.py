"""Incremental optimisation: the passes are applied only to the new part of a subgraph.

A request often shares most nodes with an earlier one and adds a few: a training step with its summaries, or
the accuracy of the model being trained. The added part is then optimised separately, as a subgraph with the
tensors it reads from the earlier one as feeds, and merged with the optimised earlier subgraph; unneeded nodes
are pruned.

Rules of this file:

  1. Nodes in both requests are the same objects, under the same feeds. If the later one lacks some of the
     earlier one's, none of these has an effect that is still waited for.
  2. Added nodes are pure and have no control inputs: they are unordered with the earlier request's effects.
  3. A node that an optimisation removed counts as added, under its old name. So does one with a set
     shape that is checked behind it: others must not read what is not checked.
  4. Outputs of nodes that own functions are not read from the added part: they may have been renumbered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import NamedTuple, TypeAlias, final

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import feed_op
from flowrt.graph.construction.graph_extension import addition, extension
from flowrt.graph.node import SET_SHAPE, Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.prepare.prune import StepRequest, extract_more, prune_behind, redirect
from flowrt.graph.topology import sort_topologically

MAX_REMEMBERED = 4
"""An initializer, a training step, the same with summaries, an evaluation. Each costs two dictionaries of
nodes, most of them shared with the graph or a plan.
"""


class Optimised(NamedTuple):
    """A subgraph before and after the passes."""

    before: Subgraph
    after: Subgraph


Settle: TypeAlias = Callable[[Subgraph, Mapping[str, str]], Subgraph]
"""Places a subgraph, given the devices of some nodes."""


@final
class Recent:
    """Cache of recently extracted, optimised and placed subgraphs of a growing graph, for fixed passes."""

    def __init__(self) -> None:
        self._extracted: deque[Subgraph] = deque(maxlen=MAX_REMEMBERED)
        self._last: deque[Optimised] = deque(maxlen=MAX_REMEMBERED)
        self._placed: deque[Optimised] = deque(maxlen=MAX_REMEMBERED)

    def extract(self, request: StepRequest, run: Callable[[StepRequest], Subgraph]) -> Subgraph:
        """``run(request)``, or the same result from an earlier one and the additions to the graph."""
        graph, fetches, targets, feeds, done = request
        if done:
            return run(request)
        found = (extract_more(e, graph, fetches, targets, feeds) for e in reversed(self._extracted))
        subgraph = next((s for s in found if s is not None), None)
        if subgraph is None:
            subgraph = run(request)
        self._extracted.append(subgraph)
        return subgraph

    def optimise(self, subgraph: Subgraph, passes: Callable[[Subgraph], Subgraph]) -> Subgraph:
        """``passes(subgraph)``, or an equivalent result obtained with less work."""
        grown = [(extension(earlier.before, subgraph), earlier) for earlier in self._last]
        sizes = [(len(more.dropped) + len(more.added), earlier) for more, earlier in grown if more]
        if not sizes:
            sizes = [(-_count_common(earlier.before, subgraph), earlier) for earlier in self._last]
        nearest = [earlier for _, earlier in sorted(sizes, key=itemgetter(0))]
        found = (extend(earlier, subgraph, passes) for earlier in nearest)
        extended = next((after for after in found if after is not None), None)
        after = passes(subgraph) if extended is None else extended
        self._last.append(Optimised(subgraph, after))
        return after

    def place(self, subgraph: Subgraph, settle: Settle) -> Subgraph:
        """``settle(subgraph, {})``, or an equivalent result that extends an earlier one."""
        found = (place_more(earlier, subgraph, settle) for earlier in reversed(self._placed))
        placed = next((after for after in found if after is not None), None)
        if placed is None:
            placed = settle(subgraph, {})
        self._placed.append(Optimised(subgraph, placed))
        return placed


def place_more(earlier: Optimised, subgraph: Subgraph, settle: Settle) -> Subgraph | None:
    """``subgraph`` placed by extending ``earlier``. None unless all of ``earlier`` is on one device, and the
    added nodes are pure and go to the same device.
    """
    found = extension(earlier.before, subgraph)
    if found is None or any(node.op.effect is not Effect.PURE for node in found.added):
        return None
    known = earlier.after.nodes
    homes = {node.device for node in known.values()}
    if len(homes) != 1 or known.keys() != earlier.before.nodes.keys():
        return None
    (home,) = homes
    inner = addition(found.added, subgraph).subgraph
    try:
        settled = settle(inner, dict.fromkeys(inner.feeds, home))
    except InvalidArgumentError:  # placing the whole at once reports the operations in conflict
        return None
    if settled.nodes.keys() != inner.nodes.keys() or any(node.device != home for node in settled):
        return None
    nodes = {**known, **{node.name: node.replace(device=home) for node in found.added}}
    for name in found.dropped:
        del nodes[name]
    return subgraph.replace(nodes=nodes)


def extend(earlier: Optimised, subgraph: Subgraph, passes: Callable[[Subgraph], Subgraph]) -> Subgraph | None:
    """The result of ``passes`` on ``subgraph``, given ``earlier``. None if they share too few nodes, or if
    one of the rules above is violated.
    """
    is_whole = _is_whole(earlier.before, subgraph)
    if is_whole is None:
        return None
    more = _Addition(earlier, subgraph)
    if not more.collect():
        return None
    changed = more.without_stand_ins(passes(more.subgraph()))
    known = earlier.after.nodes
    if any(node is not known.get(node.name, node) for node in changed):
        return None  # two nodes that passes made have one name
    targets = tuple(dict.fromkeys([*subgraph.targets, *(earlier.after.targets if is_whole else ())]))
    whole = Subgraph({**known, **changed.nodes}, subgraph.feeds, changed.fetches, targets)
    joined = prune_behind(earlier.after, whole)
    return joined if is_whole or _has_only_effects_of(joined, subgraph) else None


def _is_whole(earlier: Subgraph, later: Subgraph) -> bool | None:
    """True if ``later`` has all nodes of ``earlier``; None if under half is shared or rule 1 is violated."""
    grown = extension(earlier, later)
    if grown is None and not _agree(earlier, later):
        return None
    common = _count_common(earlier, later) if grown is None else len(earlier) - len(grown.dropped)
    is_whole = common == len(earlier)
    return is_whole if is_whole or 2 * common >= len(later) else None


def _count_common(one: Subgraph, other: Subgraph) -> int:
    """Number of names in common."""
    return len(one.nodes.keys() & other.nodes.keys())


def _agree(earlier: Subgraph, later: Subgraph) -> bool:
    """First half of rule 1. Feeds are created separately for each request."""
    if earlier.feeds != later.feeds:
        return False
    if any(earlier.nodes[name].outputs != later.nodes[name].outputs for name in earlier.feeds):
        return False
    feeds, nodes = frozenset(earlier.feeds), earlier.nodes
    return all(nodes.get(name, node) is node for name, node in later.nodes.items() if name not in feeds)


def _has_only_effects_of(joined: Subgraph, later: Subgraph) -> bool:
    """Second half of rule 1. Targets that the passes removed do not count."""
    names = [node.name for node in joined if node.op.effect is not Effect.PURE]
    return all(name in later.nodes for name in names) and all(name in joined.nodes for name in later.targets)


class _Addition:
    """The part of ``whole`` beyond ``earlier``, as a separate subgraph."""

    def __init__(self, earlier: Optimised, whole: Subgraph) -> None:
        self._before, self._after, self._whole = *earlier, whole
        self._fetches = dict(zip(self._before.fetches, self._after.fetches, strict=True))
        """Map from the earlier request's fetches to their current tensors."""
        self._added: dict[str, Node] = {}
        self._known: dict[str, Node] = {}
        """Constants of the earlier request, and feeds for other tensors read from it."""
        self._stands_for: dict[Ref, Ref] = {}
        """Map from outputs of those feeds to the tensors that they represent."""

    def collect(self) -> bool:
        """Find the nodes. Returns False if rule 2 or 4 is violated."""
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
        if node is None or node.op.effect is Effect.NESTED or name not in self._after.nodes:
            return False
        return SET_SHAPE not in node.attrs or self._after.nodes[name].outputs == node.outputs

    def subgraph(self) -> Subgraph:
        known = self._fetches
        fetches = [
            self._stand_in(known[ref]) if ref in known else self._local(ref) for ref in self._whole.fetches
        ]
        added = [
            node.replace(inputs=tuple([self._local(ref) for ref in node.inputs]))
            for node in self._added.values()
        ]
        nodes = sort_topologically(self._known | {node.name: node for node in added})
        feeds = tuple([name for name, _ in self._stands_for])
        targets = tuple([name for name in self._whole.targets if name in self._added])
        return Subgraph(nodes, feeds, tuple(fetches), targets)

    def _local(self, ref: Ref) -> Ref:
        """``ref`` as seen by nodes of the addition."""
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
        self._known[name] = Node(name, feed_op, (), (), attrs, "", None, (spec,))
        self._stands_for[name, 0] = ref
        return name, 0

    def without_stand_ins(self, subgraph: Subgraph) -> Subgraph:
        """``subgraph``, derived from `subgraph`, reading the earlier request's nodes directly."""
        added = [node for node in subgraph if (node.name, 0) not in self._stands_for]
        return redirect(subgraph, self._stands_for, added)
