"""examples/digits_strategies.py: one script, every strategy, the weights of one process; and digits_ps.py,
whose workers have rows of their own.
"""

from __future__ import annotations

import importlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.collectives import JoinedGroup
from tests.distribute.parameter_server.cluster import Together, cluster, run_workers
from tests.distribute.strategies.cpus import CPUS
from tests.distribute.strategies.workers_of_one_process import Worker, at_once, joined_workers
from tests.each import nightly

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
STEPS = 30


def example(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def script() -> Any:
    return example("digits_strategies")


@pytest.fixture(scope="module")
def expected(script: Any) -> list[np.ndarray]:
    weights, _ = script.train(lambda: script.STRATEGIES["default"]([]), script.load(), STEPS)
    return weights


ONE_PROCESS = [
    *product(["one_device", "mirrored", "central_storage", "layouts"], [1, 2, 3, 4]),
    ("parameter_server", 1),
]


@pytest.mark.parametrize(("strategy", "replicas"), ONE_PROCESS)
def test_the_weights_are_those_of_one_process(script, expected, strategy: str, replicas: int) -> None:
    weights, _ = script.train(
        lambda: script.STRATEGIES[strategy](list(CPUS[:replicas])), script.load(), STEPS
    )
    for found, value in zip(weights, expected, strict=True):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("workers", nightly([1, 3, 2, 4], 2))
def test_the_weights_of_every_worker_are_those_of_one_process(script, expected, workers: int) -> None:
    digits = script.load()

    def work(joined: JoinedGroup) -> Any:
        return script.train(lambda: Worker(joined.group), digits, STEPS)[0]

    with joined_workers(workers) as joined:
        of_workers = at_once(work, joined)
    for weights in of_workers:
        for found, value in zip(weights, expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("workers", nightly([2, 1, 3, 4], 1))
def test_the_weights_on_parameter_servers_are_those_of_one_process(workers: int) -> None:
    script = example("digits_ps")
    digits = script.load()

    def work(worker: int, together: Together) -> Any:
        strategy = made.strategy(worker, mode="sync")
        with strategy.scope():
            network, optimizer = script.Network(), tf.train.AdamOptimizer(2e-3)
            train = strategy.run(lambda: optimizer.minimize(network.loss()))
        with strategy.training_session(made.masters[worker], worker == 0, max_wait_secs=60) as session:
            for step in range(STEPS):
                rows = script.rows_of(digits, step, workers).reshape(workers, -1)[worker]
                session.run(train, script.feed(network, digits, rows))
            together.meet()
            weights = session.run(tf.trainable_variables())
            together.meet()
            return weights

    with cluster(2, workers) as made:
        of_workers = run_workers(workers, work)
    expected = script.train_alone(digits, STEPS, workers)
    for weights in of_workers:
        for found, value in zip(weights, expected, strict=True):
            assert found.dtype == np.float64
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)
