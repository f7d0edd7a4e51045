"""Random graphs with variables and control edges on several devices: every view of them holds together, and
every format writes it.
"""

import json
import shutil
import subprocess

import pytest

from flowrt.device.spec import parse_device
from flowrt.graph.passes.pipeline import optimise
from flowrt.graph.passes.placement.partition import partition
from flowrt.graph.passes.placement.place import place
from flowrt.graph.passes.placement.placement_reasons import placement_reasons
from flowrt.viz import EdgeKind, fold, view_of, with_series
from flowrt.viz.formats.dot import encode_dot
from flowrt.viz.formats.graph_def import graph_def_of
from flowrt.viz.formats.json import encode_json
from flowrt.viz.formats.mermaid import encode_mermaid
from flowrt.viz.formats.model_explorer import encode_model_explorer
from flowrt.viz.formats.picture import Picture
from tests.graph.passes.test_random_graphs import RandomGraph

SEEDS = range(20)
DEVICES = [parse_device(f"/job:localhost/replica:0/task:0/device:CPU:{i}") for i in range(3)]


@pytest.fixture(scope="module")
def placements():
    """(before, placed) of each seed."""
    found = []
    for seed in SEEDS:
        before = optimise(RandomGraph(seed).subgraph)
        found.append((before, place(before, DEVICES, assigned={}, soft=True)))
    return found


@pytest.fixture(scope="module")
def pictures(placements):
    return [
        Picture("random", "logical", parts, view_of(parts), list)
        for before, placed in placements
        for parts in ({"": before}, {"": placed}, partition(placed))
    ]


def test_every_edge_of_every_view_is_drawn(pictures):
    for shown in pictures:
        nodes = [node for part in shown.parts.values() for node in part]
        assert set(shown.view.nodes) == {node.name for node in nodes}
        drawn = sum(edge.num_edges for edge in shown.view.edges)
        pairs = sum(node.op.name == "_Send" for node in nodes)
        assert drawn == sum(len(node.inputs) + len(node.controls) for node in nodes) + pairs
        for edge in shown.view.edges:
            ends = shown.view.nodes[edge.source], shown.view.nodes[edge.target]
            assert (edge.kind is EdgeKind.TRANSFER) == bool(edge.transport)
            if edge.kind is EdgeKind.TRANSFER:
                assert ends[0].device != ends[1].device


def test_every_format_writes_every_view(pictures):
    for shown in pictures:
        for depth in (1, 2, 9):
            folded = shown._replace(view=fold(with_series(shown.view), depth))
            assert len(json.loads(encode_json(folded))["nodes"]) == len(folded.view.nodes)
            assert len(json.loads(encode_model_explorer(folded))["graphs"][0]["nodes"]) == len(
                folded.view.nodes
            )
            assert encode_mermaid(folded).count(b"subgraph ") == len(folded.view.groups)
        names = {node.name for node in graph_def_of(shown.parts).node}
        assert len(names) == len(shown.view.nodes)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz (apt: graphviz) is not here")
def test_graphviz_reads_every_view(pictures):
    """``dot -Tcanon`` parses and draws nothing."""
    text = b"".join(map(encode_dot, pictures))
    done = subprocess.run(["dot", "-Tcanon"], input=text, capture_output=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"digraph") == len(pictures)


def test_every_placement_has_a_reason_that_is_true(placements):
    for before, placed in placements:
        reasons = placement_reasons(before, placed, DEVICES, {})
        assert reasons.keys() == placed.nodes.keys()
        for name, why in reasons.items():
            asked, device = before.nodes[name].device, placed.nodes[name].device
            if why.startswith("requested") and ", moved: " not in why:
                assert parse_device(asked).matches(parse_device(device))
            elif why == "default device":
                assert device == DEVICES[0].to_string()
            elif why.startswith("on the device of its consumer "):
                assert placed.nodes[why.rpartition(" ")[2]].device == device
            elif why.startswith("colocated with "):
                other = why.removeprefix("colocated with ").split(",")[0]
                assert placed.nodes[other].device == device
            else:
                assert why.startswith(("on the device of its input ", "first device", "requested"))
