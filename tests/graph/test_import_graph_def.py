"""import_graph_def: names, maps, scopes, checks, and what damaged graphs do to it (nothing)."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt.errors import (
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
)
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.messages.graph_def import VERSION
from flowrt.graph.op_def import op_def, registered_ops
from flowrt.protos import graph_pb2
from flowrt.tf1.graph_import import read_graph_def as graph_def_module
from flowrt.tf1.graph_import.import_graph_def import import_graph_def
from tests.graph.evaluation import value_of
from tests.graph.test_all_ops import build, cases

FLOAT = 'attr { key: "T" value { type: DT_FLOAT } }'
SOURCE = 'node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }'
CHAIN = (
    SOURCE
    + f'node {{ name: "y" op: "Neg" input: "x" {FLOAT} }} node {{ name: "z" op: "Abs" input: "y" {FLOAT} }}'
)


def parse(text: str, version: int = VERSION) -> Any:
    message = text_format.Parse(text, graph_pb2.GraphDef())
    message.versions.producer = version
    return message


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.get_operations()]


# --- names


def test_names_get_the_prefix_import() -> None:
    with Graph() as graph:
        assert import_graph_def(parse(CHAIN)) is None
        import_graph_def(parse(CHAIN))
    assert names(graph) == ["import/x", "import/y", "import/z", "import_1/x", "import_1/y", "import_1/z"]


@pytest.mark.parametrize(
    ("name", "prefix"), [("", ""), ("a", "outer/a/"), ("a/", "a/"), (None, "outer/import/")]
)
def test_the_prefix_is_a_name_scope(name: str | None, prefix: str) -> None:
    with Graph() as graph, graph.name_scope("outer"):
        import_graph_def(parse(SOURCE), name=name)
    assert names(graph) == [prefix + "x"]


def test_a_name_that_is_taken_gets_a_suffix_and_its_readers_follow() -> None:
    with Graph() as graph:
        old = constant(1.0, name="y")
        _, z = import_graph_def(parse(CHAIN), return_elements=["x", "z:0"], name="") or ()
    assert names(graph) == ["y", "x", "y_1", "z"]
    assert z.op.inputs[0].name == "y_1:0"
    assert old.name == "y:0"


def test_a_suffixed_name_does_not_meet_another_node() -> None:
    text = SOURCE + f'node {{ name: "x_1" op: "Neg" input: "x" {FLOAT} }}'
    with Graph() as graph:
        constant(1.0, name="x")
        y = (import_graph_def(parse(text), return_elements=["x_1:0"], name="") or ())[0]
    assert len(set(names(graph))) == 3
    assert y.op.inputs[0].op.type == "Placeholder"


def test_names_that_differ_in_case_only_stay() -> None:
    with Graph() as graph:
        import_graph_def(parse(SOURCE + SOURCE.replace('"x"', '"X"')), name="")
    assert names(graph) == ["x", "X"]


def test_colocation_follows_the_new_names() -> None:
    text = SOURCE + 'node { name: "n" op: "NoOp" attr { key: "_class" value { list { s: "loc:@x" } } } }'
    with Graph() as graph:
        constant(1.0, name="x")
        import_graph_def(parse(text), name="")
    assert graph.get_operation_by_name("n").get_attr("_class") == ("loc:@x_1",)


def test_colocation_with_a_stranger_is_refused_or_dropped() -> None:
    text = 'node { name: "n" op: "NoOp" attr { key: "_class" value { list { s: "loc:@gone" } } } }'
    with Graph() as graph:
        with pytest.raises(InvalidArgumentError, match=r"NoOp 'n'.*got 'gone'"):
            import_graph_def(parse(text))
        import_graph_def(parse(text), validate_colocation_constraints=False)
    assert graph.get_operation_by_name("import/n").get_attr("_class") == ()


# --- maps and elements


def test_mapped_tensors_replace_those_of_the_graph_def() -> None:
    with Graph() as graph:
        mine = constant(-3.0, name="mine")
        y, z = import_graph_def(parse(CHAIN), {"x": mine}, ["y:0", "z:0"]) or ()
        assert value_of(z) == 3
        assert y.op.inputs[0] is mine
    assert "import/x" in graph.operations


def test_a_mapped_input_may_be_missing_from_the_graph_def() -> None:
    text = f'node {{ name: "y" op: "Neg" input: "gone:1" input: "^also_gone" {FLOAT} }}'
    with Graph():
        mine = constant(2.0)
        y = (import_graph_def(parse(text), {"gone:1": mine, "^also_gone": mine.op}, ["y:0"]) or ())[0]
        assert value_of(y) == -2
    assert y.op.control_inputs == ()  # the data edge makes it redundant


def test_a_control_input_can_be_mapped() -> None:
    text = SOURCE + f'node {{ name: "y" op: "Neg" input: "x" input: "^x" input: "^before" {FLOAT} }}'
    with Graph():
        mine = op_def("NoOp")(name="mine")
        y = (import_graph_def(parse(text), {"^before": mine}, ["y"]) or ())[0]
    assert [op.name for op in y.control_inputs] == ["mine"]


def test_a_value_can_be_mapped() -> None:
    with Graph():
        z = (import_graph_def(parse(CHAIN), {"x:0": np.float32(-4)}, ["z:0"]) or ())[0]
        assert value_of(z) == 4


def test_return_elements_come_in_the_order_asked_for() -> None:
    with Graph() as graph:
        mine = constant(1.0)
        got = import_graph_def(parse(CHAIN), {"x": mine}, ["z", "y:0", "x:0", "x", "z"])
    op = graph.get_operation_by_name
    assert got == [op("import/z"), op("import/y").outputs[0], mine, op("import/x"), op("import/z")]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"return_elements": ["yy:0"]}, InvalidArgumentError, "got 'yy:0'"),
        ({"return_elements": ["y:1"]}, InvalidArgumentError, "Neg 'y' has 1 outputs"),
        ({"return_elements": ["yy"]}, InvalidArgumentError, "got 'yy'. Nearest: y"),
        ({"return_elements": ["^y"]}, InvalidArgumentError, "got '\\^y'"),
        ({"return_elements": "y"}, DTypeError, "list of names; got 'y'"),
        ({"return_elements": [1]}, DTypeError, "list of names; got \\[1\\]"),
        ({"input_map": {"gone": 1.0}}, InvalidArgumentError, "input_map: .* got 'gone'"),
        ({"input_map": {"y:1": 1.0}}, InvalidArgumentError, "input_map: .* got 'y:1'"),
        ({"input_map": {"x": 1}}, DTypeError, "Neg 'y'.*expected dtype float32; got .* int32"),
        ({"input_map": {1: 1.0}}, DTypeError, "got 1"),
        ({"input_map": {"x": constant}}, DTypeError, "converts to a tensor"),
    ],
)
def test_arguments_that_name_nothing_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with Graph() as graph:
        with pytest.raises(error, match=message):
            import_graph_def(parse(CHAIN), **arguments)
        assert names(graph) == []
        import_graph_def(parse(SOURCE))
    assert names(graph) == ["import/x"]  # the name scope is free again


def test_a_tensor_of_another_graph_is_refused() -> None:
    with Graph():
        foreign = constant(1.0)
    with Graph(), pytest.raises(InvalidArgumentError, match="default graph"):
        import_graph_def(parse(CHAIN), {"x": foreign})


# --- scopes, order, variants


def test_the_callers_scopes_colour_the_new_operations() -> None:
    text = SOURCE + f'node {{ name: "y" op: "Neg" input: "x" device: "/device:CPU:1" {FLOAT} }}'
    with Graph() as graph:
        before = op_def("NoOp")(name="before")
        with graph.device("/job:ps/device:CPU:0"), graph.control_dependencies([before]):
            import_graph_def(parse(text), name="")
    x, y = graph.get_operation_by_name("x"), graph.get_operation_by_name("y")
    assert (x.device, y.device) == ("/job:ps/device:CPU:0", "/job:ps/device:CPU:1")
    assert x.control_inputs == (before,)


def test_nodes_may_stand_in_any_order() -> None:
    message = parse(CHAIN)
    message.node.reverse()
    with Graph() as graph:
        import_graph_def(message, name="")
    assert names(graph) == ["x", "y", "z"]


def test_shapes_are_inferred_and_refined_by_output_shapes() -> None:
    text = SOURCE + (
        f'node {{ name: "y" op: "Neg" input: "x" {FLOAT} attr {{ key: "_output_shapes" value {{ list {{'
        " shape { dim { size: 2 } dim { size: -1 } } } } } }"
    )
    with Graph() as graph:
        y = (import_graph_def(parse(text), return_elements=["y:0"]) or ())[0]
        assert y.shape.as_list() == [2, None]
        assert "_output_shapes" not in y.op.node.attrs
        with pytest.raises(InvalidArgumentError, match=r"Neg 'import_1/y'.*\[\] and \[2, \?\]"):
            import_graph_def(parse(text), {"x": constant(1.0)})
    assert graph.version == 3


def test_the_users_line_is_that_of_the_import() -> None:
    with Graph() as graph:
        import_graph_def(parse(SOURCE))
    assert str(graph.get_operation_by_name("import/x").source).startswith(__file__)


def test_types_follow_from_the_inputs_when_they_are_not_given() -> None:
    with Graph() as graph:
        import_graph_def(parse(CHAIN.replace(FLOAT, "")), name="")
    assert graph.get_operation_by_name("z").get_attr("T").name == "float32"


def test_defaults_are_filled_in() -> None:
    text = SOURCE + f'node {{ name: "y" op: "MatMul" input: "x" input: "x" {FLOAT} }}'
    with Graph() as graph:
        import_graph_def(parse(text), name="")
    assert graph.get_operation_by_name("y").get_attr("transpose_a") is False


def test_an_older_name_of_an_op_is_read() -> None:
    with Graph() as graph:
        import_graph_def(parse(SOURCE.replace("Placeholder", "PlaceholderV2")), name="")
    assert graph.get_operation_by_name("x").type == "Placeholder"


def test_an_old_placeholder_without_dimensions_has_an_unknown_shape() -> None:
    text = SOURCE.replace("} } }", '} } attr { key: "shape" value { shape { } } } }')
    with Graph() as graph:
        import_graph_def(parse(text, version=23), name="old")
        import_graph_def(parse(text, version=24), name="new")
    assert graph.get_tensor_by_name("old/x:0").shape.rank is None
    assert graph.get_tensor_by_name("new/x:0").shape.rank == 0


def test_attributes_that_say_nothing_are_dropped() -> None:
    matmul = 'node { name: "y" op: "MatMul" input: ["x", "x"] attr { key: "%s" value { b: %s } } }'
    with Graph() as graph:
        import_graph_def(parse(SOURCE + matmul % ("grad_a", "false")), name="")
        assert "grad_a" not in graph.get_operation_by_name("y").node.attrs
        with pytest.raises(InvalidArgumentError, match=r"MatMul 'y'.*'update_slots'"):
            import_graph_def(parse(SOURCE + matmul % ("update_slots", "false")))
        with pytest.raises(
            InvalidArgumentError, match=r"attributes of MatMul; got 'transposea'. Nearest: transpose_a"
        ):
            import_graph_def(parse(SOURCE + matmul % ("transposea", "false")))


def test_the_producers_defaults_are_dropped() -> None:
    attr = graph_pb2.OpDef.AttrDef(name="new", default_value=graph_pb2.AttrValue(i=3))
    op_list = SimpleNamespace(op=[graph_pb2.OpDef(name="Neg", attr=[attr])])
    text = (
        SOURCE + f'node {{ name: "y" op: "Neg" input: "x" {FLOAT} attr {{ key: "new" value {{ i: %d }} }} }}'
    )
    with Graph() as graph:
        import_graph_def(parse(text % 3), producer_op_list=op_list)
        with pytest.raises(InvalidArgumentError, match="'new'"):
            import_graph_def(parse(text % 4), producer_op_list=op_list)
        with pytest.raises(InvalidArgumentError, match="'new'"):
            import_graph_def(parse(text % 3))
    assert "import/y" in graph.operations


# --- what is refused

NEG = f'node {{ name: "y" op: "Neg" %s {FLOAT} }}'
CONST = """node { name: "c" op: "Const" attr { key: "dtype" value { type: DT_%s } }
           attr { key: "value" value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 1 } } } }"""


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            NEG % 'input: "gone"',
            InvalidArgumentError,
            "Neg 'y' .*test_import.*: expected inputs among .*'gone'",
        ),
        (SOURCE + NEG % 'input: "x" input: "^gone"', InvalidArgumentError, "Neg 'y'.*'gone'"),
        (
            SOURCE + NEG % 'input: "x:1"',
            InvalidArgumentError,
            "Neg 'y'.*Placeholder 'x' has 1 outputs; got .* 1",
        ),
        (
            SOURCE + NEG % 'input: "x" input: "x"',
            InvalidArgumentError,
            r"Neg 'y'.*expected 1 inputs \(x\); got 2",
        ),
        (SOURCE + NEG % "", InvalidArgumentError, r"Neg 'y'.*expected 1 inputs \(x\); got 0"),
        (SOURCE + NEG % 'input: "^x" input: "x"', InvalidArgumentError, "Neg 'y'.*control inputs after"),
        (SOURCE + NEG % 'input: "x y"', InvalidArgumentError, "Neg 'y'.*'x y'"),
        (
            CONST % "INT32" + NEG % 'input: "c"',
            DTypeError,
            r"Neg 'y'.*input 0 \(x\): expected dtype float32; .*int32",
        ),
        (CONST % "FLOAT", InvalidArgumentError, "Const 'c'.*'value': expected float32, .* got int32"),
        (
            SOURCE.replace("DT_FLOAT", "DT_FLOAT_REF"),
            InvalidArgumentError,
            "Placeholder 'x'.*'dtype'.*float32_ref",
        ),
        (SOURCE.replace("type: DT_FLOAT", "i: 1"), InvalidArgumentError, "'dtype'.*kind type; got int"),
        (SOURCE.replace("DT_FLOAT", "DT_INVALID"), InvalidArgumentError, "'dtype'.*DT_INVALID"),
        ('node { name: "x" op: "Placeholder" }', InvalidArgumentError, r"Placeholder 'x'.*'dtype' \(type\)"),
        ('node { name: "n" op: "AddN" }', InvalidArgumentError, "AddN 'n'.*'N': expected a value"),
        (
            'node { name: "n" op: "AddN" attr { key: "N" value { i: -1 } } }',
            InvalidArgumentError,
            "'N'.*got -1",
        ),
        (SOURCE + SOURCE, InvalidArgumentError, "Placeholder 'x'.*twice"),
        (SOURCE.replace('"x"', '"a b"'), InvalidArgumentError, "node name: .*'a b'"),
        (SOURCE.replace('"x"', '"_x"'), InvalidArgumentError, "node name: .*'_x'"),
        (SOURCE.replace('"x"', f'"{"x" * 5000}"'), InvalidArgumentError, "1 to 4096 letters"),
        (
            SOURCE + NEG % 'input: "z"' + NEG.replace('"y"', '"z"') % 'input: "y"',
            InvalidArgumentError,
            "y <- z <- y",
        ),
        (SOURCE + NEG % 'input: "x" device: "/job:ä"', InvalidArgumentError, "Neg 'y'.*/job:ä"),
        ('node { name: "s" op: "_Loop" }', NotFoundError, "'_Loop'"),
        ('node { name: "s" op: "_Send" }', InvalidArgumentError, "_Send 's'.*'tensor_name'"),
        ('node { name: "v" op: "ApplyPowerSign" }', NotFoundError, "'ApplyPowerSign'.*no such update"),
        ('node { name: "v" op: "VariableV2" }', InvalidArgumentError, "VariableV2 'v'.*'shape'"),
        ("versions { min_consumer: 99999 }", InvalidArgumentError, "readers of version"),
        (f"versions {{ bad_consumers: {VERSION} }}", InvalidArgumentError, "one that excludes it"),
    ],
)
def test_a_bad_graph_def_is_refused_and_leaves_the_graph_as_it_was(
    text: str, error: type[Exception], message: str
) -> None:
    with Graph() as graph:
        constant(1.0, name="kept")
        before, used = graph.as_graph_def(), graph.unique_name("import", mark_as_used=False)
        with pytest.raises(error, match=message):
            import_graph_def(parse(text))
        assert graph.as_graph_def() == before
        assert graph.unique_name("import", mark_as_used=False) == used


def test_all_unknown_ops_are_named_at_once() -> None:
    ops = {"a": "MatMull", "b": "ApplyPowerSign", "c": "MatMull"}
    text = " ".join(f'node {{ name: "{name}" op: "{op}" }}' for name, op in ops.items())
    with Graph(), pytest.raises(NotFoundError) as caught:
        import_graph_def(parse(text))
    assert "'MatMull' (node 'a'. Nearest: MatMul" in str(caught.value)
    assert "'ApplyPowerSign' (node 'b'" in str(caught.value)


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_def_module, "MAX_NODES", 2)
    with Graph(), pytest.raises(ResourceExhaustedError, match="at most 2 nodes; got 3"):
        import_graph_def(parse(CHAIN))


def test_a_host_input_must_be_small() -> None:
    with Graph() as graph:
        x = placeholder("float32", name="x")
        op_def("Reshape")(x, np.array([1, 2]), name="y")
    message = graph.as_graph_def()
    tensor = message.node[1].attr["value"].tensor
    tensor.Clear()
    tensor.dtype = message.node[1].attr["dtype"].type
    tensor.tensor_shape.dim.add(size=1 << 40)
    with Graph(), pytest.raises(ResourceExhaustedError, match=r"Reshape 'y'.*65536 elements at most"):
        import_graph_def(message)


@pytest.mark.parametrize("graph_def", [None, b"", "x", [], graph_pb2.NodeDef()])
def test_only_a_graph_def_is_taken(graph_def: Any) -> None:
    with Graph(), pytest.raises(DTypeError, match="expected a GraphDef"):
        import_graph_def(graph_def)


def test_a_finalized_graph_takes_nothing() -> None:
    with Graph() as graph:
        graph.finalize()
        with pytest.raises(FailedPreconditionError):
            import_graph_def(parse(SOURCE))


# --- damaged graphs


def sample_graph_defs() -> list[bytes]:
    found = []
    for case in cases():
        with Graph() as graph:
            build(*case.values)
        found.append(graph.as_graph_def(add_shapes=len(found) % 2 == 0).SerializeToString())
    return found


SAMPLES = sample_graph_defs()
OPS = sorted(registered_ops())
NUMBERS = [0, 1, -1, 2, 3, 7, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63)]


def damage_bytes(data: st.DataObject, encoded: bytes) -> bytes:
    content = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 3))
        content[position : position + length] = data.draw(st.binary(max_size=3))
    return bytes(content)


def damage_fields(data: st.DataObject, message: Any) -> None:
    """Change one thing that the message can say: the deeper checks meet only what is well formed."""
    node = data.draw(st.sampled_from(list(message.node)))
    keys = sorted(node.attr)
    match data.draw(st.sampled_from(["attr", "attr", "shape", "input", "op", "drop"])):
        case "attr" if keys:
            change_attr(data, node.attr[data.draw(st.sampled_from(keys))])
        case "shape":
            tensors = [n.attr["value"].tensor for n in message.node if n.op == "Const"]
            if tensors:
                dims = data.draw(st.lists(st.sampled_from(NUMBERS), max_size=3))
                tensor = data.draw(st.sampled_from(tensors))
                del tensor.tensor_shape.dim[:]
                for size in dims:
                    tensor.tensor_shape.dim.add(size=size)
                if data.draw(st.booleans()):
                    tensor.ClearField("tensor_content")
        case "input" if node.input:
            other = data.draw(st.sampled_from(list(message.node))).name
            node.input[data.draw(st.integers(0, len(node.input) - 1))] = other
        case "op":
            node.op = data.draw(st.sampled_from(OPS))
        case "drop" if keys:
            del node.attr[data.draw(st.sampled_from(keys))]


def change_attr(data: st.DataObject, attr: Any) -> None:
    match attr.WhichOneof("value"):
        case "i":
            attr.i = data.draw(st.sampled_from(NUMBERS))
        case "type":
            attr.type = data.draw(st.sampled_from([1, 2, 3, 7, 9, 10, 14, 20, 101, 31]))
        case "s":
            attr.s = data.draw(st.binary(max_size=3))
        case "shape":
            attr.shape.dim.add(size=data.draw(st.sampled_from(NUMBERS)))
        case "list" if attr.list.i:
            attr.list.i.append(data.draw(st.sampled_from(NUMBERS)))
        case _:
            attr.CopyFrom(graph_pb2.AttrValue(b=True))


@settings(max_examples=4 * settings.default.max_examples)
@given(st.data())
def test_a_damaged_graph_def_is_imported_or_refused_with_a_typed_error(data: st.DataObject) -> None:
    encoded = data.draw(st.sampled_from(SAMPLES))
    try:
        if data.draw(st.booleans()):
            message = graph_pb2.GraphDef.FromString(damage_bytes(data, encoded))
        else:
            message = graph_pb2.GraphDef.FromString(encoded)
            damage_fields(data, message)
    except DecodeError:
        return
    with Graph() as graph:
        tracemalloc.start()
        try:
            import_graph_def(message, name="")
        except OpError:
            assert graph.version == 0
            assert graph.unique_name("x", mark_as_used=False) == "x"
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert peak < 32 << 20, f"{peak} bytes for {len(encoded)}"


EXPORTED = """
import sys, flowrt as tf
w = tf.Variable([1.0], name="w")
loss = tf.reduce_sum(w * w)
tf.summary.scalar("loss", loss)
tf.train.AdamOptimizer().minimize(loss)
tf.data.Dataset.range(3).make_initializable_iterator().get_next()
sys.stdout.buffer.write(tf.get_default_graph().as_graph_def().SerializeToString())
"""

IMPORTED = """
import sys, flowrt as tf
definition = tf.GraphDef.FromString(sys.stdin.buffer.read())
tf.import_graph_def(definition, name="")
print(len(tf.get_default_graph().get_operations()))
"""


def test_another_process_imports_a_graph_of_any_ops() -> None:
    exported = subprocess.run([sys.executable, "-c", EXPORTED], capture_output=True, check=True, timeout=200)
    command = [sys.executable, "-c", IMPORTED]
    imported = subprocess.run(command, input=exported.stdout, capture_output=True, timeout=200, check=False)
    assert imported.returncode == 0, imported.stderr.decode()
    assert int(imported.stdout) > 30
