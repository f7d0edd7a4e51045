"""Products compute in the narrow dtype, with casts around them; classes of ops follow from their facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import dtypes
from flowrt.device.spec import parse_device
from flowrt.errors import UnimplementedError
from flowrt.graph.node import Subgraph
from flowrt.graph.op_def import OpDef, registered_ops
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, stages_before
from flowrt.graph.passes.precision.mixed_precision import mixed_precision
from flowrt.graph.passes.precision.precision_class import PrecisionClass, precision_class, type_of_elements
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.passes.prepare.verify import verify_subgraph
from flowrt.graph.precision import Precision
from tests.graph.evaluation import values_of
from tests.graph.passes.cases import lines, snapshot
from tests.graph.test_all_ops import build, feeds_of, flat_inputs

OPTIONS = CompileOptions([parse_device("/job:localhost/replica:0/task:0/device:CPU:0")])


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as made:
        yield made


BF16 = Precision("bfloat16")


def variable(name: str, shape: Sequence[int], precision: Precision | None = BF16) -> Any:
    """One that is computed in ``precision``, as under a strategy with this policy."""
    found = tf.get_variable(name, shape, initializer=tf.ones_initializer())
    attrs = {} if precision is None else precision.attributes(found.dtype)
    found.op.mutate(attrs={**found.op.node.attrs, **attrs})
    return found


def before(fetches: Sequence[Any], targets: Sequence[Any] = ()) -> Subgraph:
    """The step as the pass gets it; placeholders have their declared shapes."""
    graph = tf.get_default_graph()
    feeds = {
        op.outputs[0]: op.outputs[0].spec.shape for op in graph.get_operations() if op.type == "Placeholder"
    }
    request = StepRequest(graph, list(fetches), list(targets), feeds)
    return compile_step(request, OPTIONS, pipeline=stages_before("mixed_precision"))


def rewritten(fetches: Sequence[Any], targets: Sequence[Any] = ()) -> Subgraph:
    step = before(fetches, targets)
    seen = snapshot(step)
    after = mixed_precision(step)
    assert snapshot(step) == seen
    verify_subgraph(after)
    assert mixed_precision(after) is after
    assert [after.spec(ref) for ref in after.fetches] == [step.spec(ref) for ref in step.fetches]
    return after


def dtypes_of(subgraph: Subgraph) -> dict[str, str]:
    """The dtype of each node's first output, without casts, constants and handles."""
    return {
        node.name: node.outputs[0].dtype.name
        for node in subgraph
        if node.outputs and node.op.name not in ("Cast", "Const", "VarHandleOp")
    }


# --- the whole, once


def test_a_step() -> None:
    x = tf.placeholder(tf.float32, [4, 3], name="x")
    w, b, v = variable("w", [3, 8]), variable("b", [8]), variable("v", [8, 2])
    h = tf.nn.relu(tf.matmul(x, w, name="h") + b, name="y")
    loss = tf.nn.l2_loss(tf.matmul(h, v, name="z"), name="loss")
    train = tf.train.GradientDescentOptimizer(0.5).minimize(loss, name="train")
    found = [line.partition(" ^")[0] for line in lines(rewritten([loss], [train]))]
    assert [line for line in found if "Handle" not in line and "Const" not in line] == [
        "x = _Feed()",
        "w/ReadVariableOp = ReadVariableOp(w)",
        "x/bfloat16 = Cast(x)",
        "w/ReadVariableOp/bfloat16 = Cast(w/ReadVariableOp)",
        "h = MatMul(x/bfloat16, w/ReadVariableOp/bfloat16)",
        "b/ReadVariableOp = ReadVariableOp(b)",
        "b/ReadVariableOp/bfloat16 = Cast(b/ReadVariableOp)",
        "add = AddV2(h, b/ReadVariableOp/bfloat16)",
        "y = Relu(add)",
        "v/ReadVariableOp = ReadVariableOp(v)",
        "v/ReadVariableOp/bfloat16 = Cast(v/ReadVariableOp)",
        "z = MatMul(y, v/ReadVariableOp/bfloat16)",
        "z/float32 = Cast(z)",
        "loss = L2Loss(z/float32)",
        "gradients/z_grad/MatMul = MatMul(z, v/ReadVariableOp/bfloat16)",
        "gradients/z_grad/MatMul_1 = MatMul(y, z)",
        "gradients/y_grad/ReluGrad = ReluGrad(gradients/z_grad/MatMul, y)",
        "gradients/y_grad/ReluGrad/float32 = Cast(gradients/y_grad/ReluGrad)",
        "gradients/add_grad/Sum = "
        "Sum(gradients/y_grad/ReluGrad/float32, gradients/add_grad/Sum/reduction_indices)",
        "gradients/h_grad/MatMul_1 = MatMul(x/bfloat16, gradients/y_grad/ReluGrad)",
        "gradients/h_grad/MatMul_1/float32 = Cast(gradients/h_grad/MatMul_1)",
        "train/update_w/ResourceApplyGradientDescent = "
        "ResourceApplyGradientDescent(w, train/learning_rate, gradients/h_grad/MatMul_1/float32)",
        "train/update_b/ResourceApplyGradientDescent = "
        "ResourceApplyGradientDescent(b, train/learning_rate, gradients/add_grad/Sum)",
        "gradients/z_grad/MatMul_1/float32 = Cast(gradients/z_grad/MatMul_1)",
        "train/update_v/ResourceApplyGradientDescent = "
        "ResourceApplyGradientDescent(v, train/learning_rate, gradients/z_grad/MatMul_1/float32)",
        "train = NoOp()",
    ]


