"""Every optimizer against a NumPy model of its rule, written from the papers' formulas in float64.

The hyper-parameters are sums of few powers of two, so that rounding them to float32 changes nothing and
float64 variables have to agree to 1e-12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.graph import Graph

Rule = Callable[[dict[str, Any], Any, int], None]
STEPS = 5
ROWS = np.array([3, 1, 3, 0])  # a repeated index, and rows 2 and 4 that no gradient names


def _mean(s: dict[str, Any], key: str, beta: float, value: Any) -> Any:
    s[key] = beta * s.get(key, np.zeros_like(value)) + (1 - beta) * value
    return s[key]


def sgd(s: dict[str, Any], g: Any, t: int) -> None:
    s["w"] = s["w"] - 0.25 * g


def momentum(s: dict[str, Any], g: Any, t: int) -> None:
    s["accum"] = 0.75 * s.get("accum", 0.0) + g
    s["w"] = s["w"] - 0.25 * s["accum"]


def nesterov(s: dict[str, Any], g: Any, t: int) -> None:
    s["accum"] = 0.75 * s.get("accum", 0.0) + g
    s["w"] = s["w"] - 0.25 * (g + 0.75 * s["accum"])


def adagrad(s: dict[str, Any], g: Any, t: int) -> None:
    s["accum"] = s.get("accum", np.full_like(g, 0.125)) + g**2
    s["w"] = s["w"] - 0.25 * g / np.sqrt(s["accum"])


def adadelta(s: dict[str, Any], g: Any, t: int) -> None:
    square = _mean(s, "square", 0.75, g**2)
    step = np.sqrt(s.get("step", np.zeros_like(g)) + 2**-10) / np.sqrt(square + 2**-10) * g
    _mean(s, "step", 0.75, step**2)
    s["w"] = s["w"] - 0.5 * step


def rmsprop(s: dict[str, Any], g: Any, t: int, centered: bool = False) -> None:
    s.setdefault("square", np.ones_like(g))
    variance = _mean(s, "square", 0.75, g**2)
    if centered:
        variance = variance - _mean(s, "mean", 0.75, g) ** 2
    s["mom"] = 0.5 * s.get("mom", 0.0) + 0.125 * g / np.sqrt(variance + 2**-10)
    s["w"] = s["w"] - s["mom"]


def centered_rmsprop(s: dict[str, Any], g: Any, t: int) -> None:
    rmsprop(s, g, t, centered=True)


def adam_direction(s: dict[str, Any], g: Any, t: int, epsilon: float) -> Any:
    m, v = _mean(s, "m", 0.75, g), _mean(s, "v", 0.875, g**2)
    return m / (1 - 0.75**t), np.sqrt(v / (1 - 0.875**t)), epsilon


def adam(s: dict[str, Any], g: Any, t: int) -> None:
    """The paper's section 2.1: epsilon belongs to the uncorrected deviation."""
    m, deviation, epsilon = adam_direction(s, g, t, 2**-10)
    s["w"] = s["w"] - 0.125 * m / (deviation + epsilon / np.sqrt(1 - 0.875**t))


def adamw(s: dict[str, Any], g: Any, t: int) -> None:
    s["w"] = s["w"] * (1 - 0.125 * 0.25)
    adam(s, g, t)


def contrib_adamw(s: dict[str, Any], g: Any, t: int) -> None:
    """Adam moves each row, but only those decay that a sparse gradient names."""
    s["w"] = s["w"] * (1 - 0.125 * (g != 0))
    adam(s, g, t)


def momentumw(s: dict[str, Any], g: Any, t: int) -> None:
    s["w"] = s["w"] * (1 - 0.125)
    momentum(s, g, t)


def nadam(s: dict[str, Any], g: Any, t: int) -> None:
    """TensorFlow's: the averages are corrected for step t, of which the gradient is."""
    m, v = _mean(s, "m", 0.75, g), _mean(s, "v", 0.875, g**2)
    rate = 0.125 * np.sqrt(1 - 0.875**t) / (1 - 0.75**t)
    s["w"] = s["w"] - rate * (0.75 * m + 0.25 * g) / (np.sqrt(v) + 2**-10)


