"""The text of a step with layouts: what it fetches and runs, and a line per operation of the global graph.
It is equal in processes that run one script, which compare it before the step runs first
(`flowrt.graph.passes.layouts.own_part`).

It leaves out what a process may fetch for itself, such as a step's number for its log: what has no effect,
and needs nothing of another process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.graph.effects import is_stateful
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.redistribute import Move
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.graph.topology import reachable

_DIGITS = 12
_SHOWN = 4
"""Elements of a constant, and fetches, that are written out."""


_TOKEN = "token"
"""The attribute with a process's own number of a Python function or a dataset: one that has made other graphs
before has other numbers.
"""


def step_text(layouts: Layouts, moves: Sequence[Move]) -> str:
    """The lines of a step with ``layouts``, in which there are the redistributions ``moves``: the first says
    in words what it fetches and runs, the others have names, types, shapes, attributes and layouts.
    """
    subgraph = layouts.subgraph
    exchanged = {_owner(move) for move in moves if move.step.collective != "Slice"} | layouts.single
    exchanged |= {node.name for node in subgraph if node.op.effect is Effect.RANDOM}  # positions are sent
    together: set[str] = set()
    for node in subgraph:
        if node.name in exchanged or any(name in together for name, _ in node.inputs):
            together.add(node.name)
    fetches = [ref for ref in subgraph.fetches if ref[0] in together]
    effects = [node.name for node in subgraph if is_stateful(node)]
    ends = [*[name for name, _ in fetches], *subgraph.targets, *effects]
    kept = reachable(ends, lambda name: subgraph.nodes[name].predecessors)
    lines = [_line(node, layouts) for node in subgraph if node.name in kept]
    lines += [*[f"fetch {name}:{index}" for name, index in fetches], *[f"run {t}" for t in subgraph.targets]]
    return "\n".join([_in_words(fetches, subgraph.targets), f"mesh {layouts.mesh}", *lines])


def _in_words(fetches: Sequence[Ref], targets: Sequence[str]) -> str:
    """``fetches Mean:0 and runs Adam``; of many, the first."""
    ends = {"fetches": [f"{name}:{index}" for name, index in fetches], "runs": list(targets)}
    parts = [
        f"{verb} {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for verb, names in ends.items() if names
    ]  # fmt: skip
    return " and ".join(parts)


def _owner(move: Move) -> str:
    """The node of the step that makes what is moved: in a loop or branch, that one."""
    return move.path[0][0] if move.path else move.source[0]


def _line(node: Node, layouts: Layouts) -> str:
    outputs = [f"{spec} {layouts.outputs.get((node.name, i), '')}" for i, spec in enumerate(node.outputs)]
    reads = [*[f"{name}:{index}" for name, index in node.inputs], *[f"^{name}" for name in node.controls]]
    attrs = [f"{key}={_value(value)}" for key, value in sorted(node.attrs.items()) if key != _TOKEN]
    return f"{node.op.name} {node.name!r} ({', '.join(reads)}) {' '.join(attrs)} -> {', '.join(outputs)}"


def _value(value: Any) -> str:
    """The text of an attribute; a digest of what is long, and nothing of objects of one process."""
    if isinstance(value, np.ndarray):
        if value.size <= _SHOWN:
            return str(value.tolist())
        is_text = value.dtype == object
        return _digest("\0".join(map(str, value.ravel().tolist())).encode() if is_text else value.tobytes())
    if isinstance(value, Subgraph):
        return _digest("\n".join(f"{n.op.name} {n.name} {n.inputs}" for n in value).encode())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    known = value is None or isinstance(value, (bool, int, float, str)) or hasattr(value, "np")
    return str(value) if known else type(value).__name__


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
