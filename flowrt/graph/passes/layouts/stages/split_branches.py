"""Branches of a pipeline that update variables of several stages: one for each stage in place of one for all.

    cond(is_finite, lambda: optimizer.apply_gradients(...), no_op)

A branch is at one stage, since its devices would otherwise have to be in step. What its functions write, and
what they read behind a write, is at the stage of the variable, and each part keeps what leads to its own:
operations without an effect may be there several times. A variable that is not written before is read in
front of the branch, and is an argument. If stage 1 writes before stage 0 does, and then again, it has two
parts. Effects stay in their order: parts wait for each other, and what waited for the branch, for all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, final

from flowrt.errors import OpError, UnimplementedError
from flowrt.graph.construction.constant import feed_beside
from flowrt.graph.effects import is_stateful, touches
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.attributes import STAGE
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.state.variable_ops import read_variable_op
from flowrt.graph.passes.layouts.stages.assign_stages import assign_stages
from flowrt.graph.topology import sort_topologically


def split_branches(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with branches of one stage in place of those with variables of several; the same object
    if there are none.

    Raises `UnimplementedError` for a branch in which a part needs a value that another one has written.
    """
    if not any(node.op.name == "_Case" and touches(node) for node in subgraph):
        return subgraph
    return _split(subgraph, assign_stages(subgraph))


def _split(subgraph: Subgraph, stages: Mapping[str, int]) -> Subgraph:
    """``subgraph``, a step or a function, of which ``stages`` has those of all variables and branches."""
    nodes: dict[str, Node] = {}
    refs: dict[Ref, Ref] = {}
    ends: dict[str, tuple[str, ...]] = {}
    for before in subgraph:
        waited = [end for name, _ in before.inputs for end in ends.get(name, ())]
        node = before.redirected(refs, ends)
        if waited:
            node = node.replace(controls=tuple(dict.fromkeys((*node.controls, *waited))))
        split = _parts_of(node, stages) if node.op.name == "_Case" else None
        if split is None:
            nodes[node.name] = node
            continue
        nodes |= {each.name: each for each in (*split.reads, *split.parts)}
        refs |= split.outputs
        ends[node.name] = tuple(part.name for part in split.parts)
    if not ends:
        return subgraph
    return Subgraph(
        sort_topologically(nodes),
        subgraph.feeds,
        tuple(refs.get(ref, ref) for ref in subgraph.fetches),
        tuple(end for name in subgraph.targets for end in ends.get(name, (name,))),
    )


class Turn(NamedTuple):
    """The part of a branch that is at ``stage``, behind ``before`` others."""

    before: int
    stage: int


class _Parts(NamedTuple):
    """The branches in place of one, what they read of variables, and the outputs in place of its own."""

    reads: Sequence[Node]
    parts: Sequence[Node]
    outputs: Mapping[Ref, Ref]


def _parts_of(node: Node, stages: Mapping[str, int]) -> _Parts | None:
    home = stages.get(node.name, 0)
    found = {stages[touch.handle[0]] for touch in touches(node)}
    return None if found <= {home} else _Splitting(node, stages, home).done()