def ftrl(s: dict[str, Any], g: Any, t: int, l1: float = 0.0, l2: float = 0.0, power: float = 0.5) -> None:
    """McMahan et al. 2013, algorithm 1 with z as ``linear``; l2 counts twice, as TensorFlow has it."""
    old = s.get("accum", np.full_like(g, 0.125))
    s["accum"] = old + g**2
    sigma = (s["accum"] ** power - old**power) / 0.25
    s["z"] = s.get("z", 0.0) + g - sigma * s["w"]
    full = -(s["z"] - np.sign(s["z"]) * l1) / (s["accum"] ** power / 0.25 + 2 * l2)
    s["w"] = np.where(np.abs(s["z"]) <= l1, 0.0, full)


def ftrl_regularized(s: dict[str, Any], g: Any, t: int) -> None:
    ftrl(s, g, t, l1=0.25, l2=0.5, power=0.25)


def lars(s: dict[str, Any], g: Any, t: int) -> None:
    w, n = np.linalg.norm(s["w"]), np.linalg.norm(g)
    trust = 0.5 * w / (n + 0.25 * w + 2**-10)
    s["accum"] = 0.75 * s.get("accum", 0.0) + 0.25 * trust * (g + 0.25 * s["w"])
    s["w"] = s["w"] - s["accum"]


def lamb(s: dict[str, Any], g: Any, t: int) -> None:
    m, deviation, epsilon = adam_direction(s, g, t, 2**-10)
    update = m / (deviation + epsilon) + 0.25 * s["w"]
    s["w"] = s["w"] - 0.125 * np.linalg.norm(s["w"]) / np.linalg.norm(update) * update


def shrunk(prox: Any, rate: Any) -> Any:
    """The proximal step of Duchi and Singer 2009 with l1 = 0.25 and l2 = 0.5."""
    return np.sign(prox) * np.maximum(np.abs(prox) - rate * 0.25, 0) / (1 + rate * 0.5)


def proximal_sgd(s: dict[str, Any], g: Any, t: int) -> None:
    s["w"] = shrunk(s["w"] - 0.25 * g, 0.25)


def proximal_adagrad(s: dict[str, Any], g: Any, t: int) -> None:
    s["accum"] = s.get("accum", np.full_like(g, 0.125)) + g**2
    rate = 0.25 / np.sqrt(s["accum"])
    s["w"] = shrunk(s["w"] - rate * g, rate)


def adagrad_da(s: dict[str, Any], g: Any, t: int) -> None:
    """Duchi et al. 2011, equation 3, of which the first step is t = 1 (the step is not counted here)."""
    s["sum"] = s.get("sum", np.zeros_like(g)) + g
    s["accum"] = s.get("accum", np.full_like(g, 0.125)) + g**2
    far = np.maximum(np.abs(s["sum"]) - 0.25, 0)
    s["w"] = -0.25 * np.sign(s["sum"]) * far / (0.5 * 0.25 + np.sqrt(s["accum"]))


TINY = 2**-10
CASES: dict[str, tuple[Rule, Callable[[], Any], bool]] = {  # the last: whether sparse steps leave rows alone
    "sgd": (sgd, lambda: tf.train.GradientDescentOptimizer(0.25), True),
    "momentum": (momentum, lambda: tf.train.MomentumOptimizer(0.25, 0.75), True),
    "nesterov": (nesterov, lambda: tf.train.MomentumOptimizer(0.25, 0.75, use_nesterov=True), True),
    "adagrad": (adagrad, lambda: tf.train.AdagradOptimizer(0.25, 0.125), True),
    "adadelta": (adadelta, lambda: tf.train.AdadeltaOptimizer(0.5, 0.75, TINY), True),
    "rmsprop": (rmsprop, lambda: tf.train.RMSPropOptimizer(0.125, 0.75, 0.5, TINY), True),
    "centered_rmsprop": (
        centered_rmsprop, lambda: tf.train.RMSPropOptimizer(0.125, 0.75, 0.5, TINY, centered=True), True
    ),
    "adam": (adam, lambda: tf.train.AdamOptimizer(0.125, 0.75, 0.875, TINY), False),
    "adamw": (adamw, lambda: tf.train.AdamWOptimizer(0.25, 0.125, 0.75, 0.875, TINY), False),
    "ftrl": (ftrl, lambda: tf.train.FtrlOptimizer(0.25, initial_accumulator_value=0.125), True),
    "ftrl_regularized": (
        ftrl_regularized, lambda: tf.train.FtrlOptimizer(0.25, -0.25, 0.125, 0.25, 0.5), True
    ),
    "contrib_adamw": (
        contrib_adamw, lambda: tf.contrib.opt.AdamWOptimizer(0.125, 0.125, 0.75, 0.875, TINY), False
    ),
    "momentumw": (momentumw, lambda: tf.contrib.opt.MomentumWOptimizer(0.125, 0.25, 0.75), True),
    "lazy_adam": (adam, lambda: tf.contrib.opt.LazyAdamOptimizer(0.125, 0.75, 0.875, TINY), True),
    "nadam": (nadam, lambda: tf.contrib.opt.NadamOptimizer(0.125, 0.75, 0.875, TINY), False),
    "lars": (lars, lambda: tf.train.LARSOptimizer(0.25, 0.75, 0.25, 0.5, TINY), True),
    "proximal_sgd": (
        proximal_sgd, lambda: tf.train.ProximalGradientDescentOptimizer(0.25, 0.25, 0.5), True
    ),
    "proximal_adagrad": (
        proximal_adagrad, lambda: tf.train.ProximalAdagradOptimizer(0.25, 0.125, 0.25, 0.5), True
    ),
    "adagrad_da": (adagrad_da, lambda: tf.train.AdagradDAOptimizer(0.25, 0, 0.125, 0.25, 0.5), True),
    "lamb": (lamb, lambda: tf.train.LAMBOptimizer(0.125, 0.25, 0.75, 0.875, TINY), False),
}  # fmt: skip
SPARSE_RULES: dict[str, Rule] = {"lars": momentum}  # where they are others
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 3e-2, "bfloat16": 0.2}


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with tf.Graph() as new:
        yield new


