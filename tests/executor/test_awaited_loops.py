"""Programs whose loops are compiled while they run: each form computes the same, on the same memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.bind import awaited_loops
from flowrt.executor.bind.awaited_loops import AwaitedLoops, Awaiting
from flowrt.executor.plan.tiers import RUNS_BEFORE_COMPILING
from flowrt.executor.verify.verify_program import checking
from flowrt.graph.node import TensorSpec
from flowrt.graph.passes.fusion.group import Group, Level, plain_kernel
from tests.executor.fused_sessions import WAIT_S, plans_of, wait_for_loops


@pytest.fixture(autouse=True)
def _background(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "background")


def net(width=48, batch=32):
    """A training step with a loop of each kind: groups, rows, draws, updates. The loss, and the step."""
    x = tf.placeholder(tf.float32, [batch, width])
    h = x
    for seed in (1, 2):
        w = tf.Variable(np.random.default_rng(seed).normal(size=(width, width)).astype(np.float32) / 8)
        h = tf.nn.dropout(tf.tanh(tf.matmul(h, w) + tf.Variable(tf.zeros([width]))), keep_prob=0.9, seed=seed)
    labels = tf.constant(np.arange(batch) % width)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=h)
    loss = tf.reduce_mean(losses)
    return x, [loss, tf.train.AdamOptimizer(0.01).minimize(loss)]


def waiting(plan):
    """The instructions of ``plan`` that wait for loops."""
    return [
        instruction
        for program in plan.programs
        for segment in program.segments
        for instruction in segment.instructions
        if isinstance(instruction.action, Awaiting)
    ]


def losses_of(mode, steps, monkeypatch, after_step=lambda session, step: None):
    monkeypatch.setenv("FLOWRT_JIT", mode)
    feed = np.random.default_rng(0).normal(size=(32, 48)).astype(np.float32)
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        x, fetches = net()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            found = []
            for step in range(steps):
                found.append(session.run(fetches, {x: feed})[0])
                after_step(session, step)
    return found


def test_a_step_computes_the_same_however_many_of_its_loops_are_there(monkeypatch):
    """The compiling thread goes on by one exchange after each step."""
    may_go_on, is_done, exchanges = threading.Semaphore(0), threading.Semaphore(0), []
    compile_all = AwaitedLoops.compile

    def compile_slowly(self):
        for _ in compile_all(self):
            exchanges.append(sum(isinstance(i.action, Awaiting) for i in self._instructions()))
            is_done.release()
            assert may_go_on.acquire(timeout=WAIT_S)
            yield
        is_done.release()

    def after_step(session, step):
        if step == RUNS_BEFORE_COMPILING - 1:
            assert is_done.acquire(timeout=WAIT_S)  # the first exchange
        elif step >= RUNS_BEFORE_COMPILING and exchanges[-1]:
            may_go_on.release()
            assert is_done.acquire(timeout=WAIT_S)

    monkeypatch.setattr(AwaitedLoops, "compile", compile_slowly)
    with checking():  # each exchange
        found = losses_of("background", 14, monkeypatch, after_step)
    may_go_on.release(10)
    wait_for_loops()
    assert len(exchanges) > 2
    assert exchanges == sorted(exchanges, reverse=True)
    assert exchanges[-1] == 0
    np.testing.assert_allclose(found, losses_of("off", 14, monkeypatch), rtol=1e-5)


def test_loops_that_save_most_per_second_of_compiling_come_first(monkeypatch):
    compiled = []
    made = awaited_loops._compiled
    monkeypatch.setattr(
        awaited_loops, "_compiled", lambda action: (compiled.append(action.loop), made(action))[1]
    )
    losses_of("background", 4, monkeypatch, lambda session, step: wait_for_loops())
    benefit = {}
    for loop in compiled:
        benefit[loop.form] = benefit.get(loop.form, 0.0) + loop.plain_s / loop.compile_s
    assert len(benefit) > 4
    assert list(benefit.values()) == sorted(benefit.values(), reverse=True)


def test_a_loop_that_cannot_be_compiled_leaves_its_kernels_and_the_other_loops(monkeypatch, caplog):
    made, failed = awaited_loops._compiled, []

    def fails_first(action):
        if not failed:
            failed.append(action.loop.form)
            raise tf.errors.InternalError("LLVM: no such instruction")
        return made(action)

    monkeypatch.setattr(awaited_loops, "_compiled", fails_first)
    left = []

    def after_step(session, step):
        wait_for_loops()
        left[:] = [instruction.action.loop.form for instruction in waiting(plans_of(session)[-1])]

    found = losses_of("background", 6, monkeypatch, after_step)
    assert set(left) == set(failed)
    assert "own kernels remain in use" in caplog.text
    np.testing.assert_allclose(found, losses_of("off", 6, monkeypatch), rtol=1e-5)


def test_instances_of_steps_at_the_same_time_get_the_loops_too():
    x = tf.placeholder(tf.float32, [64, 64])
    y = tf.reduce_sum(tf.exp(x) * 2.0 + 1.0)
    value = np.ones((64, 64), np.float32)
    with tf.Session() as session:
        for _ in range(RUNS_BEFORE_COMPILING):
            expected = session.run(y, {x: value})
        wait_for_loops()
        (plan,) = plans_of(session)
        assert plan.has_loops
        instances = [plan._take_instance() for _ in range(3)]
        for instance in instances:
            plan._give_back(instance)
            assert not waiting(plan)
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: session.run(y, {x: value}), range(40)):
                np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_updates_by_values_in_registers(is_known):
    """A large feed is read where it is, and so is a value of a size that only the step knows."""
    v = tf.Variable(tf.zeros([200, 200]))
    x = tf.placeholder(tf.float32, [200, 200])
    update = v.assign_sub(x if is_known else tf.boolean_mask(x, x[:, 0] > 0))
    total = tf.reduce_sum(tf.exp(tf.constant(np.zeros([64, 64], np.float32)) * v[:64, :64]) * 2.0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(8):
            session.run([update, total], {x: np.ones((200, 200), np.float32)})
            wait_for_loops()
        assert session.run(v).tolist() == [[-8.0] * 200] * 200


def test_a_closed_plan_compiles_no_more_loops(monkeypatch):
    made, compiled = awaited_loops._compiled, []
    monkeypatch.setattr(awaited_loops, "_compiled", lambda action: (compiled.append(action), made(action))[1])
    x, fetches = net()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(fetches, {x: np.ones((32, 48))})
        better = plans_of(session)[-1].next_tier.make()
    before = len(waiting(better))
    loops = better.compile_loops()
    next(loops)
    assert 0 < len(waiting(better)) < before
    better.close()
    done = len(compiled)
    assert list(loops) == []
    assert len(compiled) == done


def test_a_group_without_its_loop_stores_no_result_over_an_input_that_it_still_needs():
    """Two results, of which the first is stored over the input that the second is."""
    x = tf.placeholder(tf.float32, [4])
    members = (tf.negative(x).op.node, tf.identity(x).op.node)
    outputs = tuple([(member.name, 0) for member in members])
    inputs = {members[0].inputs[0]: TensorSpec(tf.float32, (4,))}
    group = Group((4,), members, {}, inputs, outputs, dict.fromkeys(outputs, Level.ELEMENT), False)
    memory, second = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    plain_kernel(np, (memory,), group, (memory, second))
    assert memory.tolist() == [0, -1, -2, -3]
    assert second.tolist() == [0, 1, 2, 3]
