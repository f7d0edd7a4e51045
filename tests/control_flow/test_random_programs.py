"""Random programs: a graph gives what Python gives, in every way in which a session can run it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import flowrt as tf
from tests.control_flow.programs import NAMES, Margin, blocks, build, has_control_flow, interpret, start
from tests.control_flow.ways import WAYS, open_session

MARGIN = 1e-4
"""A program that comes nearer to deciding otherwise has no derivative, or none that can be measured."""

STEP = 1e-6


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=settings.default.max_examples // 5)
@given(block=blocks(2, writes=True), seed=st.integers(0, 99))
@example(block=[("read", "u"), ("if", "s", 0.0, [("swap", "s", "t")], [("write", "s")])], seed=0)
def test_values_and_the_variable(way, block, seed):
    """Two steps, so that the second begins with what the first has left in the buffers."""
    assume(has_control_flow(block))
    values, first = start(seed)
    margin = Margin()
    expected = [interpret(block, values, first, margin)]
    expected.append(interpret(block, values, expected[0][1], margin))
    assume(margin.least > 1e-9)
    with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        variable = tf.Variable(first)
        feeds = {tf.placeholder(tf.float64, v.shape): v for v in values.values()}
        state = build(block, dict(zip(values, feeds, strict=True)), variable)
        with tf.control_dependencies(list(state.values())):
            after = variable.read_value()
        with open_session(way, patch) as session:
            session.run(variable.initializer)
            for names, held in expected:
                found, kept = session.run([state, after], feeds)
                for name in NAMES:
                    np.testing.assert_allclose(found[name], names[name], rtol=1e-9, atol=1e-12, err_msg=name)
                np.testing.assert_allclose(kept, held, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=settings.default.max_examples // 8)
@given(block=blocks(2, writes=False), seed=st.integers(0, 99))
def test_first_and_second_derivatives(way, block, seed):
    """Along a random direction, against central differences: of the program, and of the first derivative."""
    assume(has_control_flow(block))
    values, held = start(seed)
    margin = Margin()
    interpret(block, values, held, margin)
    assume(margin.least > MARGIN)
    rng = np.random.default_rng(seed + 1)
    weights = {n: rng.normal(size=values[n].shape) for n in NAMES}
    along = {n: rng.normal(size=values[n].shape) for n in NAMES}
    along_variable = rng.normal(size=held.shape)

    def total(step):
        moved = {n: values[n] + step * along[n] for n in NAMES}
        found, _ = interpret(block, moved, held + step * along_variable)
        return sum(np.sum(weights[n] * found[n]) for n in NAMES)

    with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        variable = tf.Variable(held)
        feeds = {n: tf.placeholder(tf.float64, v.shape) for n, v in values.items()}
        state = build(block, feeds, variable)
        y = tf.add_n([tf.reduce_sum(state[n] * weights[n]) for n in NAMES])
        xs = [*feeds.values(), variable]
        directions = [*along.values(), along_variable]
        first = derivative(y, xs, directions)
        second = derivative(first, xs, directions)
        with open_session(way, patch) as session:
            session.run(variable.initializer)

            def run(fetch, step=0.0):
                variable.load(held + step * along_variable, session)
                return session.run(fetch, {feeds[n]: values[n] + step * along[n] for n in NAMES})

            slope = (total(STEP) - total(-STEP)) / (2 * STEP)
            np.testing.assert_allclose(run(first), slope, rtol=1e-6, atol=1e-7)
            slope = (run(first, STEP) - run(first, -STEP)) / (2 * STEP)
            np.testing.assert_allclose(run(second), slope, rtol=1e-5, atol=1e-6)


def derivative(y, xs, directions):
    """That of ``y`` along ``directions``."""
    slopes = tf.gradients(y, xs, unconnected_gradients="zero")
    return tf.add_n([tf.reduce_sum(s * d) for s, d in zip(slopes, directions, strict=True)])
