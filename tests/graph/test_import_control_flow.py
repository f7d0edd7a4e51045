"""Graphs with control flow that TensorFlow wrote, in its old form and with functions; and old forms that do
not hold together. How the graphs were made: `tests/graph/write_tensorflow_graphs.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.errors import InvalidArgumentError, NotFoundError, OpError, UnimplementedError
from flowrt.graph.messages.graph_def import VERSION
from flowrt.protos import graph_pb2

FEEDS = (0.5, 1.5, 2.5)  # of x, as in the file that wrote the graphs
FOLDERS = [Path(__file__).parent / name for name in ("v1_control_flow", "v2_control_flow")]
GRAPHS = [path for folder in FOLDERS for path in sorted(folder.glob("*.pbtxt"))]
V1_OPS = {
    "Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "ControlTrigger", "TensorArrayV3",
    "TensorArrayGradV3", "StackV2", "StackPushV2", "StackPopV2",
}  # fmt: skip


def read(path: Path) -> Any:
    return text_format.Parse(path.read_text("utf-8"), graph_pb2.GraphDef(), allow_unknown_field=True)


def imported(message: Any, **options: Any) -> Any:
    with tf.Graph() as graph:
        tf.import_graph_def(message, name="", **options)
    return graph


def check_values(graph: Any, path: Path) -> None:
    values = json.loads((path.parent / "values.json").read_text("utf-8"))[path.stem]
    with tf.Session(graph=graph) as session:
        for feed, expected in zip(FEEDS, values, strict=True):
            got = session.run([f"out_{i}:0" for i in range(len(expected))], {"x:0": feed})
            for value, wanted in zip(got, expected, strict=True):
                np.testing.assert_allclose(value, wanted, rtol=2e-6, atol=1e-6)


# --- what TensorFlow wrote


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_graph_of_tensorflows_has_tensorflows_values(path: Path) -> None:
    graph = imported(read(path))
    assert not {op.type for op in graph.get_operations()} & V1_OPS
    check_values(graph, path)


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_imported_can_be_written_and_read_again(path: Path) -> None:
    check_values(imported(imported(read(path)).as_graph_def(add_shapes=True)), path)


@pytest.mark.parametrize("name", ["loops_and_branches", "dynamic_rnn", "arrays"])
def test_gradients_go_through_imported_control_flow(name: str) -> None:
    graph = imported(read(FOLDERS[0] / f"{name}.pbtxt"))
    with graph, tf.Session() as session:
        x, y = (graph.get_tensor_by_name(f"{n}:0") for n in ("x", "out_0"))
        (dy,) = tf.gradients(y, x)
        got, above, below = session.run(dy, {x: 1.5}), session.run(y, {x: 1.501}), session.run(y, {x: 1.499})
    np.testing.assert_allclose(got, np.sum(above.astype(float) - below) / 0.002, rtol=2e-3)


def test_a_gradient_has_the_numbers_that_its_branch_drew() -> None:
    """Also after steps that drew without the gradient."""
    graph = imported(read(FOLDERS[0] / "gradient_of_branches.pbtxt"))
    with tf.Session(graph=graph) as session:
        assert len({float(session.run("drawn:0", {"x:0": 1.5})) for _ in range(8)}) > 1
        assert session.run("out_2:0", {"x:0": 1.5}) == pytest.approx(0, abs=1e-5)


def test_two_results_of_one_branch_are_one_operation() -> None:
    graph = imported(read(FOLDERS[0] / "branches.pbtxt"))
    assert [op.type for op in graph.get_operations()].count("If") == 1


def test_exits_and_merges_keep_their_names() -> None:
    loop = imported(read(FOLDERS[0] / "loop.pbtxt"))
    assert {"while", "while/Exit", "while/Exit_1"} <= set(loop.operations)
    assert (
        imported(read(FOLDERS[0] / "branches.pbtxt")).get_operation_by_name("cond/Merge").type == "Identity"
    )


# --- small ones by hand

PLACEHOLDER = """
    node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
    node { name: "p" op: "Placeholder" attr { key: "dtype" value { type: DT_BOOL } } }
