"""The part of a process is the same if the operations of other coordinates are left out of the step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import flowrt as tf
from flowrt.device.spec import DeviceSpec
from flowrt.graph.collectives.cost import DEFAULT_LINKS
from flowrt.graph.layouts.attributes import mesh_of
from flowrt.graph.layouts.mesh import Axis, Mesh
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.passes.layouts.lower_layouts import in_order, lowered
from flowrt.graph.passes.layouts.own_part import own_part
from flowrt.graph.passes.layouts.processes import Own
from flowrt.graph.passes.layouts.variable_shards import mesh_on
from flowrt.graph.passes.pipeline import compile_step, stages_before
from flowrt.viz.compile_request import compile_request
from tests.distribute.strategies import nets_in_stages
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, VOCABULARY, of_net

HERE = [DeviceSpec("localhost", 0, 0, "CPU", 0)]


def _global_step(strategy: Any, net: str) -> Subgraph:
    with tf.Graph().as_default() as graph:
        if isinstance(strategy, tf.distribute.PipelineStrategy):
            built = nets_in_stages.built(lambda at: nets_in_stages.gpt(at, rate=0.0), strategy)
            feeds: Any = built.feeds(0)
        else:
            with strategy.scope():
                built = NETS[net]()
            feeds = built.feeds
        asked = compile_request(graph, [built.loss, built.train], feeds)
        return compile_step(asked.request, asked.options, pipeline=stages_before("lower_layouts"))


def _part(step: Subgraph, rank: int, is_alone: bool) -> list[str]:
    """The operations of ``rank`` in a step that has those of its coordinate only, or of all."""
    mesh = mesh_of(step)
    assert mesh is not None
    devices = [DeviceSpec("all", None, task, "CPU", 0) for task in range(mesh.num_devices)]
    mesh = mesh_on(mesh, devices)
    turns = tuple(
        at for at in mesh.coordinates if all(a.is_time or not i for i, a in zip(at, mesh.axes, strict=True))
    )
    own = Own(mesh, "all", (rank,), turns if is_alone else None)
    found = lowered(step, devices, own=own)
    assert found is not None
    part = own_part(in_order(found, DEFAULT_LINKS), own, HERE, "")
    return [_line(node) for node in part if node.op.name not in ("_Feed", "_GroupAgree")]


def _line(node: Node) -> str:
    """``node``, but for the names of what comes from elsewhere."""
    reads = [f"{name}:{index}" for name, index in node.inputs]
    controls = [name for name in node.controls if name != "_agree"]
    text = f"{node.op.name} {node.name} {reads} {controls} {node.device} {node.outputs}"
    return re.sub(r"(@\w*|/elsewhere(_\d+)?)+/part", "/part", text) if "/part" in text else text


def _tp(count: int) -> Any:
    found = tf.distribute.LayoutStrategy(Mesh([("tp", count)]))
    found.variable_layouts(of_net(NETS["gpt"], VOCABULARY))
    return found


def _dp_tp_turns() -> Any:
    axes = [Axis("turn", 2, is_time=True), ("dp", 2), ("tp", 2)]
    found = tf.distribute.LayoutStrategy(Mesh(axes), ("turn", "dp"))
    found.variable_layouts(of_net(NETS["gpt"], COLUMNS))
    return found


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "dp": (lambda: tf.distribute.LayoutStrategy(Mesh([("dp", 4)]), "dp"), "gpt"),
    "uneven dp": (lambda: tf.distribute.LayoutStrategy(Mesh([("dp", 5)]), "dp"), "lenet"),
    "tp": (lambda: _tp(4), "gpt"),
    "uneven tp": (lambda: _tp(3), "gpt"),
    "dp x tp x turns": (_dp_tp_turns, "gpt"),
    "stage 2": (lambda: tf.distribute.FullyShardedStrategy(Mesh([("dp", 4)]), stage=2, min_bytes=0), "gpt"),
    "stage 3": (lambda: tf.distribute.FullyShardedStrategy(Mesh([("dp", 4)]), min_bytes=0), "gpt"),
    "uneven stage 3": (
        lambda: tf.distribute.FullyShardedStrategy(Mesh([("dp", 3)]), min_bytes=0), "lstm",
    ),
    "hybrid": (
        lambda: tf.distribute.FullyShardedStrategy(
            Mesh([("replica", 2), ("shard", 2)]), axis=("replica", "shard"), min_bytes=0
        ), "gpt",
    ),
    "loop": (lambda: tf.distribute.LayoutStrategy(Mesh([("dp", 4)]), "dp"), "lstm"),
}  # fmt: skip
"""A strategy and a net."""


@pytest.mark.parametrize("case", CASES)
def test_the_part_is_that_of_the_whole_step(case: str) -> None:
    make, net = CASES[case]
    step = _global_step(make(), net)
    assert _part(step, 0, is_alone=True) == _part(step, 0, is_alone=False)


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        pytest.param(
            [("pp", 2), ("dp", 2), ("tp", 2)],
            {"batch": "dp", "plan": nets_in_stages.PLAN},
            marks=pytest.mark.slow,
        ),
        ([("pp", 2), ("dp", 2)], {"batch": "dp"}),
        pytest.param(
            [("pp", 2), ("tp", 2)],
            {"schedule": "zbv", "plan": nets_in_stages.PLAN, "sequence": True},
            marks=pytest.mark.slow,
        ),
        pytest.param([("pp", 4), ("dp", 2)], {"batch": "dp", "remat": "stage"}, marks=pytest.mark.slow),
    ],
)
def test_only_what_one_device_does_for_others_is_left_out_of_a_pipeline(axes: Any, options: Any) -> None:
    """The first device of a pipeline gives others their parts of what is fed, and waits for their updates."""
    strategy = tf.distribute.PipelineStrategy(Mesh(axes), "pp", 4, **options)
    step = _global_step(strategy, "pipeline")
    count = strategy.mesh.num_devices // len(strategy.mesh.positions)
    for position in strategy.mesh.positions:
        alone, whole = (Counter(map(_kind, _part(step, position * count, b))) for b in (True, False))
        assert not alone - whole
        left_out = {kind.split()[0] for kind in whole - alone}
        assert left_out <= {"_TaggedSend", "_TaggedRecv", "Const", "Slice", "NoOp"}


def _kind(line: str) -> str:
    """The operation and its results."""
    return f"{line.split()[0]} {line[line.rindex(' (') :]}"


def test_the_step_has_no_operations_of_others() -> None:
    """The size of a step does not depend on the number of devices, but for its collectives."""
    sizes = []
    for count in (2, 64):
        step = _global_step(tf.distribute.FullyShardedStrategy(Mesh([("dp", count)]), min_bytes=0), "gpt")
        mesh = mesh_of(step)
        assert mesh is not None
        devices = [DeviceSpec("all", None, task, "CPU", 0) for task in range(count)]
        own = Own(mesh_on(mesh, devices), "all", (0,), ((0,),))
        found = lowered(step, devices, own=own)
        assert found is not None
        sizes.append(sum("elsewhere" not in node.name for node in found.subgraph))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_one_message_says_that_all_updates_of_a_stage_have_ended() -> None:
    step = _global_step(tf.distribute.PipelineStrategy(Mesh([("pp", 2)]), micro_batches=2), "gpt")
    ends = [
        [line.split()[0] for line in _part(step, rank, False) if "/_sent/end" in line.split()[1]]
        for rank in range(2)
    ]
    assert ends == [["_TaggedRecv"], ["Const", "_TaggedSend"]]
