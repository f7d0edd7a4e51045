"""Graphs as GraphDef messages: TensorFlow's conventions, and every op there and back."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError, ResourceExhaustedError, UnimplementedError
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.messages.graph_def import VERSION, nodes_to_graph_def, subgraph_to_graph_def
from flowrt.graph.messages.tensor_proto import decode_tensor, encode_tensor, is_splat
from flowrt.graph.node import Subgraph
from flowrt.graph.op_def import Effect, OpDef, Sample, op_def, parse_signature
from flowrt.protos import graph_pb2
from flowrt.tf1.graph_import.import_graph_def import import_graph_def
from tests.each import of_each_op
from tests.graph.evaluation import values_of
from tests.graph.test_all_ops import build, cases, feeds_of, flat_inputs

DATA = [d for d in dtypes.ALL if d not in (dtypes.resource, dtypes.variant)]
NUMBERS = [d for d in DATA if d is not dtypes.string]


# --- nodes


def test_nodes_are_written_as_tensorflow_writes_them() -> None:
    with Graph() as graph:
        x = placeholder("float32", [None, 2], name="x")
        first, second = op_def("Split")(1, x, num_split=2, name="halves")
        with graph.colocate_with(first), graph.device("/job:ps/cpu:0"), graph.control_dependencies([x.op]):
            op_def("NoOp")(name="mark")
        op_def("ConcatV2")([second, first], 1, name="back")
    expected = """
        node { name: "x" op: "Placeholder"
               attr { key: "dtype" value { type: DT_FLOAT } }
               attr { key: "shape" value { shape { dim { size: -1 } dim { size: 2 } } } } }
        node { name: "halves/split_dim" op: "Const"
               attr { key: "dtype" value { type: DT_INT32 } }
               attr { key: "value"
                      value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 1 } } } }
        node { name: "halves" op: "Split" input: "halves/split_dim" input: "x"
               attr { key: "T" value { type: DT_FLOAT } }
               attr { key: "num_split" value { i: 2 } } }
        node { name: "mark" op: "NoOp" input: "^x" device: "/job:ps/device:CPU:0"
               attr { key: "_class" value { list { s: "loc:@halves" } } } }
        node { name: "back/axis" op: "Const"
               attr { key: "dtype" value { type: DT_INT32 } }
               attr { key: "value"
                      value { tensor { dtype: DT_INT32 tensor_shape { } int_val: 1 } } } }
        node { name: "back" op: "ConcatV2" input: "halves:1" input: "halves" input: "back/axis"
               attr { key: "T" value { type: DT_FLOAT } }
               attr { key: "Tidx" value { type: DT_INT32 } }
               attr { key: "N" value { i: 2 } } }
        versions { producer: %d }
    """
    assert graph.as_graph_def() == text_format.Parse(expected % VERSION, graph_pb2.GraphDef())


def test_shapes_and_sources_are_written_when_asked_for() -> None:
    with Graph() as graph:
        op_def("Unpack")(placeholder("int8", [2, None], name="x"), num=2, name="rows")
    node = graph.as_graph_def(add_shapes=True).node[1]
    assert [[d.size for d in s.dim] for s in node.attr["_output_shapes"].list.shape] == [[-1], [-1]]
    assert "_output_shapes" not in graph.as_graph_def().node[1].attr
    sourced = nodes_to_graph_def([op.node for op in graph.get_operations()], with_sources=True)
    file, _, line = sourced.node[0].attr["_source"].s.decode().rpartition(":")
    assert file == __file__
    assert line.isdigit()


def test_from_version_leaves_out_what_was_there_before() -> None:
    with Graph() as graph:
        x = placeholder("float32", name="x")
        version = graph.version
        op_def("Neg")(x, name="y")
    assert [n.name for n in graph.as_graph_def(from_version=version).node] == ["y"]


def test_a_subgraph_is_written_with_its_shapes() -> None:
    with Graph() as graph:
        op_def("Neg")(placeholder("float32", [3], name="x"), name="y")
    subgraph = Subgraph({op.name: op.node for op in graph.get_operations()})
    assert subgraph_to_graph_def(subgraph) == graph.as_graph_def(add_shapes=True)


@pytest.mark.parametrize(
    ("value", "error"), [(object(), UnimplementedError), (1 << 70, InvalidArgumentError)]
)
def test_an_attribute_that_a_message_cannot_hold_is_named(value: Any, error: type[Exception]) -> None:
    with Graph() as graph:
        op_def("Neg")(placeholder("float32", name="x"), name="y", _mark=value)
    with pytest.raises(error, match=r"Neg 'y' \(.*test_graph_def.py:\d+\): attribute '_mark'"):
        graph.as_graph_def()


@pytest.mark.parametrize(
    "value",
    [
        True,
        7,
        -1,
        0.1,
        1e-30,
        float("inf"),
        "text",
        b"\xff",
        dtypes.int8,
        (1, 2),
        (0.5,),
        ("a", "b"),
        (True,),
        (),
    ],
)
def test_an_attribute_of_the_users_own_comes_back(value: Any) -> None:
    with Graph() as graph:
        op_def("NoOp")(name="x", _mark=value)
    with Graph() as copy:
        import_graph_def(graph.as_graph_def(), name="")
    got = copy.get_operation_by_name("x").get_attr("_mark")
    assert got == value
    assert type(got) is type(value)


@of_each_op(cases())
def test_every_op_comes_back_from_its_graph_def(op: OpDef, sample: Sample) -> None:
    with Graph() as graph:
        operation, flat = build(op, sample)
    message = graph.as_graph_def(add_shapes=True)
    with Graph() as copy:
        import_graph_def(graph_pb2.GraphDef.FromString(message.SerializeToString()), name="")
    assert copy.as_graph_def(add_shapes=True) == message
    outputs = [t for t in operation.outputs if t.dtype in DATA]
    if op.effect is not Effect.PURE or not outputs:
        return  # their values are not the graph's alone
    feeds = feeds_of(flat, flat_inputs(op, sample))
    wanted = values_of(outputs, feeds)
    copies = [copy.get_tensor_by_name(t.name) for t in outputs]
    got = values_of(copies, {copy.get_tensor_by_name(t.name): value for t, value in feeds.items()})
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_importing_the_graph_modules_does_not_load_protobuf() -> None:
    code = "import sys, flowrt.tf1.graph_import.import_graph_def; print('google.protobuf' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=200) == "False\n"


# --- tensors


def there_and_back(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    message = graph_pb2.TensorProto()
    encode_tensor(message, array)
    return decode_tensor(graph_pb2.TensorProto.FromString(message.SerializeToString()))


def bits(array: np.ndarray[Any, Any]) -> Any:
    return array.tolist() if array.dtype == object else array.tobytes()


@given(st.data(), st.sampled_from(DATA), hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=3))
def test_a_tensor_comes_back_bit_for_bit(data: st.DataObject, dtype: DType, shape: tuple[int, ...]) -> None:
    if dtype is dtypes.string:
        array = np.empty(shape, object)
        for index in np.ndindex(shape):
            array[index] = data.draw(st.binary(max_size=4))
    else:
        count = int(np.prod(shape)) * dtype.size
        content = data.draw(st.binary(min_size=count, max_size=count))
        array = np.frombuffer(content, dtype.np).reshape(shape)
        if dtype.is_bool:
            array = np.frombuffer(content, np.uint8).reshape(shape) > 127
    back = there_and_back(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert bits(back) == bits(array)


@pytest.mark.parametrize("dtype", DATA, ids=lambda dtype: dtype.name)
def test_a_repeated_value_takes_the_room_of_one(dtype: DType) -> None:
    value = np.array([b"ab"], object) if dtype is dtypes.string else np.ones(1, dtype.np)
    array = np.broadcast_to(value, (1000, 1000, 1000))
    message = graph_pb2.TensorProto()
    encode_tensor(message, array)
    assert message.ByteSize() < 64
    back = decode_tensor(message)
    assert is_splat(back)
    assert back.shape == array.shape
    assert back[1, 2, 3] == value[0]
    assert is_splat(there_and_back(back))


def parse(text: str) -> Any:
    return decode_tensor(text_format.Parse(text, graph_pb2.TensorProto()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dtype: DT_HALF tensor_shape { dim { size: 3 } } half_val: 15360 half_val: 16384",
         np.array([1, 2, 2], np.float16)),
        ("dtype: DT_BFLOAT16 tensor_shape { } half_val: 16256", np.array(1, dtypes.bfloat16.np)),
        ("dtype: DT_BOOL tensor_shape { dim { size: 2 } } bool_val: true", np.array([True, True])),
        ('dtype: DT_BOOL tensor_shape { dim { size: 2 } } tensor_content: "\\002\\000"',
         np.array([True, False])),
        ("dtype: DT_FLOAT tensor_shape { dim { size: 2 } }", np.zeros(2, np.float32)),
        ("dtype: DT_STRING tensor_shape { dim { size: 2 } }", np.array([b"", b""], object)),
        ("dtype: DT_COMPLEX64 tensor_shape { dim { size: 2 } } scomplex_val: [1, 2]",
         np.array([1 + 2j, 1 + 2j], np.complex64)),
        ("dtype: DT_INT8 tensor_shape { dim { size: 0 } dim { size: 9 } }", np.zeros((0, 9), np.int8)),
        ("dtype: DT_UINT64 tensor_shape { } uint64_val: 18446744073709551615",
         np.array(2**64 - 1, np.uint64)),
        ("dtype: DT_FLOAT tensor_shape { } float_val: nan", np.array(np.nan, np.float32)),
    ],
)  # fmt: skip
def test_tensorflows_ways_of_writing_a_tensor_are_read(text: str, expected: np.ndarray[Any, Any]) -> None:
    got = parse(text)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("dtype: DT_FLOAT tensor_shape { unknown_rank: true }", InvalidArgumentError, "full shape"),
        ("dtype: DT_FLOAT tensor_shape { dim { size: -1 } }", InvalidArgumentError, "full shape"),
        ("dtype: DT_FLOAT tensor_shape { dim { size: -2 } }", InvalidArgumentError, r"got \[-2\]"),
        ("dtype: DT_INVALID tensor_shape { }", InvalidArgumentError, "DT_INVALID"),
        ("dtype: DT_RESOURCE tensor_shape { }", InvalidArgumentError, "resource"),
        ("dtype: DT_FLOAT_REF tensor_shape { }", InvalidArgumentError, "float32_ref.*use_resource=True"),
        ("dtype: DT_UINT8 tensor_shape { } int_val: 256", InvalidArgumentError, "uint8 values; got 256"),
        ("dtype: DT_HALF tensor_shape { } half_val: -1", InvalidArgumentError, "16 bits"),
        ("dtype: DT_FLOAT tensor_shape { } float_val: [1, 2]", InvalidArgumentError, "at most 1 value"),
        ("dtype: DT_COMPLEX64 tensor_shape { } scomplex_val: 1", InvalidArgumentError, "pairs"),
        ('dtype: DT_FLOAT tensor_shape { dim { size: 3 } } tensor_content: "abcd"',
         InvalidArgumentError, "12 bytes"),
        ('dtype: DT_STRING tensor_shape { } tensor_content: "abcd"', InvalidArgumentError, "string_val"),
        ('dtype: DT_FLOAT tensor_shape { dim { size: 1099511627776 } } tensor_content: "abcd"',
         InvalidArgumentError, "4398046511104 bytes"),
        ("dtype: DT_FLOAT tensor_shape { dim { size: 1099511627776 } } float_val: [1, 2]",
         ResourceExhaustedError, "268435456 bytes"),
        ("dtype: DT_FLOAT tensor_shape { dim { size: 9223372036854775807 } dim { size: 9 } }",
         ResourceExhaustedError, "2\\*\\*62"),
        ("dtype: DT_FLOAT tensor_shape { dim { size: 0 } dim { size: 9223372036854775807 } }",
         ResourceExhaustedError, "2\\*\\*62"),
        ("dtype: DT_FLOAT tensor_shape { " + 65 * "dim { size: 1 } " + "}", InvalidArgumentError, "rank 64"),
    ],
)  # fmt: skip
def test_a_malformed_tensor_is_refused(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse(text)


def test_an_output_without_a_name_is_output_and_two_need_names() -> None:
    inputs, outputs, types = parse_signature("x: T in FLOATING, axis: host int32 -> T")
    assert types == {"T": dtypes.FLOATING}
    assert [a.name for a in inputs] == ["x", "axis"]
    assert [a.name for a in outputs] == ["output"]
    with pytest.raises(InvalidArgumentError, match=r"outputs of different names; got 'x: T -> T, T'"):
        parse_signature("x: T -> T, T", {"T": dtypes.FLOATING})


def test_a_signature_says_which_dtypes_a_variable_takes_from_left_to_right() -> None:
    _, _, types = parse_signature("x: N * T in REAL - bfloat16 | bool, how: *Tin in int32 -> T")
    assert types == {"T": dtypes.REAL - {dtypes.bfloat16} | {dtypes.bool_}, "Tin": {dtypes.int32}}
    with pytest.raises(DTypeError, match="got 'REALS'"):
        parse_signature("x: T in REALS -> T")
