"""`PipelineStrategy` between real processes: `multi_worker_pipeline_script.py` on each of them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.distribute.strategies.nets_in_stages import (
    CONFIG,
    Trained,
    agree,
    built,
    checking,
    embeddings,
    fed_by_dataset,
    gpt,
    losses_of_epochs,
    lstm,
    mlp,
    scaling,
    trained,
)
from tests.distribute.strategies.test_multi_worker import answer_of, workers
from tests.graph.passes.layouts.test_random_layouts import nets_of_two_processes
from tests.graph.passes.layouts.test_random_layouts import trained as trained_net

SCRIPT = Path(__file__).with_name("multi_worker_pipeline_script.py")

NETS = {
    "1f1b": functools.partial(gpt, lengths=(5, 3)),
    "interleaved": functools.partial(gpt, blocks=8),
    "dp": mlp,
    "uneven": functools.partial(mlp, batches=(12, 7, 3, 1)),
    "lstm": lstm,
    "dataset": fed_by_dataset,
    "embeddings": embeddings,
    "scaling": scaling,
    "checking": checking,
    "odd": functools.partial(gpt, blocks=2, batches=(10, 7)),
    "lstm with dropout": functools.partial(lstm, keep=0.8),
}
"""The nets of the cases; of others it is the GPT."""


@functools.cache
def on_one_device(what: str) -> Trained:
    return trained(NETS.get(what, gpt), steps=4 if what == "uneven" else 3)


def answers(whats: list[str], count: int) -> list[list[Any]]:
    """What came of each of ``whats``, in each process."""
    with workers(",".join(whats), count, [SCRIPT] * count) as processes:
        return [*map(list, zip(*[answer_of(process) for process in processes], strict=True))]


@pytest.mark.parametrize(
    ("count", "whats"),
    [
        (2, ["1f1b", "zbv", "uneven", "dataset"]),
        pytest.param(2, ["lstm", "embeddings"], marks=pytest.mark.slow),
        pytest.param(2, ["scaling", "checking", "odd", "lstm with dropout"], marks=pytest.mark.slow),
        (4, ["dp x tp", "dp"]),
        pytest.param(2, ["dp", "tp"], marks=pytest.mark.slow),
        pytest.param(4, ["zb_h2", "interleaved", "tp"], marks=pytest.mark.slow),
    ],
)
def test_processes_give_the_numbers_of_one_device(count: int, whats: list[str]) -> None:
    """Of one stage or a part of it each, or of two devices: 2 x 2 x 2 over four processes."""
    for what, (first, *others) in zip(whats, answers(whats, count), strict=True):
        losses, variables = first
        assert not isinstance(losses, str), (what, first)
        found = Trained(losses, {name: np.array(value) for name, value in variables.items()})
        agree(found, on_one_device(what if what in NETS else "gpt"), what)
        assert others == [first] * (count - 1), what


@pytest.mark.slow
def test_random_nets_give_the_numbers_of_one_device() -> None:
    """Random stages, schedules and micro-batches, of which each process runs its own part."""
    first, second = answers(["random nets"], 2)[0]
    assert first == second
    for net, (losses, variables) in zip(nets_of_two_processes(), first, strict=True):
        expected = trained_net(net, None)
        np.testing.assert_allclose(losses, expected.losses, 1e-9, err_msg=repr(net.strategy()))
        for many, one in zip(variables, expected.variables, strict=True):
            np.testing.assert_allclose(many, one, 1e-9, 1e-12, err_msg=repr(net.strategy()))


def test_epochs_give_the_numbers_of_one_device() -> None:
    """Of two stages each. What was sent for a step without data is not that of the next step."""
    for losses in answers(["epochs"], 2)[0]:
        np.testing.assert_allclose(losses, losses_of_epochs(), 1e-9)


def test_a_stage_that_ends_is_named_by_its_coordinate() -> None:
    with workers("dies", 2, [SCRIPT] * 2) as processes:
        ((kind, message),) = answer_of(processes[0])
    assert (kind, "rank (pp=1)" in message) == ("UnavailableError", True), message


def test_what_was_saved_before_a_stage_was_killed_goes_on_over_a_smaller_mesh(tmp_path: Path) -> None:
    """Of two stages in two processes, of two devices each; then in one process, of two devices."""
    with workers(f"saves {tmp_path}", 2, [SCRIPT] * 2) as processes:
        ((kind, message),) = answer_of(processes[0])
    assert (kind, "rank (pp=1" in message) == ("UnavailableError", True), message
    net_of = functools.partial(gpt, blocks=2, rate=0.0)
    smaller = tf.distribute.PipelineStrategy(tf.distribute.Mesh([("pp", 2)]), micro_batches=4)
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        net = built(net_of, smaller)
        tf.train.Saver().restore(session, f"{tmp_path}/model")
        losses = [session.run([net.loss, net.train], net.feeds(number))[0] for number in range(3, 6)]
    np.testing.assert_allclose(losses, trained(net_of, steps=6).losses[3:], 1e-9)


def test_what_processes_do_not_share_is_refused_in_all() -> None:
    outside, differs = answers(["outside", "differs"], 2)
    for kind, message in outside:
        assert kind == "InvalidArgumentError"
        assert "variable 'step': expected one made in the scope of the strategy" in message
        assert "Make the model inside strategy.scope()" in message
    for kind, message in differs:
        assert (kind, "same step over one mesh" in message) == ("InvalidArgumentError", True), message