@pytest.mark.parametrize("precision", [None, Precision("float32")])
def test_a_step_without_a_precision_is_the_same_object(precision: Precision | None) -> None:
    w = variable("w", [3, 3], precision)
    step = before([tf.matmul(w, w)])
    assert mixed_precision(step) is step


def test_a_step_without_a_product_is_the_same_object() -> None:
    w = variable("w", [3, 3])
    step = before([tf.nn.relu(w) + 1.0], [w.initializer])
    assert mixed_precision(step) is step


# --- what is narrow


def test_a_product_that_depends_on_no_variable_keeps_its_dtype() -> None:
    x = tf.placeholder(tf.float32, [3, 3], name="x")
    whitened = tf.matmul(x, x, name="whitened")
    after = rewritten([whitened, tf.matmul(whitened, variable("w", [3, 3]), name="product")])
    assert dtypes_of(after)["whitened"] == "float32"
    assert dtypes_of(after)["product"] == "bfloat16"


def test_all_readers_share_one_cast() -> None:
    w = variable("w", [3, 3]).read_value()
    x = tf.placeholder(tf.float32, [3, 3], name="x")
    products = [tf.matmul(x, w), tf.matmul(w, x), tf.matmul(tf.nn.relu(tf.matmul(x, w)), w)]
    casts = [line for line in lines(rewritten(products)) if "Cast" in line and "float32" not in line]
    assert casts == ["x/bfloat16 = Cast(x)", "w/ReadVariableOp/bfloat16 = Cast(w/ReadVariableOp)"]


def test_a_view_of_a_variable_is_cast_right_behind_it() -> None:
    x = tf.placeholder(tf.float32, [2, 6], name="x")
    w = tf.reshape(tf.transpose(variable("w", [3, 6])), [6, 3], name="view")
    found = lines(rewritten([tf.matmul(x, w)]))
    assert "w/ReadVariableOp/bfloat16 = Cast(w/ReadVariableOp)" in found
    assert not any("Cast(view)" in line or "Cast(transpose)" in line for line in found)


def test_a_view_that_something_else_reads_stays_wide() -> None:
    view = tf.transpose(variable("w", [3, 6]), name="view")
    product = tf.matmul(view, tf.placeholder(tf.float32, [3, 2]))
    for other in (tf.reduce_sum(view), view):
        assert dtypes_of(rewritten([product, other]))["view"] == "float32"


