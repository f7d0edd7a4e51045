"""What a script gets wrong with pipelines and their schedules, `shard_map`, `copy_variables` and groups: one
typed error that names the script's line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.collectives import Group, all_reduce
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.pipeline.schedules import order

D = tf.distribute
HERE = r"test_misuse_of_pipelines\.py:\d+\)"
GRID = D.Mesh([("dp", 2), ("tp", 3)])
ROWS = ["dp", "tp"]


def pipeline(**arguments: Any) -> Any:
    return D.PipelineStrategy(D.Mesh([("pp", 2)]), **{"micro_batches": 2, **arguments})


def at(stage: Any) -> None:
    with pipeline().scope(), D.stage(stage):
        pass


def outside(open_scope: Callable[[], Any]) -> None:
    with open_scope(), D.stage(0):
        pass


def mapped(fn: Any, before: Any = (ROWS,), over: Any = GRID) -> None:
    D.shard_map(fn, before, ROWS, over)(tf.ones([4, 6]))


def variable(name: str, size: int = 4, dtype: Any = tf.float32) -> Any:
    return tf.get_variable(name, [size], dtype)


def summed(count: int, group: Group) -> None:
    all_reduce([tf.ones([4 + i]) for i in range(count)], group=group, lowering="native")


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "another framework's argument": (
        lambda: pipeline(n_microbatches=4), DTypeError, "got 'n_microbatches'. Here it is micro_batches"
    ),
    "an argument that is none": (
        lambda: pipeline(microbatches=4), DTypeError, "got 'microbatches'. Nearest: micro_batches"
    ),
    "micro-batches in the place of the axis": (
        lambda: D.PipelineStrategy(D.Mesh([("pp", 2)]), 4),
        InvalidArgumentError, r"axis: expected one of the mesh \[pp=2\]; got 4",
    ),
    "capital letters": (
        lambda: pipeline(schedule="1F1B"), InvalidArgumentError, "no file either. Nearest: 1f1b"
    ),
    "a schedule as an object": (
        lambda: pipeline(schedule=order("1f1b", 2, 2)), InvalidArgumentError, "expected text; got the Sched"
    ),
    "lines as a list": (
        lambda: pipeline(schedule=["F0 F1 B0 B1"]), InvalidArgumentError, "a line of actions per device"
    ),
    "one line for two devices": (
        lambda: pipeline(schedule="F0 F1 B0 B1"), InvalidArgumentError, "expected 2 devices, .* one of 1"
    ),
    "actions in small letters": (
        lambda: pipeline(schedule="f0 f1 b0 b1\nf0 b0 f1 b1"), InvalidArgumentError, "line 1, column 1"
    ),
    "an action twice": (
        lambda: pipeline(schedule="F0 F0 B0 B1\nF0 B0 F1 B1"), InvalidArgumentError, "expected once; got it"
    ),
    "a pass that waits for itself": (
        lambda: pipeline(schedule="F0 F1 B0 B1\nB0 F0 F1 B1"), InvalidArgumentError, "expected no cycle; got"
    ),
    "a number of stages": (lambda: pipeline(stages=2), InvalidArgumentError, "expected 'auto', or a name"),
    "a scope at two stages": (
        lambda: pipeline(stages=["layer", "layer/"]), InvalidArgumentError, "name scope once; got 'layer' ag"
    ),
    "remat as a flag": (lambda: pipeline(remat=True), InvalidArgumentError, "None or 'stage'; got T"),
    "a batch on the micro-batches": (
        lambda: pipeline(batch="micro"), InvalidArgumentError, "batch: expected different axes"
    ),
    "chunks of a vee": (
        lambda: pipeline(schedule="zbv", chunks=3), InvalidArgumentError, "chunks: expected 2; got 3"
    ),
    "a stage as text": (lambda: at("1"), InvalidArgumentError, "stage: expected an integer from 0 to 1,"),
    "a stage too far": (lambda: at(np.int64(2)), InvalidArgumentError, "expected an integer from 0 to 1"),
    "a stage of another strategy": (
        lambda: outside(D.LayoutStrategy(GRID).scope), FailedPreconditionError, "got that of <LayoutStrategy"
    ),
    "a stage of replicas": (
        lambda: outside(D.MirroredStrategy(["/cpu:0"]).scope), FailedPreconditionError, "scope of a Pipeline"
    ),
    "a tensor for a function": (
        lambda: mapped(tf.ones([4])), DTypeError, "shard_map: expected a function; got <flowrt.Tensor"
    ),
    "a layout for all arguments": (
        lambda: mapped(tf.tanh, "dp"), InvalidArgumentError, "in_layouts: expected a list with a layout per"
    ),
    "an argument's axes without a list": (
        lambda: mapped(tf.tanh, ROWS), InvalidArgumentError, "argument 0: expected a list with an entry"
    ),
    "an axis that is none": (
        lambda: mapped(tf.tanh, [["dp", "pt"]]), InvalidArgumentError, "argument 0: expected an axis of"
    ),
    "axes for a mesh": (
        lambda: mapped(tf.tanh, over=[("dp", 2)]), DTypeError, "shard_map: expected a Mesh; got"
    ),
    "an update in a function": (
        lambda: mapped(lambda x: tf.get_variable("v", [2, 2]).assign(x)), InvalidArgumentError, "for all"
    ),
    "no result": (lambda: mapped(lambda x: None), DTypeError, "expected a value that converts to a tensor"),
    "a copy of one variable": (
        lambda: D.copy_variables(variable("a"), variable("b")),
        DTypeError, "copy_variables: source: expected a mapping or a list",
    ),
    "a copy of a tensor": (
        lambda: D.copy_variables([tf.ones([4])], [variable("a")]),
        DTypeError, "copy_variables: 0: expected a variable; got",
    ),
    "copies of other lengths": (
        lambda: D.copy_variables([variable("a")], []), InvalidArgumentError, "as many variables in target as"
    ),
    "a copy to another dtype": (
        lambda: D.copy_variables([variable("a")], [variable("b", dtype=tf.float64)]), InvalidArgumentError,
        "pairs of one dtype and shape; got 0: a float32",
    ),
    "a copy to another shape": (
        lambda: D.copy_variables([variable("a")], [variable("b", 5)]), InvalidArgumentError,
        "pairs of one dtype and shape",
    ),
    "a rank that is none": (lambda: Group("g", 2, (0, 2)), InvalidArgumentError, "expected ranks of 0 to 1"),
    "a rank twice": (lambda: Group("g", 2, (0, 0)), InvalidArgumentError, "expected each rank once; got"),
    "a group of nobody": (lambda: Group("g", 0, ()), InvalidArgumentError, "expected at least one rank"),
    "a rank without a value": (
        lambda: summed(1, Group("g", 2, (0, 1))), InvalidArgumentError, "expected 2 values, one for each"
    ),
    "values of two shapes": (
        lambda: summed(2, Group("g", 2, (0, 1))), InvalidArgumentError, "expected values of the same shape"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_typed_error_with_its_line(mistake: str) -> None:
    call, error, message = MISTAKES[mistake]
    with tf.Graph().as_default(), pytest.raises(error, match=HERE + ".*" + message):
        call()


def test_a_stage_may_be_a_number_of_an_array() -> None:
    with tf.Graph().as_default():
        at(np.arange(2)[1])
