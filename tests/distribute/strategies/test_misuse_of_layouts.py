"""What a script gets wrong with layout strategies: the error names the strategy that the script made."""

from __future__ import annotations

from typing import Any

import pytest

import flowrt as tf
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError

D = tf.distribute
HERE = r"test_misuse_of_layouts\.py:\d+\)"
STRATEGIES = pytest.mark.parametrize(
    "strategy",
    [D.LayoutStrategy, D.MultiWorkerLayoutStrategy, D.TensorParallelStrategy, D.FullyShardedStrategy],
    ids=lambda strategy: strategy.__name__,
)


def mesh() -> Any:
    return D.Mesh([("dp", 2), ("tp", 2)])


def plan_of(strategy: Any) -> dict[str, Any]:
    """The plan that a strategy cannot be without."""
    return {"plan": {"w": "column"}} if strategy is D.TensorParallelStrategy else {}


@STRATEGIES
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mesh": 3}, "expected a Mesh; got 3"),
        ({"batch": "pd"}, r"batch: expected an axis of the mesh \[dp=2, tp=2\]; got 'pd'"),
        ({"batch": 3}, "batch: expected None, an axis, or several for dimension 0; got 3"),
        ({"rules": [1]}, r"rules: expected axes by logical axis; got \[1\]"),
        ({"rules": {"embed": "pt"}}, "rule of 'embed': expected an axis of the mesh"),
        ({"policy": "bfloat16"}, "policy: expected a Precision; got 'bfloat16'"),
    ],
)
def test_arguments_that_all_have(strategy: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{HERE}: {strategy.__name__}: {text}"):
        strategy(**{"mesh": mesh(), **plan_of(strategy), **arguments})


@STRATEGIES
def test_a_policy_that_is_about_no_variable(strategy: Any) -> None:
    text = rf"{HERE}: {strategy.__name__}: policy: expected variables of float32, .*; got .* 'w' of float64"
    with tf.Graph().as_default(), pytest.raises(InvalidArgumentError, match=text):
        with strategy(mesh(), policy=D.Precision("bfloat16"), **plan_of(strategy)).scope():
            tf.get_variable("w", [4, 4], tf.float64)


@STRATEGIES
def test_a_scope_inside_another(strategy: Any) -> None:
    with tf.Graph().as_default(), D.MirroredStrategy(["/cpu:0"]).scope():
        with pytest.raises(FailedPreconditionError, match=rf"{HERE}: {strategy.__name__}\.scope: expected"):
            strategy(mesh(), **plan_of(strategy)).scope().__enter__()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mesh": D.Mesh([("dp", 3), ("tp", 1)])}, "a mesh with equally many devices of each of 2 workers"),
        ({"mesh": D.Mesh([("dp", 2), ("tp", 1)], ["/cpu:0", "/cpu:1"])}, "a mesh without devices"),
        ({"cluster_resolver": 3}, "a ClusterResolver; got 3"),
    ],
)
def test_processes(arguments: dict[str, Any], text: str) -> None:
    spec = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
    resolver = D.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=0)
    for strategy in (D.TensorParallelStrategy, D.FullyShardedStrategy):
        with pytest.raises(InvalidArgumentError, match=rf"{strategy.__name__}: .*expected {text}"):
            strategy(**{"mesh": mesh(), "cluster_resolver": resolver, **plan_of(strategy), **arguments})


