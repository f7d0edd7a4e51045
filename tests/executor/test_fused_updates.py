"""Updates of variables: those of all variables are one call, and do what they do one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.device.llvm.call_sequence import in_sequence
from flowrt.executor.kernels import loop_layout
from flowrt.executor.kernels.update_kernel import update_of
from flowrt.executor.plan.tiers import RUNS_BEFORE_COMPILING
from flowrt.executor.program import updates
from flowrt.executor.program.arguments import LateArray
from flowrt.executor.program.instruction import Call, Instruction
from flowrt.executor.program.updates import Updates, join_updates
from flowrt.graph.node import Node
from flowrt.graph.op_def import op_def
from flowrt.graph.resources.variables import VariableResource
from tests.executor.fused_sessions import execute, plans_of, wait_for_loops
from tests.graph.test_loop_rules import EXTREMES

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")


SHAPES = [(30, 7), (7,), (), (7, 4), (3, 2, 2), (40, 40)]
OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(0.1),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, centered=True),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
}


def updates_of(session, plan=-1):
    """How many updates each call of one of a session's plans makes."""
    (program,) = plans_of(session)[plan].programs
    calls = [a for segment in program.segments for _, a in segment.instructions if isinstance(a, Updates)]
    return [len(call._updates) for call in calls]


def train(optimizer):
    variables = [tf.Variable(values(*shape, seed=i)) for i, shape in enumerate(SHAPES)]
    loss = tf.add_n([tf.reduce_sum(tf.square(v - 0.3)) for v in variables])
    return variables, optimizer.minimize(loss, var_list=variables)


