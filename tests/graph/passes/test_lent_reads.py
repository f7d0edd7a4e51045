"""Reads of variables that other devices may use where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, stages_before
from flowrt.graph.passes.placement.lent_reads import lent_reads
from flowrt.graph.passes.prepare.prune import StepRequest

FIRST, SECOND = "/job:localhost/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/device:CPU:1"


def variable() -> Any:
    with tf.device("/cpu:0"):
        return tf.get_variable("w", initializer=np.arange(6.0).reshape(2, 3))


def updated_with(w: Any, value: Any) -> Any:
    with tf.device("/cpu:0"):
        return w.assign_add(value, read_value=False)


def as_in_training() -> tuple[Any, list[Any]]:
    w = variable()
    with tf.device("/cpu:1"):
        y = tf.square(w)
    return updated_with(w, y), [y]


def through_a_view() -> tuple[Any, list[Any]]:
    w = variable()
    with tf.device("/cpu:1"):
        y = tf.transpose(tf.square(tf.transpose(w)))
    return updated_with(w, y), [y]


def beside_the_update() -> tuple[Any, list[Any]]:
    w = variable()
    with tf.device("/cpu:1"):
        y = tf.square(w)
        other = tf.reduce_sum(w)
    return updated_with(w, y), [other]


def a_view_is_used_later() -> tuple[Any, list[Any]]:
    w = variable()
    with tf.device("/cpu:1"):
        view = tf.transpose(w)
        update = updated_with(w, tf.transpose(tf.square(view)))
        with tf.control_dependencies([update]):
            later = tf.exp(view)
    return update, [later]


def a_view_is_fetched() -> tuple[Any, list[Any]]:
    w = variable()
    with tf.device("/cpu:1"):
        view = tf.transpose(w)
        y = tf.transpose(tf.square(view))
    return updated_with(w, y), [view]


def written_twice() -> tuple[Any, list[Any]]:
    w = variable()
    with tf.device("/cpu:1"):
        y = tf.square(w)
        later = tf.exp(w)
    first = updated_with(w, y)
    with tf.control_dependencies([first, later]):
        return updated_with(w, tf.ones([2, 3], tf.float64)), [later]


def in_a_branch() -> tuple[Any, list[Any]]:
    w = variable()
    with tf.device("/cpu:1"):
        value = w.read_value()
        y = tf.cond(tf.reduce_sum(value) > 0, lambda: tf.square(value), lambda: value)
    return updated_with(w, y), [y]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (as_in_training, True),
        (through_a_view, True),
        (beside_the_update, False),
        (a_view_is_used_later, False),
        (a_view_is_fetched, False),
        (written_twice, False),
        (in_a_branch, False),
    ],
)
def test_what_is_lent_and_that_results_are_those_of_one_device(
    build: Callable[[], tuple[Any, list[Any]]], expected: bool
) -> None:
    with tf.Graph() as graph:
        update, fetches = build()
        request = StepRequest(graph, fetches, [update], {})
        options = CompileOptions([parse_device(FIRST), parse_device(SECOND)])
        placed = compile_step(request, options, pipeline=stages_before("partition"))
        lent = lent_reads(placed, {node.name: node.device for node in placed})
        assert bool(lent) is expected
        found = [_values(graph, update, fetches, devices) for devices in (1, 2)]
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def _values(graph: Any, update: Any, fetches: list[Any], devices: int) -> list[Any]:
    """The results of 20 steps, and the variable after them."""
    config = tf.ConfigProto(device_count={"CPU": devices}, allow_soft_placement=True)
    with tf.Session(graph=graph, config=config) as session:
        session.run(tf.global_variables_initializer())
        w = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)[0]
        shrink = w.assign(w * 0.01)
        found = []
        for _ in range(20):
            found += session.run([*fetches, update])[:-1]
            session.run(shrink)
        return [*found, session.run(w)]
