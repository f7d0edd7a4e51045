"""Functions in GraphDefs and in the text form: what they look like, and that they come back."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, settings

import flowrt as tf
from flowrt.errors import (
    DTypeError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnimplementedError,
)
from flowrt.graph.effects import is_stateful
from flowrt.graph.messages.graph_def import VERSION
from flowrt.graph.node import Subgraph
from flowrt.graph.text.graph_text import parse_subgraph, print_subgraph
from flowrt.graph.topology import sort_topologically
from flowrt.protos import graph_pb2
from flowrt.tf1.graph_import import import_nodes
from tests.graph.nested_programs import PROGRAMS, called, graph_of
from tests.graph.test_text import check_round_trip, whole


def values(graph: Any, prefix: str = "") -> list[Any]:
    with tf.Session(graph=graph) as session:
        session.run(f"{prefix}v/Assign")
        feeds = (0.5, 1.5, 2.5)
        return [session.run([f"{prefix}y:0", f"{prefix}dy:0"], {f"{prefix}x:0": feed}) for feed in feeds]


def imported(message: Any, **options: Any) -> Any:
    with tf.Graph() as graph:
        tf.import_graph_def(message, **options)
    return graph


# --- round trips


@settings(max_examples=25)
@given(PROGRAMS)
def test_nested_functions_come_back_from_a_graph_def(program: Any) -> None:
    graph = graph_of(program)
    message = graph_pb2.GraphDef.FromString(graph.as_graph_def(add_shapes=True).SerializeToString())
    again = imported(message)
    np.testing.assert_array_equal(values(again, "import/"), values(graph))
    with again:
        (dy,) = tf.gradients(again.get_tensor_by_name("import/y:0"), again.get_tensor_by_name("import/x:0"))
        tf.identity(tf.zeros([]) if dy is None else dy, name="import/again/")
    with tf.Session(graph=again) as session:
        session.run("import/v/Assign")
        first, second = session.run(["import/dy:0", "import/again:0"], {"import/x:0": 1.5})
    np.testing.assert_allclose(second, first, rtol=1e-6)


@settings(max_examples=25)
@given(PROGRAMS)
def test_nested_functions_come_back_from_their_text(program: Any) -> None:
    subgraph = whole(graph_of(program))
    check_round_trip(subgraph.with_nodes(sort_topologically(subgraph.nodes).values()))


def test_a_second_round_trip_changes_nothing() -> None:
    graph = graph_of(("loop", ("branch", "add", "variable")))
    first = imported(graph.as_graph_def(), name="").as_graph_def()
    assert imported(first, name="").as_graph_def() == first


def test_shapes_of_loop_variables_come_back() -> None:
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [1], name="x")
        shapes = [tf.TensorShape([]), tf.TensorShape([None])]
        y = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.concat([a, a], 0)), [0, x], shapes)[1]
        tf.identity(y, name="y")
    assert imported(graph.as_graph_def(), name="").get_tensor_by_name("y:0").shape.as_list() == [None]


def test_effects_without_a_result_come_back() -> None:
    with tf.Graph() as graph:
        v = tf.Variable(1.0, name="v")
        flag = tf.placeholder(tf.bool, [], name="flag")
        tf.cond(flag, lambda: v.assign_add(1.0).op, tf.no_op)
    again = imported(graph.as_graph_def(), name="")
    with tf.Session(graph=again) as session:
        session.run("v/Assign")
        session.run("cond", {"flag:0": True})
        session.run("cond", {"flag:0": False})
        assert session.run("v/Read/ReadVariableOp:0") == 2


# --- what they look like


def branch() -> Any:
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [None], name="x")
        p = tf.placeholder(tf.bool, [], name="p")
        tf.cond(p, lambda: tf.split(x, 2)[1], lambda: x, name="pick")
    return graph


def test_a_function_is_written_as_tensorflow_writes_it() -> None:
    message = branch().as_graph_def()
    function = message.library.function[0]
    assert function.signature.name == "pick_then_branch_0"
    assert message.node[-1].attr["then_branch"].func.name == function.signature.name
    assert message.node[-1].attr["Tin"].list.type == [graph_pb2.DT_FLOAT]
    (argument,) = function.signature.input_arg
    assert (argument.name, argument.type) == ("x_captured", graph_pb2.DT_FLOAT)
    assert function.arg_attr[0].attr["_output_shapes"].list.shape[0].dim[0].size == -1
    split = next(node for node in function.node_def if node.op == "Split")
    assert split.input[1] == "x_captured"
    assert split.input[0].endswith(":output:0")
    assert dict(function.ret) == {"result_0": f"{split.name}:output:1"}
    other = message.library.function[1]
    assert dict(other.ret) == {"result_0": other.signature.input_arg[0].name}
    assert not other.node_def


def test_a_list_has_a_scalar_shape_in_messages() -> None:
    with tf.Graph() as graph:
        array = tf.TensorArray(tf.float32, 2, element_shape=[3])
        tf.while_loop(lambda i, _: i < 2, lambda i, t: (i + 1, t.write(i, tf.zeros([3]))), [0, array])
    message = graph.as_graph_def(add_shapes=True)
    loop = next(node for node in message.node if node.op == "While")
    assert [len(shape.dim) for shape in loop.attr["output_shapes"].list.shape] == [0, 0]
    assert imported(message, name="").get_tensor_by_name("while:1").shape.as_list() == [3]


def test_one_function_of_several_owners_is_written_once() -> None:
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [], name="x")
        first = called("sin", x)
        op = first.op
        op.op_def([x], f=op.get_attr("f"), Tout=(tf.float32,))
    message = graph.as_graph_def()
    assert len(message.library.function) == 1
    assert [n.op for n in message.node].count("StatefulPartitionedCall") == 2
    assert len(imported(message).get_operations()) == 3


def test_the_text_of_a_function_stands_below_its_owner() -> None:
    text = re.sub("  # .*", "", print_subgraph(whole(branch())))
    assert text.endswith("""