def between(function: Callable[[Any], Any]) -> dict[str, str]:
    """The dtypes where ``function`` is between two products."""
    h = tf.matmul(tf.placeholder(tf.float32, [3, 3], name="x"), variable("w", [3, 3]), name="h")
    return dtypes_of(rewritten([tf.matmul(function(h), variable("v", [3, 3]), name="z")]))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda h: tf.nn.relu(h, name="f"), "bfloat16"),
        (lambda h: tf.transpose(h, name="f"), "bfloat16"),
        (lambda h: tf.add(h, variable("b", [3]), name="f"), "bfloat16"),
        (lambda h: tf.add(h, tf.reshape(variable("b", [3]), [3, 1]), name="f"), "bfloat16"),
        (lambda h: tf.multiply(h, tf.placeholder(tf.float32, [3, 3]), name="f"), "bfloat16"),
        (lambda h: tf.multiply(h, tf.exp(variable("t", [])), name="f"), "bfloat16"),
        (lambda h: tf.add(h, tf.exp(variable("b", [3])), name="f"), "float32"),
        (lambda h: tf.exp(h, name="f"), "float32"),
        (lambda h: tf.nn.softmax(h, name="f"), "float32"),
        (lambda h: tf.cumsum(h, name="f"), "float32"),
        (lambda h: tf.square(h, name="f"), "float32"),
        (lambda h: h * tf.reduce_max(h, name="f"), "float32"),
    ],
)
def test_what_is_between_products(function: Callable[[Any], Any], dtype: str) -> None:
    found = between(function)
    assert found["f"] == dtype
    assert found["h"] == found["z"] == "bfloat16"


def test_what_no_product_reads_is_wide() -> None:
    """Logits are biased in float32 on their way to a softmax."""
    x, w, b = tf.placeholder(tf.float32, [3, 3]), variable("w", [3, 3]), variable("b", [3])
    after = rewritten([tf.nn.softmax(tf.add(tf.matmul(x, w), b, name="logits"))])
    assert dtypes_of(after)["logits"] == "float32"


def test_a_gradient_is_wide_from_its_product_to_the_update() -> None:
    """Also where a product reads what the update does, as an orthogonalised momentum."""
    x, w, m = tf.placeholder(tf.float32, [4, 3]), variable("w", [3, 3]), variable("m", [3, 3])
    (gradient,) = tf.gradients(tf.nn.l2_loss(tf.matmul(x, w)), [w])
    unscaled = tf.divide(gradient, 1024.0, name="unscaled")
    squared = tf.matmul(unscaled, unscaled, name="squared")
    found = dtypes_of(rewritten([], [m.assign(unscaled).op, w.assign_sub(squared).op]))
    assert found["unscaled"] == "float32"
    assert found["squared"] == "bfloat16"


def test_scalars_are_wide() -> None:
    x, w, v = tf.placeholder(tf.float32, [1, 3]), variable("w", [3, 1]), variable("v", [1, 1])
    scalar = tf.reshape(tf.matmul(x, w), [], name="scalar")
    found = dtypes_of(rewritten([tf.matmul(tf.multiply(tf.matmul(x, w), scalar, name="scaled"), v)]))
    assert found["scalar"] == "float32"
    assert found["scaled"] == "bfloat16"


def test_what_leads_to_a_product_through_wide_operations_is_wide() -> None:
    x, w = tf.placeholder(tf.float32, [4, 3]), variable("w", [3, 3])
    h = tf.matmul(x, w)
    doubled = tf.multiply(2.0, h, name="doubled")
    after = rewritten([tf.matmul(doubled * tf.exp(h), w)])
    assert dtypes_of(after)["doubled"] == "float32"


def test_split_parts_are_cast_one_by_one() -> None:
    w, v = variable("w", [3, 4]), variable("v", [2, 2])
    left, right = tf.split(tf.matmul(tf.placeholder(tf.float32, [3, 3]), w), 2, 1, name="parts")
    after = rewritten([tf.matmul(left, v), tf.exp(right, name="e")])
    assert dtypes_of(after)["parts"] == "bfloat16"
    assert "e = Exp(parts/float32_1)" in lines(after)


def test_sums_in_the_narrow_dtype_are_made_before_the_last_cast() -> None:
    w = variable("w", [3, 3], Precision("float16", "float32", "float64"))
    assert "_compute" not in w.op.node.attrs  # float32 is not kept in float64
    tf.get_default_graph().precision = Precision("float16", "float32", "float64")
    w = tf.get_variable("w64", [3, 3], tf.float64)
    after = rewritten([tf.matmul(tf.placeholder(tf.float64, [3, 3]), w, name="z")])
    assert after.spec(("z/float32", 0)).dtype is dtypes.float32
    assert [node.attrs.get("_sums_first", False) for node in after if node.name.startswith("z/")] == [
        False,
        True,
    ]
    assert after.fetches == (("z/float32/float64", 0),)


# --- functions


