"""Shapes that only the sizes of a step tell: of results that a branch lacks, and of empty lists."""

from __future__ import annotations

from typing import Any

import numpy as np

import flowrt as tf
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.stages.sizes_of_lists import with_sizes_of_lists
from flowrt.graph.passes.layouts.stages.sizes_of_nothing import with_sizes_of_nothing
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, stages_before
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.shapes import is_static


def step_of(x: Any, y: Any) -> Subgraph:
    """The step that computes the slope of ``y``, with six rows of ``x``."""
    (slope,) = tf.gradients(y, x)
    request = StepRequest(tf.get_default_graph(), [slope], [], {x: (6, 4)})
    return compile_step(request, CompileOptions(()), pipeline=stages_before("lower_layouts"))


def unknown(step: Subgraph, op: str) -> list[str]:
    """The nodes of ``op`` with outputs of an unknown shape."""
    return [
        node.name for node in step if node.op.name == op and not all(is_static(s.shape) for s in node.outputs)
    ]


def test_a_result_that_a_branch_lacks_has_the_shape_that_it_has_in_another() -> None:
    with tf.Graph().as_default():
        x, is_training = tf.placeholder(tf.float64, [None, 4]), tf.placeholder_with_default(True, [])
        step = step_of(x, tf.cond(is_training, lambda: tf.tanh(tf.exp(x)), lambda: 2.0 * x))
    assert unknown(step, "_Case")
    found = with_sizes_of_nothing(step)
    assert not unknown(found, "_Case")
    assert with_sizes_of_nothing(found) is found


def test_a_list_has_the_size_of_the_element_that_is_written_first() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [None, 4])
        step = step_of(x, tf.scan(lambda a, c: tf.tanh(a + c), tf.transpose(x)))
    assert unknown(step, "TensorListReserve")
    found = with_sizes_of_lists(step)
    assert not unknown(found, "TensorListReserve")
    assert not unknown(found, "TensorListStack")
    assert with_sizes_of_lists(found) is found


def test_of_other_steps_nothing_changes() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float64, [None, 4])
        step = step_of(x, tf.tanh(x @ tf.constant(np.ones((4, 4)))))
    assert with_sizes_of_lists(with_sizes_of_nothing(step)) is step
