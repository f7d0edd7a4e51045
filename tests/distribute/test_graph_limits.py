"""What a remote graph may be, and that any text at all ends in a subgraph or in one typed error, soon."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.distribute.cluster.graph_limits import GraphLimits, check_remote_graph
from flowrt.errors import InvalidArgumentError, OpError, PermissionDeniedError, ResourceExhaustedError
from flowrt.graph.node import Subgraph
from flowrt.graph.text.graph_text import parse_subgraph, print_subgraph

MAX_CALLS = 30
"""Of functions, for each character of a text: time in proportion to its length."""


def whole(graph: tf.Graph) -> Subgraph:
    return Subgraph({op.name: op.node for op in graph.get_operations()})


# --- what is refused


def test_an_ordinary_graph_is_let_through() -> None:
    check_remote_graph(_many_sided())


def _python(x: Any) -> Any:
    return tf.py_func(np.negative, [x], tf.float32)


def _elements(x: Any) -> Any:
    return tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()


def _initialised(x: Any) -> Any:
    return tf.data.make_initializable_iterator(tf.data.Dataset.range(3)).initializer


def _file(x: Any) -> Any:
    return tf.print(x, output_stream="file:///tmp/x")


@pytest.mark.parametrize(
    ("build", "op", "said"),
    [
        (_python, "PyFunc", r"calls Python.* place PyFunc on the task of that program"),
        (_elements, "OneShotIterator", r"calls Python.*Session\(server\.target\)"),
        (_initialised, "MakeIterator", r"calls Python.*Session\(server\.target\)"),
        (_file, "PrintV2", "writes a file.*--allow-op PrintV2"),
        (lambda x: tf.write_file("/tmp/x", "x"), "WriteFile", "writes a file.*--allow-op WriteFile"),
        (lambda x: tf.read_file("/tmp/x"), "ReadFile", "reads a file.*--allow-op ReadFile"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_what_reaches_beyond_the_graph_needs_leave(build: Any, op: str, said: str, is_nested: bool) -> None:
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [])
        if is_nested:

            def branch() -> Any:
                with tf.control_dependencies([build(x)]):
                    return x + 1

            tf.cond(x > 0, branch, lambda: x)
        else:
            build(x)
    subgraph = whole(graph)
    with pytest.raises(PermissionDeniedError, match=rf"^{op} '.*it {said}") as refused:
        check_remote_graph(subgraph)
    assert ("--allow-op" in refused.value.message) == (op in ("PrintV2", "WriteFile", "ReadFile"))
    check_remote_graph(subgraph, [op])


def test_printing_to_a_stream_is_let_through() -> None:
    with tf.Graph() as graph:
        tf.print("x")
    check_remote_graph(whole(graph))


def chain(text: str = "[2]", name: str = "b") -> Subgraph:
    return parse_subgraph(f'%a = _Feed() : f32{text}\n%"{name}" = Neg(%a) : f32{text}\n')


def nested(depth: int) -> Subgraph:
    text = "%z = NoOp()"
    for level in range(depth):
        inner = "\n".join(
            "    " + line for line in f"{text}\n%o{level} = Const() {{value=f32[](1.0)}} : f32[]".split("\n")
        )
        both = "".join(
            f"\n  {branch}:\n{inner}\n    fetches: %o{level}" for branch in ("then_branch", "else_branch")
        )
        predicate = f"%p{level} = Const() {{value=bool[](true)}} : bool[]"
        text = f"{predicate}\n%i{level} = If(%p{level}, []) : f32[]{both}"
    return parse_subgraph(text)


@pytest.mark.parametrize(
    ("subgraph", "limits", "said"),
    [
        (chain(), GraphLimits(nodes=1), "'a'.*at most 1 nodes in a graph; got 2"),
        (chain(name="b" * 1025), GraphLimits(), "at most 1024 characters in a name; got 1025"),
        (chain("[1099511627776, 2]"), GraphLimits(), "'a'.*at most 1099511627776 elements of a tensor"),
        (chain("[" + ", ".join("1" * 65) + "]"), GraphLimits(), "at most 64 dimensions of a tensor; got 65"),
        (nested(3), GraphLimits(depth=2), "If 'i0'.*at most 2 nested functions; got 3"),
        (nested(2), GraphLimits(functions=3), "at most 3 functions in a graph; got 4"),
        (
            parse_subgraph("%c = Const() {value=f32[1048576, 1048576](1.0)} : f32[1048576, 1048576]"),
            GraphLimits(),
            "Const 'c'.*at most 2147483648 bytes of constants in a graph; got 4398046511104",
        ),
    ],
)
def test_each_limit_names_the_node(subgraph: Subgraph, limits: GraphLimits, said: str) -> None:
    with pytest.raises(ResourceExhaustedError, match=said):
        check_remote_graph(subgraph, (), limits)


def test_the_limits_themselves_are_let_through() -> None:
    check_remote_graph(chain("[1099511627776]", "b" * 1024))
    check_remote_graph(nested(2), (), GraphLimits(nodes=16, functions=6, depth=2))


@pytest.mark.parametrize("name", ["a;b", "a b", "\n", "", "ü", "-a"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    node = chain().nodes["a"]
    with pytest.raises(InvalidArgumentError, match="expected a name of letters"):
        check_remote_graph(Subgraph({name: node.replace(name=name)}))


def test_a_graph_that_breaks_the_rules_is_refused() -> None:
    a, b = chain()
    with pytest.raises(InvalidArgumentError, match=r"'b'.*expected input 'a' to come before it"):
        check_remote_graph(Subgraph({"b": b, "a": a}))


# --- texts that nobody printed


def _many_sided() -> Subgraph:
    """Functions in functions, lists, strings, tensors as literals and as base64, controls, devices."""
    with tf.Graph() as graph, tf.device("/cpu:0"):
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        w = tf.get_variable("w", initializer=np.arange(600, dtype="f").reshape(3, 200))
        with tf.control_dependencies([tf.assert_positive(x)]):
            parts = tf.split(tf.matmul(x, w), 2, axis=1)
        text = tf.strings.join(["a\\n", tf.constant([b"\xff", b'"'])])
        total = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, s: (i + 1, tf.cond(s > 0, lambda: s * 2.0, lambda: s - 1.0)),
            [0, tf.reduce_sum(parts[0])],
        )
        tf.gradients(total[1], w.value())
        tf.concat([text, text], 0)
    return whole(graph)


TEXT = print_subgraph(_many_sided())
PIECES = [
    "(", ")", "[", "]", "{", "}", ",", ":", "=", "?", "%", "^", "@", "#", '"', "\\", "\n", "  ", "-", "1e999",
    "nan", "<unknown>", "null", "true", "f32", "string", "resource", "9" * 50, "9" * 5000, "(" * 3000,
    "[" * 3000, "%x", "%x:1", '%"\\q"', 'b"\\ud800"', 'base64"AAAA"', "body:", "branches[0]:",
    "feeds: %x", "fetches: %x",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """`TEXT` with a few pieces cut out, doubled, moved or put in."""
    text = TEXT
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 60)))
        piece = draw(st.sampled_from(PIECES) | st.text(max_size=5) | st.just(text[start:end] * 2))
        place = draw(st.sampled_from([start, draw(st.integers(0, len(text)))]))
        rest = text[:start] + text[end:]
        text = rest[:place] + piece + rest[place:]
    return text


def consume(text: str) -> None:
    """Parse, check and print again: at worst that ends in a typed error, soon."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        subgraph = parse_subgraph(text)
        check_remote_graph(subgraph)
        print_subgraph(subgraph)
    except OpError:
        pass
    finally:
        sys.setprofile(None)
    assert calls < MAX_CALLS * (len(text) + 1000)


@given(mutated())
def test_a_mutated_text_is_a_graph_or_a_typed_error(text: str) -> None:
    consume(text)


@given(st.text())
@example("%c = _Feed() : f32[" + "9" * 5000 + "]")
@example("%a = NoOp()\nfetches: %a:" + "9" * 5000)
@example("%a = NoOp() {_x=" + "9" * 5000 + "}")
@example("%a = NoOp()  # x.py:" + "9" * 5000)
@example('%"\\x" = NoOp()')
@example("%a = NoOp() {_x=" + "(" * 100_000)
@example("%a = NoOp()\n%b = Neg(%a) : f32[]")
@example("%a = NoOp()\nfetches: %a")
@example("%c = Const() {value=f32[100000, 100000](1.0)} : f32[100000, 100000]")
def test_any_text_is_a_graph_or_a_typed_error(text: str) -> None:
    consume(text)


def test_a_name_that_is_nowhere_is_not_compared_with_all_others() -> None:
    shuffled = random.Random(0)
    names = ["".join(shuffled.sample("abcdefghij" * 19, 190)) for _ in range(2000)]
    consume("".join(f"%{name} = NoOp()\n" for name in names) + f"%b = Neg(%{names[0][::-1]}) : f32[]")
