"""Loops and branches whose bodies run on several devices: every device runs its own copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.plan.plan import Plan
from flowrt.executor.program.runner import StepControl
from tests.each import nightly

SEEDS = 200
STEPS = 4


def loop_over_two(n: Any, x: Any) -> Any:
    def body(i: Any, a: Any, b: Any) -> Any:
        with tf.device("/cpu:1"):
            c = tf.sin(a) * 1.5
        with tf.device("/cpu:0"):
            d = c + b
        return i + 1, d, b + tf.reduce_sum(c)

    return tf.while_loop(lambda i, *_: i < n, body, [0, x, tf.constant(0.5, tf.float64)])


def nested_loops(n: Any, x: Any) -> Any:
    def body(i: Any, a: Any) -> Any:
        def inner(j: Any, c: Any) -> Any:
            with tf.device("/cpu:1"):
                grown = c + tf.cos(c)
            with tf.device("/cpu:2"):
                return j + 1, grown * 0.5

        with tf.device("/cpu:1"):
            start = a + tf.cast(i, tf.float64)
        return i + 1, tf.while_loop(lambda j, _: j <= i, inner, [0, start])[1]

    return tf.while_loop(lambda i, _: i < n, body, [0, x])


def branch_in_loop(n: Any, x: Any) -> Any:
    def body(i: Any, a: Any) -> Any:
        def odd() -> Any:
            with tf.device("/cpu:1"):
                return a * 2.0

        def even() -> Any:
            with tf.device("/cpu:2"):
                return tf.sin(a) + x

        return i + 1, tf.cond(tf.equal(i % 2, 1), odd, even)

    return tf.while_loop(lambda i, _: i < n, body, [0, x])


def loop_in_branch(n: Any, x: Any) -> Any:
    def spread() -> Any:
        return loop_over_two(n, x)[1]

    return tf.cond(n > 2, spread, lambda: x * 3.0)


def swapped(n: Any, x: Any) -> Any:
    def body(i: Any, a: Any, b: Any) -> Any:
        with tf.device("/cpu:1"):
            return i + 1, b, a + 1.0

    return tf.while_loop(lambda i, *_: i < n, body, [0, x, x * 2.0])


PROGRAMS = [loop_over_two, nested_loops, branch_in_loop, loop_in_branch, swapped]


def build(program: Callable[..., Any]) -> tuple[tf.Graph, Any, Any, list[Any]]:
    graph = tf.Graph()
    with graph.as_default():
        n, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.float64, [3])
        outputs = tf.nest.flatten(program(n, x))
        floats = [y for y in outputs if y.dtype == tf.float64]
        outputs += tf.gradients(floats, [x])
    return graph, n, x, outputs


def session_of(graph: tf.Graph, cpus: int) -> tf.Session:
    config = tf.ConfigProto(device_count={"CPU": cpus}, allow_soft_placement=cpus == 1)
    return tf.Session(graph=graph, config=config)


VALUE = [0.1, 0.2, 0.3]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("steps", [0, 1, STEPS])
def test_several_devices_compute_what_one_does(program: Callable[..., Any], steps: int) -> None:
    graph, n, x, outputs = build(program)
    with session_of(graph, 1) as one, session_of(graph, 3) as three:
        expected = one.run(outputs, {n: steps, x: VALUE})
        for got, wanted in zip(three.run(outputs, {n: steps, x: VALUE}), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def plan_of(session: tf.Session, outputs: list[Any], feeds: dict[Any, Any]) -> Plan:
    session.run(outputs, feeds)
    (request,) = session._requests.values()
    (plan,) = request.plans.values()
    return plan


@pytest.mark.parametrize("block", nightly(range(5), 1))
@pytest.mark.parametrize("program", PROGRAMS)
def test_any_schedule_gives_the_same_and_leaves_nothing_behind(
    program: Callable[..., Any], block: int
) -> None:
    graph, n, x, outputs = build(program)
    feeds = {n: STEPS, x: VALUE}
    with session_of(graph, 1) as one:
        expected = one.run(outputs, feeds)
    with session_of(graph, 3) as session:
        plan = plan_of(session, outputs, feeds)
        values = [np.int32(STEPS), np.array(VALUE)]
        for seed in range(block * SEEDS, (block + 1) * SEEDS):
            instance = plan._take_instance()
            for put, value in zip(instance.puts, values, strict=True):
                put(value)
            instance.run(StepControl(), None, seed)  # raises if the rendezvous is not empty at the end
            found = [take() for take in instance.fetches]
            for got, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(got, wanted, err_msg=f"seed {seed}")
            instance.reset()
            plan._idle.append(instance)


@pytest.mark.parametrize("program", PROGRAMS)
def test_threads_compute_it_too(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrt.executor.plan.plan.THREADED_COST", -1.0)  # even if there is little to do
    graph, n, x, outputs = build(program)
    with session_of(graph, 1) as one, session_of(graph, 3) as three:
        for steps in (0, 1, STEPS):
            expected = one.run(outputs, {n: steps, x: VALUE})
            for got, wanted in zip(three.run(outputs, {n: steps, x: VALUE}), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)


def sends_of(session: tf.Session, outputs: Any, feeds: dict[Any, Any]) -> list[str]:
    """The names of all sends that ran."""
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    session.run(outputs, feeds, options=options, run_metadata=metadata)
    stats = [s for device in metadata.step_stats.dev_stats for s in device.node_stats]
    return [s.node_name for s in stats if "/_send_" in s.node_name]


def test_a_loop_in_a_branch_that_is_not_taken_sends_nothing() -> None:
    graph, n, x, outputs = build(loop_in_branch)
    inside = ("while/", "cond/while")
    with session_of(graph, 3) as session:
        taken = sends_of(session, outputs[0], {n: 3, x: VALUE})
        not_taken = sends_of(session, outputs[0], {n: 2, x: VALUE})
    assert [name for name in taken if any(part in name for part in inside)]
    assert not [name for name in not_taken if any(part in name for part in inside)]


def test_the_predicate_is_sent_once_an_iteration() -> None:
    graph, n, x, outputs = build(loop_over_two)
    with session_of(graph, 3) as session:
        sends = sends_of(session, outputs[1], {n: STEPS, x: VALUE})
    assert sum("while/Less" in name and "first" not in name for name in sends) == STEPS


def test_a_failure_on_one_device_ends_the_step_on_all() -> None:
    graph = tf.Graph()
    with graph.as_default():
        n = tf.placeholder(tf.int32, [])
        divisors = tf.constant([1, 1, 0, 1])

        def body(i: Any, total: Any) -> Any:
            with tf.device("/cpu:1"):
                part = 12 // tf.gather(divisors, i)
            return i + 1, total + part

        total = tf.while_loop(lambda i, _: i < n, body, [0, 0])[1]
    with session_of(graph, 3) as session:
        assert session.run(total, {n: 2}) == 24
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?i)zero"):
            session.run(total, {n: 4})
        assert session.run(total, {n: 2}) == 24


def test_a_deadline_ends_a_loop_over_devices() -> None:
    graph = tf.Graph()
    with graph.as_default():

        def body(i: Any) -> Any:
            with tf.device("/cpu:1"):
                return i * 1

        endless = tf.while_loop(lambda i: i < 1, body, [0])
    with session_of(graph, 3) as session, pytest.raises(tf.errors.DeadlineExceededError):
        session.run(endless, options=tf.RunOptions(timeout_in_ms=50))


@pytest.mark.parametrize("level", [0, -1])
def test_a_device_on_which_only_a_group_is_takes_no_part(level: int) -> None:
    def body(i: Any, v: Any) -> Any:
        with tf.device("/cpu:0"):
            a = tf.sin(v)
        with tf.device("/cpu:1"):
            b = tf.cos(v)
        with tf.device("/cpu:2"):
            both = tf.group(a, b)
        with tf.control_dependencies([both]):
            return i + 1, tf.identity(a) + b

    with tf.Graph().as_default():
        x = tf.constant(VALUE, tf.float64)
        y = tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]
        options = tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=level))
        config = tf.ConfigProto(device_count={"CPU": 3}, graph_options=options)
        with tf.Session(config=config) as session:
            got = session.run(y)
    expected = np.array(VALUE)
    for _ in range(3):
        expected = np.sin(expected) + np.cos(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_a_loop_on_one_device_reads_a_variable_of_another() -> None:
    with tf.Graph():
        with tf.device("/cpu:0"):
            v = tf.Variable([[0.5, 0.0], [0.0, 2.0]])
        with tf.device("/cpu:1"):
            _, out = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a @ v), [0, tf.ones([1, 2])])
            (gradient,) = tf.gradients(out, v)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(v.initializer)
            np.testing.assert_array_equal(session.run(out), [[0.125, 8.0]])
            np.testing.assert_array_equal(np.diag(session.run(gradient)), [0.75, 12.0])


def test_a_tensor_that_a_branch_sends_outlives_the_branch() -> None:
    """What follows the branch on the sender's device uses its memory before the receiver reads the tensor."""
    with tf.Graph():
        chosen, x = tf.placeholder(tf.bool, []), tf.placeholder(tf.float64, [4])

        def yes() -> Any:
            with tf.device("/cpu:1"):
                sent = tf.sin(x)
            with tf.device("/cpu:0"):
                return tf.exp(sent)

        y = tf.cond(chosen, yes, lambda: tf.identity(x))
        with tf.device("/cpu:1"):
            later = tf.matmul(tf.sqrt(tf.cos(tf.floor(x + 1.0)) + 7.0)[None], tf.ones([4, 1], tf.float64))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            found, _ = session.run([y, later], {chosen: True, x: np.arange(4.0)})
    np.testing.assert_allclose(found, np.exp(np.sin(np.arange(4.0))))