@final
class _Splitting:
    def __init__(self, node: Node, stages: Mapping[str, int], home: int) -> None:
        self._node, self._stages, self._arguments = node, stages, node.inputs[1:]
        self._functions = [_Function(each, self._stages_in(each), home) for each in node.attrs["branches"]]
        self._turns = sorted({turn for each in self._functions for turn in each.turns.values()})
        self._turns = self._turns or [Turn(0, home)]
        self._written = {touch.handle for touch in touches(node) if touch.writes}
        self._reads: dict[int, Node] = {}
        """Reads in front of the branches, by the index of the variable among the arguments."""

    def _stages_in(self, function: Subgraph) -> dict[str, int]:
        pairs = zip(function.feeds, self._arguments, strict=True)
        return {name: self._stages[source] for name, (source, _) in pairs if source in self._stages}

    def done(self) -> _Parts:
        turns = [self._of_result(k) for k in range(len(self._node.outputs))]
        parts = [self._part(turn, [k for k, of in enumerate(turns) if of == turn]) for turn in self._turns]
        outputs = {
            (self._node.name, k): (self._name(turn), turns[:k].count(turn)) for k, turn in enumerate(turns)
        }
        return _Parts([*self._reads.values()], self._in_order(parts), outputs)

    def _name(self, turn: Turn) -> str:
        return f"{self._node.name}@{turn.before}stage{turn.stage}"

    def _of_result(self, k: int) -> Turn:
        """The turn in which result ``k`` is computed."""
        found = {turn for each in self._functions for turn in each.needed([each.whole.fetches[k][0]])}
        if len(found) > 1:
            stages = ", ".join(str(turn.stage) for turn in sorted(found))
            raise self._refused(f"a result of what stages {stages} have written")
        return next(iter(found), self._turns[0])

    def _part(self, turn: Turn, results: Sequence[int]) -> Node:
        """The branch of ``turn``, with ``results``."""
        kept: list[tuple[_Function, set[str], Mapping[str, int]]] = []
        for each in self._functions:
            given = {
                node.name: i
                for node in each.whole
                if (i := each.variable(node)) is not None and self._is_read_in_front(i, turn)
            }
            names = each.kept(turn, [each.whole.fetches[k][0] for k in results], given)
            wrong = sorted(each.needed(names) - {turn})
            if wrong:
                raise self._refused(
                    f"stage {turn.stage}, which needs what stage {wrong[0].stage} has written"
                )
            kept.append((each, names, {name: i for name, i in given.items() if name in names}))
        fronts = sorted({i for _, _, given in kept for i in given.values()})
        for i in fronts:
            self._reads.setdefault(i, self._read(i))
        used = [
            i
            for i in range(len(self._arguments))
            if any(each.whole.feeds[i] in names for each, names, _ in kept)
        ]
        values = {i: self._reads[i] for i in fronts}
        branches = [each.part(turn, names, given, used, values, results) for each, names, given in kept]
        node = self._node
        dtypes = [node.attrs["Tin"][i] for i in used] + [read.outputs[0].dtype for read in values.values()]
        attrs = {
            **node.attrs,
            STAGE: str(turn.stage),
            "branches": tuple(branches),
            "Tin": tuple(dtypes),
            "Tout": tuple(node.attrs["Tout"][k] for k in results),
        }
        read = [(each.name, 0) for each in values.values()]
        inputs = (node.inputs[0], *(self._arguments[i] for i in used), *read)
        specs = tuple(node.outputs[k] for k in results)
        return node.replace(name=self._name(turn), attrs=attrs, inputs=inputs, outputs=specs)

    def _is_read_in_front(self, i: int, turn: Turn) -> bool:
        """Whether ``turn`` does not read the variable that is argument ``i`` for itself: it is of another
        stage, or may be written when the turn comes.
        """
        ref = self._arguments[i]
        return self._stages[ref[0]] != turn.stage or ref in self._written

    def _read(self, i: int) -> Node:
        """The variable that is argument ``i``, read in front of the branch."""
        read = next(node for each in self._functions for node in each.whole if each.variable(node) == i)
        name, controls = f"{self._node.name}@read{i}", self._node.controls
        return read.replace(name=name, inputs=(self._arguments[i],), controls=controls)

    def _in_order(self, parts: Sequence[Node]) -> list[Node]:
        """``parts``, which wait for each other as their effects did; a write, for what is read in front."""
        before = {pair for each in self._functions for pair in each.order()}
        of_variables = {i: self._stages[self._arguments[i][0]] for i in self._reads}
        found: list[Node] = []
        for part, turn in zip(parts, self._turns, strict=True):
            waits = [self._name(one) for one, other in sorted(before) if other == turn]
            waits += [self._reads[i].name for i, stage in of_variables.items() if stage == turn.stage]
            found.append(part.replace(controls=tuple(dict.fromkeys((*part.controls, *waits)))))
        return found

    def _refused(self, got: str) -> OpError:
        what = "expected a branch in which a stage needs nothing that another one writes in it"
        return located(self._node, UnimplementedError(f"{what}; got {got}. Take it out of the branch"))


