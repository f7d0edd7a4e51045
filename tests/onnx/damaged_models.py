"""Small ONNX models of many kinds, ways to damage them, and a reader: for `tests.fuzz`."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flowrt.onnx import load
from flowrt.onnx.proto import dtype_of

MAX_ELEMENTS = 1 << 12
"""Elements of an input that is made up."""


def _model(nodes: Any, inputs: Any, outputs: Any, opset: int = 21, **weights: Any) -> bytes:
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(model.SerializeToString())


def _info(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


@functools.cache
def samples() -> list[bytes]:
    node = helper.make_node
    ones = np.ones((2, 3), np.float32)
    conv = _model(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Resize", ["p", "", "s"], ["r"], mode="linear"),
            node("Flatten", ["r"], ["y"]),
        ],
        [_info("x", [1, 1, 4, 4])], [_info("y", None)],
        w=np.ones((2, 1, 3, 3), np.float32), s=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip
    shapes = _model(
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "a", "b"], ["t"]),
            node("Concat", ["t", "m"], ["u"], axis=0),
            node("Reshape", ["x", "u"], ["r"]),
            node("Expand", ["r", "e"], ["f"]),
            node("Pad", ["f", "p"], ["g"]),
            node("Tile", ["g", "k"], ["y"]),
        ],
        [_info("x", [2, 3])], [_info("y", None)],
        a=np.array([0]), b=np.array([1]), m=np.array([-1]), e=np.array([1, 2, 3]),
        p=np.array([0, 0, 1, 0, 0, 1]), k=np.array([1, 2, 1]),
    )  # fmt: skip
    body = helper.make_graph(
        [node("Add", ["v", "v"], ["w"]), node("Less", ["w", "limit"], ["go"])],
        "body",
        [_info("i", [], TensorProto.INT64), _info("c", [], TensorProto.BOOL), _info("v", [1])],
        [_info("go", [], TensorProto.BOOL), _info("w", [1])],
    )
    branch = helper.make_graph([node("Neg", ["x"], ["n"])], "then", [], [_info("n", [1])])
    other = helper.make_graph([node("Abs", ["x"], ["o"])], "else", [], [_info("o", [1])])
    control = _model(
        [
            node("Loop", ["n", "", "x"], ["l"], body=body),
            node("Greater", ["x", "limit"], ["q"]),
            node("If", ["q"], ["z"], then_branch=branch, else_branch=other),
            node("Add", ["l", "z"], ["y"]),
        ],
        [_info("x", [1])], [_info("y", None)], n=np.array(3), limit=np.array([9], np.float32),
    )  # fmt: skip
    quantized = _model(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("Cast", ["d"], ["f"], to=TensorProto.FLOAT8E4M3FN),
            node("Cast", ["f"], ["y"], to=TensorProto.FLOAT),
        ],
        [_info("x", [2, 3])], [_info("y", None)], s=np.array(0.5, np.float32), z=np.array(3, np.uint8),
    )  # fmt: skip
    words = _model(
        [
            node("StringSplit", ["x"], ["p", "n"], delimiter=" "),
            node("RegexFullMatch", ["x"], ["m"], pattern="a+b*"),
            node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
        ],
        [_info("x", [2], TensorProto.STRING)], [_info("y", None), _info("m", None, TensorProto.BOOL)],
    )  # fmt: skip
    mixed = _model(
        [
            node("LSTM", ["x", "w", "r"], ["h"], hidden_size=2),
            node("TopK", ["h", "k"], ["v", "i"]),
            node("Gather", ["v", "j"], ["g"], axis=0),
            node("Einsum", ["g", "g"], ["e"], equation="abcd,abcd->ab"),
            node("Softmax", ["e"], ["y"]),
        ],
        [_info("x", [3, 1, 2])], [_info("y", None)], w=np.ones((1, 8, 2), np.float32),
        r=np.ones((1, 8, 2), np.float32), k=np.array([2]), j=np.array([0, 1]),
    )  # fmt: skip
    boxes = _model(
        [
            node("NonMaxSuppression", ["b", "s", "n", "t"], ["k"]),
            node("SequenceConstruct", ["b", "b"], ["q"]),
            node("ConcatFromSequence", ["q"], ["y"], axis=0),
        ],
        [_info("b", [1, 4, 4]), _info("s", [1, 1, 4])],
        [_info("y", None), _info("k", None, TensorProto.INT64)],
        n=np.array([2]), t=np.array([0.5], np.float32),
    )  # fmt: skip
    simple = _model([node("MatMul", ["x", "w"], ["h"]), node("Gelu", ["h"], ["y"])],
                    [_info("x", [1, 2])], [_info("y", None)], w=ones)  # fmt: skip
    return [conv, shapes, control, quantized, words, mixed, boxes, simple]


def changed(data: bytes, other: bytes, source: random.Random) -> bytes:
    """A model that still parses, with one to three of its fields changed."""
    model, donor = onnx.ModelProto.FromString(data), onnx.ModelProto.FromString(other)
    for _ in range(source.randint(1, 3)):
        nodes = list(model.graph.node) + [n for m in model.graph.node for a in m.attribute for n in a.g.node]
        node = source.choice(nodes)
        match source.randrange(9):
            case 0:
                node.op_type = source.choice(donor.graph.node).op_type
            case 1 if node.input:
                names = [name for n in nodes for name in (*n.input, *n.output)]
                node.input[source.randrange(len(node.input))] = source.choice([*names, "", "odd"])
            case 2 if node.attribute:
                _change_attribute(source.choice(node.attribute), source)
            case 3 if node.attribute:
                del node.attribute[source.randrange(len(node.attribute))]
            case 4 if model.graph.initializer:
                _change_tensor(source.choice(model.graph.initializer), source)
            case 5 if model.graph.initializer:
                del model.graph.initializer[source.randrange(len(model.graph.initializer))]
            case 6:
                kind = source.choice(model.graph.input).type.tensor_type
                kind.elem_type = source.choice([1, 2, 6, 7, 8, 9, 10, 16, 17, 22, 99])
            case 7:
                dims = source.choice(model.graph.input).type.tensor_type.shape.dim
                if dims:
                    source.choice(dims).dim_value = source.choice(NUMBERS)
            case _:
                model.opset_import[0].version = source.choice([-1, 0, 1, 7, 9, 11, 13, 18, 99, 1 << 40])
    return bytes(model.SerializeToString())


NUMBERS = [-(1 << 62), -1, 0, 1, 2, 3, 7, 1 << 20, 1 << 31, (1 << 62) + 1]


def _change_attribute(attribute: Any, source: random.Random) -> None:
    attribute.i, attribute.f = source.choice(NUMBERS), source.choice([0.0, -1.0, 1e30, float("nan")])
    if attribute.ints:
        attribute.ints[source.randrange(len(attribute.ints))] = source.choice(NUMBERS)
    if attribute.s:
        attribute.s = source.choice([b"", b"\xff", b"SAME_UPPER", b"(", b"ab,ab->", b"linear"])
    if source.random() < 0.2:
        attribute.type = source.randrange(15)


def _change_tensor(tensor: Any, source: random.Random) -> None:
    match source.randrange(4):
        case 0:
            tensor.raw_data = tensor.raw_data[: source.randrange(len(tensor.raw_data) + 1)]
        case 1:
            tensor.data_type = source.choice([0, 1, 2, 6, 7, 8, 9, 11, 22, 99])
        case 2 if tensor.dims:
            tensor.dims[source.randrange(len(tensor.dims))] = source.choice(NUMBERS)
        case _:
            tensor.raw_data = source.randbytes(len(tensor.raw_data))


def read(data: bytes) -> None:
    """Load the model and run it once, if its inputs are small."""
    model = load(data)
    feeds = {}
    for each in model.proto.graph.input:
        kind = each.type.tensor_type
        sizes = [d.dim_value if d.HasField("dim_value") else 1 for d in kind.shape.dim]
        if each.name not in model.inputs:
            continue
        if not each.type.HasField("tensor_type") or any(not 0 <= s <= 64 for s in sizes) or len(sizes) > 8:
            return
        if np.prod(sizes, dtype=np.int64) > MAX_ELEMENTS:
            return
        dtype = dtype_of(kind.elem_type)
        feeds[each.name] = np.full(sizes, b"ab a", object) if dtype.kind == "O" else np.ones(sizes, dtype)
    try:
        model.run(feeds)
    finally:
        model.close()
