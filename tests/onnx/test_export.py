"""Graphs written as ONNX: run by onnxruntime, and read back, they give what flowrt gives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import flowrt as tf
from flowrt.cli.selftest.ops import build_call
from flowrt.errors import InvalidArgumentError, OpError, ResourceExhaustedError, UnimplementedError
from flowrt.graph.op_def import Effect, Sample, registered_ops
from flowrt.onnx import export, exporter, load
from flowrt.onnx.emit.absent import ABSENT
from flowrt.onnx.emit.call import EMITTERS
from flowrt.onnx.writer import CannotExportError
from tests.example_runs import ROOT

RNG = np.random.default_rng(0)


def run_elsewhere(model: Any, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    found: list[Any] = session.run(None, feeds)
    return found


def assert_goes_out_and_back(session: Any, inputs: list[Any], outputs: list[Any], values: list[Any]) -> Any:
    """The model, after a comparison of its results in onnxruntime and in flowrt."""
    model = export(session, inputs, outputs)
    expected = session.run(outputs, dict(zip(inputs, values, strict=True)))
    feeds = {tensor.op.name: value for tensor, value in zip(inputs, values, strict=True)}
    for found in (run_elsewhere(model, feeds), list(load(model).run(feeds).values())):
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return model


# --- models


def test_lenet_with_any_number_of_images() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 28, 28, 1], name="images")
        h = tf.layers.max_pooling2d(tf.layers.conv2d(x, 6, 5, padding="same", activation=tf.tanh), 2, 2)
        h = tf.layers.max_pooling2d(tf.layers.conv2d(h, 16, 5, activation=tf.nn.relu), 2, 2)
        h = tf.layers.dense(tf.layers.flatten(h), 120, activation=tf.nn.relu)
        scores = tf.nn.softmax(tf.layers.dense(tf.layers.dense(h, 84, activation=tf.nn.relu), 10), name="y")
        session.run(tf.global_variables_initializer())
        model = assert_goes_out_and_back(session, [x], [scores], [RNG.random((3, 28, 28, 1), np.float32)])
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    names = {each.name for each in model.graph.initializer}
    assert {"dense/kernel", "dense/bias"} <= names


def test_the_digits_network_without_its_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    from digits_cnn import Network

    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        network = Network()
        session.run(tf.global_variables_initializer())
        logits = session.graph.get_tensor_by_name("logits/BiasAdd:0")
        images = RNG.random((5, 8, 8, 1), np.float32)
        model = assert_goes_out_and_back(session, [network.images], [logits], [images])
    assert not {"If", "RandomUniform"} & {node.op_type for node in model.graph.node}


def test_a_gpt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import gpt_sharded as gpt

    with tf.Graph().as_default(), tf.Session() as session:
        inputs, targets, loss, _ = gpt.model(20)
        session.run(tf.global_variables_initializer())
        rows = RNG.integers(0, 20, (2, gpt.BATCH, gpt.LENGTH)).astype(np.int32)
        assert_goes_out_and_back(session, [inputs, targets], [loss], list(rows))


@pytest.mark.parametrize("steps", [7, None])
def test_an_lstm_as_a_loop_with_lengths(steps: int | None) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2, steps, 3], name="x")
        lengths = tf.placeholder(tf.int32, [2], name="lengths")
        cell = tf.nn.rnn_cell.LSTMCell(5)
        outputs, state = tf.nn.dynamic_rnn(cell, x, sequence_length=lengths, dtype=tf.float32)
        session.run(tf.global_variables_initializer())
        values = [RNG.normal(size=(2, 7, 3)).astype(np.float32), np.array([7, 4], np.int32)]
        model = assert_goes_out_and_back(session, [x, lengths], [outputs, state.h], values)
    assert "Loop" in {node.op_type for node in model.graph.node}


def test_branches_and_loops() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [3], name="x")
        n = tf.placeholder(tf.int32, [], name="n")
        w = tf.Variable([1.5, -2.0, 0.5], name="w")
        chosen = tf.cond(n > 2, lambda: x * w, lambda: tf.cond(n > 1, lambda: x - w, lambda: x + 1.0))
        case = tf.switch_case(n, [lambda: x, lambda: 2.0 * x, lambda: 3.0 * x])
        _, total, rows = tf.while_loop(
            lambda i, *_: i < n,
            lambda i, total, rows: (i + 1, total + w * x, rows.write(i, total)),
            [tf.constant(0), x, tf.TensorArray(tf.float32, n, element_shape=[3])],
        )
        session.run(tf.global_variables_initializer())
        outputs = [chosen, case, total, rows.stack()]
        for number in (1, 2, 5):
            values = [np.array([1, 2, 3], np.float32), np.array(number, np.int32)]
            assert_goes_out_and_back(session, [x, n], outputs, values)


def test_gradients_of_a_network() -> None:
    """The derivatives have emitters, too."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2, 9, 9, 3], name="x")
        h = tf.layers.conv2d(x, 4, 3, strides=2, padding="same", activation=tf.nn.elu)
        h = tf.layers.batch_normalization(tf.layers.max_pooling2d(h, 2, 2, padding="same"), training=True)
        loss = tf.reduce_mean(tf.square(tf.layers.dense(tf.layers.flatten(h), 3)))
        found = tf.gradients(loss, [x, *tf.trainable_variables()])
        session.run(tf.global_variables_initializer())
        assert_goes_out_and_back(session, [x], [loss, *found], [RNG.random((2, 9, 9, 3), np.float32)])


