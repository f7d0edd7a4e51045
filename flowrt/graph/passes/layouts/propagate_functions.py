"""Propagation into functions: the layouts of a loop's variables and of a branch's results.

A loop variable begins in the layout of its first value. If the body makes it sharded, it is sharded from the
beginning: a slice takes no messages. If its first value is zero and the body adds what is Partial, it is
Partial, and its sum travels once, after the loop. These are guesses; they are withdrawn, each at most once
per axis, if the body does not return what it was given, so a fixed point is found in at most two rounds per
variable and axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from flowrt import dtypes
from flowrt.graph.layouts.layout import REPLICATED, Layout, Partial, Placement, Shard
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.passes.layouts.step_layouts import Layouts, Parameter, check_list

Propagate: TypeAlias = Callable[[Subgraph, Sequence[Parameter]], Layouts]


class FunctionLayouts(NamedTuple):
    """The layouts inside each function, those of its parameters, and those of the node's outputs."""

    functions: tuple[Layouts, ...]
    parameters: tuple[Layout, ...]
    results: tuple[Layout, ...]


def layouts_of_functions(node: Node, arguments: Sequence[Parameter], propagate: Propagate) -> FunctionLayouts:
    """The layouts of a ``_Loop`` or ``_Case`` that is given ``arguments`` after its predicate or index.

    Raises `ListsDifferError` if a list would need two layouts.
    """
    of_kind = _of_loop if node.op.name == "_Loop" else _of_branches
    return of_kind(node, arguments, propagate)


# --- loops


def _of_loop(node: Node, arguments: Sequence[Parameter], propagate: Propagate) -> FunctionLayouts:
    body: Subgraph = node.attrs["body"]
    count = len(node.attrs["T"])
    given, withdrawn = list(arguments), set[tuple[int, int]]()
    for may_be_free in (True, False):  # the values of later iterations are not zero
        is_stable = False
        while not is_stable:
            layouts = propagate(
                body,
                [
                    p._replace(is_free=p.is_free and (may_be_free if k < count else not _is_list(body, k)))
                    for k, p in enumerate(given)
                ],
            )
            is_stable = True
            for k, ref in enumerate(layouts.subgraph.fetches[1:]):
                after = _revised(given[k], layouts.outputs[ref], k, withdrawn)
                is_stable = is_stable and after is given[k].layout
                given[k] = given[k]._replace(layout=after)
    parameters = tuple(p.layout for p in given)
    for ref, layout in zip(layouts.subgraph.fetches[1:], parameters, strict=False):
        check_list(layouts.subgraph.spec(ref), layouts, ref, layout)
    return FunctionLayouts((layouts,), parameters, parameters[:count])


def _revised(given: Parameter, result: Layout, k: int, withdrawn: set[tuple[int, int]]) -> Layout:
    """The layout of loop variable ``k``, of which the body made ``result``."""
    placements: list[Placement] = []
    for axis, (now, made) in enumerate(zip(given.layout.placements, result.placements, strict=True)):
        if now == made or (k, axis) in withdrawn or not given.may_cut:
            placements.append(now)
        elif now == REPLICATED:
            is_guess = isinstance(made, Shard) or (made == Partial() and given.is_free)
            placements.append(made if is_guess else now)
        elif isinstance(now, Partial) or isinstance(made, Partial):
            withdrawn.add((k, axis))
            placements.append(REPLICATED)
        else:
            placements.append(now)  # its part of the result is a slice, or an all-to-all
    return Layout(given.layout.mesh, placements)


def _is_list(function: Subgraph, k: int) -> bool:
    """Whether parameter ``k`` is a list; inside a function it cannot be begun again in another layout."""
    return function.nodes[function.feeds[k]].outputs[0].dtype is dtypes.variant


# --- branches


def _of_branches(node: Node, arguments: Sequence[Parameter], propagate: Propagate) -> FunctionLayouts:
    branches: tuple[Subgraph, ...] = node.attrs["branches"]
    given = [p._replace(is_free=p.is_free and not _is_list(branches[0], k)) for k, p in enumerate(arguments)]
    functions = tuple(propagate(branch, given) for branch in branches)
    results = tuple(
        _common(
            [(f.outputs[f.subgraph.fetches[k]], f.subgraph.fetches[k] in f.free) for f in functions], spec
        )
        for k, spec in enumerate(node.outputs)
    )
    for function in functions:
        for ref, layout in zip(function.subgraph.fetches, results, strict=True):
            check_list(function.subgraph.spec(ref), function, ref, layout)
    return FunctionLayouts(functions, tuple(p.layout for p in arguments), results)


def _common(made: Sequence[tuple[Layout, bool]], spec: TensorSpec) -> Layout:
    """The layout of the result ``spec`` that each branch makes in a layout; with each, whether it is free."""
    mesh = made[0][0].mesh
    return Layout(mesh, [_common_placement(made, axis, spec) for axis in range(len(mesh.axes))])


def _common_placement(made: Sequence[tuple[Layout, bool]], axis: int, spec: TensorSpec) -> Placement:
    found = {layout.placements[axis] for layout, _ in made}
    cut = found - {REPLICATED}
    if len(cut) != 1:
        return REPLICATED
    (placement,) = cut
    if isinstance(placement, Shard):  # what is replicated is cut without messages
        return placement if spec.dtype is dtypes.variant or _is_known(spec, placement.dim) else REPLICATED
    is_sum = placement == Partial()
    fits = [layout.placements[axis] == placement or (is_free and is_sum) for layout, is_free in made]
    return placement if all(fits) else REPLICATED


def _is_known(spec: TensorSpec, dim: int) -> bool:
    """Whether all branches make a dimension of one size. In place of what a branch has not, for a gradient,
    is a scalar.
    """
    return spec.shape is not None and dim < len(spec.shape) and spec.shape[dim] is not None
