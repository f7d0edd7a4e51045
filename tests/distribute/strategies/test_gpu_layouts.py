"""Layouts, fully sharded training and pipelines on parts of one GPU: a pretended one, and a real one where
there is one. Losses are those of one CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.distribute.strategies import nets_in_stages, nets_with_layouts
from tests.distribute.strategies.nets_with_layouts import COLUMNS, of_net
from tests.executor.test_remote_device import config, plug_in

D = tf.distribute
PARTS = [f"/gpu:{i}" for i in range(4)]
STEPS = 4


def mesh(*axes: Any) -> Any:
    return D.Mesh(axes, PARTS)


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.gpu)])
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a session with four parts of a GPU."""
    if request.param == "pretended":
        plug_in(monkeypatch, seed=1)
    limit = 16 if request.param == "pretended" else 2048
    return config(
        gpus=1, virtual_devices=[tf.GPUOptions.Experimental.VirtualDevices(memory_limit_mb=[limit] * 4)]
    )


def losses(strategy: Any, build: Callable[[], Any], options: Any = None, device: Any = None) -> list[float]:
    with tf.Graph() as graph:
        tf.set_random_seed(7)
        with strategy.scope() if strategy else tf.device(device):
            net = build()
        with tf.Session(graph=graph, config=options) as session:
            session.run(tf.global_variables_initializer())
            return [float(session.run([net.loss, net.train], net.feeds)[0]) for _ in range(STEPS)]


@functools.cache
def of_one_cpu(net: str, dtype: Any) -> list[float]:
    return losses(None, functools.partial(nets_with_layouts.NETS[net], dtype), device="/cpu:0")


LAYOUTS: dict[str, Callable[[], Any]] = {
    "data parallel": lambda: D.LayoutStrategy(mesh(("dp", 4)), batch="dp"),
    "tensor parallel": lambda: D.LayoutStrategy(mesh(("dp", 2), ("tp", 2)), batch="dp"),
    "zero 1": lambda: D.FullyShardedStrategy(mesh(("dp", 4)), "dp", 1, min_bytes=0),
    "zero 3": lambda: D.FullyShardedStrategy(mesh(("dp", 4)), "dp", 3, units=r"block\d|\w+", min_bytes=0),
    "zero 3, on the host": lambda: D.FullyShardedStrategy(
        mesh(("dp", 4)), "dp", 3, units=r"block\d|\w+", min_bytes=0, offload="parameters"
    ),
}


@pytest.mark.parametrize(
    "net", ["mlp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt", "lstm", "cnn"))]
)
@pytest.mark.parametrize("how", LAYOUTS)
def test_layouts(options: Any, how: str, net: str) -> None:
    strategy = LAYOUTS[how]()
    build = functools.partial(nets_with_layouts.NETS[net], tf.float64)
    strategy.variable_layouts(of_net(build, COLUMNS) if how == "tensor parallel" else {})
    np.testing.assert_allclose(losses(strategy, build, options), of_one_cpu(net, tf.float64), 1e-9)


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
@pytest.mark.parametrize("net", ["mlp", pytest.param("gpt", marks=pytest.mark.slow)])
def test_computing_in_fewer_bits(options: Any, net: str, policy: str) -> None:
    strategy = D.LayoutStrategy(mesh(("dp", 4)), batch="dp", policy=D.Precision(policy))
    found = losses(strategy, functools.partial(nets_with_layouts.NETS[net], tf.float32), options)
    np.testing.assert_allclose(found, of_one_cpu(net, tf.float32), 0.1, 0.05)


@pytest.mark.parametrize(
    ("net", "schedule"),
    [
        ("mlp", "1f1b"),
        pytest.param("gpt", "interleaved", marks=pytest.mark.slow),
        pytest.param("gpt", "gpipe", marks=pytest.mark.slow),
        pytest.param("gpt", "zb_h1", marks=pytest.mark.slow),
        pytest.param("lstm", "1f1b", marks=pytest.mark.slow),
    ],
)
def test_pipelines(options: Any, net: str, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = getattr(nets_in_stages, net)
    monkeypatch.setattr(nets_in_stages, "CONFIG", config(gpus=0))
    expected = nets_in_stages.trained(build, steps=STEPS)
    chunks = 2 if schedule == "interleaved" else None
    strategy = D.PipelineStrategy(mesh(("pp", 2), ("dp", 2)), "pp", 4, schedule, chunks=chunks, batch="dp")
    monkeypatch.setattr(nets_in_stages, "CONFIG", options)
    nets_in_stages.agree(nets_in_stages.trained(build, strategy, STEPS), expected, rtol=1e-8)
