"""Event files as TensorBoard itself reads them: its loader, and the back ends of its plugins."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf

pytest.importorskip(
    "tensorboard", reason="TensorBoard is not installed: `make` installs it with the extra 'dev'"
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of a library that TensorBoard brings along
    from google.protobuf import text_format
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.proto import config_pb2, graph_pb2
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.graph import graphs_plugin
    from tensorboard.plugins.histogram import histograms_plugin
    from tensorboard.plugins.scalar import scalars_plugin

STEPS = 3
TRACED = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run: graph, a scalar and a histogram a step, the trace of the last one."""
    directory = tmp_path_factory.mktemp("logs")
    with tf.Graph().as_default() as graph:
        with tf.name_scope("layer"):
            w = tf.Variable(tf.ones([4, 4]), name="w")
            y = tf.matmul(w, w, name="product")
        loss = tf.reduce_sum(y, name="total")
        step = tf.placeholder(tf.float32, [], name="step")
        tf.summary.scalar("loss", loss * step)
        tf.summary.histogram("weights", w)
        merged = tf.summary.merge_all()
        with tf.Session() as session, tf.summary.FileWriter(directory / "train", graph) as writer:
            session.run(tf.global_variables_initializer())
            for i in range(STEPS):
                metadata = tf.RunMetadata()
                writer.add_summary(session.run(merged, {step: i}, TRACED, metadata), i)
            writer.add_run_metadata(metadata, "step_2", STEPS - 1)
    return directory


@pytest.fixture(scope="module")
def tensorboard(logdir: Path) -> base_plugin.TBContext:
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(logdir))
    return base_plugin.TBContext(logdir=str(logdir), data_provider=provider, sampling_hints={})


def request() -> context.RequestContext:
    return context.RequestContext()


def test_the_loader_reads_every_event(logdir: Path) -> None:
    accumulator = EventAccumulator(str(logdir / "train"))
    accumulator.Reload()
    tags = accumulator.Tags()
    assert (tags["scalars"], tags["histograms"], tags["run_metadata"]) == (["loss"], ["weights"], ["step_2"])
    assert [(e.step, e.value) for e in accumulator.Scalars("loss")] == [(0, 0.0), (1, 64.0), (2, 128.0)]
    (first, *_) = accumulator.Histograms("weights")
    assert (first.histogram_value.num, first.histogram_value.sum) == (16.0, 16.0)


def test_the_scalars_and_histograms_tabs(tensorboard: Any) -> None:
    scalars = scalars_plugin.ScalarsPlugin(tensorboard)
    assert list(scalars.index_impl(request(), "")["train"]) == ["loss"]
    values, _ = scalars.scalars_impl(request(), "loss", "train", "", scalars_plugin.OutputFormat.JSON)
    assert [value[1:] for value in values] == [(0, 0.0), (1, 64.0), (2, 128.0)]
    histograms = histograms_plugin.HistogramsPlugin(tensorboard)
    drawn, _ = histograms.histograms_impl(request(), "weights", "train", "", 10)
    assert [step for _, step, _ in drawn] == list(range(STEPS))
    counts = np.array(drawn[0][2])[:, 2]
    assert counts.sum() == 16


def test_the_graph_tab_has_the_graph(tensorboard: Any) -> None:
    plugin = graphs_plugin.GraphsPlugin(tensorboard)
    info = plugin.info_impl(request(), "")["train"]
    assert info["run_graph"]
    assert info["tags"]["step_2"]["profile"]
    text, kind = plugin.graph_impl(request(), "train", None, False, "")
    assert kind == "text/x-protobuf"
    graph = text_format.Parse(text, graph_pb2.GraphDef())
    nodes = {node.name: node for node in graph.node}
    assert nodes["layer/product"].op == "MatMul"
    (shape,) = nodes["layer/product"].attr["_output_shapes"].list.shape
    assert [dim.size for dim in shape.dim] == [4, 4]


def test_run_metadata_gives_nodes_their_device_time_and_bytes(tensorboard: Any) -> None:
    """By the fields that the tab's front end joins with the graph: node_name, device, micros, total_bytes."""
    plugin = graphs_plugin.GraphsPlugin(tensorboard)
    text, _ = plugin.run_metadata_impl(request(), "", "train", "step_2")
    metadata = text_format.Parse(text, config_pb2.RunMetadata())
    (device,) = metadata.step_stats.dev_stats
    assert device.device == "/job:localhost/replica:0/task:0/device:CPU:0"
    product = next(node for node in device.node_stats if node.node_name == "layer/product")
    assert product.all_start_micros > 0
    assert product.all_end_rel_micros >= 1
    assert sum(memory.total_bytes for memory in product.memory) == 64
    (output,) = product.output
    assert [dim.size for dim in output.tensor_description.shape.dim] == [4, 4]
    (text, _) = plugin.graph_impl(request(), "train", None, False, "")
    nodes = {node.name for node in text_format.Parse(text, graph_pb2.GraphDef()).node}
    assert {"layer/product", "total"} <= nodes & {node.node_name for node in device.node_stats}