@pytest.mark.parametrize("strategy", [D.TensorParallelStrategy, D.FullyShardedStrategy])
@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"up": "rows"}, "expected 'column', 'row', 'vocab' for 'up'; got 'rows'"),
        ({"up": ["row"]}, r"expected 'column', 'row', 'vocab' for 'up'; got \['row'\]"),
        ({"up": {}}, "expected 'column', 'row', 'vocab' for 'up'; got {}"),
        ({"up": None}, "expected 'column', 'row', 'vocab' for 'up'; got None"),
        ({3: "row"}, "expected styles by expression; got {3: 'row'}"),
        ({"(": "row"}, r"expected a regular expression; got '\('"),
        ("row", "expected styles by expression; got 'row'"),
    ],
)
def test_a_plan(strategy: Any, plan: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{HERE}: {strategy.__name__}: plan: {text}"):
        strategy(mesh(), plan=plan)


def test_a_plan_that_matches_nothing() -> None:
    for strategy in (D.TensorParallelStrategy, D.FullyShardedStrategy):
        with tf.Graph().as_default():
            with pytest.raises(InvalidArgumentError, match=rf"{strategy.__name__}: plan: .* Nearest: up"):
                with strategy(mesh(), plan={"upp": "row"}).scope():
                    tf.get_variable("up", [4, 4])


def test_sequence_is_a_bool() -> None:
    for strategy in (D.TensorParallelStrategy, D.FullyShardedStrategy):
        with pytest.raises(
            InvalidArgumentError, match=f"{strategy.__name__}: sequence: expected a bool; got"
        ):
            strategy(mesh(), sequence="tp")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("device_mesh", "Here it is mesh, a Mesh"),
        ("sharding_strategy", "Here it is stage, 0 to 3"),
        ("auto_wrap_policy", "Here it is units, a regular expression"),
        ("cpu_offload", "Here it is offload, 'parameters' or 'optimizer'"),
        ("mixed_precision", "Here it is policy, a Precision"),
        ("parallelize_plan", "Here it is plan, styles by names of variables"),
        ("polcy", "Nearest: policy"),
        ("zzz", "They are mesh, axis, stage, .*, policy$"),
    ],
)
def test_arguments_of_other_frameworks(name: str, hint: str) -> None:
    text = rf"{HERE}: FullyShardedStrategy: expected one of its arguments; got '{name}'\. {hint}"
    with pytest.raises(DTypeError, match=text):
        D.FullyShardedStrategy(**{"axis": "dp", name: mesh()})


def test_no_hint_names_an_argument_that_the_strategy_does_not_have() -> None:
    with pytest.raises(
        DTypeError, match=r"TensorParallelStrategy: .* got 'cpu_offload'\. They are mesh, axis"
    ):
        D.TensorParallelStrategy(mesh(), cpu_offload=True)  # type: ignore[call-arg]


# --- what would do nothing


def layer(strategy: Any) -> None:
    with tf.Graph().as_default(), strategy.scope():
        tf.layers.dense(tf.placeholder(tf.float32, [4, 4]), 4, name="query")


@pytest.mark.parametrize("plan", [{}, None])
def test_a_plan_of_nothing(plan: Any) -> None:
    text = rf"{HERE}: TensorParallelStrategy: plan: expected styles by names of variables, .*; got none"
    with pytest.raises(InvalidArgumentError, match=text):
        D.TensorParallelStrategy(mesh(), plan=plan)


def test_rows_of_a_bias() -> None:
    text = r"plan: expected 'row' for a kernel, .*; got '\.\*query/bias', which matches vectors alone"
    with pytest.raises(InvalidArgumentError, match=text):
        layer(D.TensorParallelStrategy(mesh(), plan={".*query/bias": "row"}))
    layer(D.TensorParallelStrategy(mesh(), plan={"query/(kernel|bias)": "row"}))


def test_an_axis_along_which_nothing_is_divided_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for strategy, idle in (
        (D.TensorParallelStrategy(mesh(), plan={"query/kernel": "row"}), ["dp"]),
        (D.TensorParallelStrategy(mesh(), plan={"query/kernel": "row"}, batch="dp"), []),
        (D.FullyShardedStrategy(mesh()), ["tp"]),
        (D.FullyShardedStrategy(D.Mesh([("dp", 2), ("tp", 1)])), []),
    ):
        caplog.clear()
        for _ in range(2):
            layer(strategy)
        text = "{!r}: no batch, variable or relayout is divided along {!r}: its 2 devices compute the same"
        assert [record.message for record in caplog.records] == [text.format(strategy, a) for a in idle]


def test_a_model_made_outside_the_scope_of_its_optimizer_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = D.FullyShardedStrategy(D.Mesh([("dp", 2)]))
    with tf.Graph().as_default():
        w = tf.get_variable("w", [64, 64])
        with strategy.scope():
            tf.layers.dense(tf.placeholder(tf.float32, [4, 64]), 64, name="inside")
            for _ in range(2):
                tf.train.AdamOptimizer().minimize(tf.reduce_sum(w), var_list=[w])
    (record,) = caplog.records
    assert "trains variables made outside it, such as 'w': they have no layouts" in record.message
    assert record.message.endswith(
        "Make the model, its placeholders and its optimizer inside strategy.scope()"
    )
