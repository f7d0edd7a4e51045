"""Small all-reduces between tasks travel together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.graph.collectives.buckets import fill_buckets
from flowrt.graph.collectives.cost import DEFAULT_LINKS
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.layouts.bucket_collectives import bucket_collectives
from flowrt.graph.passes.layouts.lower_layouts import Lowered, lowered
from flowrt.graph.passes.layouts.redistribute import Emitter
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, parse_pipeline
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.topology import sort_topologically
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, Net, of_net


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 9))), st.integers(1, 20))
def test_buckets_are_of_one_kind_in_order_and_not_too_large(
    tensors: list[tuple[str | None, int]], cap: int
) -> None:
    found = fill_buckets(tensors, cap)
    assert sorted(number for bucket in found for number in bucket) == list(range(len(tensors)))
    for bucket in found:
        assert bucket == sorted(bucket)
        assert len({tensors[number][0] for number in bucket}) == 1
        assert len(bucket) == 1 or sum(tensors[number][1] for number in bucket) <= cap
        assert len(bucket) == 1 or tensors[bucket[0]][0] is not None


def cpus(tasks: int, each: int) -> list[DeviceSpec]:
    names = [f"/job:worker/task:{t}/device:CPU:{i}" for t in range(tasks) for i in range(each)]
    return [parse_device(name) for name in names]


def step_of(net: str, mesh: Mesh, devices: list[DeviceSpec], columns: bool = False) -> tuple[Subgraph, Mesh]:
    """The lowered training step of ``net``, not in buckets."""
    with tf.Graph() as graph:
        strategy = tf.distribute.LayoutStrategy(mesh, batch="dp")
        strategy.variable_layouts(of_net(NETS[net], COLUMNS) if columns else {})
        with strategy.scope():
            built = NETS[net]()
        found = lowered(*before_layouts(graph, built, devices))
    assert found is not None
    return found.subgraph, found.layouts.mesh


def before_layouts(graph: tf.Graph, net: Net, devices: list[DeviceSpec]) -> tuple[Subgraph, list[DeviceSpec]]:
    """The training step of ``net``, as it comes to be lowered on ``devices``."""
    request = StepRequest(graph, [net.loss], [net.train], {t: np.shape(v) for t, v in net.feeds.items()})
    stages = "extract, lower, order_effects, infer_shapes, optimise, infer_shapes"
    return compile_step(request, CompileOptions(devices), pipeline=parse_pipeline(stages)), devices


def all_reduces(step: Subgraph) -> list[Node]:
    return [node for node in step if node.op.name == "AllReduce"]


def tasks_of(node: Node, step: Subgraph) -> set[int | None]:
    return {parse_device(step.nodes[name].device).task for name, _ in node.inputs}


@pytest.mark.parametrize("net", ["mlp", "lenet", "embedding", "gpt"])
def test_between_tasks_the_gradients_are_one_vector(net: str) -> None:
    step, mesh = step_of(net, Mesh([("dp", 2)]), cpus(2, 1))
    joined = bucket_collectives(step, mesh, DEFAULT_LINKS, {})
    assert len(all_reduces(step)) >= 3
    assert len(all_reduces(joined)) == 1
    elements = [node.outputs[0].shape for node in all_reduces(step)]
    assert all_reduces(joined)[0].outputs[0].shape == (sum(int(np.prod(shape)) for shape in elements),)


def test_what_batch_normalization_waits_for_stays_apart() -> None:
    """The mean of the batch, its variance, the gradients down to it, and those of the layer below."""
    step, mesh = step_of("cnn", Mesh([("dp", 2)]), cpus(2, 1))
    joined = bucket_collectives(step, mesh, DEFAULT_LINKS, {})
    assert (len(all_reduces(step)), len(all_reduces(joined))) == (10, 4)


def fully_sharded(mesh: Mesh, devices: list[DeviceSpec]) -> Lowered:
    """A step of the GPT, with a unit for each block."""
    with tf.Graph() as graph:
        with tf.distribute.FullyShardedStrategy(mesh, units=r"block\d|\w+", min_bytes=0).scope():
            built = NETS["gpt"]()
        found = lowered(*before_layouts(graph, built, devices))
    assert found is not None
    return found


@pytest.mark.parametrize("count", [2, 4])
def test_between_tasks_a_unit_is_gathered_at_once_and_its_gradients_are_scattered_at_once(count: int) -> None:
    """Each tensor as it is: none is copied together with others."""
    found = fully_sharded(Mesh([("dp", count)]), cpus(count, 1))
    step = bucket_collectives(found.subgraph, found.layouts.mesh, DEFAULT_LINKS, {})
    kinds = Counter(node.op.name for node in found.subgraph)
    assert (kinds["AllGather"], kinds["ReduceScatter"]) == (34, 18)
    stretches = [node.attrs["_unit"] for node in found.layouts.subgraph if "/stretch" in node.name]
    gathers = [node for node in step if node.op.name in ("AllGather", "CoalescedAllGather")]
    scatters = [node for node in step if node.op.name in ("ReduceScatter", "CoalescedReduceScatter")]
    assert len(gathers) == len(set(stretches)) == 6  # the words, two blocks, the logits, the blocks again
    assert len(scatters) == 4
    assert Counter(len(node.inputs) for node in gathers) == {count: 2, 8 * count: 4}
    for node in (*gathers, *scatters):
        for name, _ in node.inputs:
            assert step.nodes[name].op.name not in ("ConcatV2", "Reshape")


def test_inside_a_task_a_unit_is_gathered_at_once_and_its_gradients_are_summed_where_they_are_read() -> None:
    found = fully_sharded(Mesh([("dp", 2)]), cpus(1, 2))
    step = bucket_collectives(found.subgraph, found.layouts.mesh, DEFAULT_LINKS, {})
    kinds = Counter(node.op.name for node in step)
    assert (kinds["AllGather"], kinds["CoalescedAllGather"]) == (0, 6)
    assert (kinds["ReduceScatter"], kinds["CoalescedReduceScatter"]) == (18, 0)


def test_inside_a_task_no_sums_are_joined() -> None:
    step, mesh = step_of("mlp", Mesh([("dp", 2)]), cpus(1, 2))
    assert bucket_collectives(step, mesh, DEFAULT_LINKS, {}) is step


def test_no_bucket_waits_for_what_is_made_from_a_member() -> None:
    """The activations' sums of tensor parallelism wait for one another, those of gradients do not."""
    step, mesh = step_of("gpt", Mesh([("dp", 2), ("tp", 2)]), cpus(4, 1), columns=True)
    joined = bucket_collectives(step, mesh, DEFAULT_LINKS, {})
    assert list(sort_topologically(joined.nodes)) == list(joined.nodes)
    of_axis = Counter(len(tasks_of(node, joined) & {0, 1}) for node in all_reduces(joined))
    assert of_axis == {2: 8, 0: 8, 1: 2}  # 4 per block on each tp group; one bucket on each dp group
    assert len(all_reduces(step)) > 40


def test_new_nodes_replace_none_of_the_step() -> None:
    """A second emitter goes on with the nodes of a first one."""
    first, second = Emitter(Mesh([])), Emitter(Mesh([]))
    origin = Node("origin", no_op, (), (), {}, "", None, ())
    names = [first.constant("x/shape", 1, "", origin)[0], first.constant("x/shape", 2, "", origin)[0]]
    second.nodes = dict(first.nodes)
    names.append(second.constant("x/shape", 3, "", origin)[0])
    assert [second.nodes[name].attrs["value"] for name in names] == [1, 2, 3]