def test_a_file_with_names_of_ones_own(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 2])
        export(graph, {"rows": x}, {"twice": x + x, "same": tf.identity(x)}, tmp_path / "m.onnx", opset=21)
    model = onnx.load(tmp_path / "m.onnx")
    assert [each.name for each in model.graph.input] == ["rows"]
    assert model.opset_import[0].version == 21
    found = run_elsewhere(model, {"rows": np.ones((3, 2), np.float32)})
    assert [each.tolist() for each in found] == [[[2, 2]] * 3, [[1, 1]] * 3]


# --- what cannot be said


def test_all_that_onnx_cannot_say_is_named_with_its_line() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [3, 3], name="x")
        noise = tf.random_normal([3, 3], name="noise")
        inverse = tf.linalg.inv(x, name="inverse")
        y = tf.py_func(np.sin, [x + noise + inverse], tf.float32)
        with pytest.raises(UnimplementedError) as caught:
            export(session, [x], [y])
    rows = str(caught.value).splitlines()
    assert "3 operations cannot be exported" in rows[0]
    assert [any(f"{op} '" in row and f"{Path(__file__).name}:" in row for row in rows) for op in
            ("RandomStandardNormal", "MatrixInverse", "PyFunc")] == [True] * 3  # fmt: skip
    assert any("feed the numbers as an input" in row for row in rows)


def test_weights_that_do_not_fit_are_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "MAX_BYTES", 1 << 12)
    path = tmp_path / "model.onnx"
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 24], name="x")
        h = tf.nn.relu(tf.layers.dense(x, 40))
        y = tf.reshape(tf.layers.dense(h, 30), [-1, 5, 6], name="y")
        session.run(tf.global_variables_initializer())
        with pytest.raises(ResourceExhaustedError, match="or a path, for a file of weights beside it"):
            export(session, [x], [y])
        export(session, [x], [y], path)
        value = RNG.random((3, 24), np.float32)
        expected = session.run(y, {x: value})
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    outside = [
        each for each in onnx.load(path, load_external_data=False).graph.initializer if each.external_data
    ]
    assert [(list(each.dims), each.external_data[1].value) for each in outside] == [
        ([24, 40], "0"),
        ([40, 30], "4096"),
    ]
    onnx.checker.check_model(path, full_check=True)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": value})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(load(path).run([value])["y"], expected, rtol=1e-5, atol=1e-5)


