"""Effects of a node on resources and on the outside world: those of its op, or of the functions it owns."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from flowrt import dtypes
from flowrt.graph.node import Node, Ref, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect

AT_END = "_at_end"
"""Private attr of a read ordered after all other accesses of its step to the resource: a variable's fetch."""


class Touch(NamedTuple):
    """A resource among a node's inputs, and whether the node writes it."""

    handle: Ref
    writes: bool


class _Effects(NamedTuple):
    """Effects of a function: the parameters it writes, those it reads, and whether it is stateful."""

    written: frozenset[str]
    read: frozenset[str]
    is_stateful: bool


def touches(node: Node) -> list[Touch]:
    """The resources that ``node`` reads or writes, each once. A read reads the resource that is input 0; a
    write changes every resource among its inputs (an optimizer's update has the variable and its slots).
    """
    effect = node.op.effect
    if effect is Effect.READ:
        return [Touch(node.inputs[0], False)] if node.op.inputs[0].dtype is dtypes.resource else []
    if effect is Effect.WRITE:
        return [Touch(ref, True) for ref in _resources(node)]
    return _nested_touches(node) if effect is Effect.NESTED else []


def _resources(node: Node) -> list[Ref]:
    """The resources among the inputs of ``node``, including those in lists, without duplicates."""
    found: dict[Ref, None] = {}
    position = 0
    for argument in node.op.inputs:
        length = argument.length(node.attrs) if argument.is_list else 1
        if argument.dtype is dtypes.resource:
            found.update(dict.fromkeys(node.inputs[position : position + length]))
        position += length
    return list(found)


def is_stateful(node: Node) -> bool:
    """Whether ``node`` changes a resource or affects the outside world."""
    if node.op.effect is Effect.NESTED:
        found = [_effects(function) for function in owned_subgraphs(node.attrs)]
        return any(e.is_stateful or e.written for e in found)
    return node.op.effect in (Effect.WRITE, Effect.STATEFUL)


def draws(node: Node) -> bool:
    """Whether ``node``, or a function that it owns, draws random numbers."""
    functions = owned_subgraphs(node.attrs)
    return node.op.effect is Effect.RANDOM or any(draws(each) for function in functions for each in function)


def draws_anew(node: Node) -> bool:
    """Whether ``node``, or a function that it owns, draws random numbers without a seed."""
    if node.op.effect is Effect.NESTED:
        return any(draws_anew(each) for function in owned_subgraphs(node.attrs) for each in function)
    is_seeded = node.attrs.get("seed") or node.attrs.get("seed2")
    return node.op.effect is Effect.RANDOM and not is_seeded


def _nested_touches(node: Node) -> list[Touch]:
    found: dict[Ref, bool] = {}
    for function in owned_subgraphs(node.attrs):
        effects = _effects(function)
        arguments = node.inputs[len(node.inputs) - len(function.feeds) :]  # follow a predicate or an index
        for parameter, ref in zip(function.feeds, arguments, strict=True):
            if parameter in effects.written or parameter in effects.read:
                found[ref] = found.get(ref, False) or parameter in effects.written
    return [Touch(ref, writes) for ref, writes in found.items()]


@lru_cache(maxsize=512)
def _effects(function: Subgraph) -> _Effects:
    """Effects of ``function``. A handle passed through an alias op (an Identity) counts as the parameter."""
    parameters = set(function.feeds)
    sources: dict[Ref, Ref] = {}
    written, read, stateful = set[str](), set[str](), False
    for node in function:
        if node.op.alias and node.op.is_pure and node.outputs[0].dtype is dtypes.resource:
            sources[node.name, 0] = sources.get(node.inputs[0], node.inputs[0])
        stateful = stateful or node.op.effect is Effect.STATEFUL
        if node.op.effect is Effect.NESTED:
            stateful = stateful or is_stateful(node)
        for handle, writes in touches(node):
            name = sources.get(handle, handle)[0]
            if name in parameters:
                (written if writes else read).add(name)
    return _Effects(frozenset(written), frozenset(read), stateful)