def start(*variables: Any) -> Any:
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def weights() -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((5, 3)), [rng.standard_normal((5, 3)) for _ in range(STEPS)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_dense_steps_follow_the_rule(case: str, dtype: str) -> None:
    rule, make, _ = CASES[case]
    initial, gradients = weights()
    if dtype in ("float16", "bfloat16"):
        kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
        initial, gradients = initial.astype(kind), [g.astype(kind) for g in gradients]
    w = tf.Variable(tf.cast(initial, dtype), name="w")
    gradient = tf.placeholder(dtype, [5, 3])
    step = make().apply_gradients([(gradient, w)])
    state = {"w": initial.astype(np.float64)}
    with start() as session:
        for t, g in enumerate(gradients, 1):
            session.run(step, {gradient: g.astype(gradient.dtype.as_numpy_dtype)})
            rule(state, g.astype(np.float64), t)
        got = session.run(w)
    assert got.dtype == w.dtype.np
    np.testing.assert_allclose(
        got.astype(np.float64), state["w"], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("case", CASES)
def test_sparse_steps_add_up_equal_indices(case: str, index_dtype: str) -> None:
    rule, make, leaves_rows_alone = CASES[case]
    rule = SPARSE_RULES.get(case, rule)
    initial, gradients = weights()
    w = tf.Variable(initial, name="w")
    values = tf.placeholder(tf.float64, [4, 3])
    slices = tf.IndexedSlices(values, tf.constant(ROWS, index_dtype), tf.constant([5, 3]))
    step = make().apply_gradients([(slices, w)])
    state = {"w": initial}
    named = np.unique(ROWS)
    with start() as session:
        for t, g in enumerate(gradients, 1):
            session.run(step, {values: g[:4]})
            dense = np.zeros((5, 3))
            np.add.at(dense, ROWS, g[:4])
            if leaves_rows_alone:
                before = {key: np.array(value) for key, value in state.items()}
                rule(state, dense, t)
                for key, value in state.items():
                    kept = before[key] if key in before else _initial_slot(case, key)
                    state[key] = np.where(np.isin(np.arange(5), named)[:, None], value, kept)
            else:
                rule(state, dense, t)
        got = session.run(w)
    np.testing.assert_allclose(got, state["w"], rtol=1e-12, atol=1e-12)


def _initial_slot(case: str, key: str) -> float:
    return {
        "accum": 0.125 if "ftrl" in case or "adagrad" in case else 0.0,
        "square": float("rmsprop" in case),
    }.get(key, 0.0)


SLOTS = {
    "sgd": ([], []),
    "momentum": (["momentum"], ["scope/w/Momentum"]),
    "adagrad": (["accumulator"], ["scope/w/Adagrad"]),
    "adadelta": (["accum", "accum_update"], ["scope/w/Adadelta", "scope/w/Adadelta_1"]),
    "rmsprop": (["momentum", "rms"], ["scope/w/RMSProp", "scope/w/RMSProp_1"]),
    "centered_rmsprop": (
        ["mg", "momentum", "rms"], ["scope/w/RMSProp", "scope/w/RMSProp_1", "scope/w/RMSProp_2"]
    ),
    "adam": (["m", "v"], ["beta1_power", "beta2_power", "scope/w/Adam", "scope/w/Adam_1"]),
    "proximal_adagrad": (["accumulator"], ["scope/w/ProximalAdagrad"]),
    "adagrad_da": (
        ["gradient_accumulator", "gradient_squared_accumulator"],
        ["scope/w/AdagradDA", "scope/w/AdagradDA_1"],
    ),
    "ftrl": (["accum", "linear"], ["scope/w/Ftrl", "scope/w/Ftrl_1"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SLOTS)
def test_slots_have_tensorflows_names(case: str) -> None:
    with tf.name_scope("scope"):
        w = tf.Variable(np.ones(3, np.float32), name="w")
    optimizer = CASES[case][1]()
    optimizer.minimize(tf.reduce_sum(w * w))
    keys, names = SLOTS[case]
    assert optimizer.get_slot_names() == keys
    assert [v.op.name for v in optimizer.variables()] == names
    for key in keys:
        assert optimizer.get_slot(w, key).shape == w.shape
        assert not optimizer.get_slot(w, key).trainable


def test_slots_of_a_variable_follow_each_other_as_in_tensorflow() -> None:
    """Weights of `global_variables` that were saved as a list are restored by their order."""
    a, b = (tf.Variable([1.0], name=name) for name in "ab")
    tf.train.AdamOptimizer().minimize(a * b)
    names = [v.op.name for v in tf.global_variables()]
    assert names[4:] == ["a/Adam", "a/Adam_1", "b/Adam", "b/Adam_1"]


@pytest.mark.parametrize(
    ("make", "expected"),  # what TensorFlow 1.15's tests of these optimizers expect, from w = [1, 2]
    [
        (lambda: tf.train.ProximalAdagradOptimizer(3.0, 0.1, 0.001, 0.0), [-6.663634, -9.190331]),
        (lambda: tf.train.ProximalAdagradOptimizer(3.0, 0.1, 0.001, 2.0), [-0.0495, -0.0995]),
        (lambda: tf.train.ProximalGradientDescentOptimizer(3.0, 0.001, 2.0), [-0.0495, -0.0995]),
    ],
)
def test_ten_regularized_steps_end_where_tensorflows_do(make: Any, expected: list[float]) -> None:
    w = tf.Variable([1.0, 2.0])
    step = make().apply_gradients([(tf.constant([0.1, 0.2]), w)])
    with start() as session:
        for _ in range(10):
            session.run(step)
        np.testing.assert_allclose(session.run(w), expected, atol=1e-3)


def test_dual_averaging_counts_the_steps_by_the_global_step() -> None:
    w = tf.Variable([1.0, 2.0], dtype=tf.float64)
    count, g = tf.train.get_or_create_global_step(), np.array([0.5, -0.125])
    step = tf.train.AdagradDAOptimizer(3.0, count, 0.1, 0.25, 2.0).apply_gradients(
        [(tf.constant(g), w)], count
    )
    with start() as session:
        for t in range(1, 5):
            session.run(step)
            far = np.maximum(np.abs(t * g) - 0.25 * t, 0)
            expected = -3.0 * np.sign(g) * far / (2.0 * t * 3.0 + np.sqrt(0.1 + t * g**2))
            np.testing.assert_allclose(session.run(w), expected, rtol=1e-6)


def test_an_accumulator_that_begins_at_zero_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected a positive initial_accumulator_value; got 0"):
        tf.train.ProximalAdagradOptimizer(0.1, 0.0)
    with pytest.raises(InvalidArgumentError, match="initial_gradient_squared_accumulator_value"):
        tf.train.AdagradDAOptimizer(0.1, 0, -1.0)


def test_a_slot_that_does_not_exist_is_none() -> None:
    w = tf.Variable(1.0)
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    assert optimizer.get_slot(w, "momentum") is None
    optimizer.minimize(w * w)
    assert optimizer.get_slot(w, "other") is None


def test_slots_are_named_after_the_variable_scope_and_live_beside_the_variable() -> None:
    with tf.device("/cpu:1"):
        w = tf.Variable(1.0, name="w")
    optimizer = tf.train.AdamOptimizer()
    with tf.variable_scope("train"):
        optimizer.minimize(w * w)
    slot = optimizer.get_slot(w, "m")
    assert slot.op.name == "train/w/Adam"
    assert slot.device == w.device
    assert slot.op.colocation_groups() == ["loc:@w"]


def test_gradients_are_those_of_the_values_before_the_step() -> None:
    """Of two variables each is the other's gradient: updating one before reading it for the other would
    show.
    """
    for seed in range(20):
        with tf.Graph():
            a, b = tf.Variable(2.0), tf.Variable(3.0)
            step = tf.train.GradientDescentOptimizer(0.5).minimize(a * b)
            with tf.Session(seed=seed) as session:
                session.run(tf.global_variables_initializer())
                session.run(step)
                assert session.run([a, b]) == [2.0 - 0.5 * 3.0, 3.0 - 0.5 * 2.0]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_network_over_devices_trains_as_numpy_says(devices: int) -> None:
    rng = np.random.default_rng(3)
    x, w1, w2 = rng.standard_normal((6, 4)), rng.standard_normal((4, 5)), rng.standard_normal((5, 2))
    with tf.device("/cpu:0"):
        v1 = tf.Variable(w1)
        hidden = tf.tanh(tf.matmul(tf.constant(x), v1))
    with tf.device(f"/cpu:{devices - 1}"):
        v2 = tf.Variable(w2)
        loss = tf.reduce_sum(tf.square(tf.matmul(hidden, v2)))
    step = tf.train.MomentumOptimizer(2.0**-6, 0.5).minimize(loss)
    m1, m2 = np.zeros_like(w1), np.zeros_like(w2)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": devices})) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(4):
            session.run(step)
            h = np.tanh(x @ w1)
            dy = 2 * (h @ w2)
            m1 = 0.5 * m1 + x.T @ ((dy @ w2.T) * (1 - h**2))
            m2 = 0.5 * m2 + h.T @ dy
            w1, w2 = w1 - 2.0**-6 * m1, w2 - 2.0**-6 * m2
        np.testing.assert_allclose(session.run(v1), w1, rtol=1e-9)
        np.testing.assert_allclose(session.run(v2), w2, rtol=1e-9)


def test_an_embedding_gets_sparse_gradients_and_trains() -> None:
    table = tf.Variable(np.zeros((6, 2), np.float32))
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, [1, 4, 1]) - 1.0))
    optimizer = tf.train.GradientDescentOptimizer(0.25)
    pairs = optimizer.compute_gradients(loss)
    assert isinstance(pairs[0][0], tf.IndexedSlices)
    step = optimizer.apply_gradients(pairs)
    with start() as session:
        session.run(step)
        np.testing.assert_array_equal(session.run(table)[:, 0], [0, 1, 0, 0, 0.5, 0])


def test_the_global_step_counts_after_the_updates() -> None:
    w = tf.Variable(4.0)
    count = tf.train.get_or_create_global_step()
    step = tf.train.GradientDescentOptimizer(0.25).minimize(w * w, global_step=count)
    assert step.name == "GradientDescent"
    with start() as session:
        for expected in range(1, 4):
            session.run(step)
            assert session.run(count) == expected
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [step]


def test_a_learning_rate_may_be_a_tensor_a_variable_or_a_function() -> None:
    fed, kept = tf.placeholder_with_default(np.float32(0.5), []), tf.Variable(0.5, trainable=False)
    for rate in (fed, kept, lambda: 0.5, np.float64(0.5)):
        w = tf.Variable(3.0)
        step = tf.train.GradientDescentOptimizer(rate).minimize(w * 2.0, var_list=[w])
        with start() as session:
            session.run(step)
            assert session.run(w) == 2.0
            if rate is fed:
                session.run(step, {fed: 0.25})
                assert session.run(w) == 1.5


def test_applying_twice_shares_the_slots() -> None:
    w = tf.Variable(0.0)
    optimizer = tf.train.MomentumOptimizer(1.0, 0.5)
    first = optimizer.apply_gradients([(tf.constant(1.0), w)])
    second = optimizer.apply_gradients([(tf.constant(0.0), w)])
    assert len(optimizer.variables()) == 1
    with start() as session:
        session.run(first)
        session.run(second)
        assert session.run(w) == -1.5


def test_a_constraint_holds_after_each_step() -> None:
    w = tf.Variable([1.0, -1.0], constraint=lambda value: tf.maximum(value, 0.25))
    step = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(w * w))
    with start() as session:
        session.run(step)
        assert session.run(w).tolist() == [0.25, 1.0]