%pick = If(%p, [%x]) : f32[?]
  then_branch:
    feeds: %pick/x-captured
    %pick/split/split_dim = Const() {value=i32[](0)} : i32[]
    %pick/x-captured = _Feed() {shape=[?]} : f32[?]
    %pick/split = Split(%pick/split/split_dim, %pick/x-captured) : f32[?], f32[?]
    fetches: %pick/split:1
  else_branch:
    feeds: %pick/x-captured_1
    %pick/x-captured_1 = _Feed() {shape=[?]} : f32[?]
    fetches: %pick/x-captured_1
""")


X = "%x = Placeholder() {shape=[]} : f32[]\n"
FUNCTION = "feeds: %a\n    %a = _Feed() : f32[]\n    fetches: %a\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%y = PartitionedCall([%x]) : f32[]\n", "line 2, column 21: expected a value of attribute 'f'"),
        ("%y = Neg(%x) : f32[]\n  f:\n", "line 3, column 3: expected a function of Neg"),
        ("%y = PartitionedCall([%x]) : f32[]\n  f[0]:\n", "line 3, column 4: expected ':'; got '['"),
        ("%y = PartitionedCall([%x]) {f=1} : f32[]\n", "line 2, column 31: expected a value of kind func"),
        (
            f"%y = PartitionedCall([%x]) : f32[]\n  f:\n    {FUNCTION}  f:\n",
            "line 7, column 3: expected a function",
        ),
        (
            "%y = PartitionedCall([%x]) : f32[]\n  f:\n    %a = Neg(%x) : f32[]\n",
            "line 4, column 14: expected an op",
        ),
        ("%y = Case(%x, []) \n  branches[1]:\n", "line 3, column 12: expected '0'; got '1'"),
        ("%y = PartitionedCall([%x]) : f32[]\n" + " " * 200 + "f:\n", "in the first 160 columns"),
    ],
)
def test_a_bad_function_is_refused_with_line_and_column(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        parse_subgraph(X + text)


def test_what_is_known_of_parameters_comes_back() -> None:
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        shape = tf.shape(x)
        tf.cond(tf.constant(True), lambda: tf.reshape(x, shape), lambda: x)
    text = check_round_trip(whole(graph))
    assert "_known=(null, 2)" in text


# --- reading


def parse(text: str) -> Any:
    message = text_format.Parse(text, graph_pb2.GraphDef())
    message.versions.producer = VERSION
    return message


def function_def(name: str, body: str, result: str = "n:y:0", kind: str = "DT_FLOAT") -> str:
    return (
        f'function {{ signature {{ name: "{name}" input_arg {{ name: "a" type: {kind} }}'
        f' output_arg {{ name: "r" type: DT_FLOAT }} }} {body} ret {{ key: "r" value: "{result}" }} }}'
    )


def node(op: str, inputs: str = 'input: "a"', attrs: str = "", name: str = "n") -> str:
    return f'node_def {{ name: "{name}" op: "{op}" {inputs} {attrs} }}'


NEG = node("Neg", attrs='attr { key: "T" value { type: DT_FLOAT } }')
PLACEHOLDER = 'node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }'
CALL = (
    PLACEHOLDER
    + 'node { name: "c" op: "PartitionedCall" input: "x" attr { key: "f" value { func { name: "f" } } } }'
)


def attr(key: str, function: str) -> str:
    return f'attr {{ key: "{key}" value {{ func {{ name: "{function}" }} }} }}'


def nested(name: str, function: str) -> str:
    return function_def(name, node("PartitionedCall", attrs=attr("f", function) + TOUT), "n:output:0")


TOUT = 'attr { key: "Tout" value { list { type: DT_FLOAT } } }'
LOOP = PLACEHOLDER + 'node { name: "w" op: "While" input: "x" ' + attr("cond", "c") + attr("body", "f") + "}"
IS_POSITIVE = function_def(
    "c", node("Greater", 'input: "a" input: "a"', 'attr { key: "T" value { type: DT_FLOAT } }'), "n:z:0"
).replace('output_arg { name: "r" type: DT_FLOAT', 'output_arg { name: "r" type: DT_BOOL')
WITH_BAD_TARGET = (
    function_def("f", NEG)
    .replace("ret {", 'control_ret { key: "t" value: "m" } ret {')
    .replace("input_arg", 'control_output: "t" input_arg', 1)
)


@pytest.mark.parametrize(
    ("nodes", "library", "error", "message"),
    [
        (CALL, "", NotFoundError, "function 'f': not in the library of the GraphDef"),
        (CALL, nested("f", "f"), InvalidArgumentError, "non-recursive functions; got f -> f"),
        (CALL, nested("f", "g") + nested("g", "f"), InvalidArgumentError, "got f -> g -> f"),
        (CALL, function_def("f", node("Nothing")), NotFoundError, "'Nothing' (node 'n'"),
        (
            CALL,
            function_def("f", NEG, "n:z:0"),
            InvalidArgumentError,
            "expected outputs of Neg 'n' (y); got 'z:0'",
        ),
        (CALL, function_def("f", NEG, "n:y:1"), InvalidArgumentError, "got 'y:1'"),
        (CALL, function_def("f", NEG, "n"), InvalidArgumentError, "expected 'argument', 'node:output:index'"),
        (CALL, function_def("f", NEG, "b"), InvalidArgumentError, "of this function; got 'b'"),
        (CALL, function_def("f", NEG.replace('"a"', '"x"')), InvalidArgumentError, "Neg 'n'"),
        (
            CALL,
            function_def("f", NEG.replace('name: "n"', 'name: "a"'), "a"),
            InvalidArgumentError,
            "different names",
        ),
        (
            CALL,
            function_def("f", NEG, kind="DT_INT32"),
            DTypeError,
            "parameters of 'f': expected float32; got int32",
        ),
        (
            CALL,
            function_def("f", NEG).replace("type: DT_FLOAT }", 'type_attr: "T" }', 1),
            UnimplementedError,
            "one dtype each",
        ),
        (
            CALL,
            function_def("f", NEG).replace('ret { key: "r"', 'ret { key: "s"'),
            InvalidArgumentError,
            "to return as 'r'",
        ),
        (CALL, WITH_BAD_TARGET, InvalidArgumentError, "control output 't'"),
        (
            CALL.replace('input: "x"', ""),
            function_def("f", NEG),
            InvalidArgumentError,
            "of 0 parameters; got one of 1",
        ),
        (
            CALL.replace('name: "f" }', 'name: "f" attr { key: "T" value { i: 1 } } }'),
            function_def("f", NEG),
            UnimplementedError,
            "a function without attributes",
        ),
        (
            CALL.replace("input", TOUT.replace("FLOAT", "INT32") + " input"),
            function_def("f", NEG),
            DTypeError,
            "results of its functions: expected int32; got float32",
        ),
        (
            LOOP,
            IS_POSITIVE.replace('"c"', '"f"') + IS_POSITIVE,
            DTypeError,
            "results of 'body': expected float32; got bool",
        ),
        (
            LOOP,
            function_def("f", NEG) + function_def("c", NEG),
            DTypeError,
            "results of 'cond': expected bool; got float32",
        ),
        (
            LOOP,
            function_def("f", NEG).replace('output_arg { name: "r" type: DT_FLOAT }', "") + IS_POSITIVE,
            InvalidArgumentError,
            "'body': expected 1 results; got 0",
        ),
        (
            PLACEHOLDER + 'node { name: "k" op: "Case" input: "x" }',
            "",
            InvalidArgumentError,
            "'branches' (list(func)): expected a value",
        ),
    ],
)
def test_a_bad_function_is_refused_and_leaves_the_graph_as_it_was(
    nodes: str, library: str, error: type[Exception], message: str
) -> None:
    with tf.Graph() as graph:
        tf.constant(1.0, name="kept")
        before, used = graph.as_graph_def(), graph.unique_name("import", mark_as_used=False)
        with pytest.raises(error, match=re.escape(message)):
            tf.import_graph_def(parse(f"{nodes} library {{ {library} }}"))
        assert graph.as_graph_def() == before
        assert graph.unique_name("import", mark_as_used=False) == used


def test_a_node_may_call_a_function_by_its_name() -> None:
    nodes = PLACEHOLDER + 'node { name: "y" op: "f" input: "x" }'
    with tf.Session(
        graph=imported(parse(f"{nodes} library {{ {function_def('f', NEG)} }}"), name="")
    ) as session:
        assert session.run("y:0", {"x:0": 2.0}) == -2


def test_functions_that_nobody_needs_are_not_read() -> None:
    assert (
        len(
            imported(
                parse(f"{PLACEHOLDER} library {{ {function_def('f', node('Nothing'))} }}")
            ).get_operations()
        )
        == 1
    )


def test_too_deep_functions_are_refused() -> None:
    library = "".join(nested("f" if i == 0 else f"f{i}", f"f{i + 1}") for i in range(1000))
    with tf.Graph(), pytest.raises(ResourceExhaustedError, match="at most 40 nested functions"):
        tf.import_graph_def(parse(f"{CALL} library {{ {library} }}"))


def test_functions_that_grow_by_doubling_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_nodes, "MAX_NODES", 1000)
    library = function_def("f30", NEG)
    for i in range(30):
        twice = "".join(
            node("PartitionedCall", 'input: "a"', attr("f", f"f{i + 1}") + TOUT, name) for name in ("n", "m")
        )
        library += function_def("f" if i == 0 else f"f{i}", twice, "n:output:0")
    with tf.Graph(), pytest.raises(ResourceExhaustedError, match="at most 1000 nodes"):
        tf.import_graph_def(parse(f"{CALL} library {{ {library} }}"))


def test_what_a_function_does_it_does_after_import() -> None:
    """TensorFlow runs all of a function's operations that have effects, whether results need them or not."""
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [], name="x")
        tf.cond(x > 1, lambda: tf.Print(x, [x]), lambda: x)
    message = graph.as_graph_def()
    function = message.library.function[0]
    function.ret["result_0"] = function.signature.input_arg[0].name
    again: Subgraph = imported(message).get_operation_by_name("import/cond").get_attr("then_branch")
    assert any(is_stateful(node) for node in again)


def test_an_import_into_a_function_reads_what_is_around_it_and_leaves_it_as_it_was_when_it_fails() -> None:
    with tf.Graph() as inner:
        tf.sin(tf.placeholder(tf.float32, [], name="x"), name="y")
    message, bad = inner.as_graph_def(), inner.as_graph_def()
    bad.node[0].input.append("nothing")
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [], name="x")

        def branch() -> Any:
            with pytest.raises(InvalidArgumentError):
                tf.import_graph_def(bad, {"x": x})
            return tf.import_graph_def(message, {"x": x}, ["y:0"])[0]

        y = tf.cond(x > 1, branch, lambda: x)
        function = y.op.get_attr("then_branch")
        outside = tf.sin(x, name="cond/import/y")
    assert outside.op.name not in function.nodes  # names are unique in the whole graph
    with tf.Session(graph=graph) as session:
        assert session.run(y, {x: 2.0}) == np.sin(np.float32(2.0))