def test_loops_compute_products_in_the_narrow_dtype() -> None:
    x, w, b = tf.placeholder(tf.float32, [3, 3], name="x"), variable("w", [3, 3]), variable("b", [3])
    kernel, bias = w.read_value(), b.read_value()

    def body(i: Any, h: Any) -> Any:
        return i + 1, tf.tanh(tf.matmul(tf.nn.relu(tf.matmul(h, kernel, name="first") + bias), kernel))

    _, h = tf.while_loop(lambda i, _: i < 5, body, [0, x])
    (loop,) = (node for node in rewritten([h]) if node.op.name == "_Loop")
    kinds = {(n.op.name, n.outputs[0].dtype.name) for n in loop.attrs["body"] if n.outputs}
    expected = {("MatMul", "bfloat16"), ("AddV2", "bfloat16"), ("Relu", "bfloat16"), ("Tanh", "float32")}
    assert expected <= kinds


@pytest.mark.parametrize("first", ["a value that depends on no variable", "the value of a variable"])
def test_the_state_of_a_loop_stays_wide(first: str) -> None:
    """Whatever its first value is: each turn adds to it."""
    x, w = tf.placeholder(tf.float32, [3, 3], name="x"), variable("w", [3, 3]).read_value()

    def body(i: Any, state: Any) -> Any:
        return i + 1, tf.exp(tf.matmul(tf.add(state, tf.matmul(state, w)), w))

    _, h = tf.while_loop(lambda i, _: i < 5, body, [0, w if "of a variable" in first else x])
    (loop,) = (node for node in rewritten([h]) if node.op.name == "_Loop")
    assert {n.outputs[0].dtype.name for n in loop.attrs["body"] if n.op.name == "AddV2"} == {
        "int32",
        "float32",
    }


def test_casts_of_weights_move_in_front_of_loops() -> None:
    w = variable("w", [3, 3]).read_value()
    _, h = tf.while_loop(
        lambda i, _: i < 5,
        lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w))),
        [0, tf.placeholder(tf.float32, [3, 3], name="x")],
    )
    graph = tf.get_default_graph()
    request = StepRequest(graph, [h], [], {graph.get_tensor_by_name("x:0"): (3, 3)})
    after = compile_step(request, OPTIONS, pipeline=stages_before("lower_layouts"))
    (loop,) = (node for node in after if node.op.name == "_Loop")
    assert [node.outputs[0].dtype.name for node in after if node.op.name == "Cast"] == ["bfloat16"]
    assert sum(node.op.name == "Cast" for node in loop.attrs["body"]) == 2  # of the state, there and back


def test_branches_compute_products_in_the_narrow_dtype() -> None:
    x, w = tf.placeholder(tf.float32, [3, 3]), variable("w", [3, 3])
    h = tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.matmul(x, w), lambda: tf.exp(x))
    (case,) = (node for node in rewritten([h]) if node.op.name == "_Case")
    found = [
        {n.op.name for n in branch if n.outputs[0].dtype.name == "bfloat16"}
        for branch in case.attrs["branches"]
    ]
    assert sorted(map(sorted, found)) == [[], ["Cast", "MatMul"]]


# --- variables and errors


def test_variables_of_two_precisions_are_an_error() -> None:
    w, v = variable("w", [3, 3]), variable("v", [3, 3], Precision("float16"))
    with pytest.raises(
        UnimplementedError, match=r"one precision; got bfloat16 .* of 'w' and float16 .* of 'v'"
    ):
        rewritten([tf.matmul(w, v)])


def test_the_precision_survives_a_graph_def() -> None:
    y = tf.matmul(variable("w", [3, 3]), variable("v", [3, 3]), name="y")
    expected = dtypes_of(rewritten([y]))
    definition = tf.get_default_graph().as_graph_def()
    with tf.Graph().as_default():
        (y,) = tf.import_graph_def(definition, return_elements=["y:0"], name="")
        assert dtypes_of(rewritten([y])) == expected
        assert expected["y"] == "bfloat16"


def test_a_later_request_computes_as_the_first() -> None:
    """An addition to a step is not computed once more in another dtype."""
    x, w = tf.placeholder(tf.float32, [3, 3]), variable("w", [3, 3])
    h = tf.tanh(tf.matmul(x, w))
    y, z = tf.matmul(h, w), tf.reduce_mean(h)
    feed = {x: np.random.default_rng(0).standard_normal((3, 3))}
    with tf.Session() as session:
        session.run(w.initializer)
        first = session.run(y, feed)
        _, both = session.run([z, y], feed)
        alone = session.run(z, feed)
    np.testing.assert_array_equal(both, first)
    with tf.Session() as session:
        session.run(w.initializer)
        assert session.run(z, feed) == alone


