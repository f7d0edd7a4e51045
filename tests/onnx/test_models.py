"""Models that people write: shapes that change, values that say how, errors, training that goes on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import flowrt as tf
from flowrt.errors import InvalidArgumentError, NotFoundError, OpError, UnimplementedError
from flowrt.onnx import import_model, load
from flowrt.onnx.model import MAX_GRAPHS
from tests.fuzz import damaged

RNG = np.random.default_rng(0)


def info(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes: Any, inputs: Any, outputs: Any, opset: int = 20, **weights: Any) -> Any:
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def classifier() -> Any:
    """A convolution, a pool, and a product whose size follows from the input's."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], name="first"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Shape", ["p"], ["shape"], end=1),
        helper.make_node("Concat", ["shape", "rest"], ["rows"], axis=0),
        helper.make_node("Reshape", ["p", "rows"], ["flat"]),
        helper.make_node("Gemm", ["flat", "v", "d"], ["y"], transB=1),
    ]
    return model_of(
        nodes, [info("x", ["n", 3, None, None])], [info("y", ["n", 5])],
        w=RNG.normal(size=(8, 3, 3, 3)).astype(np.float32), b=np.ones(8, np.float32),
        v=RNG.normal(size=(5, 8)).astype(np.float32), d=np.zeros(5, np.float32), rest=np.array([-1]),
    )  # fmt: skip


