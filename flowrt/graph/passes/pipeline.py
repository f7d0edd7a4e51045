"""The pipeline: all stages from a request to the programs' subgraphs, in order, as one value.

    StepRequest -> extract -> Subgraph -> ... -> split -> Subgraph, placed
                -> partition -> {device: Subgraph} -> fuse -> {device: Subgraph}

Sessions, the tasks of a cluster, the exports and ``flowrt explain`` all run `PIPELINE`; each `Stage` declares
its contract. `compile_step` goes as far as the placed subgraph; `cut` goes on from there. Both accept other
stages, which `parse_pipeline` reads from a text such as ``"extract, lower, place, split, partition"``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, final

from flowrt.device.spec import DeviceSpec
from flowrt.errors import InvalidArgumentError, nearest
from flowrt.graph.collectives.cost import Links, links_of
from flowrt.graph.node import Node, Subgraph, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.collective.lower_collectives import lower_collectives
from flowrt.graph.passes.fusion.accumulated_products import accumulate_products
from flowrt.graph.passes.fusion.channels_last import channels_last
from flowrt.graph.passes.fusion.epilogues import fuse_epilogues
from flowrt.graph.passes.fusion.fold_factors import fold_factors
from flowrt.graph.passes.fusion.fuse import fuse
from flowrt.graph.passes.fusion.loop_compiler import LoopCompiler, is_small
from flowrt.graph.passes.fusion.loop_factors import lay_out_factors
from flowrt.graph.passes.fusion.row_slices import gather_slices
from flowrt.graph.passes.layouts.lower_layouts import lower_layouts
from flowrt.graph.passes.optimise.dependencies import clean_dependencies
from flowrt.graph.passes.optimise.fold import fold_constants
from flowrt.graph.passes.optimise.merge import eliminate_common_subexpressions
from flowrt.graph.passes.optimise.narrow import narrow_products
from flowrt.graph.passes.optimise.nested import optimise_functions
from flowrt.graph.passes.optimise.row_reads import read_rows_in_place
from flowrt.graph.passes.optimise.simplify import simplify
from flowrt.graph.passes.placement.partition import PartOf, device_of, partition
from flowrt.graph.passes.placement.place import NO_REASONS, WhyNone, place
from flowrt.graph.passes.placement.split import split
from flowrt.graph.passes.precision.mixed_precision import mixed_precision
from flowrt.graph.passes.prepare.check_set_shapes import check_set_shapes
from flowrt.graph.passes.prepare.extend import Recent
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.lower import lower
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.prune import StepRequest, extract

Parts: TypeAlias = Mapping[str, Subgraph]
Pass: TypeAlias = Callable[[Subgraph], Subgraph]
T = TypeVar("T")

MAX_ROUNDS = 2
"""A second round picks up what the first uncovered; of 3,000 random graphs 1 % would change in a third."""

NOTHING: Mapping[str, str] = MappingProxyType({})


class Observer:
    """Receives each stage of a compile; this one ignores it."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """The time in which the stage ``name`` runs."""
        del name
        return nullcontext()

    def after(self, name: str, parts: Parts) -> None:
        """``parts`` is the step after the stage or pass ``name``: one subgraph, under ``""``, until it is
        cut, and then one per device.
        """


UNOBSERVED = Observer()


@dataclass(frozen=True)
class CompileOptions:
    """The options of a compile.

    ``devices`` are full names, the default device first; ``assigned`` maps nodes with state that were placed
    before to their devices. ``part_of`` maps a device to its part of the cut. ``streams`` is the number of
    streams of each device that has several, ``loops`` the compiler of loops of each device that has one.
    ``memory`` is how many bytes each device has, where it is known. ``why_none`` explains, in errors, why
    there is no device of a type.
    """

    devices: Sequence[DeviceSpec]
    assigned: Mapping[str, str] = field(default_factory=dict)
    soft_placement: bool = True
    optimises: bool = True
    part_of: PartOf = device_of
    streams: Mapping[str, int] = field(default_factory=dict)
    loops: Mapping[str, LoopCompiler] = field(default_factory=dict)
    links: Links = field(default_factory=lambda: links_of(os.environ))
    memory: Mapping[str, int] = field(default_factory=dict)
    why_none: WhyNone = field(default_factory=lambda: NO_REASONS)
    observer: Observer = UNOBSERVED


class Scope(Enum):
    """The part of a step that a stage needs when a request extends an earlier one."""

    REQUEST = "request"
    """The request, which is compared with the earlier one to find the additions."""
    ADDITION = "addition"
    """The addition alone, if it is pure; the result is joined to the earlier one."""
    ADDITION_ON_ONE_DEVICE = "addition on one device"
    """The same, if earlier step and addition are on one device."""
    WHOLE = "whole"
    """The whole step."""


class State(Enum):
    """The state of a step after a stage. A pipeline never goes back in this order."""

    PRUNED = "pruned"
    OPTIMISED = "optimised"
    PLACED = "placed"
    PARTITIONED = "partitioned"
    FUSED = "fused"


@final
@dataclass(frozen=True)
class Stage:
    """One stage, and its contract.

    ``apply(work, options, passes)`` returns the step as the next stage takes it. If ``enters_functions``, it
    changes the functions of loops and branches like the step itself. ``needs`` names the stage that must
    precede it, ``passes`` are its passes by name.
    """

    name: str
    apply: Callable[[Any, CompileOptions, Mapping[str, Callable[..., Subgraph]]], Any]
    state: State
    scope: Scope
    enters_functions: bool
    needs: str = "extract"
    passes: Mapping[str, Callable[..., Subgraph]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.passes)})" if self.passes else self.name


# --- the stages


OPTIMISATIONS: Mapping[str, Pass] = {
    apply.__name__: apply
    for apply in (fold_constants, simplify, eliminate_common_subexpressions, clean_dependencies)
}


def optimise(
    subgraph: Subgraph, passes: Mapping[str, Pass] = OPTIMISATIONS, observer: Observer = UNOBSERVED
) -> Subgraph:
    """Apply ``passes`` in turn, to functions too, until nothing changes, each `MAX_ROUNDS` times at most.
    ``observer`` receives each.
    """
    in_functions = partial(optimise_functions, optimise=partial(optimise, passes=passes))
    every: list[tuple[str, Pass]] = [*passes.items(), ("optimise_functions", in_functions)]
    unchanged = 0
    for name, apply in every * MAX_ROUNDS:
        before, subgraph = subgraph, apply(subgraph)
        observer.after(name, {"": subgraph})
        unchanged = unchanged + 1 if subgraph is before else 1  # a pass finds nothing in its own result
        if unchanged == len(every):
            break
    return subgraph


def _mixed_precision(step: Subgraph, optimises: bool) -> Subgraph:
    """The pass, and what its casts make possible: folded constants, casts in front of loops."""
    after = mixed_precision(step)
    return optimise(after) if optimises and after is not step else after


FUSIONS: Mapping[str, Callable[[Subgraph, LoopCompiler, bool], Subgraph]] = {
    "channels_last": lambda part, compiler, each: part if each else channels_last(part, compiler),
    "fold_factors": lambda part, compiler, each: part if each else fold_factors(part, compiler),
    "gather_slices": lambda part, compiler, each: gather_slices(part) if each else part,
    "lay_out_factors": lambda part, compiler, each: lay_out_factors(part, compiler),
    "narrow_products": lambda part, compiler, each: narrow_products(part),
    "read_rows_in_place": lambda part, compiler, each: read_rows_in_place(part),
    "accumulate_products": lambda part, compiler, each: part if each else accumulate_products(part, compiler),
    "fuse_epilogues": lambda part, compiler, each: fuse_epilogues(part, compiler),
    "fuse": lambda part, compiler, each: fuse(part, compiler.supports, each),
}
"""The passes of `fuse`. With ``each``, every operation becomes machine code: all its tensors are small."""


def _fuse(parts: Parts, options: CompileOptions, passes: Mapping[str, Callable[..., Subgraph]]) -> Parts:
    compilers = {device: options.loops[device] for device in parts if device in options.loops}
    fused = dict(parts)
    for name, apply in passes.items():
        fused |= {device: apply(fused[device], compiler, False) for device, compiler in compilers.items()}
        options.observer.after(name, dict(fused))
    return fused | {d: _fuse_functions(fused[d], passes, compiler) for d, compiler in compilers.items()}


def _fuse_functions(
    subgraph: Subgraph, passes: Mapping[str, Callable[..., Subgraph]], compiler: LoopCompiler
) -> Subgraph:
    def with_fused(node: Node) -> Node:
        if node.op.effect is not Effect.NESTED:
            return node
        return with_functions(node, partial(fused, each=is_small(node)))

    def fused(function: Subgraph, each: bool) -> Subgraph:
        for apply in passes.values():
            function = apply(function, compiler, each)
        return _fuse_functions(function, passes, compiler)

    return subgraph.mapped(with_fused)


PIPELINE: tuple[Stage, ...] = (
    Stage(
        "extract", lambda request, options, _: extract(*request),
        State.PRUNED, Scope.REQUEST, enters_functions=False, needs="",
    ),
    Stage(
        "check_set_shapes", lambda step, options, _: check_set_shapes(step),
        State.OPTIMISED, Scope.ADDITION, enters_functions=True,
    ),
    Stage(
        "lower", lambda step, options, _: lower(step),
        State.OPTIMISED, Scope.ADDITION, enters_functions=True,
    ),
    Stage(
        "order_effects", lambda step, options, _: order_effects(step),
        State.OPTIMISED, Scope.ADDITION, enters_functions=True,
    ),
    Stage(
        "infer_shapes", lambda step, options, _: infer_shapes(step),
        State.OPTIMISED, Scope.ADDITION, enters_functions=True,
    ),
    Stage(
        "optimise", lambda step, o, passes: optimise(step, passes, o.observer) if o.optimises else step,
        State.OPTIMISED, Scope.ADDITION, enters_functions=True, passes=OPTIMISATIONS,
    ),
    Stage(  # folded shapes are known now
        "infer_shapes", lambda step, options, _: infer_shapes(step) if options.optimises else step,
        State.OPTIMISED, Scope.ADDITION, enters_functions=True,
    ),
    Stage(
        "mixed_precision", lambda step, options, _: _mixed_precision(step, options.optimises),
        State.OPTIMISED, Scope.ADDITION_ON_ONE_DEVICE, enters_functions=True,
    ),
    Stage(
        "lower_layouts", lambda step, o, _: lower_layouts(step, o.devices, o.links, o.memory),
        State.OPTIMISED, Scope.ADDITION_ON_ONE_DEVICE, enters_functions=False,
    ),
    Stage(
        "place",
        lambda step, o, _: place(
            step, o.devices, assigned=o.assigned, soft=o.soft_placement, why_none=o.why_none
        ),
        State.PLACED, Scope.ADDITION_ON_ONE_DEVICE, enters_functions=True,
    ),
    Stage(
        "lower_collectives", lambda step, options, _: lower_collectives(step, options.links),
        State.PLACED, Scope.ADDITION_ON_ONE_DEVICE, enters_functions=True, needs="place",
    ),
    Stage(
        "split", lambda step, options, _: split(step, options.part_of),
        State.PLACED, Scope.ADDITION_ON_ONE_DEVICE, enters_functions=True, needs="place",
    ),
    Stage(
        "partition", lambda step, options, _: partition(step, options.part_of),
        State.PARTITIONED, Scope.WHOLE, enters_functions=False, needs="split",
    ),
    Stage(
        "fuse", _fuse,
        State.FUSED, Scope.WHOLE, enters_functions=True, needs="partition", passes=FUSIONS,
    ),
)  # fmt: skip


# --- running them


def compile_step(
    request: StepRequest | Subgraph,
    options: CompileOptions,
    recent: Recent | None = None,
    pipeline: Sequence[Stage] = PIPELINE,
) -> Subgraph:
    """The stages before the cut: ``request``, or the subgraph extracted for it, as a placed subgraph. What
    ``recent`` remembers of an earlier request with equal options is not done again. Raises what the passes
    raise.
    """
    work: Any = request
    done = {Scope.WHOLE} if isinstance(request, StepRequest) else {Scope.WHOLE, Scope.REQUEST}
    stages_before_cut = [stage for stage in pipeline if stage.scope not in done]
    for scope, stages in groupby(stages_before_cut, attrgetter("scope")):
        run = partial(_run, list(stages), options)
        if recent is None:
            work = run(work)
        else:
            with options.observer.phase("extend"):
                work = _EXTENDED[scope](recent, work, run)
    return work


_EXTENDED: Mapping[Scope, Callable[[Recent, Any, Callable[..., Subgraph]], Subgraph]] = {
    Scope.REQUEST: Recent.extract,
    Scope.ADDITION: Recent.optimise,
    Scope.ADDITION_ON_ONE_DEVICE: Recent.place,
}


def cut(placed: Subgraph, options: CompileOptions, pipeline: Sequence[Stage] = PIPELINE) -> Parts:
    """Run the stages from the cut on: one subgraph of ``placed`` per device, fused if it compiles loops."""
    parts: Any = placed
    for stage in pipeline:
        if stage.scope is Scope.WHOLE:
            with options.observer.phase(stage.name):
                parts = stage.apply(parts, options, stage.passes)
            options.observer.after(stage.name, parts)
    return parts


def _run(
    stages: Sequence[Stage], options: CompileOptions, work: Any, assigned: Mapping[str, str] = NOTHING
) -> Subgraph:
    """``work`` after ``stages``, with more nodes ``assigned`` to devices."""
    if assigned:
        options = replace(options, assigned={**options.assigned, **assigned})
    for stage in stages:
        with options.observer.phase(stage.name):
            work = stage.apply(work, options, stage.passes)
        options.observer.after(stage.name, {"": work})
    return work


def stages_from(name: str) -> tuple[Stage, ...]:
    """The end of `PIPELINE` that begins with the stage ``name``."""
    return PIPELINE[[stage.name for stage in PIPELINE].index(name) :]


def stages_before(name: str) -> tuple[Stage, ...]:
    """The beginning of `PIPELINE`, up to the first stage ``name``."""
    return PIPELINE[: [stage.name for stage in PIPELINE].index(name)]


# --- as text


def format_pipeline(pipeline: Sequence[Stage]) -> str:
    """The text that `parse_pipeline` reads as ``pipeline``: ``extract, lower, optimise(simplify), place``."""
    return ", ".join(map(str, pipeline))


_STAGE = re.compile(r"\s*(\w+)\s*(?:\(([\w\s,]*)\)\s*)?(?:,|$)")


def parse_pipeline(text: str) -> tuple[Stage, ...]:
    """The stages that ``text`` names, in its order, with all of their passes or with those in parentheses.

    Raises `InvalidArgumentError` for an unknown name, for a stage before one that it needs, and for one that
    would undo the work of an earlier one, as `optimise` after `place` would.

    >>> print(format_pipeline(parse_pipeline("extract, optimise(fold_constants), place")))
    extract, optimise(fold_constants), place
    """
    if not text.strip():
        raise InvalidArgumentError("passes: expected at least one stage, as in 'extract, lower'; got none")
    found: list[Stage] = []
    position = 0
    while position < len(text):
        match = _STAGE.match(text, position)
        if match is None:
            raise InvalidArgumentError(
                f"passes: expected names between commas, as in 'extract, optimise(simplify)'; got {text!r},"
                f" which cannot be read from {text[position:]!r} on"
            )
        found.append(_stage(match[1], match[2], found))
        position = match.end()
    return tuple(found)


def _stage(name: str, passes: str | None, before: Sequence[Stage]) -> Stage:
    stage = _named(name, {stage.name: stage for stage in PIPELINE}, "a stage")
    chosen = stage if passes is None else _with_passes(stage, passes)
    if stage.needs and stage.needs not in [earlier.name for earlier in before]:
        raise InvalidArgumentError(f"passes: {name!r} needs {stage.needs!r}, which must come before it")
    order = list(State)
    if stage.scope in (Scope.REQUEST, Scope.WHOLE) and stage in before:
        raise InvalidArgumentError(f"passes: expected {name!r} only once")
    if before and order.index(before[-1].state) > order.index(stage.state):
        raise InvalidArgumentError(
            f"passes: expected {name!r} before {before[-1].name!r}: the step is {before[-1].state.value} then"
        )
    return chosen


def _with_passes(stage: Stage, passes: str) -> Stage:
    """``stage`` with only ``passes`` of its own, names between commas."""
    if not stage.passes:
        raise InvalidArgumentError(
            f"passes: {stage.name!r} has no passes to choose; got {stage.name}({passes})"
        )
    names = [word.strip() for word in passes.split(",") if word.strip()]
    if not names:
        raise InvalidArgumentError(f"passes: expected passes of {stage.name!r} in the parentheses; got none")
    return replace(stage, passes={n: _named(n, stage.passes, f"a pass of {stage.name!r}") for n in names})


def _named(name: str, table: Mapping[str, T], kind: str) -> T:
    if name in table:
        return table[name]
    expected = f"passes: expected {kind}: {', '.join(table)}"
    raise InvalidArgumentError(f"{expected}; got {name!r}.{nearest(name, table)}")
