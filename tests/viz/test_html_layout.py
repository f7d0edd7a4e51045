"""The layout of one box, and the boxes of neighbours that keep it small."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrt.errors import FailedPreconditionError
from flowrt.viz.folding.series import MAX_CHILDREN, split_clusters
from flowrt.viz.layout import LANE, lay_out, side_by_side
from flowrt.viz.view import GraphView, GroupKind, GroupView, NodeView

pytest.importorskip("igraph", reason="igraph is not installed: pip install 'flowrt[viz]'")

MANY = 14
edges_between_few = st.lists(st.tuples(st.integers(0, MANY - 1), st.integers(0, MANY - 1)), max_size=40)


@given(edges_between_few)
def test_boxes_of_a_layer_have_room_for_each_other(edges):
    layout = lay_out(MANY, edges)
    for layer in set(layout.layers):
        columns = sorted(x for x, at in zip(layout.columns, layout.layers, strict=True) if at == layer)
        assert columns[0] >= 0
        assert all(right - left >= 1 - 1e-6 for left, right in pairwise(columns))


ONE_COLUMN = [
    (0, 7), (1, 5), (1, 9), (1, 10), (2, 5), (2, 9), (3, 10), (5, 4), (5, 11), (6, 7), (6, 10), (6, 11),
    (7, 10), (8, 6), (8, 12), (9, 2), (9, 12), (11, 2), (11, 8), (12, 7), (12, 8),
]  # fmt: skip
"""igraph 1.0 puts two of a layer of this graph in one place."""


def test_two_boxes_never_stand_in_one_place():
    layout = lay_out(13, ONE_COLUMN)
    assert len(set(zip(layout.layers, layout.columns, strict=True))) == 13


@given(edges_between_few)
def test_what_passes_a_layer_stands_beside_its_boxes(edges):
    layout = lay_out(MANY, edges)
    for (source, target), route in layout.routes.items():
        assert len(route) == layout.layers[target] - layout.layers[source] - 1
        for step, column in enumerate(route, 1):
            layer = layout.layers[source] + step
            boxes = [x for x, at in zip(layout.columns, layout.layers, strict=True) if at == layer]
            assert all(abs(column - box) >= LANE - 1e-6 for box in boxes)


@given(edges_between_few)
def test_edges_go_down_where_there_is_no_circle(edges):
    forward = [(a, b) for a, b in edges if a < b]
    layout = lay_out(MANY, forward)
    assert all(layout.layers[a] < layout.layers[b] for a, b in forward)


def test_what_has_no_input_stands_right_above_its_reader():
    chain, constant = [(0, 1), (1, 2), (2, 3)], 4
    layout = lay_out(5, [*chain, (constant, 3)])
    assert layout.layers[constant] == layout.layers[3] - 1


def test_a_chain_is_straight_although_long_edges_leave_it():
    """As the forward half of a training step, each layer of which the backward half reads."""
    chain = [(i, i + 1) for i in range(9)]
    layout = lay_out(10, [*chain, *[(i, 9) for i in range(8)]])
    assert len({round(x, 3) for x in layout.columns[:6]}) == 1
    lanes = {layout.routes[i, 9][0] for i in range(5)}
    assert len(lanes) == 5


@pytest.mark.parametrize("layer", range(1, 6))
def test_a_lane_goes_around_the_widest_layer_that_it_passes(layer):
    chain = [(i, i + 1) for i in range(6)]
    wide = range(7, 12)
    layout = lay_out(12, [*chain, (0, 6), *[(layer - 1, child) for child in wide]])
    boxes = [layout.columns[child] for child in (layer, *wide)]
    lane = layout.routes[0, 6][0]
    assert lane < min(boxes) or lane > max(boxes)


def test_a_circle_is_drawn():
    layout = lay_out(3, [(0, 1), (1, 2), (2, 0), (1, 1)])
    assert sorted(layout.layers) == [0, 1, 2]


MANY_LAYOUTS = """
import random
from flowrt.viz.layout import lay_out
chance = random.Random(1)
for _ in range(1500):
    count = chance.choice([8, 14, 30, 60])
    edges = {(chance.randrange(count), chance.randrange(count)) for _ in range(count)}
    lay_out(count, sorted(edges))
"""


@pytest.mark.slow
def test_graphs_in_several_parts_are_drawn_without_touching_foreign_memory():
    """A process whose C library fills what is freed: igraph 1.0 dies there of such graphs with long edges."""
    env = {**os.environ, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
    command = [sys.executable, "-c", MANY_LAYOUTS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_children_without_edges_stand_in_rows_below():
    layout = lay_out(20, [(0, 1)])
    assert layout.layers[:2] == [0, 1]
    below = list(zip(layout.layers[2:], layout.columns[2:], strict=True))
    assert min(layer for layer, _ in below) == 2
    assert len(set(below)) == 18


def test_devices_stand_side_by_side():
    assert side_by_side(3) == ([0, 0, 0], [0.0, 1.0, 2.0], {})


def test_without_igraph_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "igraph", None)
    with pytest.raises(FailedPreconditionError, match=r"flowrt\[viz\]"):
        lay_out(2, [(0, 1)])


def crowd(count):
    nodes = {f"n{i}": NodeView(f"n{i}", f"n{i}", "Neg", "scope", "", {}, (), "") for i in range(count)}
    return GraphView(nodes, [], {"scope": GroupView("scope", "scope", GroupKind.SCOPE, "", count)})


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40_000))
def test_no_box_has_more_children_than_one_takes_in(count):
    view = split_clusters(crowd(count))
    children = {}
    for item in [*view.nodes.values(), *view.groups.values()]:
        parent = item.group if isinstance(item, NodeView) else item.parent
        children[parent] = children.get(parent, 0) + 1
    assert max(children.values()) <= MAX_CHILDREN
    assert sum(g.num_ops for g in view.groups.values() if g.parent == "scope") in (0, count)
    assert list(view.nodes) == list(crowd(count).nodes)


def test_a_crowd_keeps_its_order_and_outer_boxes_come_first():
    view = split_clusters(crowd(500))
    names = list(view.groups)
    assert all(names.index(g.parent) < names.index(g.name) for g in view.groups.values() if g.parent)
    boxes = [view.nodes[f"n{i}"].group for i in range(500)]
    assert sorted(set(boxes), key=boxes.index) == [g for g in names if g != "scope"]