@pytest.mark.parametrize("parallel_ns", [0, 80e3], ids=["threads", "one thread"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_many_variables_are_one_call(monkeypatch, name, parallel_ns):
    monkeypatch.setattr(updates, "PARALLEL_NS", parallel_ns)
    monkeypatch.setattr(loop_layout, "PARALLEL_NS", parallel_ns)
    results = []
    for mode in ("off", "eager"):
        monkeypatch.setenv("FLOWRT_JIT", mode)
        with tf.Graph().as_default(), tf.Session() as session:
            variables, step = train(OPTIMIZERS[name]())
            session.run(tf.global_variables_initializer())
            for _ in range(5):
                session.run(step)
            if mode == "eager":
                assert updates_of(session)[0] == len(SHAPES)
            results.append(session.run(variables))
    for plain, compiled in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-5, atol=1e-6)


# --- off, eager and background

EXTREME_SHAPES = [(30, 7), (0, 3), (), (200, 100)]
"""The feed of the last is read where it lies, in Fortran order here."""

GROWTH = 1000
"""Ftrl adds to a slot the variable times the growth of a root, by 90 at most here, over the rate, 0.1."""


def with_extremes(shape, dtype, seed):
    """No square of theirs overflows: as one sum with what it is added to, it would not, in a loop."""
    rng, largest = np.random.default_rng(seed), np.finfo(dtype).max
    strange = [value for value in EXTREMES[dtype] if abs(value) != largest]
    is_strange = rng.random(shape) < 0.15
    return np.where(is_strange, rng.choice(strange, shape), rng.normal(size=shape)).astype(dtype)


def one_step(optimizer, dtype, mode):
    """All variables before one step and behind it, which loops compute unless the mode is off."""
    with tf.Graph().as_default(), tf.Session() as session:
        shapes = list(enumerate(EXTREME_SHAPES))
        variables = [tf.Variable(with_extremes(shape, dtype, i)) for i, shape in shapes]
        gradients = [tf.placeholder(dtype, shape) for shape in EXTREME_SHAPES]
        step = optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        feeds = {g: with_extremes(g.shape, dtype, 9 + i) for i, g in enumerate(gradients)}
        feeds[gradients[-1]] = np.asfortranarray(feeds[gradients[-1]])
        initialize = tf.global_variables_initializer()
        for _ in range(RUNS_BEFORE_COMPILING):
            session.run(initialize)
            session.run(step, feeds)
        wait_for_loops()
        session.run(initialize)
        before = session.run(tf.global_variables())
        session.run(step, feeds)
        in_loops = sum(updates_of(session, plan=1))
        assert in_loops == 0 if mode == "off" else in_loops >= len(EXTREME_SHAPES) - 1  # one is empty
        return before, session.run(tf.global_variables())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_nan_infinity_and_nothing_in_every_mode(monkeypatch, name, dtype):
    """Within 4 units in the last place of what is added up."""
    steps = {}
    for mode in ("off", "eager", "background"):
        monkeypatch.setenv("FLOWRT_JIT", mode)
        before, steps[mode] = one_step(OPTIMIZERS[name](), dtype, mode)
    variables = {start.shape: start for start in reversed(before)}  # their slots come behind them
    for start, plain, eager, background in zip(before, *steps.values(), strict=True):
        assert np.array_equal(eager, background, equal_nan=True)
        sizes = [plain, eager, start, *([variables[start.shape] * GROWTH] if name == "ftrl" else [])]
        with np.errstate(all="ignore"):
            size = np.max(np.nan_to_num(np.abs(sizes), posinf=0), axis=0)
            is_near = np.abs(plain - eager) <= 4 * np.spacing(size)
        same = (plain == eager) | (np.isnan(plain) & np.isnan(eager)) | is_near
        assert same.all(), (start[~same], plain[~same], eager[~same])


# --- one after the other


def test_an_update_waits_for_what_it_reads(eager):
    a, b = tf.Variable(np.zeros(8, np.float32)), tf.Variable(np.ones(8, np.float32))
    first = a.assign_add(b, read_value=False)
    with tf.control_dependencies([first]):
        second = b.assign_add(a.read_value(), read_value=False)
    with tf.control_dependencies([second]):
        third = a.assign_add(tf.constant(np.ones(8, np.float32)), read_value=False)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(third)
        assert updates_of(session) == [1, 1, 1]
        assert [x.tolist() for x in session.run([a, b])] == [[2.0] * 8, [2.0] * 8]
        session.run(third)
        assert [x.tolist() for x in session.run([a, b])] == [[5.0] * 8, [6.0] * 8]


ASSIGNMENTS = ["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"]


def rows_and_variables():
    """Five rows of memory, of which four are variables'."""
    memory = np.arange(40, dtype=np.float32).reshape(5, 8)
    variables = [VariableResource(f"v{i}", tf.float32, (8,)) for i in range(4)]
    for variable, row in zip(variables, memory, strict=False):
        variable.array, variable.is_initialized = row, True
    return memory, variables


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ASSIGNMENTS),
            st.integers(0, 3),
            st.integers(0, 4),
            st.sampled_from([1, -1]),
            st.booleans(),
        ).filter(lambda drawn: drawn[1] != drawn[2]),
        max_size=8,
    )
)
def test_updates_in_calls_do_what_they_do_one_by_one(wanted):
    """Each changes a variable by a row, which may be another variable, read in either order, known or in a
    register. Those of one call are made backwards: no order of them may matter.
    """
    (found, variables), (expected, plain) = rows_and_variables(), rows_and_variables()
    instructions, registers = [], []
    for name, target, source, step, is_late in wanted:
        node = Node(name, op_def(name), (), (), {}, "", None, ())
        node.op.kernel(np, plain[target], expected[source, ::step].copy())
        array = found[source, ::step]
        if is_late:
            registers.append(array)
            array = LateArray(len(registers) - 1, np.empty(8, np.float32))
        if is_late and source < 4:  # a program gets it by another instruction, in between
            instructions.append(Instruction(node, Call(lambda: None)))
        instructions.append(Instruction(node, update_of(node, [variables[target], array], registers)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "in_sequence", lambda calls: in_sequence(calls[::-1]))
        for _, action in join_updates(instructions):
            execute(action)
    assert np.array_equal(found, expected)


def test_one_variable_without_a_value_is_named_and_nothing_is_written(eager):
    *variables, last = [tf.Variable(values(3), name=f"v{i}") for i in range(4)]
    with tf.control_dependencies([last.assign_sub(tf.ones([3]), read_value=False, name="subtract")]):
        step = tf.group(*[v.assign_add(tf.ones([3]), read_value=False) for v in variables])
    with tf.Session() as session:
        session.run([v.initializer for v in variables])
        before = session.run(variables)
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"v3.* no value yet") as error:
            session.run(step)
        assert updates_of(session) == [4]
        assert error.value.op == "subtract"
        assert np.array_equal(session.run(variables), before)
        session.run(last.initializer)
        session.run(step)
        assert np.array_equal(session.run(variables), np.add(before, 1))