def test_variables_without_a_gradient_are_left_alone() -> None:
    w, other = tf.Variable(1.0), tf.Variable(5.0)
    pairs = tf.train.GradientDescentOptimizer(0.5).compute_gradients(w * w)
    assert [g is None for g, _ in pairs] == [False, True]
    step = tf.train.GradientDescentOptimizer(0.5).apply_gradients(pairs)
    with start() as session:
        session.run(step)
        assert session.run([w, other]) == [0.0, 5.0]


def test_a_variable_that_was_initialized_in_column_order_is_updated() -> None:
    w = tf.Variable(np.asfortranarray(np.ones((3, 2), np.float32)))
    step = tf.train.GradientDescentOptimizer(1.0).apply_gradients([(tf.ones([3, 2]), w)])
    with start() as session:
        session.run(step)
        assert not session.run(w).any()


@pytest.mark.parametrize("case", CASES)
def test_sparse_updates_check_their_indices_before_they_write(case: str) -> None:
    w = tf.Variable(np.ones((3, 2), np.float32))
    rows = tf.placeholder(tf.int32, [2])
    slices = tf.IndexedSlices(tf.ones([2, 2]), rows, tf.constant([3, 2]))
    step = CASES[case][1]().apply_gradients([(slices, w)])
    with start() as session:
        before = session.run(tf.global_variables())
        for bad in (3, -1):
            wanted = rf"indices\[1(, 0)?\]: expected an index in \[0, 3\); got {bad}"
            with pytest.raises(InvalidArgumentError, match=wanted):
                session.run(step, {rows: [0, bad]})
        for was, now in zip(before, session.run(tf.global_variables()), strict=True):
            np.testing.assert_array_equal(now, was)