def test_wrong_calls() -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        x = tf.placeholder(tf.float32, [2], name="x")
        y = x + tf.placeholder(tf.float32, [2], name="z")
        v = tf.Variable(1.0)
        for call, message in (
            (lambda: export(graph, [x], [x + v]), "expected a session"),
            (lambda: export(session, [x], [y]), "expected a value in feed_dict for this placeholder"),
            (lambda: export(session, {"a": x}, {"a": x + 1.0}), "other names for outputs"),
            (lambda: export(session, [x], [x + 1.0], opset=11), "opset: expected 20 or later; got 11"),
            (lambda: export(session, [x], x + 1.0), "expected a list of tensors, or a dict of them by name"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                call()


def test_every_operation_is_exported_or_listed_with_a_reason() -> None:
    listed = {name for names in ABSENT.values() for name in names}
    assert not listed & set(EMITTERS)
    pure = {name for name, op in registered_ops().items() if op.is_pure and name not in WITHOUT_SAMPLES}
    assert pure - set(EMITTERS) == listed & pure
    assert listed <= set(registered_ops())


WITHOUT_SAMPLES = {"Const", "NoOp", "_Fused", "_FusedRows", "_FusedConv", "_MatMulAdd"}
"""What the exporter writes itself, and what only passes make."""

# --- every sample of every operation

MOST_ABSENT = 20
"""Samples that an emitter refuses: formats of strings, padded boxes, coordinates of a scalar."""
EMPTY = {"Mean-5", "Pad-4"}
"""onnxruntime: the mean of nothing is 0 and not NaN; nothing is not padded."""
NO_KERNEL = (
    "NOT_IMPLEMENTED",
    "MLFloat16 data type is not supported",
    "bfloat16",
    "can't be converted to MLDataType",
)


def narrow(value: Any) -> Any:
    """float64 as float32, for which runtimes have all kernels."""
    if isinstance(value, tuple):
        return tuple(map(narrow, value))
    array = np.asarray(value)
    if array.dtype == np.float64:
        return array.astype(np.float32)
    return strings(array) if array.dtype.kind in "OS" else array


def strings(array: Any) -> Any:
    return np.array([*map(bytes, array.reshape(-1).tolist()), None], object)[:-1].reshape(array.shape)


def decoded(array: Any) -> Any:
    """Strings as str, as onnxruntime takes them."""
    if array.dtype.kind != "O":
        return array
    return np.array([*(e.decode() for e in array.reshape(-1)), None], object)[:-1].reshape(array.shape)


def is_close(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "OS":
        texts = [e.encode() if isinstance(e, str) else e for e in b.reshape(-1).tolist()]
        return a.shape == b.shape and a.reshape(-1).tolist() == texts
    limit = {"float16": 4e-3, "bfloat16": 3e-2}.get(a.dtype.name, 2e-5)
    wide = a.astype(np.float64), b.astype(np.float64)
    return a.shape == b.shape and bool(np.allclose(*wide, rtol=limit, atol=limit, equal_nan=True))


def outcomes_of(name: str, position: int, sample: Sample) -> list[str]:
    """What became of one sample: the export, the way back, onnxruntime."""
    attrs = {key: tf.float32 if value is tf.float64 else value for key, value in sample.attrs.items()}
    newest = {} if name != "CastNarrow" else {"opset": 25}
    call = build_call(registered_ops()[name], Sample(narrow(tuple(sample.inputs)), attrs), "")
    outputs = list(call.operation.outputs)
    if {each.dtype.name for each in (*call.feeds, *outputs)} & {"complex64", "complex128"}:
        return []
    with tf.Session() as session:
        expected = session.run(outputs, call.feeds)
        inputs = {f"in{i}": each for i, each in enumerate(call.feeds)}
        try:
            ends = {f"out{i}": each for i, each in enumerate(outputs)}
            model = export(session, inputs, ends, **newest)
        except OpError as error:
            return [f"refused: {error}"]
    feeds = dict(zip(inputs, map(narrow, call.feeds.values()), strict=True))
    back = load(model).run(feeds).values()
    found = ["back" if all(map(is_close, expected, back)) else "not back"]
    if f"{name}-{position}" in EMPTY or newest:  # dtypes that onnxruntime has not for Python
        return found
    try:
        elsewhere = run_elsewhere(model, {key: decoded(value) for key, value in feeds.items()})
    except Exception as error:
        if not any(part in str(error) for part in NO_KERNEL):
            raise
        return [*found, "no kernel"]
    return [*found, "elsewhere" if all(map(is_close, expected, elsewhere)) else "not elsewhere"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_samples_go_out_and_come_back(part: int) -> None:
    counts, wrong = Counter[str](), []
    for name in sorted(set(EMITTERS) & set(registered_ops()))[part::4]:
        if registered_ops()[name].effect is not Effect.PURE:
            continue
        for position, sample in enumerate(registered_ops()[name].samples(np.random.default_rng(0))):
            with tf.Graph().as_default():
                outcomes = outcomes_of(name, position, sample)
            counts.update(each.partition(":")[0] for each in outcomes)
            wrong += [f"{name}-{position}: {each}" for each in outcomes if each.startswith("not ")]
    assert wrong == []
    assert counts["refused"] <= MOST_ABSENT
    assert counts["back"] >= 0.95 * (counts["back"] + counts["refused"])
    assert counts["elsewhere"] >= 0.8 * counts["back"]


def test_an_emitter_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of samples has teeth."""
    monkeypatch.setitem(EMITTERS, "Square", lambda c, x: c.add("Abs", x))
    (first, *_) = registered_ops()["Square"].samples(np.random.default_rng(0))
    with tf.Graph().as_default():
        assert outcomes_of("Square", 0, first) == ["not back", "not elsewhere"]

    def refusing(c: Any, x: str) -> str:
        raise CannotExportError("no")

    monkeypatch.setitem(EMITTERS, "Square", refusing)
    with tf.Graph().as_default():
        assert outcomes_of("Square", 0, first)[0].startswith("refused")
