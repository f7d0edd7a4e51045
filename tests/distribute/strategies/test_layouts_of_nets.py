"""What moves in a training step of the six nets: nothing is gathered for want of a rule."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.passes.layouts.lower_layouts import Lowered, lowered
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, parse_pipeline
from flowrt.graph.passes.prepare.prune import StepRequest
from tests.distribute.strategies.nets_with_layouts import (
    BATCH,
    COLUMNS,
    DEVICES,
    NETS,
    VOCABULARY,
    Net,
    gpt,
    of_net,
    trained,
)
from tests.distribute.strategies.test_layout_strategy import MESHES, is_for_every_run, on_one_device
from tests.each import daily, nightly

BEFORE = parse_pipeline("extract, lower, order_effects, infer_shapes, optimise, infer_shapes")


def step_of(
    build: Callable[[], Net], mesh: Mesh, batch: Any, layouts: Mapping[str, Sequence[Any]]
) -> Lowered:
    """A training step of a net, lowered."""
    with tf.Graph() as graph:
        strategy = tf.distribute.LayoutStrategy(mesh, batch=batch)
        strategy.variable_layouts(layouts)
        with strategy.scope():
            net = build()
        feeds = {t: np.shape(v) for t, v in net.feeds.items()}
        request = StepRequest(graph, [net.loss], [net.train], feeds)
        devices = [parse_device(f"/job:localhost/task:0/device:CPU:{i}") for i in range(DEVICES)]
        step = compile_step(request, CompileOptions(devices), pipeline=BEFORE)
    found = lowered(step, devices)
    assert found is not None
    return found


def step_on(net: str, what: str) -> Lowered:
    mesh, batch, has_columns = MESHES[what]
    return step_of(NETS[net], mesh, batch, of_net(NETS[net], COLUMNS) if has_columns else {})


def moves(step: Lowered) -> Counter[str]:
    """The redistributions that send messages, by collective."""
    return Counter(move.step.collective for move in step.moves if move.nbytes)


@pytest.mark.parametrize(("net", "what"), daily(itertools.product(NETS, MESHES), is_for_every_run))
def test_nothing_is_gathered_for_want_of_a_rule(net: str, what: str) -> None:
    """But by views of dimensions that the mesh does not divide."""
    gathers = {gather.op for gather in step_on(net, what).layouts.gathers}
    if "uneven" in what:
        gathers -= {"Reshape"}
    assert gathers == set()


@pytest.mark.parametrize(
    ("net", "what", "expected"),
    [
        ("cnn", "dp 2", {"AllReduce": 8 + 2}),  # the gradients; the batch's mean and variance
        ("cnn", "3 turns", {}),
        ("lenet", "dp 2", {"AllReduce": 10}),
    ],
)
def test_what_moves(net: str, what: str, expected: Mapping[str, int]) -> None:
    assert moves(step_on(net, what)) == expected


# --- vocabulary parallelism


@pytest.mark.parametrize("what", nightly(["tp 3, uneven", "dp 2 x 2 turns x tp 2", "tp 2", "dp 2 x tp 2"], 1))
def test_cut_words_train_as_on_one_device(what: str) -> None:
    mesh, batch, _ = MESHES[what]
    losses, variables = trained(gpt, mesh, batch, of_net(gpt, VOCABULARY))
    expected, expected_variables = on_one_device("gpt")
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)


def test_a_cross_entropy_with_cut_words_moves_two_numbers_a_row_and_a_maximum() -> None:
    """No coordinate has a tensor of batch times words."""
    length, words, width = 6, 640, 8
    step = step_of(lambda: gpt(words=words), Mesh([("tp", 2)]), None, of_net(gpt, VOCABULARY))
    assert step.layouts.gathers == []
    rows = BATCH * length
    of_loss = {m.source[0]: m.nbytes for m in step.moves if m.nbytes and "CrossEntropy" in m.source[0]}
    assert sorted(of_loss.values()) == [2 * rows * 8, 2 * 2 * rows * 8]  # 2 (n - 1) l
    assert max(m.nbytes for m in step.moves) == 2 * rows * width * 8
    sizes = [
        math.prod(s.shape) for node in step.subgraph for s in node.outputs if s.shape and None not in s.shape
    ]
    assert rows * words // 2 in sizes
    assert max(sizes) < rows * words
