"""Exports as the tools that they are made for read them: TensorBoard's loader and graph plugin, Netron."""

import importlib.util
import json
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from flowrt.viz import export
from flowrt.viz.sources import VIEWS
from tests.viz.graphs import CPU0, CPU1, nested, network

NODE_S = 60
needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="TensorBoard (extra 'dev') is not installed"
)


def why_no_netron():
    if importlib.util.find_spec("netron") is None:
        return "Netron (extra 'dev') is not installed"
    node = shutil.which("node")
    if node is None:
        return "Node.js, under which Netron's reader runs, is not here"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=NODE_S, check=True)
    numbers = [int(part) for part in version.stdout.strip().removeprefix("v").split(".")]
    return "" if numbers >= [20, 19] else f"Netron's reader needs Node.js 20.19; this is {version.stdout}"


def exported(path, view):
    graph, _, loss, train = network()
    return export(graph, path, view=view, fetches=[loss, train])


# --- TensorBoard


@needs_tensorboard
@pytest.mark.parametrize("view", VIEWS)
def test_tensorboard_shows_the_graph(tmp_path, view):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a library that TensorBoard brings along
        from google.protobuf import text_format
        from tensorboard import context
        from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
        from tensorboard.compat.proto import graph_pb2
        from tensorboard.plugins import base_plugin
        from tensorboard.plugins.graph import graphs_plugin

        (tmp_path / view).mkdir()
        exported(tmp_path / view / "events.out.tfevents.1", view)
        multiplexer = plugin_event_multiplexer.EventMultiplexer()
        multiplexer.AddRunsFromDirectory(str(tmp_path))
        multiplexer.Reload()
        provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path))
        plugin = graphs_plugin.GraphsPlugin(
            base_plugin.TBContext(logdir=str(tmp_path), multiplexer=multiplexer, data_provider=provider)
        )
        asked = context.RequestContext()
        assert plugin.info_impl(asked, "")[view]["run_graph"]
        text, kind = plugin.graph_impl(
            asked, view, None, False, "", limit_attr_size=1024, large_attrs_key="x"
        )
    assert kind == "text/x-protobuf"
    read = text_format.Parse(text, graph_pb2.GraphDef())
    devices = {node.device for node in read.node}
    assert {CPU0, CPU1} <= devices if view != "logical" else "/device:CPU:1" in devices
    assert any(node.name.endswith("layer_1/MatMul") for node in read.node)


# --- Netron

NO_NETRON = why_no_netron()
needs_netron = pytest.mark.skipif(bool(NO_NETRON), reason=NO_NETRON)


def read_by_netron(path):
    directory = Path(importlib.util.find_spec("netron").origin).parent
    words = [
        shutil.which("node"),
        str(Path(__file__).with_name("netron_reader.mjs")),
        str(directory),
        str(path),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=NODE_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_netron
@pytest.mark.parametrize("view", VIEWS)
def test_netron_opens_the_graph(tmp_path, view):
    read = read_by_netron(exported(tmp_path / "graph.netron.pb", view))
    assert read["format"] == "TensorFlow Graph"
    nodes = {node["name"]: node for node in read["nodes"]}
    product = next(node for name, node in nodes.items() if name.endswith("layer_1/MatMul"))
    assert product["type"] == "MatMul"
    assert product["device"] == ("/device:CPU:1" if view == "logical" else CPU1)
    made = {name.partition(":")[0] for node in read["nodes"] for name in node["outputs"]}
    read_by_it = {name.partition(":")[0] for name in product["inputs"]}
    assert len(read_by_it) == 2
    assert read_by_it <= made


@needs_netron
def test_netron_opens_text_and_functions(tmp_path):
    graph, result = nested()
    read = read_by_netron(export(graph, tmp_path / "graph.pbtxt", fetches=result))
    assert "While" in {node["type"] for node in read["nodes"]}
