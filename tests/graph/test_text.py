"""The text form: what it looks like, that it reads back exactly, and what its errors say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import flowrt.graph.ops.surface.all  # noqa: F401  (defines every op)
from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError, NotFoundError, OpError, UnimplementedError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph
from flowrt.graph.messages.tensor_proto import is_splat
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import OpDef, Sample, op_def
from flowrt.graph.passes.placement.partition import partition
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.text.graph_text import parse_subgraph, print_subgraph
from tests.each import of_each_op
from tests.graph.test_all_ops import build, cases

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def whole(graph: Graph) -> Subgraph:
    return Subgraph({op.name: op.node for op in graph.get_operations()})


def without_sources(subgraph: Subgraph) -> Subgraph:
    return subgraph.with_nodes(node.replace(source=None) for node in subgraph)


def facts(node: Node) -> tuple[Any, ...]:
    """Everything about a node in a form that compares exactly (arrays by their bytes)."""
    attrs = {key: exact(value) for key, value in node.attrs.items()}
    return node.name, node.op, node.inputs, node.controls, attrs, node.device, str(node.source), node.outputs


def exact(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tolist() if value.dtype == object else value.tobytes()
    if isinstance(value, Subgraph):
        return [facts(node) for node in value], value.feeds, value.fetches, value.targets
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    return type(value), repr(value)


def check_round_trip(subgraph: Subgraph) -> str:
    text = print_subgraph(subgraph)
    back = parse_subgraph(text)
    assert [facts(node) for node in back] == [facts(node) for node in subgraph], text
    assert (back.feeds, back.fetches, back.targets) == (subgraph.feeds, subgraph.fetches, subgraph.targets)
    assert print_subgraph(back) == text
    return text


# --- golden files


def layers() -> Subgraph:
    """A list input, several outputs, a control input, a device, attributes, an odd name."""
    with Graph() as graph:
        x = placeholder("float32", [None, 4], name="x")
        w = constant(np.arange(8, dtype=np.float32).reshape(4, 2), name="w")
        with graph.name_scope("layer"):
            y = op_def("MatMul")(x, w, name="product")
            with graph.control_dependencies([op_def("NoOp")(name="ready")]), graph.device("/device:CPU:1"):
                left, right = op_def("Split")(1, y, num_split=2, name="halves")
        z = op_def("ConcatV2")([right, left], 1, name="z")
        op_def("LeakyRelu")(z, alpha=0.25, name="odd name/")
    subgraph = extract(graph, [z, right], [graph.get_operation_by_name("odd name")], {x: (3, 4)})
    return without_sources(subgraph)


def literals() -> Subgraph:
    """One constant of each dtype, special values, and attributes of each kind."""
    with Graph() as graph:
        for dtype in (*dtypes.NUMERIC, dtypes.bool_):
            constant(np.array([[0, 1], [1, 0]]).astype(dtype.np), name=dtype.name)
        constant(np.array([np.nan, -np.inf, -0.0, 0.1, 1e-45], np.float32), name="special")
        constant(np.array(-1.5j - 0.25, np.complex128), name="scalar")
        constant(np.array([b"text", "ä".encode(), b"\xff\n", b'"'], object), name="strings")
        constant(np.zeros((2, 0), np.int8), name="empty")
        constant(np.arange(1030).astype(np.uint8), name="large")
        node = constant(1, name="repeated").op
        node.mutate(
            attrs={**node.node.attrs, "value": np.broadcast_to(np.int32(7), (1000, 1000))},
            outputs=(TensorSpec(dtypes.int32, (1000, 1000)),),
        )
        attrs = {"_bool": True, "_int": -1, "_float": 1e-5, "_string": 'a "b"\n', "_bytes": b"\xff"}
        lists = {
            "_ints": (1, 2),
            "_strings": ("loc:@x",),
            "_empty": (),
            "_type": dtypes.int8,
            "_inf": -np.inf,
        }
        op_def("NoOp")(name="kinds", **attrs, **lists, **{"_odd key": 1})
    subgraph = without_sources(whole(graph))
    return subgraph.with_nodes(sorted(subgraph, key=lambda node: node.name))


def two_devices() -> list[Subgraph]:
    with Graph() as graph:
        with graph.device("/job:ps/replica:0/task:0/device:CPU:0"):
            w = placeholder("float32", [300, None], name="w")
            double = op_def("AddV2")(w, w, name="double")
        with graph.device("/job:worker/replica:0/task:0/device:CPU:0"):
            x = placeholder("float32", [None, 300], name="x")
            with graph.control_dependencies([double]):
                y = op_def("MatMul")(x, w, name="y")
    subgraph = without_sources(extract(graph, [y], [], {x: (4, 300), w: (300, 2)}))
    return [subgraph, *partition(subgraph).values()]


@pytest.mark.parametrize(
    ("name", "subgraphs"),
    [("layers", [layers()]), ("literals", [literals()]), ("partition_two_devices", two_devices())],
)
def test_the_text_is_that_of_the_golden_file(name: str, subgraphs: list[Subgraph]) -> None:
    got = "---\n".join(map(check_round_trip, subgraphs))
    assert got == (GOLDEN / f"{name}.txt").read_text("utf-8")


# --- round trips


@of_each_op(cases())
def test_every_op_comes_back_from_its_text(op: OpDef, sample: Sample) -> None:
    with Graph() as graph:
        build(op, sample)
    check_round_trip(whole(graph))


def test_the_users_line_comes_back() -> None:
    with Graph() as graph:
        constant(1.0, name="x")
    text = check_round_trip(whole(graph))
    assert re.search(rf"  # {re.escape(__file__)}:\d+\n$", text)


def test_comments_and_blank_lines_are_skipped() -> None:
    subgraph = parse_subgraph(
        "# a graph\n\n  %x = NoOp()  # nothing\n%y = NoOp() ^x # f.py:7\ntargets: %y, %x\n"
    )
    assert subgraph.targets == ("y", "x")
    assert [str(node.source) for node in subgraph] == ["None", "f.py:7"]
    assert len(parse_subgraph("")) == 0


def test_a_repeated_value_is_printed_and_read_once() -> None:
    shape = "f32[1000000, 1000000]"
    text = f"%x = Const() {{value={shape}(1.5)}} : {shape}\n"
    subgraph = parse_subgraph(text)
    assert is_splat(subgraph.nodes["x"].attrs["value"])
    assert print_subgraph(subgraph) == text


DATA = [d for d in dtypes.ALL if d not in (dtypes.resource, dtypes.variant, dtypes.string)]


@given(st.data(), st.sampled_from(DATA), hnp.array_shapes(min_dims=0, min_side=0, max_dims=2, max_side=3))
def test_every_bit_of_a_constant_comes_back(
    data: st.DataObject, dtype: DType, shape: tuple[int, ...]
) -> None:
    count = int(np.prod(shape)) * dtype.size
    content = np.frombuffer(data.draw(st.binary(min_size=count, max_size=count)), np.uint8)
    array = (content > 99).reshape(shape) if dtype.is_bool else content.view(dtype.np).reshape(shape)
    with Graph() as graph:
        constant(array, name="x")
    check_round_trip(whole(graph))


@pytest.mark.parametrize("bits", [0x7FC00001, 0xFFC00000, 0x7F800001])
def test_a_nan_keeps_its_sign_and_payload(bits: int) -> None:
    with Graph() as graph:
        constant(np.array([bits, 0], np.uint32).view(np.float32), name="x")
    assert "base64" in check_round_trip(whole(graph))


ATTRS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.sampled_from(dtypes.ALL),
    st.lists(st.text(), max_size=3).map(tuple),
    st.lists(st.integers(), max_size=3).map(tuple),
    st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
)


@given(st.text(min_size=1), st.dictionaries(st.text().map("_{}".format), ATTRS, max_size=4))
def test_any_name_and_attribute_comes_back(name: str, attrs: dict[str, Any]) -> None:
    first = Node(name, op_def("NoOp"), (), (), attrs, "", None, ())
    second = Node(name + "2", op_def("NoOp"), (), (name,), {}, "", None, ())
    check_round_trip(Subgraph({n.name: n for n in (first, second)}, targets=(name,)))


# --- errors

X = "%x = Placeholder() : f32[2]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%x Placeholder()", "line 1, column 4: expected '='; got 'Placeholder'"),
        ("%x =", "line 1, column 5: expected an op; got the end of the line"),
        (X + "%y = Neg(%z) : f32[2]", "line 2, column 10: expected an operation defined above; got '%z'"),
        (X + "%y = Neg(%x:1) : f32[2]", "line 2, column 10: expected one of its 1 outputs; got '%x:1'"),
        (X + "%y = Neg(%x, %x) : f32[2]", "line 2, column 12: expected ')'; got ','"),
        (X + "%y = AddN(%x) : f32[2]", "line 2, column 11: expected '['; got '%x'"),
        (X + "%y = Neg(%x) ^z : f32[2]", "line 2, column 14: expected an operation defined above"),
        (X + "%y = Neg(%x) : f32[2] x", "line 2, column 23: expected the end of the line; got 'x'"),
        (X + "%y = Neg(%x) : f33[2]", "line 2, column 16: expected a dtype (f32, f64, i32, "),
        (X + "%y = Neg(%x) : f32[2", "line 2, column 21: expected ','; got the end of the line"),
        (X + "%y = Neg(%x) : f32[-2]", "line 2, column 20: expected a dimension; got '-2'"),
        (X + "%y = Neg(%x) : i32[2]", "line 2, column 9: outputs: expected float32; got int32"),
        (X + "%y = Neg(%x)", "line 2, column 9: outputs: expected float32; got none"),
        (X + "%y = Neg(%x) {T=i32} : f32[2]", "line 2, column 9: input 'x': expected int32; got float32"),
        (X + X, "line 2, column 1: expected the name of a new operation; got '%x'"),
        (X + "%y = Neg(%x) {t=f32} : f32[2]", "line 2, column 15: expected a new attribute of Neg"),
        ("%x = NoOp() {_a=1, _a=2}", "line 1, column 20: expected a new attribute"),
        ("%x = NoOp() {_a=}", "line 1, column 17: expected a value; got '}'"),
        ("%x = NoOp() {_a=(1, a)}", "line 1, column 21: expected a value; got 'a'"),
        (
            X + '%y = Squeeze(%x) {squeeze_dims=(0, "a")} : f32[]',
            "line 2, column 32: expected a value of kind list(int); got one of kind list(int or string)",
        ),
        ("%x = NoOp() {_a=1+2j}", "line 1, column 17: expected a real number; got '1+2j'"),
        ("%x = NoOp() {_a=f32[2](1, true)}", "line 1, column 27: expected an element of float32; got 'true'"),
        ("%x = NoOp() {_a=u8[1](256)}", "line 1, column 19: expected a tensor of u8[1] ("),
        ("%x = NoOp() {_a=f32[1](1, 2)}", "line 1, column 20: expected a tensor of f32[1] (exp"),
        ('%x = NoOp() {_a=f32[1]base64"AA=="}', "line 1, column 20: expected a tensor of f32[1] (ten"),
        ('%x = NoOp() {_a=f32[1]base64"?"}', "line 1, column 20: expected a tensor of f32[1] ("),
        ("%x = NoOp() {_a=f32[?](1)}", "line 1, column 20: expected a tensor of f32[?] (exp"),
        (r'%x = NoOp() {_a="\q"}', "line 1, column 17: expected a string ("),
        ("%x = NoOp() & 1", "line 1, column 13: expected a token; got '& 1'"),
        (X + "%y = Pack([%x]) {axis=true} : f32[1, 2]", "column 23: expected a value of kind int; got"),
        ("%x = Const() {value=i32[](1)} : f32[]", "line 1, column 11: attribute 'value': expected float32"),
        ("fetches: %x", "line 1, column 10: expected an operation defined above"),
        (X + "fetches: x", "line 2, column 10: expected a node; got 'x'"),
        ("targets: %x\ntargets: %x", "line 2, column 1: expected an operation, or feeds, "),
        ("what: %x", "line 1, column 1: expected an operation, or feeds"),
        ("= 1", "line 1, column 1: expected the end of the line; got '='"),
    ],
)
def test_an_error_says_line_and_column(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        parse_subgraph(text)


def test_an_unknown_op_is_named_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match=r"line 1, column 6: .*'MatMull'.*MatMul"):
        parse_subgraph("%x = MatMull()")


def test_an_attribute_without_a_literal_is_refused() -> None:
    node = Node("x", op_def("NoOp"), (), (), {"_a": object()}, "", None, ())
    with pytest.raises(UnimplementedError, match=r"NoOp 'x': attribute '_a'"):
        print_subgraph(Subgraph({"x": node}))


GOOD = print_subgraph(layers()) + print_subgraph(literals())


@given(st.integers(0, len(GOOD)), st.integers(0, 5), st.text(max_size=5))
def test_damaged_text_is_read_or_refused_with_a_typed_error(
    start: int, length: int, replacement: str
) -> None:
    try:
        parse_subgraph(GOOD[:start] + replacement + GOOD[start + length :])
    except OpError as error:
        message = str(error)
    else:
        return
    assert re.match(r"line \d+, column \d+: ", message)
