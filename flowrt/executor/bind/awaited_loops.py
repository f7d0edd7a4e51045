"""Loops that are compiled while their program runs: until a loop is there, its operation runs plain kernels.

    bind:       Awaiting(plain, loop), Awaiting(plain, loop), ...      all by plain kernels
    compile:    the loops one by one, those first that save most time per second of compiling
    exchange:   new segments, with the loops that are there, joined to larger calls where they are adjacent

The plain kernels and the loop of an operation read and write the same places, which buffer assignment has
chosen for the operation. So a program may get new segments at any time: the step that runs goes on with the
old ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np

from flowrt.device.llvm.call_sequence import BoundCall
from flowrt.errors import FailedPreconditionError
from flowrt.executor.analysis.cost import SECONDS_PER_UNIT
from flowrt.executor.kernels.host_kernels import LOOP_KERNELS
from flowrt.executor.program.instruction import Action, Instruction
from flowrt.executor.program.program import Program, Segment
from flowrt.executor.verify.node_accesses import Layer
from flowrt.executor.verify.verify_program import is_checking, verify_program
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.fusion.group import Group
from flowrt.graph.passes.fusion.loop_budget import compile_seconds
from flowrt.graph.shapes import num_elements

LOGGER = logging.getLogger(__name__)

LEFT = 0.8
"""Share of the plain kernels' time that is left at the next exchange, which takes 1 ms. The first two of a
transformer's 18 loops are compiled after 63 ms of 490, and save 45 % of that time; four take 149 ms.
"""


class LoopEstimate(NamedTuple):
    """The loop of an operation. Operations of the same ``form`` share one."""

    form: Hashable
    plain_s: float
    """Estimated time of the operation's plain kernels."""
    compile_s: float


class Awaiting(NamedTuple):
    """``plain`` until the loop is there: ``compiled()`` compiles it, and is the action from then on."""

    plain: Action
    compiled: Callable[[], Action]
    loop: LoopEstimate

    def bound(self) -> BoundCall:
        return self.plain.bound()


def loop_estimate(subgraph: Subgraph, node: Node) -> LoopEstimate | None:
    """The loop that computes ``node``; None if its kernel needs none, or a small one."""
    group: Group | None = node.attrs.get("group")
    specs = [*map(subgraph.spec, node.inputs), *node.outputs]
    sizes = [num_elements(spec.shape) or 0 for spec in specs]
    if group is not None:
        passes, form = len(group.members), group.form
    elif node.op in LOOP_KERNELS or (node.op.effect is Effect.WRITE and node.op.loop is not None):
        passes, form = len(specs), (node.op.name, *[spec.dtype for spec in specs])
    else:
        return None
    return LoopEstimate(form, passes * max(sizes) * SECONDS_PER_UNIT, compile_seconds(passes))


class Awaited(NamedTuple):
    """The programs of one partition, and the nodes that they run."""

    programs: Sequence[Program]
    layer: Layer


@final
class AwaitedLoops:
    """The loops that the programs of an instance wait for."""

    def __init__(self, parts: Sequence[Awaited]) -> None:
        self._parts = parts
        self._made: dict[int, Action] = {}
        """The action with the loop of each instruction, by the identity of the one that waits."""

    def compile(self) -> Iterator[None]:
        """Compile the loops. Yields after each exchange of segments: when a fifth of the plain kernels' time
        is gone, and at the end. An operation with a loop that cannot be compiled, which is logged, keeps its
        plain kernels.
        """
        forms: dict[Hashable, list[tuple[Node, Awaiting]]] = {}
        for node, action in self._instructions():
            if isinstance(action, Awaiting):
                forms.setdefault(action.loop.form, []).append((node, action))
        by_benefit = sorted(forms.values(), key=lambda same: -_plain_s(same) / same[0][1].loop.compile_s)
        left = last = sum(map(_plain_s, by_benefit))
        for same in by_benefit:
            try:
                for _, action in same:
                    self._made[id(action)] = _compiled(action)
            except FailedPreconditionError:  # the session was closed
                return
            except Exception:
                LOGGER.exception("no loop for %s: the operations' own kernels remain in use", same[0][0].name)
            left -= _plain_s(same)
            if left <= LEFT * last or same is by_benefit[-1]:
                self._exchange()
                last = left
                yield

    def _instructions(self) -> Iterator[Instruction]:
        for part in self._parts:
            for program in part.programs:
                for segment in program.segments:
                    yield from segment.instructions

    def _exchange(self) -> None:
        """Give the programs segments with the loops that are there."""
        for programs, layer in self._parts:
            blocks = [tuple(map(self._with_loops, program.segments)) for program in programs]
            if is_checking():
                verify_program([layer], layer.subgraph.fetches, blocks)
            for program, segments in zip(programs, blocks, strict=True):
                program.segments = segments

    def _with_loops(self, segment: Segment) -> Segment:
        if not any(id(action) in self._made for _, action in segment.instructions):
            return segment
        instructions = [
            Instruction(node, self._made.get(id(action), action)) for node, action in segment.instructions
        ]
        return segment.with_instructions(instructions)


def _compiled(action: Awaiting) -> Action:
    with np.errstate(all="ignore"):  # as the rest was bound
        return action.compiled()


def _plain_s(same: Sequence[tuple[Node, Awaiting]]) -> float:
    return sum(action.loop.plain_s for _, action in same)