def assert_as_reference(model: Any, feeds: dict[str, Any]) -> None:
    expected = ReferenceEvaluator(model).run(None, feeds)
    for found, wanted in zip(load(model).run(feeds).values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_model_of_a_file_with_any_shapes(tmp_path: Path) -> None:
    model = classifier()
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    assert (loaded.inputs, loaded.outputs) == (["x"], ["y"])
    reference = ReferenceEvaluator(model)
    for n, size in ((1, 8), (3, 8), (1, 11), (1, 8)):
        x = RNG.normal(size=(n, 3, size, size)).astype(np.float32)
        np.testing.assert_allclose(loaded.run({"x": x})["y"], reference.run(None, {"x": x})[0], rtol=1e-4)
    for n in range(1, MAX_GRAPHS + 4):  # only so many graphs are kept
        assert loaded.run([np.ones((n, 3, 8, 8), np.float32)])["y"].shape == (n, 5)
    loaded.close()


def test_external_data_stays_in_its_folder(tmp_path: Path) -> None:
    model = classifier()
    folder = tmp_path / "in"
    folder.mkdir()
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    x = np.ones((1, 3, 8, 8), np.float32)
    expected = ReferenceEvaluator(classifier())
    assert load(folder / "m.onnx").run([x])["y"].shape == expected.run(None, {"x": x})[0].shape
    (folder / "m.data").rename(tmp_path / "m.data")
    with pytest.raises((InvalidArgumentError, NotFoundError), match=r"m\.data"):
        load(folder / "m.onnx")
    model = onnx.load(folder / "m.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "../m.data"
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InvalidArgumentError, match=r"\.\./m\.data"):
        load(folder / "m.onnx")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_external_data_above_two_gib(tmp_path: Path) -> None:
    """Of a file with holes; takes 5 GB of memory."""
    rows, width, count = 100_000, 1000, 6
    marked = np.arange(1, width + 1, dtype=np.float32)
    nodes, weights = [], []
    with open(tmp_path / "m.data", "wb") as file:
        file.truncate(4 * rows * width * count)
        for i in range(count):
            size = 4 * rows * width
            file.seek((i + 1) * size - marked.nbytes)
            file.write((marked * (i + 1)).tobytes())
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[rows, width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "m.data"), ("offset", i * size), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            weights.append(tensor)
            nodes.append(helper.make_node("Gather", [f"w{i}", "ids"], [f"y{i}"]))
    outputs = [info(f"y{i}", None) for i in range(count)]
    graph = helper.make_graph(nodes, "g", [info("ids", [2], TensorProto.INT64)], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = load(tmp_path / "m.onnx").run([np.array([0, rows - 1])])
    for i in range(count):
        np.testing.assert_array_equal(found[f"y{i}"], [marked * 0, marked * (i + 1)])


def test_a_name_that_is_no_text() -> None:
    content = classifier().SerializeToString().replace(b"\n\1x", b"\n\1\xff")
    with pytest.raises(InvalidArgumentError, match=r"expected names in UTF-8; got b'\\xff'"):
        load(content)


def test_a_missing_operation_of_which_the_output_is_no_text() -> None:
    model = model_of([helper.make_node("Wxyz", ["x"], ["q"])], [info("x", [2])], [info("q", [2])])
    content = model.SerializeToString().replace(b"\x12\1q", b"\x12\1\xff")
    message = r"1 operation is not supported:\n.*Wxyz \(opset \d+\): node b'\\xff'"
    with pytest.raises(UnimplementedError, match=message):
        load(content)


def test_values_that_say_how_are_part_of_the_signature() -> None:
    model = model_of(
        [helper.make_node("TopK", ["x", "k"], ["values", "places"])],
        [info("x", [2, 6]), info("k", [1], TensorProto.INT64)],
        [info("values", None), info("places", None, TensorProto.INT64)],
    )
    loaded = load(model)
    x = RNG.normal(size=(2, 6)).astype(np.float32)
    for k in (1, 4, 1):
        found = loaded.run({"x": x, "k": np.array([k])})
        np.testing.assert_array_equal(found["values"], -np.sort(-x)[:, :k])


def test_a_branch_that_has_another_type_is_chosen_by_its_condition() -> None:
    def branch(name: str, value: Any) -> Any:
        tensor = onnx.numpy_helper.from_array(value)
        node = helper.make_node("Constant", [], [name], value=tensor)
        return helper.make_graph([node], name, [], [info(name, None)])

    node = helper.make_node(
        "If", ["c"], ["s"], then_branch=branch("a", np.ones(2)), else_branch=branch("b", np.ones(3))
    )
    last = helper.make_node("Reshape", ["s", "all"], ["y"])
    model = model_of(
        [node, last], [info("c", [], TensorProto.BOOL)], [info("y", None)], all=np.array([1, -1])
    )
    assert [load(model).run([np.array(c)])["y"].shape for c in (True, False)] == [(1, 2), (1, 3)]


@pytest.mark.parametrize("steps", [5, 70])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_layers_unrolled_or_as_loops(steps: int, direction: str) -> None:
    count = 1 + (direction == "bidirectional")
    hidden, width = 3, 2

    def weights(*shape: int) -> Any:
        return RNG.normal(size=(count, *shape)).astype(np.float32) * 0.5

    x = RNG.normal(size=(steps, 2, width)).astype(np.float32)
    for op, gates in (("LSTM", 4), ("GRU", 3)):
        node = helper.make_node(op, ["x", "w", "r", "b"], ["y", "h"], hidden_size=hidden, direction=direction)
        model = model_of(
            [node], [info("x", [steps, 2, width])], [info("y", None), info("h", None)],
            w=weights(gates * hidden, width), r=weights(gates * hidden, hidden),
            b=weights(2 * gates * hidden),
        )  # fmt: skip
        loaded = load(model).run([x])
        assert loaded["y"].shape == (steps, count, 2, hidden)
        if direction == "forward":
            expected = ReferenceEvaluator(model).run(None, {"x": x})
            np.testing.assert_allclose(loaded["y"], expected[0], rtol=1e-4, atol=1e-5)
        else:  # the reference has one direction only
            given = {"hidden_size": hidden, "direction": "reverse"}
            reverse = [helper.make_node(op, ["x", "w", "r", "b"], ["y"], **given)]
            parts = {i.name: onnx.numpy_helper.to_array(i)[1:] for i in model.graph.initializer}
            alone = model_of(reverse, [info("x", [steps, 2, width])], [info("y", None)], **parts)
            np.testing.assert_allclose(loaded["y"][:, 1:], load(alone).run([x])["y"], rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "filters", "attributes"),
    [
        pytest.param([5], [4, 3, 2], {"strides": [2]}, id="blocks"),
        pytest.param([4, 6], [4, 3, 3, 4], {"strides": [2, 3], "pads": [1, 3, 2, 0]}, id="cut"),
        pytest.param([3, 4], [4, 2, 4, 3], {"strides": [3, 1], "group": 2, "dilations": [2, 2]}, id="groups"),
        pytest.param(
            [3, 3], [4, 3, 2, 1], {"strides": [4, 2], "output_padding": [3, 1]}, id="more than read"
        ),
        pytest.param([2, 3, 2], [4, 1, 3, 2, 3], {"strides": [2, 2, 1]}, id="volumes"),
        pytest.param([3, 4], [4, 1, 3, 3], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, id="same"),
    ],
)
def test_transposed_convolutions(sizes: Any, filters: Any, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    w, b = (rng.normal(size=s).astype(np.float32) for s in (filters, filters[1] * attributes.get("group", 1)))
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)
    model = model_of([node], [info("x", ["n", 4, *sizes])], [info("y", None)], w=w, b=b)
    x = rng.normal(size=(2, 4, *sizes)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    np.testing.assert_allclose(load(model).run({"x": x})["y"], session.run(None, {"x": x})[0], 1e-4, 1e-4)


def test_a_loop_that_ends_by_its_values() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["twice"]),
            helper.make_node("Less", ["twice", "limit"], ["go"]),
            helper.make_node("Identity", ["twice"], ["row"]),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("v", [1])],
        [info("go", [], TensorProto.BOOL), info("twice", [1]), info("row", [1])],
    )  # fmt: skip
    model = model_of(
        [helper.make_node("Loop", ["", "", "x"], ["last", "rows"], body=body)],
        [info("x", [1])], [info("last", [1]), info("rows", [None, 1])], limit=np.array([20.0], np.float32),
    )  # fmt: skip
    found = load(model).run([np.array([3.0], np.float32)])
    assert found["last"].tolist() == [24.0]
    assert found["rows"].tolist() == [[6.0], [12.0], [24.0]]


