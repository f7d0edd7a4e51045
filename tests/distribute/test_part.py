"""Which parts of a step are run by who brings their tensors: those that are known to be short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flowrt as tf
from flowrt.device.local_devices import local_devices
from flowrt.distribute.cluster.containers import Containers
from flowrt.distribute.worker.part import SHORT_NODES, CompiledPart, cut_by_task
from flowrt.executor.ends.config import ConfigProto, device_request
from flowrt.graph.passes.prepare.prune import extract

HERE, THERE = "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"


def part_here(build: Callable[[], Any], cpus: int = 1) -> CompiledPart:
    """What task 0 does of what ``build`` returns."""
    config = ConfigProto(device_count={"CPU": cpus})
    devices = {d.name: d for d in local_devices(device_request(config), "worker", 0)}
    names = [*devices, f"{THERE}/device:CPU:0"]
    with tf.Graph() as graph, tf.device(HERE + "/cpu:0"):
        fetched = build()
    subgraph = extract(graph, [fetched], [], {})
    parts, _ = cut_by_task(
        subgraph, dict.fromkeys(names, 1), {}, soft_placement=False, optimises=False, logs_placement=False
    )
    containers = Containers()
    containers.open("s", is_isolated=False)
    return CompiledPart(parts[HERE].subgraph, devices, containers.of("s"), False)


def received(shape: tuple[int, ...] = ()) -> Any:
    """A tensor of task 1."""
    with tf.device(THERE + "/cpu:0"):
        return tf.random_uniform(shape)


def chain() -> Any:
    z = received()
    for _ in range(SHORT_NODES):
        z = z + 1.0
    return z


def queued() -> Any:
    queue = tf.FIFOQueue(1, [tf.float32], [()])
    return queue.dequeue() + received()


def counted() -> Any:
    counter = tf.get_variable("counter", initializer=0.0)
    return counter.assign_add(received())


@pytest.mark.parametrize("build", [lambda: received() * 2.0, lambda: received((100,)) + 1.0, counted])
def test_a_few_small_operations_are_short_and_may_receive(build: Callable[[], Any]) -> None:
    part = part_here(build)
    assert part.is_short
    assert len(part.keys) == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: tf.matmul(received((200, 200)), tf.ones([200, 200])),
        lambda: tf.reduce_sum(tf.ones([100_000]) * received()),
        lambda: tf.while_loop(lambda x: x < 1.0, lambda x: x + 0.5, [received()]),
        lambda: tf.py_func(lambda x: x, [received()], tf.float32),
        lambda: tf.py_func(lambda x: x, [received()], tf.float32, stateful=False),
        lambda: tf.boolean_mask(received((10,)), received((10,)) > 0.5),
        queued,
        chain,
    ],
    ids=["flops", "elements", "a loop", "Python", "pure Python", "unknown sizes", "a queue", "many"],
)
def test_what_may_take_long_is_not(build: Callable[[], Any]) -> None:
    assert not part_here(build).is_short


def test_two_devices_have_threads_to_choose_from() -> None:
    def build() -> Any:
        with tf.device(HERE + "/cpu:1"):
            y = received() + 1.0
        return y * 2.0

    assert not part_here(build, cpus=2).is_short
