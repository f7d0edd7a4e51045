"""``contrib.opt``: minimization from outside the graph, averages, decay of some variables.

The rules of the optimizers with one step are in `tests.train.test_optimizers`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib.opt import ExternalOptimizerInterface, ScipyOptimizerInterface
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph() as new:
        yield new


def minimum(make: Any) -> Any:
    """Where ``make(variable)`` ends, from [7, 7]."""
    pytest.importorskip("scipy")
    v = tf.Variable([7.0, 7.0])
    optimizer = make(v)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        optimizer.minimize(session)
        return session.run(v)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda v: ScipyOptimizerInterface(tf.nn.l2_loss(v)), [0, 0]),
        (lambda v: ScipyOptimizerInterface(tf.nn.l2_loss(v), method="CG", tol=1e-9), [0, 0]),
        (lambda v: ScipyOptimizerInterface(tf.nn.l2_loss(v), var_to_bounds={v: ([1, 2], None)}), [1, 2]),
        (
            lambda v: ScipyOptimizerInterface(
                tf.nn.l2_loss(v), equalities=[v[1] - 1], inequalities=[v[0] - 2], method="SLSQP"
            ),
            [2, 1],
        ),
    ],
    ids=["default", "conjugate gradients", "bounds", "constraints"],
)
def test_scipy_finds_the_minimum(make: Any, expected: list[float]) -> None:
    np.testing.assert_allclose(minimum(make), expected, atol=1e-5)


def test_several_variables_feeds_fetches_and_callbacks() -> None:
    pytest.importorskip("scipy")
    a, b = tf.Variable(tf.ones([2, 2])), tf.Variable(np.float32(5))
    unused = tf.Variable([1.0])
    goal = tf.placeholder(tf.float32, [2, 2])
    loss = tf.reduce_sum(tf.square(a - goal)) + tf.square(b + 1)
    optimizer = ScipyOptimizerInterface(loss, options={"maxiter": 50})
    steps: list[Any] = []
    losses: list[Any] = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        optimizer.minimize(
            session, {goal: [[1, 2], [3, 4]]}, [loss, b], steps.append, lambda *values: losses.append(values)
        )
        np.testing.assert_allclose(session.run(a), [[1, 2], [3, 4]], atol=1e-4)
        np.testing.assert_allclose(session.run([b, unused[0]]), [-1, 1], atol=1e-4)
    np.testing.assert_allclose(steps[-1], [1, 2, 3, 4, -1, 1], atol=1e-4)
    assert losses[0] == (50.0, 5.0)
    assert losses[-1][0] < 1e-6


def test_a_subclass_minimizes_in_its_own_way() -> None:
    class OneStep(ExternalOptimizerInterface):
        def _minimize(self, initial_val: Any, loss_grad_func: Any, **options: Any) -> Any:
            assert options["optimizer_kwargs"] == {"rate": 0.25}
            return initial_val - 0.25 * loss_grad_func(initial_val)[1]

    np.testing.assert_array_equal(minimum(lambda v: OneStep(tf.nn.l2_loss(v), rate=0.25)), [5.25, 5.25])


def test_what_is_set_here_is_no_argument() -> None:
    with pytest.raises(InvalidArgumentError, match="no argument 'bounds', which is set here"):
        minimum(lambda v: ScipyOptimizerInterface(tf.nn.l2_loss(v), bounds=[(0, 1)] * 2))
    with pytest.raises(InvalidArgumentError, match="expected a session; got None"):
        ScipyOptimizerInterface(tf.nn.l2_loss(tf.Variable([1.0]))).minimize()


def test_a_swapping_saver_saves_averages_as_variables(tmp_path: Path) -> None:
    v = tf.Variable(8.0, name="v")
    optimizer = tf.contrib.opt.MovingAverageOptimizer(tf.train.GradientDescentOptimizer(1.0), 0.5)
    with pytest.raises(FailedPreconditionError, match="after minimize or apply_gradients"):
        optimizer.swapping_saver()
    train = optimizer.minimize(4 * v)
    saver, plain = optimizer.swapping_saver(), tf.train.Saver([v])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(v) == 4.0
        path = saver.save(session, str(tmp_path / "averages"))
        plain.restore(session, path)
        assert session.run(v) == 6.0
        saver.restore(session, path)
        assert session.run(v) == 4.0


def test_only_the_variables_of_decay_var_list_decay() -> None:
    a, b = tf.Variable(1.0), tf.Variable(1.0)
    optimizer = tf.contrib.opt.extend_with_decoupled_weight_decay(tf.train.GradientDescentOptimizer)(
        0.5, learning_rate=0.0
    )
    loss = a + b
    one, both = optimizer.minimize(loss, decay_var_list=[a]), optimizer.minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(one)
        assert session.run([a, b]) == [0.5, 1.0]
        session.run(both)
        assert session.run([a, b]) == [0.25, 0.5]


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "no optimizer": (
        lambda v: tf.contrib.opt.MovingAverageOptimizer("adam"), DTypeError, "an optimizer; got 'adam'"
    ),
    "an instance": (
        lambda v: tf.contrib.opt.extend_with_decoupled_weight_decay(tf.train.AdamOptimizer()),
        DTypeError,
        "a class of optimizers",
    ),
    "names": (
        lambda v: tf.contrib.opt.AdamWOptimizer(0.1).minimize(v[0], decay_var_list=["v"]),
        DTypeError,
        "decay_var_list: expected variables; got 'v'",
    ),
    "a vector": (lambda v: ScipyOptimizerInterface(v * 2.0), InvalidArgumentError, "a scalar loss"),
    "no variables": (
        lambda v: ScipyOptimizerInterface(tf.constant(1.0), var_list=[]), InvalidArgumentError, "variables to"
    ),
    "one bound": (
        lambda v: ScipyOptimizerInterface(v[0], var_to_bounds={v: (0,)}),
        InvalidArgumentError,
        r"\(low, high\) of v; got \(0,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake: str) -> None:
    make, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        make(tf.Variable([1.0, 2.0], name="v"))