def test_slices_of_unknown_extent_become_dense_by_the_variables_shape() -> None:
    w = tf.Variable(np.ones((3, 2), np.float32))
    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([2, 2], tf.int64))
    step = tf.train.AdamOptimizer(0.5).apply_gradients([(slices, w)])
    with start() as session:
        session.run(step)
        np.testing.assert_allclose(session.run(w)[:, 0], [1, 1, 0.5], rtol=1e-5)


def test_an_update_without_initialized_slots_says_which_and_changes_nothing() -> None:
    w = tf.Variable(1.0, name="w")
    step = tf.train.AdamOptimizer().minimize(w * w)
    with tf.Session() as session:
        session.run(w.initializer)
        with pytest.raises(FailedPreconditionError, match=r"beta1_power|w/Adam"):
            session.run(step)
        assert session.run(w) == 1.0


def test_wrong_arguments_are_refused() -> None:
    w, x = tf.Variable(1.0, name="w"), tf.constant(1.0)
    optimizer = tf.train.GradientDescentOptimizer(0.5)
    with pytest.raises(InvalidArgumentError, match="depends on none of w"):
        optimizer.minimize(x)
    with pytest.raises(InvalidArgumentError, match="at least one gradient"):
        optimizer.apply_gradients([(None, w)])
    with pytest.raises(InvalidArgumentError, match="expected variables to train"):
        optimizer.compute_gradients(w * w, var_list=[])
    with pytest.raises(DTypeError, match="expected variables; got"):
        optimizer.compute_gradients(w * w, var_list=[x])
    with pytest.raises(DTypeError, match="floating loss"):
        optimizer.minimize(tf.constant(1))
    with pytest.raises(InvalidArgumentError, match="gradient of shape"):
        optimizer.apply_gradients([(tf.zeros([2]), w)])
    with pytest.raises(InvalidArgumentError, match="expected a name"):
        tf.train.Optimizer(False, "")


