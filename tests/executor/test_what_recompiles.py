"""Logs that say why steps become slow: a graph that grows between runs, and steps that are compiled again."""

from __future__ import annotations

import logging
import re

import pytest

import flowrt as tf
from flowrt.executor.session.growth import EVERY, WARN_AT
from flowrt.executor.session.session import MAX_SHAPES


def test_a_loop_that_builds_operations_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    v = tf.Variable(0.0)
    with tf.Session() as session:
        session.run(v.initializer)
        for step in range(EVERY * (WARN_AT + 3)):
            session.run(tf.assign(v, float(step)))
    (record,) = caplog.records
    assert re.match(
        rf"{re.escape(__file__)}:20: the graph grows between runs, by 48 operations in the last 16 .*"
        r"the newest is ReadVariableOp 'Variable/ReadVariableOp_\d+'",
        record.getMessage(),
    )


def test_growth_beside_steps_that_are_known_is_found_too(caplog: pytest.LogCaptureFixture) -> None:
    x = tf.constant(1.0)
    with tf.Session() as session:
        for _ in range(EVERY * (WARN_AT + 1)):
            tf.summary.scalar("loss", x)
            session.run(x)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_script_that_builds_first_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    x = tf.placeholder(tf.float32)
    with tf.Session() as session:
        for _ in range(WARN_AT - 1):  # as with an evaluation now and then
            y = x + 1.0
            for _ in range(2 * EVERY):
                session.run(y, {x: 1.0})
    assert caplog.records == []


def test_what_is_compiled_again_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flowrt.executor.session.session")
    x = tf.placeholder(tf.float32, [None], name="x")
    y = tf.identity(x, name="y")
    with tf.Session() as session:
        session.run(y, {x: [1.0]})
        session.run(y, {x: [2.0]})
        assert caplog.records == []
        session.run(y, {x: [1.0, 2.0]})
        y.set_shape([2])
        session.run(y, {x: [1.0, 2.0]})
    again, changed = [re.sub(r"^.*:\d+: ", "", record.getMessage()) for record in caplog.records]
    assert again == "compiling the step of y:0 again, for feeds x:0 [2]"
    assert changed.startswith(
        "an operation of the graph was changed, such as its shape or device: all 1 steps"
    )
    assert all(record.getMessage().startswith(__file__) for record in caplog.records)


def test_many_shapes_end_in_one_plan_for_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flowrt.executor.session.session")
    x = tf.placeholder(tf.float32, [None])
    y = x + 0.0
    with tf.Session() as session:
        for size in range(MAX_SHAPES + 3):
            session.run(y, {x: [0.0] * size})
    assert "for all shapes of its feeds: it had more than 32" in caplog.records[-1].getMessage()
    assert len(caplog.records) == MAX_SHAPES
