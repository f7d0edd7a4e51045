"""Variables and states in host memory: equal bits on devices that could not hold them, and what moves."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.passes.layouts.place_chunks import place_chunks
from tests.distribute.strategies.nets_with_layouts import NETS, Net
from tests.distribute.strategies.test_fully_sharded import UNITS, on_one_device, trained_under
from tests.each import daily

LAYERS, WIDTH = 8, 256
LAYER = WIDTH * WIDTH * 4
"""Bytes of the variable of a layer: 256 KiB."""


def mesh(size: int) -> Any:
    """Devices other than the host's."""
    return tf.distribute.Mesh([("dp", size)], [f"/cpu:{i + 1}" for i in range(size)])


def layers() -> Net:
    x = tf.placeholder(tf.float32, [4, WIDTH])
    h = x
    for layer in range(LAYERS):
        h = tf.nn.relu(tf.matmul(h, tf.get_variable(f"layer{layer}/w", [WIDTH, WIDTH])))
    loss = tf.reduce_mean(tf.square(h))
    return Net({x: np.ones((4, WIDTH))}, loss, tf.train.AdamOptimizer(1e-3).minimize(loss))


class Run:
    """Three steps of `layers` on devices of ``limit_mb``, and a fourth with all transfers counted."""

    def __init__(self, size: int, limit_mb: int = 0, **options: Any) -> None:
        config = tf.ConfigProto(
            device_count={"CPU": size + 1},
            experimental=tf.ConfigProto.Experimental(cpu_memory_limit_mb=[0] + [limit_mb] * size),
        )
        with tf.Graph() as graph:
            tf.set_random_seed(1)
            with tf.distribute.FullyShardedStrategy(mesh(size), **{"units": UNITS, **options}).scope():
                net = layers()
            with tf.Session(graph=graph, config=config) as session:
                session.run(tf.global_variables_initializer())
                self.losses = [session.run([net.loss, net.train], net.feeds)[0] for _ in range(3)]
                self.peaks = [device.pool.stats().peak_bytes_in_use for device in session.devices[1:]]
                metadata, traced = tf.RunMetadata(), tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
                session.run([net.loss, net.train], net.feeds, options=traced, run_metadata=metadata)
        self.received = _received(metadata)


def _received(metadata: Any) -> Counter[str]:
    """The bytes that the host received, ``down``, and that the devices received from it, ``up``."""
    found: Counter[str] = Counter()
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            to_host = device.device.endswith("CPU:0")
            if "/_recv_" in node.node_name and (to_host or "CPU:0" in node.timeline_label):
                nbytes = sum(o.tensor_description.allocation_description.requested_bytes for o in node.output)
                found["down" if to_host else "up"] += nbytes if nbytes >= LAYER // 8 else 0
    return found


@functools.cache
def uncapped(size: int) -> list[Any]:
    return Run(size, stage=0).losses


def test_a_device_that_holds_a_third_of_the_states_trains_with_the_same_bits() -> None:
    """Variables and Adam's slots are 6 MiB. The layers' gradients and two layers are on the device."""
    with pytest.raises(ResourceExhaustedError, match=r"CPU:1: expected .* a limit of 2.0 MiB"):
        Run(1, 2, stage=0)
    run = Run(1, 2, stage=3, offload="parameters")
    assert run.losses == uncapped(1)
    assert run.peaks[0] <= 2 << 20
    assert run.received == {"up": (2 * LAYERS - 2) * LAYER, "down": LAYERS * LAYER}


@pytest.mark.parametrize(("layers_there", "brought"), [(1, 15 - 1), (2, 15 - 2), (4, 11), (8, 8)])
def test_with_a_limit_layers_stay_and_as_many_move_as_planned(layers_there: int, brought: int) -> None:
    run = Run(1, stage=3, offload=layers_there * LAYER)
    assert run.losses == uncapped(1)
    assert run.received["up"] == brought * LAYER
    uses = [*range(LAYERS), *range(LAYERS - 2, 0, -1)]  # the gradient of the first layer does not read it
    sizes = dict.fromkeys(map(str, uses), LAYER)
    plan = place_chunks([*map(str, uses)], sizes, layers_there * LAYER)
    assert len({placed.brought for placed in plan}) == brought


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("stage", [2, 3])
def test_states_on_the_host_cost_each_byte_of_a_parameter_once_in_each_direction(
    stage: int, size: int
) -> None:
    run = Run(size, stage=stage, offload="optimizer")
    assert run.losses == uncapped(size)
    assert run.received == {"up": LAYERS * LAYER, "down": LAYERS * LAYER}  # of all devices together