# --- classes of ops


def narrowing(*classes: PrecisionClass) -> list[OpDef]:
    return [op for op in registered_ops().values() if precision_class(op) in classes]


def test_products_are_what_contracts_two_inputs() -> None:
    assert {op.name for op in narrowing(PrecisionClass.PRODUCT)} == {
        "MatMul", "BatchMatMulV2", "Einsum",
        "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter",
        "Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2",
        "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput",
        "DepthwiseConv2dNativeBackpropFilter",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "Exp", "Log", "Pow", "Square", "Rsqrt", "Softmax", "LogSoftmax", "Mean", "Sum", "Cumsum", "L2Loss",
        "SparseSoftmaxCrossEntropyWithLogits", "LayerNorm", "FusedBatchNormV3", "BiasAddGrad", "SegmentSum",
        "Cast", "ReadVariableOp", "ResourceApplyAdam", "AssignVariableOp", "_Loop", "AllReduce", "Print",
        "Const",
    ],
)  # fmt: skip
def test_what_needs_range_or_adds_or_has_an_effect_keeps_its_dtype(name: str) -> None:
    assert precision_class(registered_ops()[name]) is PrecisionClass.KEEP


def as_dtype(value: Any, dtype: dtypes.DType) -> Any:
    array = np.asarray(value)
    return array.astype(dtype.np) if array.dtype in (np.float32, np.float64) else array


NARROWED = [
    pytest.param(op, dtype, id=f"{op.name}-{dtype.name}")
    for op in narrowing(PrecisionClass.PRODUCT, PrecisionClass.FOLLOW)
    for dtype in (dtypes.bfloat16, dtypes.float16)
]


@pytest.mark.parametrize(("op", "dtype"), NARROWED)
def test_an_op_that_may_be_narrowed_has_a_kernel_for_it(op: OpDef, dtype: dtypes.DType) -> None:
    """Which rounds inputs and output, but little in between."""
    variable = type_of_elements(op)
    assert dtype in op.types[variable]
    count = 0
    for sample in op.samples(np.random.default_rng(0)):
        if not any(np.asarray(v).dtype in (np.float32, np.float64) for v in flat_inputs(op, sample)):
            continue
        pairs = zip(op.inputs, sample.inputs, strict=True)
        inputs = [
            value if a.type_attr != variable
            else tuple(as_dtype(v, dtype) for v in value) if a.is_list
            else as_dtype(value, dtype)
            for a, value in pairs
        ]  # fmt: skip
        narrow = sample._replace(inputs=tuple(inputs))
        exact = sample._replace(
            inputs=tuple(
                tuple(
                    as_dtype(np.asarray(v, np.float64) if v.dtype == dtype.np else v, dtypes.float64)
                    for v in value
                )
                if isinstance(value, tuple)
                else np.asarray(value, np.float64)
                if getattr(value, "dtype", None) == dtype.np
                else value
                for value in inputs
            )
        )
        for found, expected in zip(outputs_of(op, narrow), outputs_of(op, exact), strict=True):
            if found.dtype == dtype.np:
                np.testing.assert_allclose(found.astype(float), expected, 0.05, 0.05)
                count += 1
    assert count


def outputs_of(op: OpDef, sample: Any) -> list[Any]:
    with tf.Graph().as_default():
        operation, flat = build(op, sample)
        return values_of(list(operation.outputs), feeds_of(flat, flat_inputs(op, sample)))


MOVING = [op for op in registered_ops().values() if op.narrows and "Grad" not in op.name]


@pytest.mark.parametrize("op", MOVING, ids=lambda op: op.name)
def test_an_op_that_says_so_only_moves_elements(op: OpDef) -> None:
    for sample in op.samples(np.random.default_rng(0)):
        inputs = [np.asarray(value) for value in flat_inputs(op, sample)]
        known = {x for array in inputs if array.dtype.kind == "f" for x in array.ravel().tolist()} | {0.0}
        for array in outputs_of(op, sample):
            if array.dtype.kind == "f":
                assert set(array.ravel().tolist()) <= known