"""


def node(name: str, op: str, *inputs: str, **attrs: str) -> str:
    attrs = {"T": "type: DT_FLOAT", **attrs} if op not in ("LoopCond", "TensorArrayReadV3") else attrs
    attrs = {key: value for key, value in attrs.items() if value}
    text = "".join(f'input: "{name}" ' for name in inputs)
    text += "".join(f'attr {{ key: "{key}" value {{ {value} }} }} ' for key, value in attrs.items())
    return f'node {{ name: "{name}" op: "{op}" {text} }}\n'


def enter(name: str, value: str, frame: str = "f") -> str:
    return node(name, "Enter", value, frame_name=f's: "{frame}"')


def merge(name: str, *inputs: str) -> str:
    return node(name, "Merge", *inputs, N=f"i: {len(inputs)}")


SWITCH = node("s", "Switch", "x", "p")
SIDES = SWITCH + node("a", "Neg", "s:0") + node("b", "Abs", "s:1")
LOOP = (
    enter("e", "x")
    + merge("m", "e", "n")
    + node("less", "Less", "m", "m")
    + node("c", "LoopCond", "less")
    + node("s", "Switch", "m", "c")
    + node("next", "Neg", "s:1")
    + node("n", "NextIteration", "next")
    + node("out", "Exit", "s:0")
)


def parse(text: str) -> Any:
    message = text_format.Parse(PLACEHOLDER + text, graph_pb2.GraphDef())
    message.versions.producer = VERSION
    return message


def value(graph: Any, name: str, x: float, p: bool) -> Any:
    with tf.Session(graph=graph) as session:
        return session.run(name, {"x:0": x, "p:0": p})


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_merge_takes_its_sides_in_any_order_and_says_which_it_took(order: tuple[str, str]) -> None:
    graph = imported(parse(SIDES + merge("m", *order)))
    assert value(graph, "m:0", -3.0, True) == 3
    assert value(graph, "m:0", -3.0, False) == 3
    assert "IdentityN" not in {op.type for op in graph.get_operations()}
    graph = imported(parse(SIDES + merge("m", *order) + node("k", "Identity", "m:1", T="type: DT_INT32")))
    assert value(graph, "k:0", -3.0, True) == order.index("b")
    assert value(graph, "k:0", -3.0, False) == order.index("a")


def test_what_no_merge_ends_is_left_out() -> None:
    graph = imported(parse(SIDES))
    assert set(graph.operations) == {"x", "p"}
    with tf.Graph(), pytest.raises(InvalidArgumentError, match=r"return_elements: .*'a:0'"):
        tf.import_graph_def(parse(SIDES), return_elements=["a:0"])


def test_branches_of_one_predicate_that_need_each_other_stay_apart() -> None:
    """q chooses between results of p, and p between results of q: one If of p would need itself."""
    second = (
        node("t", "Switch", "m", "q")
        + node("u", "Neg", "t:0")
        + node("v", "Abs", "t:1")
        + merge("o", "u", "v")
    )
    third = (
        node("y", "Switch", "o", "p")
        + node("w", "Neg", "y:0")
        + node("z", "Abs", "y:1")
        + merge("r", "w", "z")
    )
    aside = node("i", "Neg", "s:0") + node("j", "Abs", "s:1") + merge("l", "i", "j")
    q = 'node { name: "q" op: "Placeholder" attr { key: "dtype" value { type: DT_BOOL } } }'
    graph = imported(parse(SIDES + merge("m", "a", "b") + q + second + third + aside))
    assert [op.type for op in graph.get_operations()].count("If") == 3
    with tf.Session(graph=graph) as session:
        assert session.run(["r:0", "l:0"], {"x:0": 2.0, "p:0": False, "q:0": True}) == [-2, -2]


def test_a_loop_by_hand_ends_at_once() -> None:
    assert value(imported(parse(LOOP)), "out:0", 2.0, True) == 2


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    graph = imported(parse(LOOP + node("f", "Neg", "out")))
    assert {graph.get_operation_by_name("f").type, graph.get_operation_by_name("f_1").type} == {
        "Neg",
        "While",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LOOP + node("y", "AddV2", "next", "x"),
            "AddV2 'y'.*one frame; got 'x' (outside all frames) and others ('f')",
        ),
        (
            LOOP + enter("e2", "next", "g") + enter("e3", "x", "g"),
            "Enter 'e3'.*'g' to be entered from 'f' only; got outside",
        ),
        (LOOP + node("c2", "LoopCond", "less"), "LoopCond 'c2'.*expected one LoopCond in frame 'f'; got 2"),
        (LOOP.replace('"LoopCond"', '"Identity"'), "expected one LoopCond in frame 'f'; got 0"),
        (
            LOOP.replace('input: "s:0"', 'input: "next"'),
            "Exit 'out'.*expected output 0 of a Switch on LoopCond; got 'next'",
        ),
        (LOOP.replace('input: "s:0"', 'input: "x"'), "Exit 'out'.*expected an Exit in a frame"),
        (LOOP.replace('"n" op: "NextIteration"', '"n" op: "Neg"'), "expected a graph without cycles"),
        (
            LOOP.replace('input: "m" input: "c"', 'input: "less" input: "c"').replace(
                '"Less" input: "m" input: "m" attr { key: "T" value { type: DT_FLOAT } }',
                '"Identity" input: "m" attr { key: "T" value { type: DT_BOOL } }',
            ),
            "Switch 's'.*expected a variable of the loop",
        ),
        (
            LOOP + merge("m2", "n", "n"),
            "Merge 'm2'.*expected a Merge of an Enter and a NextIteration; got n, n",
        ),
        (SIDES + merge("m", "a", "x"), "Merge 'm'.*two branches of one Switch's predicate"),
        (SIDES + merge("m", "a", "a"), "Merge 'm'.*two branches"),
        (SIDES + merge("m", "a"), "Merge 'm'.*two branches"),
        (node("s", "Switch", "x"), "Switch 's'.*expected 2 inputs; got 1"),
        (
            node("t", "TensorArrayReadV3", "x", "x", "x", dtype="type: DT_FLOAT"),
            "TensorArrayReadV3 't'.*handle of a TensorArrayV3 or a StackV2",
        ),
    ],
)
def test_control_flow_that_does_not_hold_together_is_refused(text: str, message: str) -> None:
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with tf.Graph() as graph:
        with pytest.raises(InvalidArgumentError, match=pattern):
            tf.import_graph_def(parse(text))
        assert not graph.get_operations()


@given(st.sampled_from(GRAPHS), st.data())
def test_a_graph_with_inputs_mixed_up_is_read_or_refused_with_a_typed_error(
    path: Path, data: st.DataObject
) -> None:
    message = read(path)
    bodies = [message.node, *[function.node_def for function in message.library.function]]
    nodes = [node for node in data.draw(st.sampled_from([b for b in bodies if b])) if node.input]
    texts = sorted({text for node in nodes for text in node.input})
    for _ in range(data.draw(st.integers(1, 3))):
        node = data.draw(st.sampled_from(nodes))
        place = data.draw(st.integers(0, len(node.input) - 1)) if node.input else 0
        replacement = data.draw(st.lists(st.sampled_from(texts), max_size=2))
        node.input[:] = [*node.input[:place], *replacement, *node.input[place + 1 :]]
    with tf.Graph() as graph:
        try:
            tf.import_graph_def(message)
        except OpError:
            assert not graph.get_operations()


NUMBER = "tensor { dtype: DT_INT32 tensor_shape { } int_val: 2 }"
ARRAY = (
    node("n", "Const", T="", dtype="type: DT_INT32", value=NUMBER)
    + node("array", "TensorArrayV3", "n", T="", dtype="type: DT_FLOAT")
    + node("stack", "StackV2", "n", T="", elem_type="type: DT_RESOURCE")
)


def test_a_handle_that_is_kept_as_a_value_is_named() -> None:
    """As those of arrays that a loop makes are, for the gradient of the loop."""
    text = ARRAY + node("push", "StackPushV2", "stack", "array", T="type: DT_RESOURCE")
    with tf.Graph(), pytest.raises(UnimplementedError, match=r"StackPushV2 'push'.*got 'array' as a value"):
        tf.import_graph_def(parse(text))


def test_ops_of_gradients_are_named_with_a_way_out() -> None:
    with tf.Graph(), pytest.raises(NotFoundError, match=r"'OptionalGetValue' \(node 's'.*take flowrt.grad"):
        tf.import_graph_def(parse(node("s", "OptionalGetValue", "x")))
