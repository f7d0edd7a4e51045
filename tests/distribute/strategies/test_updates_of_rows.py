"""Variables that are kept whole, of which each device updates its rows in their memory: stages 1 and 2.

Programs are verified (`flowrt.executor.verify.verify_program`): each reader must find the value that it is
due.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.dtypes import float32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.ops.state.variable_ops import assign_other_rows_op, read_variable_op
from flowrt.graph.passes.layouts.keep_copies import keep_copies
from flowrt.graph.passes.pipeline import CompileOptions, compile_step
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.resources.variables import VariableResource, locks_of
from flowrt.viz import explain_layouts
from tests.distribute.strategies.standing_workers import Answers
from tests.distribute.strategies.test_fully_sharded import BEFORE
from tests.each import nightly

Mesh = tf.distribute.Mesh
MESH = Mesh([("dp", 2)])


class Model(NamedTuple):
    """A model of two layers, of which a program makes a step."""

    x: Any
    w: Any
    u: Any
    optimizer: Any

    def loss(self) -> Any:
        return tf.reduce_mean(tf.square(tf.tanh(self.x @ self.w) @ self.u - self.x))

    def train(self) -> Any:
        return self.optimizer.minimize(self.loss())


def reads_before_and_after(model: Model) -> Any:
    """What was read before the update is used after it."""
    before = model.w.read_value()
    with tf.control_dependencies([model.train()]):
        return 10 * tf.reduce_sum(before) + tf.reduce_sum(model.w.read_value())


def sets_and_adds(model: Model) -> Any:
    """Other writes than an optimizer's: of the whole, of what is added, of rows."""
    w, last = model.w, model.train()
    for write in (
        lambda: w.assign_add(tf.fill([6, 6], tf.constant(0.01, tf.float64))),
        lambda: w.assign(0.9 * w),
        lambda: tf.scatter_update(w, [1, 3], np.zeros((2, 6))),
    ):
        with tf.control_dependencies([last]):
            last = write()
    with tf.control_dependencies([last]):
        return tf.reduce_sum(tf.square(w.read_value()))


def trains_in_a_loop(model: Model) -> Any:
    model.train()  # makes the states

    def body(i: Any, total: Any) -> Any:
        loss = model.loss()
        with tf.control_dependencies([model.optimizer.minimize(loss)]):
            return i + 1, total + tf.identity(loss)

    return tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([], tf.float64)])[1]


def trains_in_a_branch(model: Model) -> Any:
    loss = model.loss()
    model.optimizer.minimize(loss)

    def updated() -> Any:
        with tf.control_dependencies([model.optimizer.minimize(loss)]):
            return tf.identity(loss)

    return tf.cond(loss > 0.0, updated, lambda: loss)


PROGRAMS = [reads_before_and_after, sets_and_adds, trains_in_a_loop, trains_in_a_branch]


def results(
    program: Callable[[Model], Any], strategy: Any = None, **layouts: Any
) -> tuple[list[float], list[Any]]:
    """Of some steps, and the variables after them. The first has ``layouts``."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        with nullcontext() if strategy is None else strategy.scope():
            x = tf.placeholder(tf.float64, [8, 6])
            w = tf.get_variable("w", [6, 6], tf.float64, **layouts)
            u = tf.get_variable("u", [6, 6], tf.float64)
            y = program(Model(x, w, u, tf.train.MomentumOptimizer(0.1, 0.9)))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
            session.run(tf.global_variables_initializer())
            found = [float(session.run(y, {x: np.eye(8, 6) + 0.1 * step})) for step in range(4)]
            return found, session.run([w, u])


@functools.cache
def on_one_device(program: Callable[[Model], Any]) -> tuple[list[float], list[Any]]:
    return results(program)


@pytest.mark.parametrize("size", nightly([3, 2, 4], 1))
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_that_read_and_write(
    program: Callable[[Model], Any], stage: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 devices have rows unevenly."""
    monkeypatch.setenv("FLOWRT_CHECK", "1")
    strategy = tf.distribute.FullyShardedStrategy(Mesh([("dp", size)]), stage=stage, min_bytes=0)
    found, variables = results(program, strategy)
    expected, expected_variables = on_one_device(program)
    np.testing.assert_allclose(found, expected, 1e-12)
    np.testing.assert_allclose(variables, expected_variables, 1e-10)


