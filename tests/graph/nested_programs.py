"""Programs of branches, loops and calls inside one another, for tests of what writes functions and reads them
back.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st

import flowrt as tf
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.op_def import op_def

Program: TypeAlias = Any
"""The name of a step, or a tuple of a construct's name and the programs inside."""

STEPS = {
    "add": lambda x: x + 1.5,
    "scale": lambda x: x * 0.5,
    "sin": tf.sin,
    "outer": lambda x: x + tf.get_default_graph().root.get_tensor_by_name("x:0"),
    "variable": lambda x: x + tf.get_default_graph().root.get_collection("the variable")[0],
}

CONSTRUCTS = {"then": 2, "branch": 2, "case": 3, "loop": 1, "list": 1, "call": 1}
"""How many programs each has inside."""

PROGRAMS: st.SearchStrategy[Program] = st.recursive(
    st.sampled_from(sorted(STEPS)),
    lambda inner: st.one_of(
        *[st.tuples(st.just(kind), *[inner] * count) for kind, count in CONSTRUCTS.items()]
    ),
    max_leaves=5,
)


def build(program: Program, x: Any) -> Any:
    """The tensor that ``program`` makes of the float scalar ``x``."""
    if isinstance(program, str):
        return STEPS[program](x)
    kind, *inner = program
    if kind == "then":
        return build(inner[1], build(inner[0], x))
    if kind == "branch":
        return tf.cond(x > 1, lambda: build(inner[0], x), lambda: build(inner[1], x))
    if kind == "case":
        index = tf.cast(tf.clip_by_value(x, 0.0, 2.0), tf.int32)
        return tf.switch_case(index, [lambda p=p: build(p, x) for p in inner])
    if kind == "loop":
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, build(inner[0], y)), [0, x])[1]
    if kind == "list":
        array = tf.TensorArray(tf.float32, 2, element_shape=[])
        body = lambda i, t: (i + 1, t.write(i, build(inner[0], x)))  # noqa: E731
        return tf.reduce_sum(tf.while_loop(lambda i, _: i < 2, body, [0, array])[1].stack())
    return called(inner[0], x)


def called(program: Program, x: Any) -> Any:
    """``program`` as the function of a call."""
    function = FuncGraph(get_default_graph(), "a function")
    with function:
        result = tf.identity(build(program, function.parameter(x.spec)))
    inputs = [x, *function.captured()]
    return op_def("PartitionedCall")(inputs, f=function.subgraph([result]), Tout=(tf.float32,))[0]


def graph_of(program: Program) -> Any:
    """A graph with a placeholder "x", the result "y" and its gradient "dy"."""
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [], name="x")
        graph.add_to_collection("the variable", tf.Variable(2.0, name="v"))
        y = tf.identity(build(program, x), name="y")
        (dy,) = tf.gradients(y, x)
        tf.identity(tf.zeros([]) if dy is None else dy, name="dy")
    return graph