def test_skip_lists_turn_lars_into_momentum_and_lamb_into_no_decay() -> None:
    bias = tf.Variable(np.full(2, 4.0), name="bias")
    lars = tf.train.LARSOptimizer(0.5, 0.0, skip_list=["bias"]).apply_gradients(
        [(tf.ones([2], tf.float64), bias)]
    )
    with start() as session:
        session.run(lars)
        np.testing.assert_allclose(session.run(bias), 3.5)


def test_a_subclass_gives_its_own_rule() -> None:
    class SignDescent(tf.train.Optimizer):  # type: ignore[misc]
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            return var.assign_sub(tf.sign(grad), read_value=False)

    w = tf.Variable([5.0, -5.0])
    step = SignDescent(False, "Sign").minimize(tf.reduce_sum(w * w))
    with start() as session:
        session.run(step)
        assert session.run(w).tolist() == [4.0, -4.0]


def test_minimize_passes_options_by_name_to_what_a_subclass_overrides() -> None:
    """TensorFlow's call: a program's overrides name the options that they read and pass on the rest."""
    seen = dict[str, Any]()

    class Halved(tf.train.GradientDescentOptimizer):
        def compute_gradients(self, loss: Any, var_list: Any = None, **kwargs: Any) -> Any:
            seen.update(kwargs)
            pairs = super().compute_gradients(loss, var_list, **kwargs)
            return [(gradient / 2, variable) for gradient, variable in pairs]

        def apply_gradients(self, grads_and_vars: Any, **kwargs: Any) -> Any:
            seen.update(kwargs)
            return super().apply_gradients(grads_and_vars, **kwargs)

    w, step = tf.Variable(4.0), tf.train.get_or_create_global_step()
    train = Halved(0.25).minimize(tf.square(w), step, name="train")
    assert seen.keys() == {
        "gate_gradients", "aggregation_method", "colocate_gradients_with_ops", "grad_loss", "global_step",
        "name",
    }  # fmt: skip
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run([w, step]) == [4.0 - 0.25 * 8.0 / 2, 1]