@pytest.mark.parametrize("stage", nightly([3, 1, 2], 1))
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_so_they_do_in_processes(answers: Answers, number: int, stage: int) -> None:
    """What is joined with a later gather, and what reads it, stays in the order of reads and writes."""
    expected, _ = on_one_device(PROGRAMS[number])
    for found in answers(f"writes:{number}:{stage}", 2):
        np.testing.assert_allclose(found, expected, 1e-12)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(
    ("layout", "stored"),
    [
        ([None, "dp"], None),
        (["dp", None], None),
        ([None, None], ["dp", "tp"]),
        ([None, None], [("dp", "tp"), None]),
        ([None, None], ["tp", None]),
        (["tp", None], [("dp", "tp"), None]),
        ([None, "tp"], ["dp", None]),
        ([None, "tp"], ["dp", "tp"]),
    ],
)
def test_layouts_that_a_script_asks_for(layout: list[Any], stored: list[Any] | None, stage: int) -> None:
    """What is kept need not be rows of what is used, or has its rows in another order."""
    mesh = Mesh([("dp", 2), ("tp", 2)])
    strategy = tf.distribute.FullyShardedStrategy(mesh, "dp", stage, min_bytes=0)
    found, variables = results(sets_and_adds, strategy, layout=layout, stored=stored)
    expected, expected_variables = on_one_device(sets_and_adds)
    np.testing.assert_allclose(found, expected, 1e-12)
    np.testing.assert_allclose(variables, expected_variables, 1e-10)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_shared_variable_has_the_layouts_that_it_was_given(stage: int) -> None:
    with tf.Graph().as_default(), tf.distribute.FullyShardedStrategy(MESH, stage=stage, min_bytes=0).scope():
        w = tf.get_variable("w", [6, 6], layout=[None, None])
        with tf.variable_scope("", reuse=True):
            assert tf.get_variable("w", [6, 6], layout=[None, None]) is w
            with pytest.raises(InvalidArgumentError, match=r"expected layout \[\].* got layout \[-, dp\]"):
                tf.get_variable("w", [6, 6], layout=[None, "dp"])


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "LAMB": lambda: tf.train.LAMBOptimizer(0.05, weight_decay=0.01),
    "LARS": lambda: tf.train.LARSOptimizer(0.5),
    "RMSProp": lambda: tf.train.RMSPropOptimizer(0.01, centered=True),
    "Ftrl": lambda: tf.train.FtrlOptimizer(0.1),
    "Adadelta": lambda: tf.train.AdadeltaOptimizer(0.5),
}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_parts(name: str, stage: int) -> None:
    """The norms of LAMB and LARS travel as numbers, one of each variable: that of the update."""

    def step(strategy: Any = None) -> tuple[list[float], dict[str, tuple[int, int]]]:
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            with nullcontext() if strategy is None else strategy.scope():
                x = tf.placeholder(tf.float64, [8, 6])
                w, u = (tf.get_variable(each, [6, 6], tf.float64) for each in "wu")
                model = Model(x, w, u, OPTIMIZERS[name]())
                loss, train = model.loss(), model.train()
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
                session.run(tf.global_variables_initializer())
                feeds = [{x: np.eye(8, 6) + 0.1 * number} for number in range(4)]
                losses = [float(session.run([loss, train], feed)[0]) for feed in feeds]
                found = explain_layouts(session, train, feeds[0])
                return losses, {} if found is None else found.totals()

    losses, moved = step(tf.distribute.FullyShardedStrategy(Mesh([("dp", 2)]), stage=stage, min_bytes=0))
    np.testing.assert_allclose(losses, step()[0], 1e-11)
    whole = 2 * 6 * 6 * 8
    assert moved["AllGather"] == moved["ReduceScatter"] == (2, whole)
    if name in ("LAMB", "LARS"):
        assert moved["AllReduce"] == (2, 2 * 2 * 8)