@pytest.mark.parametrize(
    ("net", "size", "offload"),
    daily(
        itertools.product(["gpt", "lstm"], [1, 2], ["optimizer", "parameters", 10**4]),
        lambda net, size, offload: net == "gpt" and size == 1 + (offload != "optimizer"),
    ),
)
def test_training_is_that_of_one_device(net: str, size: int, offload: Any) -> None:
    strategy = tf.distribute.FullyShardedStrategy(mesh(size), units=UNITS, min_bytes=0, offload=offload)
    losses, variables = trained_under(strategy, NETS[net])
    expected, expected_variables = on_one_device(net)
    np.testing.assert_allclose(losses, expected, 1e-12)
    for found, wanted in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-8)


# --- mistakes


@pytest.mark.parametrize(
    ("units", "text"),
    [
        (UNITS, r"'layer\d' of variable '(layer\d/w)': expected at most 1,000 bytes, .*; got 262,144"),
        (
            "layer[0-3]|layer",  # four layers, each a unit, and the last four
            "'layer' of 4 variables, 'layer4/w' to 'layer7/w': expected at most 1,000 bytes, .*; got "
            "1,048,576. A limit of 1,048,576 would do, or of 1,310,720, .* its largest variable has 262,144",
        ),
        (None, "'layer0/w' of 8 variables, 'layer0/w' to 'layer7/w': expected .*; got 2,097,152. A limit of"),
    ],
)
def test_a_unit_above_the_limit_is_named_with_what_would_fit(units: str | None, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"test_offload\.py:\d+\): unit {text}"):
        Run(1, stage=3, offload=1000, units=units)


@pytest.mark.parametrize("options", [{}, {"offload": "parameters"}, {"offload": 3 << 20}], ids=str)
def test_a_unit_that_a_device_cannot_hold_is_named_with_what_would_fit(options: dict[str, Any]) -> None:
    """Before any memory is taken for it: the weights of a rank, and its states, are below the limit."""
    with pytest.raises(ResourceExhaustedError) as caught:
        Run(16, 1, units="layer", **options)
    assert re.search(
        r"test_offload\.py:\d+\): unit 'layer' of 8 variables, 'layer0/w' to 'layer7/w': expected at most "
        r"1,048,576 bytes, the memory of a device; got 2,097,152\. A limit of 2,097,152 would do; or smaller "
        r"units: its largest variable has 262,144",
        str(caught.value),
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offload": "disk"}, "offload: expected 'optimizer', 'parameters' or a number of bytes; got 'disk'"),
        ({"offload": 0}, "offload: expected 'optimizer', 'parameters' or a number of bytes; got 0"),
        ({"offload": True}, "offload: expected 'optimizer', 'parameters' or a number of bytes; got True"),
        (
            {"offload": 100, "reshard_after_forward": False},
            "offload=100: expected reshard_after_forward=True",
        ),
        ({"offload": "parameters", "stage": 2}, "offload='parameters': expected stage 3; got 2"),
    ],
)
def test_mistakes(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        tf.distribute.FullyShardedStrategy(mesh(1), **options)


@pytest.mark.parametrize("limits", [[-1], ["1"], [1, 1, 1]])
def test_limits_of_cpus(limits: list[Any]) -> None:
    experimental = {"cpu_memory_limit_mb": limits}
    with pytest.raises(InvalidArgumentError, match="cpu_memory_limit_mb: expected"):
        tf.Session(
            config=tf.ConfigProto(
                device_count={"CPU": 2}, experimental=tf.ConfigProto.Experimental(**experimental)
            )
        )


def test_a_device_that_is_full_of_parts() -> None:
    """The error says what takes less, of what a script may change."""
    for limit_mb, what in ((2, "memory"), (4, "memory for the plan of a step")):
        with pytest.raises(ResourceExhaustedError, match=f"of {what}; got") as caught:
            Run(2, limit_mb)
        assert str(caught.value).endswith("a higher stage, smaller units, or offload takes less")
        assert str(caught.value).count("a higher stage") == 1
