"""ZeRO's table, exactly: the bytes a parameter that a device has at each stage when the first update begins
(Rajbhandari et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.buffers.buffer_assignment import nbytes_of
from flowrt.graph.node import Ref
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.state.optimizer_updates import apply_adam
from tests.distribute.strategies.standing_workers import Answers
from tests.each import daily

LAYERS, WIDTH = 8, 256
"""Parts are at least 64 KiB, as what pools allocate."""

GRADIENT = apply_adam.inputs.index(next(i for i in apply_adam.inputs if i.name == "grad"))
PARAMETERS = LAYERS * WIDTH**2

TABLE: dict[tuple[int, str], Callable[[int], float]] = {
    # 16, 4 + 12/N, 2 + 14/N and 16/N
    (0, ""): lambda n: 16,
    (1, "bfloat16"): lambda n: 4 + 12 / n,
    (2, "bfloat16"): lambda n: 2 + 14 / n,
    (3, ""): lambda n: 16 / n,
    # without a narrower dtype
    (1, ""): lambda n: 8 + 8 / n,
    (2, ""): lambda n: 4 + 12 / n,
    # where no copy in bfloat16 is kept
    (0, "bfloat16"): lambda n: 14,
    (3, "bfloat16"): lambda n: 14 / n,
    # with gradients of bfloat16 that are summed in float32
    (0, "float32"): lambda n: 16,
    (1, "float32"): lambda n: 2 + 16 / n,
    (2, "float32"): lambda n: 2 + 16 / n,
    (3, "float32"): lambda n: 16 / n,
}
"""Bytes a parameter on each of n devices, by the stage and the dtype of sums: empty for float32 in all."""


class Counted(NamedTuple):
    """Bytes a parameter of one device: of variables by its pool, and of gradients in the plan."""

    kept: float
    gradients: float


def counted(stage: int, reduce: str, mesh: Any, **workers: Any) -> list[Counted]:
    """What each of the devices of ``mesh`` that are here has in a step of equal layers."""
    policy = tf.distribute.Precision("bfloat16", reduce=reduce) if reduce else None
    options = {"units": r"layer\d", "policy": policy, **workers}
    with tf.distribute.FullyShardedStrategy(mesh, stage=stage, **options).scope():
        x = tf.placeholder(tf.float32, [8, WIDTH])
        h = x
        for layer in range(LAYERS):
            h = tf.nn.relu(tf.matmul(h, tf.get_variable(f"layer{layer}/w", [WIDTH, WIDTH])))
        optimizer = tf.train.AdamOptimizer(1e-3)
        gradients = optimizer.compute_gradients(tf.reduce_mean(tf.square(h)))
        train = optimizer.apply_gradients(gradients)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 5})) as session:
        for variable in tf.global_variables():
            variable.load(np.full(variable.shape.as_list(), 0.01, np.float32), session)
        session.run(train, {x: np.ones((8, WIDTH))})
        plan = [plan for request in session._requests.values() for plan in request.plans.values()][-1]
        parts = {part.device.name: part for part in plan.partitions.values()}
        found = []
        for device in session.devices:
            if device.name in parts and any(node.op is apply_adam for node in parts[device.name].subgraph):
                kept = device.pool.stats().bytes_in_use - arena_bytes(session, device.name)
                is_whole = stage == 1 and reduce != "float32"
                gradients = gradient_bytes(parts[device.name], is_whole)
                found.append(Counted(kept / PARAMETERS, gradients / PARAMETERS))
        return found


def arena_bytes(session: Any, name: str) -> int:
    """The bytes of the pool of the device ``name`` that plans have for what they compute."""
    plans = [plan for request in session._requests.values() for plan in request.plans.values()]
    parts = [part for plan in plans for part in plan.partitions.values() if part.device.name == name]
    return sum(-(-part.buffers.memory.nbytes // 256) * 256 for part in parts)


def gradient_bytes(part: Any, is_whole: bool) -> int:
    """The bytes of the gradients as they wait for their updates: of those that the updates read, or, if they
    are whole until then, of the products that give them.
    """
    subgraph, root = part.subgraph, part.buffers.lifetimes.root

    def made(ref: Ref) -> Ref:
        """What an update computes its gradient from, if that is in another dtype."""
        node = subgraph.nodes[root(ref)[0]]
        return made(node.inputs[0]) if node.op is cast_op else root(ref)

    if is_whole:
        refs = [(node.name, 0) for node in subgraph if "MatMul" in node.op.name]
        refs = [ref for ref in refs if subgraph.spec(ref).shape == (WIDTH, WIDTH)]
    else:
        refs = [node.inputs[GRADIENT] for node in subgraph if node.op is apply_adam]
    assert len(refs) == LAYERS
    return sum(nbytes_of(subgraph.spec(ref)) for ref in {made(ref) for ref in refs})


SETTINGS = daily(
    [(*setting, size) for setting in TABLE for size in (2, 4)],
    lambda stage, reduce, size: (stage, reduce) in [*TABLE][:4],
)


@pytest.mark.parametrize(("stage", "reduce", "size"), SETTINGS)
def test_bytes_a_parameter_of_devices(stage: int, reduce: str, size: int) -> None:
    mesh = tf.distribute.Mesh([("dp", size)], [f"/cpu:{i + 1}" for i in range(size)])
    with tf.Graph().as_default():
        found = counted(stage, reduce, mesh)
    assert [sum(each) for each in found] == [TABLE[stage, reduce](size)] * size, found


@pytest.mark.parametrize(("stage", "reduce", "size"), SETTINGS)
def test_bytes_a_parameter_of_processes(answers: Answers, stage: int, reduce: str, size: int) -> None:
    for found in answers(f"counts:{stage}:{reduce}", size):
        assert [sum(each) for each in found] == [TABLE[stage, reduce](size)], found