def test_what_comes_after_an_update_waits_until_all_rows_are_there() -> None:
    """On devices with several streams the order of the step is not enough."""
    with tf.Graph().as_default() as graph:
        with tf.distribute.FullyShardedStrategy(Mesh([("dp", 2)]), stage=2, min_bytes=0).scope():
            x = tf.placeholder(tf.float64, [8, 6])
            w, u = (tf.get_variable(name, [6, 6], tf.float64) for name in "wu")
            optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
            y = reads_before_and_after(Model(x, w, u, optimizer))
        options = CompileOptions([parse_device("/cpu:0")])
        request = StepRequest(graph, [y], [], {x: (8, 6)})
        step = keep_copies(compile_step(request, options, pipeline=BEFORE))
    update = next(n for n in step if n.op.name == "ResourceApplyMomentum" and n.inputs[0] == ("w@rows", 0))
    whole = next(node for node in step if node.op is assign_other_rows_op and ("w", 0) in node.inputs)
    assert update.name in whole.controls
    *_, last = [node for node in step if node.op is read_variable_op and node.inputs[0] == ("w", 0)]
    assert last.controls == ("Momentum",)  # the group of all updates
    assert whole.name in step.nodes["Momentum"].controls


def test_a_part_of_a_constant_waits_for_what_the_constant_waits_for() -> None:
    """What is added after a write may be a constant, by which alone the addition waits for it."""
    with tf.Graph().as_default() as graph, tf.distribute.LayoutStrategy(MESH).scope():
        w = tf.get_variable("w", [6, 6], layout=["dp", None])
        with tf.control_dependencies([w.assign(tf.square(w), name="first")]):
            last = w.assign_add(tf.constant(1.0, shape=[6, 6]), name="last")
        options = CompileOptions([parse_device(f"/cpu:{number}") for number in range(2)])
        step = compile_step(StepRequest(graph, [], [last.op], {}), options)
    awaited: dict[str, set[str]] = {}
    for node in step:
        before = [name for name in node.predecessors if name in awaited]
        awaited[node.name] = set(before).union(*[awaited[name] for name in before])
    for at in ("@dp0", "@dp1"):
        assert f"first{at}" in awaited[f"last{at}"]


def variable() -> VariableResource:
    found = VariableResource("w", float32, (4, 2))
    found.pin(np.zeros)
    return found


def test_rows_are_one_variable_in_the_memory_of_the_whole() -> None:
    whole = variable()
    rows = whole.rows(1, 3)
    assert whole.rows(1, 3) is rows
    assert (rows.shape, rows.whole, [*whole.all_rows]) == ((2, 2), whole, [rows])
    assert not rows.is_initialized
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"'w\[1:3\]' has no value yet"):
        rows.read()
    whole.assign(np, np.arange(8, dtype=np.float32).reshape(4, 2))
    np.testing.assert_array_equal(rows.read(), [[2, 3], [4, 5]])
    rows.array += 10
    whole.assign_around(np, rows, np.full((4, 2), -1, np.float32))
    np.testing.assert_array_equal(whole.read(), [[-1, -1], [12, 13], [14, 15], [-1, -1]])


def test_an_update_of_rows_and_a_read_of_the_whole_wait_for_each_other() -> None:
    """A fetch, or a checkpoint, never has a part of an update: they have one lock."""
    some, other = variable(), variable()
    assert some.rows(1, 3).lock is some.lock
    assert len(locks_of([some, some.rows(1, 3)])) == 1
    assert locks_of([some, other]) == locks_of([other.rows(0, 2), some.rows(0, 2)])