@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("case", CASES)
def test_two_applies_of_one_optimizer_in_a_step_are_two_updates(case: str, ordered: bool) -> None:
    """As in TensorFlow they share the slots and the powers of beta, which grow after each of them."""
    rule, make, _ = CASES[case]
    gradients = [np.array([1.0, -2.0, 0.5]), np.array([-0.5, 3.0, 4.0])]
    optimizer, w = make(), tf.Variable([1.0, 2.0, 3.0], dtype=tf.float64)
    first = optimizer.apply_gradients([(tf.constant(gradients[0]), w)])
    with tf.control_dependencies([first] if ordered else []):
        second = optimizer.apply_gradients([(tf.constant(gradients[1]), w)])
    state: dict[str, Any] = {"w": np.array([1.0, 2.0, 3.0])}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for step in range(STEPS):
            session.run([second, first])
            for i, gradient in enumerate(gradients):
                rule(state, gradient, 2 * step + i + 1)
            np.testing.assert_allclose(session.run(w), state["w"], rtol=1e-6)  # the powers are float32


def test_ftrl_shrinks_weights_in_the_linear_term_only() -> None:
    """``linear += grad + 2 * shrinkage * var - ...``; the sum of squares is that of the gradient alone."""
    optimizer = tf.train.FtrlOptimizer(
        0.5, l2_regularization_strength=0.25, accum_name="squares", l2_shrinkage_regularization_strength=0.125
    )
    table = tf.get_variable("table", initializer=[[1.0], [2.0], [4.0]])
    rows = tf.get_variable("rows", initializer=[[1.0], [2.0], [4.0]])
    dense, sparse = (
        tf.constant([[1.0], [0.0], [2.0]]),
        tf.IndexedSlices([[1.0], [1.0], [1.0]], [2, 0, 2], [3, 1]),
    )
    train = optimizer.apply_gradients([(dense, table), (sparse, rows)])
    w, g, n, z = np.array([1.0, 2.0, 4.0]), np.array([1.0, 0.0, 2.0]), np.full(3, 0.1), np.zeros(3)
    other = w
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
            new = n + g**2
            z = z + g + 0.25 * w - (np.sqrt(new) - np.sqrt(n)) / 0.5 * w
            w, n = -z / (np.sqrt(new) / 0.5 + 0.5), new
        other = np.where(g > 0, w, other)
        np.testing.assert_allclose(session.run(table)[:, 0], w, rtol=1e-5)
        np.testing.assert_allclose(session.run(rows)[:, 0], other, rtol=1e-5)
    assert optimizer.get_slot(table, "accum").op.name == "table/squares"
    assert optimizer.get_slot(table, "linear").op.name == "table/Ftrl"
