"""Graphs whose loops would take too long to compile: which are compiled, and that the results stay right."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.kernels.fused_program import fused_program
from flowrt.executor.plan import tiers
from flowrt.graph.passes.fusion import loop_budget
from flowrt.graph.passes.fusion.loop_budget import LOOP_S, MEMBER_S
from tests.executor.fused_sessions import WAIT_S, fused_of, plans_of, wait_for_loops
from tests.executor.test_compiled_results import RandomFloats, check_random_graph
from tests.executor.test_fused_groups import kernels_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

PAIR_S = LOOP_S + 2 * MEMBER_S
SINGLE_S = LOOP_S + MEMBER_S


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")


def groups_of(session):
    return [
        node.attrs["group"]
        for plan in plans_of(session)
        for part in plan.partitions.values()
        for node in part.subgraph
        if "group" in node.attrs
    ]


def forms_of(*builds, size=8):
    """The forms of the groups of one graph each."""
    found = []
    for build in builds:
        with tf.Graph().as_default(), tf.Session() as session:
            x, y = tf.placeholder(tf.float32, [size, 3]), tf.placeholder(tf.float32, [size, 3])
            session.run(build(x, y), {x: np.ones((size, 3)), y: np.ones((size, 3))})
            (group,) = groups_of(session)
            found.append(group.form)
    return found


# --- forms


def test_what_computes_the_same_has_one_form(eager):
    def build(x, y):
        return tf.tanh(x, name="a") * y + 2.0

    def other(x, y):
        return tf.tanh(y, name="b") * x + 2.0  # read in another order, which is theirs

    first, second = forms_of(build, other)
    assert first == second
    assert forms_of(build, size=20) == [first]


def test_what_computes_something_else_has_another(eager):
    forms = forms_of(
        lambda x, y: tf.tanh(x) * y + 2.0,
        lambda x, y: tf.tanh(x) * y + 3.0,
        lambda x, y: tf.tanh(x) * y + y,
        lambda x, y: tf.tanh(x) * y - 2.0,
        lambda x, y: [t := tf.tanh(x) * y, t + 2.0],
        lambda x, y: tf.reduce_sum(tf.tanh(x) * y, 1),
        lambda x, y: tf.reduce_sum(tf.tanh(x) * y, 0),
        lambda x, y: tf.tanh(x) * y[:1] + 2.0,
        lambda x, y: tf.cast(tf.tanh(x) * y, tf.float64),
        lambda x, y: tf.cast(tf.tanh(x) * y, tf.int32),
        lambda x, y: [t := tf.tanh(x), tf.reduce_max(t, 1)],
        lambda x, y: [t := tf.tanh(x), tf.reduce_max(t, 1, keepdims=True)],
        lambda x, y: tf.nn.leaky_relu(x * y, 0.1),
        lambda x, y: tf.nn.leaky_relu(x * y, 0.2),
    )
    assert len(set(forms)) == len(forms)


@settings(max_examples=settings.default.max_examples // 12)
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_groups_of_one_form_have_one_program(first, second):
    """And so, in arrays that lie alike, one loop."""
    programs = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("FLOWRT_JIT", "eager")
        monkeypatch.setattr(loop_budget, "MAX_COMPILE_S", 0.5)
        for seed in (first, second):
            with tf.Graph().as_default(), tf.Session() as session:
                random = RandomFloats(seed)
                session.run(random.tensors, random.feeds)
                for group in groups_of(session):
                    programs.setdefault(group.form, set()).add(str(fused_program(group).program))
    assert programs
    assert {len(found) for found in programs.values()} == {1}


# --- what is compiled


def test_the_groups_that_are_many_are_compiled(eager, monkeypatch):
    monkeypatch.setattr(loop_budget, "MAX_COMPILE_S", 2 * PAIR_S)
    xs = [tf.placeholder(tf.float32, [n + 2]) for n in range(6)]  # of sizes that no group has in common
    ys = [tf.tanh(x) * x for x in xs[:4]] + [tf.sigmoid(x) - x for x in xs[4:]]
    with tf.Session() as session:
        found = session.run(ys, {x: np.ones(x.shape) for x in xs})
        assert fused_of(session) == [["Tanh", "Mul"]] * 4 + [["Sigmoid"]] * 2
    for y in found[:4]:
        np.testing.assert_allclose(y, np.tanh(1.0), rtol=1e-6)
    for y in found[4:]:
        np.testing.assert_allclose(y, 1 / (1 + np.exp(-1.0)) - 1, rtol=1e-6)


def test_what_has_a_constant_of_its_own_stays_as_it_is(eager, monkeypatch):
    monkeypatch.setattr(loop_budget, "MAX_COMPILE_S", 4 * SINGLE_S)
    xs = [tf.placeholder(tf.float32, [n + 2]) for n in range(20)]
    ys = [tf.tanh(x * float(n + 2)) for n, x in enumerate(xs)]
    with tf.Session() as session:
        found = session.run(ys, {x: np.ones(x.shape) for x in xs})
        groups = fused_of(session)
        assert groups.count(["Tanh"]) + groups.count(["Mul", "Tanh"]) == 20
        assert len({group.form for group in groups_of(session)}) <= 6
    for n, y in enumerate(found):
        np.testing.assert_allclose(y, np.tanh(n + 2.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("seed", "budget"), [*itertools.product(range(3), [0.0, 2 * SINGLE_S, 0.1]), (3, 0.3), (4, 0.3)]
)
def test_random_graphs_are_right_whatever_is_compiled(monkeypatch, seed, budget):
    monkeypatch.setattr(loop_budget, "MAX_COMPILE_S", budget)
    groups = check_random_graph(monkeypatch, RandomFloats(seed))
    assert bool(groups) == (budget > 0)


def test_few_loops_for_many_operations_that_differ(eager, monkeypatch):
    monkeypatch.setattr(loop_budget, "MAX_COMPILE_S", 0.5)
    rng = np.random.default_rng(0)
    x = tf.placeholder(tf.float32, [4])
    lanes = [x * float(i) for i in range(10)]
    for _ in range(1000):
        a, b, c = rng.choice(10, 3, replace=False)
        two = (tf.add, tf.subtract, tf.maximum, tf.multiply)[rng.integers(4)]
        lanes[c] = (tf.tanh, tf.sigmoid, tf.negative)[rng.integers(3)](two(lanes[a], lanes[b]))
    value = np.linspace(-1, 1, 4)
    with tf.Session() as session:
        compiled = session.run(lanes, {x: value})
        groups = groups_of(session)
        kinds = {group.form: len(group.members) for group in groups}
        assert sum(LOOP_S + MEMBER_S * members for members in kinds.values()) <= 0.5
        assert sum(len(group.members) for group in groups) > 1000
        assert not kernels_of(session)
    monkeypatch.setenv("FLOWRT_JIT", "off")
    with tf.Session() as session:
        for fused, plain in zip(compiled, session.run(lanes, {x: value}), strict=True):
            np.testing.assert_allclose(fused, plain, rtol=1e-3, atol=1e-4)  # rounding grows on the way


# --- large plans


@pytest.fixture
def background(monkeypatch):
    """Where eleven nodes make a large plan."""
    monkeypatch.setenv("FLOWRT_JIT", "background")
    monkeypatch.setattr(tiers, "LARGE", 10)
    monkeypatch.setattr(tiers, "RUNS_BEFORE_LARGE", 6)


def chain(x, length):
    for _ in range(length):
        x = tf.tanh(x) * 2.0
    return x


def test_a_large_plan_is_compiled_after_more_runs_than_others(background):
    x = tf.placeholder(tf.float32, [4])
    y, feed = chain(x, 10), {x: np.ones(4)}
    with tf.Session() as session:
        expected = session.run(y, feed)
        for _ in range(4):
            session.run(y, feed)
        wait_for_loops(11)
        assert not fused_of(session)
        session.run(y, feed)
        wait_for_loops(11)
        assert fused_of(session)
        np.testing.assert_allclose(session.run(y, feed), expected, rtol=1e-5)


def test_a_small_plan_does_not_wait_for_a_large_one(background):
    may_go_on, is_small_done, is_large_done = threading.Event(), threading.Event(), threading.Event()
    tiers.compile_beside(lambda: is_large_done.set() if may_go_on.wait(WAIT_S) else None, 11)
    tiers.compile_beside(is_small_done.set, 10)
    assert is_small_done.wait(WAIT_S)
    assert not is_large_done.is_set()
    may_go_on.set()
    assert is_large_done.wait(WAIT_S)


def test_nothing_is_too_large_for_eager(eager, monkeypatch):
    monkeypatch.setattr(tiers, "LARGE", 10)
    x = tf.placeholder(tf.float32, [4])
    with tf.Session() as session:
        session.run(chain(x, 10), {x: np.ones(4)})
        assert fused_of(session)