@final
class _Function:
    """A function of a branch. ``turns``: that of each node that writes a variable of ``stages``, or that
    reads one behind a write, or has another effect, which is of the stage ``home``.
    """

    def __init__(self, function: Subgraph, stages: Mapping[str, int], home: int) -> None:
        owners = [node for node in function if node.op.effect is Effect.NESTED]
        inner = {node.name: _first_stage(node, stages, home) for node in owners}
        self.whole = _split(function, {**stages, **inner})
        self._written = {touch.handle for node in self.whole for touch in touches(node) if touch.writes}
        self.turns: dict[str, Turn] = {}
        behind: dict[str, set[Ref]] = {}
        """The variables that a node, or one before it, writes."""
        last: dict[str, set[Turn]] = {}
        """The turns of the effects that a node is, or waits for."""
        for node in self.whole:
            written = set().union(*[behind[name] for name in node.predecessors])
            before = set().union(*[last[name] for name in node.predecessors])
            stage = self._stage(node, written, stages, home)
            if stage is not None:
                count = max((turn.before + (turn.stage != stage) for turn in before), default=0)
                self.turns[node.name] = Turn(count, stage)
                before = {self.turns[node.name]}
            behind[node.name] = written | {touch.handle for touch in touches(node) if touch.writes}
            last[node.name] = before

    def _stage(self, node: Node, written: set[Ref], stages: Mapping[str, int], home: int) -> int | None:
        """The stage of ``node``, behind writes of the variables ``written``; None: any."""
        touched = [touch.handle for touch in touches(node)]
        if is_stateful(node):
            return stages[touched[0][0]] if touched else home
        is_fixed = (
            bool(written.intersection(touched))
            if node.op is read_variable_op
            else bool(self._written.intersection(touched))
        )
        return stages[touched[0][0]] if is_fixed else None

    def variable(self, node: Node) -> int | None:
        """The index, among the parameters, of the variable that ``node`` reads, unless behind a write."""
        if node.op is not read_variable_op or node.name in self.turns:
            return None
        name, feeds = node.inputs[0][0], self.whole.feeds
        return feeds.index(name) if name in feeds else None

    def needed(self, names: Iterable[str]) -> set[Turn]:
        """The turns of effects that the values of ``names`` need."""
        return {self.turns[name] for name in self._leading_to(names, ()) if name in self.turns}

    def kept(self, turn: Turn, results: Sequence[str], given: Collection[str]) -> set[str]:
        """The nodes that lead to ``results``, and to the effects of ``turn``, from what is ``given``."""
        return self._leading_to([*self._effects(turn), *results], given)

    def _effects(self, turn: Turn) -> list[str]:
        return [name for name, of in self.turns.items() if of == turn]

    def _leading_to(self, names: Iterable[str], given: Collection[str]) -> set[str]:
        found: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack += [] if name in given else [source for source, _ in self.whole.nodes[name].inputs]
        return found

    def order(self) -> set[tuple[Turn, Turn]]:
        """The pairs of turns of which the second has an effect behind one of the first."""
        pairs = {
            (self.turns[name], turn)
            for node, turn in self.turns.items()
            for name in self._last_effects(self.whole.nodes[node].predecessors, lambda of: of is not None)
        }
        return {(one, other) for one, other in pairs if one != other}

    def part(
        self, turn: Turn, kept: set[str], given: Mapping[str, int], used: Sequence[int],
        reads: Mapping[int, Node], results: Sequence[int],
    ) -> Subgraph:  # fmt: skip
        """The function of the nodes ``kept``, with the parameters ``used``, and one for each of ``reads``
        in place of the nodes ``given``.
        """
        values = {i: feed_beside(read, f"{read.name}-given", read.outputs[0]) for i, read in reads.items()}
        refs = {(name, 0): (values[i].name, 0) for name, i in given.items()}
        own = {self.whole.feeds[i] for i in used} | kept.difference(given)
        nodes = {node.name: node for node in values.values()}
        for node in self.whole:
            if node.name in own:
                controls = self._last_effects(node.controls, lambda of: of == turn)
                nodes[node.name] = node.redirected(refs).replace(controls=controls)
        feeds = (*(self.whole.feeds[i] for i in used), *(node.name for node in values.values()))
        fetches = tuple(refs.get(ref, ref) for ref in (self.whole.fetches[k] for k in results))
        return Subgraph(nodes, feeds, fetches, tuple(self._effects(turn)))

    def _last_effects(self, names: Iterable[str], counts: Callable[[Turn | None], bool]) -> tuple[str, ...]:
        """The last effects, of turns that count, that ``names`` are, or are behind."""
        found: dict[str, None] = {}
        seen: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                if counts(self.turns.get(name)):
                    found[name] = None
                else:
                    stack += self.whole.nodes[name].predecessors
        return tuple(found)


def _first_stage(node: Node, stages: Mapping[str, int], home: int) -> int:
    """The stage of a loop or branch in a function: that of the first variable of it."""
    return next((stages[touch.handle[0]] for touch in touches(node)), home)