def test_training_goes_on_from_a_model() -> None:
    """Gradients of its input, and of a layer behind it."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [4, 3, 8, 8])
        features = import_model(classifier(), {"x": x})["y"]
        w = tf.Variable(tf.zeros([5, 1]))
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - 1.0))
        update = tf.train.AdamOptimizer(0.05).minimize(loss)
        session.run(tf.global_variables_initializer())
        feed = {x: RNG.normal(size=(4, 3, 8, 8)).astype(np.float32)}
        losses = [session.run([loss, update], feed)[0] for _ in range(20)]
        assert losses[-1] < 0.5 * losses[0]
        assert session.run(tf.gradients(loss, x)[0], feed).shape == (4, 3, 8, 8)


# --- what is wrong


def test_all_missing_operations_are_named_at_once() -> None:
    nodes = [
        helper.make_node("ImageDecoder", ["x"], ["a"], name="decode"),
        helper.make_node("Odd", ["a"], ["b"], domain="my.ops", name="odd"),
        helper.make_node("Odd", ["b"], ["y"], domain="my.ops"),
    ]
    message = (
        r"2 operations are not supported:\n  ONNX's ImageDecoder \(opset 20\): node 'decode'\n"
        r"  my\.ops's Odd \(opset 0\): 2 nodes, the first is 'odd'"
    )
    with pytest.raises(UnimplementedError, match=message):
        load(model_of(nodes, [info("x", [3], TensorProto.UINT8)], [info("y", None)]))


def test_wrong_inputs() -> None:
    loaded, x = load(classifier()), np.ones((1, 3, 8, 8), np.float32)
    for inputs, message in (
        ({"y": x}, r"expected inputs of \['x'\]; got 'y'"),
        ({"x": x.astype(np.float64)}, "input 'x': expected float32; got float64"),
        ({"x": x[0]}, r"input 'x': expected shape \[None, 3, None, None\]; got \[3, 8, 8\]"),
        ({}, r"expected inputs for \['x'\]; got \[\]"),
        ([x, x], "expected 1 inputs; got 2"),
        (x, r"expected a list of inputs, or a dict by name; got an array \[1, 3, 8, 8\]"),
        ({"x": [["a"]]}, "input 'x': expected float32; got <U1"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            loaded.run(inputs)


def test_numbers_of_python_have_the_inputs_dtype() -> None:
    loaded = load(model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", [2])], [info("y", [2])]))
    assert loaded.run({"x": [-1, 2.5]})["y"].tolist() == loaded.run([[-1.0, 2.5]])["y"].tolist() == [0, 2.5]


def test_models_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no\.onnx: No such file"):
        load(tmp_path / "no.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    for source in (tmp_path / "text.onnx", b"", b"\xff" * 40):
        with pytest.raises(InvalidArgumentError, match="expected an ONNX model"):
            load(source)
    cyclic = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    with pytest.raises(InvalidArgumentError, match="expected a value 'b' before it is used"):
        load(model_of(cyclic, [info("x", [2])], [info("b", [2])])).run([np.ones(2, np.float32)])
    wrong = [helper.make_node("MatMul", ["x", "x"], ["y"], name="product")]
    with pytest.raises(InvalidArgumentError, match=r"MatMul \(opset 20\) 'product': .*expected"):
        load(model_of(wrong, [info("x", [2, 3])], [info("y", None)])).run([np.ones((2, 3), np.float32)])


def test_damaged_models_are_loaded_or_refused() -> None:
    samples = [classifier().SerializeToString()]
    source, outcomes = random.Random(0), set()
    for _ in range(300):
        try:
            load(damaged(samples[0], samples[0], source)).run([np.ones((1, 3, 8, 8), np.float32)])
        except OpError as error:
            outcomes.add(type(error).__name__)
        else:
            outcomes.add("taken")
    assert "taken" in outcomes
    assert "InvalidArgumentError" in outcomes


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")], [1, 1, 4, 4]),
        ([helper.make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[2, 2])], [1, 1, 1 << 20, 1 << 20]),
    ],
)
def test_wild_sizes_take_no_memory(nodes: list[Any], shape: list[int]) -> None:
    """Indices and weights are made while a graph is built: they would take more than 16 GiB."""
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 1e9, 1], np.float32), "scales")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in nodes[0].output[:1]]
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], outputs, [scales]))
    with pytest.raises(OpError, match=r"at most 268,435,456 elements; got \["):
        load(proto).as_graph_model()


def test_a_size_of_minus_one_is_not_known() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", [-1, 2])], [info("y", [-1, 2])])
    assert load(model).run([-np.ones([3, 2], np.float32)])["y"].shape == (3, 2)
    assert load(model).as_graph_model().inputs["x"].shape.as_list() == [None, 2]


def branches_for_two_shapes(outer: bool) -> Any:
    """A product by one of two matrices, of which one fits, as ``rate`` says; in an If around it, perhaps."""

    def branch(weights: str) -> Any:
        return helper.make_graph(
            [helper.make_node("MatMul", ["x", weights], ["z"])], "b", [], [info("z", None)]
        )

    fits = helper.make_node("If", ["is_fast"], ["y"], then_branch=branch("w"), else_branch=branch("v"))
    node = fits
    if outer:
        inner = helper.make_graph([fits], "i", [], [info("y", None)])
        node = helper.make_node("If", ["is_big"], ["y"], then_branch=inner, else_branch=branch("w"))
    nodes = [
        helper.make_node("Equal", ["rate", "fast"], ["is_fast"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["is_big"]),
        node,
    ]
    inputs = [info("x", [None, None]), info("rate", [], TensorProto.INT64)]
    return model_of(
        nodes, inputs, [info("y", None)], w=np.ones([4, 3], np.float32), v=np.ones([2, 3], np.float32),
        fast=np.array(16), zero=np.array(0, np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("outer", [False, True])
def test_a_branch_for_other_shapes_that_is_not_taken(outer: bool) -> None:
    model = load(branches_for_two_shapes(outer))
    x = np.ones([1, 4], np.float32)
    for _ in range(2):
        assert model.run([x, np.array(16)])["y"].tolist() == [[4.0] * 3]
    if not outer:
        assert model.run([x[:, :2], np.array(8)])["y"].tolist() == [[2.0] * 3]
    with pytest.raises(OpError, match=r"MatMul.*expected a \[m, k\] and b \[k, n\]"):
        model.run([x, np.array(8)])


def test_a_number_that_decides_a_branch_is_part_of_the_signature() -> None:
    """As long as it has few values; a branch is decided when the model runs after that."""
    body = [
        helper.make_graph([helper.make_node(op, ["x", "x"], ["z"])], op, [], [info("z", [2])])
        for op in ("Mul", "Add")
    ]
    nodes = [
        helper.make_node("Greater", ["n", "three"], ["is_large"]),
        helper.make_node("If", ["is_large"], ["y"], then_branch=body[0], else_branch=body[1]),
    ]
    inputs = [info("x", [2]), info("n", [], TensorProto.INT64)]
    model = load(model_of(nodes, inputs, [info("y", [2])], three=np.array(3)))
    x = np.array([3, 4], np.float32)

    def branches() -> int:
        (built,) = list(model._graphs.values())[-1:]
        return sum("cond" in each.name for each in built.session.graph.get_operations())

    for n in range(MAX_GRAPHS + 3):
        expected = x * x if n > 3 else x + x
        assert model.run([x, np.array(n)])["y"].tolist() == expected.tolist()
        assert (branches() > 0) == (n > MAX_GRAPHS)
    assert len(model._graphs) == MAX_GRAPHS
