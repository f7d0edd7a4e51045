"""Branches and loops, as the compiler has them: `_Case` and `_Loop`.

A loop's first condition is known before it, and the body returns the next: so has ONNX's Loop. What does not
change is named by the body, as ONNX allows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.onnx.emit.call import Call, emits


@emits("_Case")
def case(c: Call, index: str, *inputs: str) -> list[str]:
    branches = c.attrs["branches"]
    graphs = [_branch(c, branch, inputs) for branch in branches]
    if c.dtype() == np.bool_:
        return _if(c, index, graphs[1], graphs[0])
    if len(graphs) == 1:
        return _if(c, c.constant(np.array(True)), graphs[0], graphs[0])
    inside = c.add(
        "And", c.add("GreaterOrEqual", index, c.number(0)), c.add("Less", index, c.number(len(graphs)))
    )
    chosen = c.add("Where", inside, index, c.number(len(graphs) - 1))
    return _chosen(c, chosen, graphs, 0)


def _branch(c: Call, branch: Any, inputs: tuple[str, ...]) -> Any:
    given = dict(zip(branch.feeds, inputs, strict=True))
    return c.exporter.inner(branch, c.writer, f"{c.node.name}/branch", given)


def _dtypes(c: Call, graph: Any) -> list[Any]:
    return [c.writer.dtype_of(each.name) for each in graph.output]


def _if(c: Call, condition: str, then: Any, otherwise: Any) -> list[str]:
    condition = condition if c.rank() == 0 else c.reshape(condition, [])
    found = c.several("If", len(then.output), condition, then_branch=then, else_branch=otherwise)
    kinds = _dtypes(c, then)
    return [c.writer.typed(name, kind) for name, kind in zip(found, kinds, strict=True)]


def _chosen(c: Call, index: str, graphs: list[Any], first: int) -> list[str]:
    """Ifs in one another: the last branch is the innermost else."""
    condition = c.add("Equal", index, c.number(first))
    if first == len(graphs) - 2:
        return _if(c, condition, graphs[first], graphs[first + 1])
    rest = c.writer.inner_graph(lambda inner: _chosen(_in(c, inner), index, graphs, first + 1), c.node.name)
    return _if(c, condition, graphs[first], rest)


def _in(c: Call, writer: Any) -> Call:
    return Call(c.node, c.exporter, writer, c.names, c.specs, c.known)


@emits("_Loop")
def loop(c: Call, condition: str, *inputs: str) -> list[str]:
    body = c.attrs["body"]
    count = len(c.attrs["T"])
    carried, invariant = inputs[:count], inputs[count:]
    kinds = [c.writer.dtype_of(name) for name in carried]
    own = [
        c.writer.declare(f"{c.node.name}/{feed}", kind) for feed, kind in zip(body.feeds, kinds, strict=False)
    ]
    step = c.writer.declare(f"{c.node.name}/iteration", np.int64)
    going = c.writer.declare(f"{c.node.name}/condition", bool)
    given = dict(zip(body.feeds, [*own, *invariant], strict=True))
    graph = c.exporter.inner(
        body, c.writer, f"{c.node.name}/body", given,
        [
            (step, np.dtype(np.int64), []), (going, np.dtype(bool), []),
            *((name, kind, None) for name, kind in zip(own, kinds, strict=True)),
        ],
    )  # fmt: skip
    condition = condition if c.rank() == 0 else c.reshape(condition, [])
    found = c.several("Loop", count, "", condition, *carried, body=graph)
    return [c.writer.typed(name, kind) for name, kind in zip(found, kinds, strict=True)]
