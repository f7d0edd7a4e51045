"""Loops with products of matrices: whole in machine code, they give what the operations' own kernels give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.program.control_flow import loops_in
from flowrt.executor.program.instruction import Move
from tests.executor.fused_sessions import plans_of
from tests.executor.test_compiled_body import loops_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

TOLERANCE = 2e-12
"""Of the largest number of a result, in float64: 9,000 ulp. A sum of products is added up in another order,
which is off by an ulp or two, and a recurrence of 12 steps and its gradient carry that on.
"""


def session_of(graph, mode, monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", mode)
    return tf.Session(graph=graph)


def recurrent(rows, inputs, width, kind, dtype=tf.float64):
    """A recurrent network along the rows of a feed, and the gradients of its weights. ``kind`` says how the
    input and the state meet.
    """
    rng = np.random.default_rng(0)
    graph = tf.Graph()
    with graph.as_default():
        xs, steps = tf.placeholder(dtype, [12, rows, inputs]), tf.placeholder(tf.int32, [])
        scale = 1 / np.sqrt(inputs + width)
        joined = tf.constant(rng.normal(size=(inputs + width, 2 * width), scale=scale), dtype)
        turned = tf.constant(rng.normal(size=(2 * width, width), scale=scale), dtype)
        bias = tf.constant(rng.normal(size=2 * width), dtype)

        def cell(t, h, total):
            x = tf.gather(xs, t)
            if kind == "joined":
                z = tf.matmul(tf.concat([x, h], 1), joined) + bias
            elif kind == "apart":
                z = tf.matmul(x, joined[:inputs]) + tf.matmul(h, joined[inputs:]) + bias
            else:
                z = tf.matmul(h, turned, transpose_b=True) + tf.matmul(x, joined[:inputs])
            gate, add = tf.split(z, 2, 1)
            h = h * tf.sigmoid(gate) + tf.tanh(add)
            return t + 1, h, total + tf.reduce_sum(h * h)

        start = [tf.constant(0), tf.zeros([rows, width], dtype), tf.zeros([], dtype)]
        _, h, total = tf.while_loop(lambda t, *_: t < steps, cell, start)
        weights = {"joined": [joined, bias], "apart": [joined, bias], "turned": [joined, turned]}[kind]
        gradients = tf.gradients(total, weights)
    return graph, [h, total, *gradients], xs, steps


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max(initial=0) <= TOLERANCE * np.abs(other).max(initial=1)


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 70),
    width=st.integers(1, 70),
    kind=st.sampled_from(["joined", "apart", "turned"]),
    steps=st.integers(0, 12),
)
def test_random_recurrent_networks(rows, inputs, width, kind, steps):
    graph, fetches, xs, limit = recurrent(rows, inputs, width, kind)
    feeds = {xs: np.random.default_rng(1).normal(size=(12, rows, inputs)), limit: steps}
    found = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for mode in ("off", "eager"):
            with session_of(graph, mode, monkeypatch) as session:
                found[mode] = session.run(fetches, feeds)
    assert_close(found["eager"], found["off"])


@pytest.fixture(scope="module")
def network():
    return recurrent(16, 64, 48, "joined")


def test_the_loops_are_whole(network, monkeypatch):
    """With a feed that is read where it is, a gather, factors by transposes, and parts of products."""
    graph, fetches, xs, steps = network
    with session_of(graph, "eager", monkeypatch) as session:
        session.run(fetches, {xs: np.zeros((12, 16, 64)), steps: 3})
        assert loops_of(session) == [True, True]
        parts = [part.subgraph for plan in plans_of(session) for part in plan.partitions.values()]
    bodies = [node.attrs["body"] for part in parts for node in part if node.op.name == "_Loop"]
    products = [node for body in bodies for node in body if node.op.name == "MatMul"]
    assert [node.outputs[0].shape for node in products] == [(16, 96), (16, 48)]  # not (16, 112)
    assert not any(node.attrs["transpose_b"] for node in products)


def test_a_feed_is_found_where_it_is_in_each_step(network, monkeypatch):
    graph, fetches, xs, steps = network
    rng = np.random.default_rng(2)
    values = (
        rng.normal(size=(12, 16, 64)),
        rng.normal(size=(16, 12, 64)).swapaxes(0, 1),
        rng.normal(size=(24, 16, 64))[::2],
    )
    with session_of(graph, "off", monkeypatch) as plain, session_of(graph, "eager", monkeypatch) as session:
        for n in (12, 5, 12):
            for value in values:
                feeds = {xs: value, steps: n}
                assert_close(session.run(fetches, feeds), plain.run(fetches, feeds))


def test_an_index_behind_the_end_ends_the_step(network, monkeypatch):
    graph, fetches, xs, steps = network
    value = np.random.default_rng(3).normal(size=(12, 16, 64))
    with session_of(graph, "eager", monkeypatch) as session:
        expected = session.run(fetches, {xs: value, steps: 12})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"index in \[0, 12\); got 12") as failure:
            session.run(fetches, {xs: value, steps: 20})
        assert failure.value.op.endswith("GatherV2")
        assert_close(session.run(fetches, {xs: value, steps: 12}), expected)


def along_rows(rows, factor):
    def cell(t, h):
        return t + 1, tf.tanh(factor * h + rows[t])

    start = [tf.constant(0), tf.zeros(rows.shape[1:])]
    return tf.while_loop(lambda t, _: t < 3, cell, start)[1]


def test_loops_share_a_copy_of_a_feed(monkeypatch):
    """Five, on a device that has memory for three."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    value = np.random.default_rng(4).normal(size=(1 << 14, 16))
    limit = tf.ConfigProto.Experimental(cpu_memory_limit_mb=[3])
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(experimental=limit)) as session:
        rows = tf.placeholder(tf.float32, value.shape)
        found = session.run([along_rows(rows, 1 / n) for n in range(1, 6)], {rows: value})
    for n, one in enumerate(found, 1):
        expected = np.zeros(16)
        for row in value[:3]:
            expected = np.tanh(expected / n + row)
        np.testing.assert_allclose(one, expected, rtol=1e-5)


def test_a_feed_of_an_inner_loop_is_copied_before_the_outer_one(monkeypatch):
    """Once a step, not in each iteration, if the outer one is more than machine code."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    value = np.ones((1 << 12, 16), np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        rows = tf.placeholder(tf.float32, value.shape)

        def outer(t, total):
            (seen,) = tf.py_func(lambda x: x, [total], [tf.float32])
            inner = tf.cond(t < 2, lambda: along_rows(rows, 0.5), lambda: along_rows(rows, 0.25))
            return t + 1, tf.reshape(seen, []) + inner[0]

        total = tf.while_loop(lambda t, _: t < 4, outer, [tf.constant(0), tf.constant(0.0)])[1]
        session.run(total, {rows: value})
        programs = [program for plan in plans_of(session) for program in plan.programs]
    (loop,) = [loop for program in programs for loop in loops_in(program.segments)]
    assert len([*loops_in(loop.body)]) == 2

    def copied(block):
        for segment in block:
            yield from (a.target.nbytes for _, a in segment.instructions if isinstance(a, Move))
            for inner in getattr(segment.control, "blocks", ()):
                yield from copied(inner)

    assert [n for program in programs for n in copied(program.segments)].count(value.nbytes) == 1
    assert value.nbytes not in [*copied(loop.body)]
