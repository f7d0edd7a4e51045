"""Views: every operation and edge is there, groups hold what their names say, folding and focusing lose
nothing that they should not.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.errors import NotFoundError
from flowrt.viz import EdgeKind, GroupKind, focus, fold, view_of, with_series
from flowrt.viz.compile_request import compile_request
from flowrt.viz.folding import series
from flowrt.viz.folding.fold import fold_to_screen
from flowrt.viz.folding.opening import Screen, open_groups
from flowrt.viz.from_parts import transport
from flowrt.viz.sources import Step
from flowrt.viz.stages import built
from flowrt.viz.view import EdgeView, GraphView, GroupView, NodeView, around
from tests.viz.graphs import CPU0, CPU1, nested, network


@pytest.fixture(scope="module")
def logical():
    return view_of({"": built(network()[0])})


@pytest.fixture(scope="module")
def partitioned():
    graph, _, loss, train = network()
    return view_of(Step("", compile_request(graph, [loss, train])).parts("partitioned"))


def scopes(view, name):
    return [group.label for group in reversed([*around(view.groups, view.nodes[name].group)])]


def test_every_operation_and_input_is_there(logical):
    graph = network()[0]
    operations = graph.get_operations()
    assert list(logical.nodes) == [op.name for op in operations]
    drawn = {(e.source, e.target) for e in logical.edges if e.kind is EdgeKind.DATA}
    assert drawn == {(t.op.name, op.name) for op in operations for t in op.inputs}
    controls = {(e.source, e.target) for e in logical.edges if e.kind is EdgeKind.CONTROL}
    assert controls == {(before.name, op.name) for op in operations for before in op.control_inputs}


def test_a_node_stands_in_its_scopes_and_in_the_one_that_has_its_name(logical):
    assert scopes(logical, "layer_1/out") == ["layer_1"]
    assert scopes(logical, "layer_1/w") == ["layer_1", "w"]
    assert logical.groups["layer_1"].num_ops == sum(n.startswith("layer_1/") for n in logical.nodes)


def test_facts_of_a_node(logical):
    node = logical.nodes["layer_0/out"]
    assert (node.op, node.label, node.device) == ("Relu", "out", "/device:CPU:0")
    assert [str(tensor) for tensor in node.outputs] == ["float32[8, 16]"]
    assert node.outputs[0].nbytes == 8 * 16 * 4
    assert node.source.rpartition(":")[0].endswith("graphs.py")


def test_a_large_constant_is_told_and_not_shown(logical):
    assert logical.nodes["large"].attrs["value"] == "float32[16, 32], 2048 bytes"
    assert logical.nodes["gradients/loss_grad/Const"].attrs["value"] == "f32[](256.0)"


def test_in_a_logical_view_a_request_is_no_place(logical):
    assert not any(edge.kind is EdgeKind.TRANSFER for edge in logical.edges)


def test_functions_are_groups_and_their_nodes_have_names_of_their_own():
    graph, _ = nested()
    view = view_of({"": built(graph)})
    labels = {group.label for group in view.groups.values() if group.kind is GroupKind.FUNCTION}
    assert labels >= {"while body", "while cond", "cond then_branch", "cond else_branch"}
    sines = [name for name, node in view.nodes.items() if node.op == "Sin"]
    assert len(sines) == 1
    assert scopes(view, sines[0])[-1] == "cond then_branch"
    feeds = {e.target for e in view.edges if e.source == "while" and ":body" in e.target}
    assert len(feeds) >= 2  # an argument comes to its parameter


def test_a_partitioned_view_has_a_box_a_device_and_an_edge_from_each_send_to_its_recv(partitioned):
    boxes = {group.name for group in partitioned.groups.values() if group.kind is GroupKind.DEVICE}
    assert boxes == {CPU0, CPU1}
    sends = {name for name, node in partitioned.nodes.items() if node.op == "_Send"}
    receives = {name for name, node in partitioned.nodes.items() if node.op == "_Recv"}
    transfers = [edge for edge in partitioned.edges if edge.kind is EdgeKind.TRANSFER]
    assert {edge.source for edge in transfers} == sends
    assert {edge.target for edge in transfers} == receives
    first = next(edge for edge in transfers if edge.tensor == "layer_0/out:0")
    assert (str(first.facts), first.nbytes, first.transport) == ("float32[8, 16]", 512, "shared memory")


def test_what_a_cut_adds_stands_beside_what_it_is_of(partitioned):
    send = next(n for n in partitioned.nodes.values() if n.op == "_Send" and "layer_0/out" in n.name)
    receive = next(n for n in partitioned.nodes.values() if n.op == "_Recv" and "layer_0/out" in n.name)
    assert scopes(partitioned, send.name) == [CPU0, "layer_0"]
    assert scopes(partitioned, receive.name) == [CPU1]
    assert (send.label, receive.label) == ("send out:0", "receive out:0")


def test_where_the_other_end_is_in_another_task_a_node_stands_for_it():
    graph, _, loss, _ = network()
    parts = Step("", compile_request(graph, loss)).parts("partitioned")
    view = view_of({CPU0: parts[CPU0]})
    other = view.nodes[f"elsewhere:{CPU1}"]
    transfers = [edge for edge in view.edges if edge.kind is EdgeKind.TRANSFER]
    ends = sum(node.op in ("_Send", "_Recv") for node in view.nodes.values())
    assert sum(other.name in (edge.source, edge.target) for edge in transfers) == ends == len(transfers) > 1


def test_a_placed_view_says_what_crosses():
    graph, _, loss, _ = network()
    view = view_of(Step("", compile_request(graph, loss)).parts("placed"))
    crossing = {(e.source, e.target) for e in view.edges if e.kind is EdgeKind.TRANSFER}
    assert ("layer_0/out", "layer_1/MatMul") in crossing
    assert {node.device for node in view.nodes.values()} == {CPU0, CPU1}


@pytest.mark.parametrize(
    ("source", "target", "how"),
    [
        (CPU0, CPU1, "shared memory"),
        (CPU0, CPU0.replace("CPU", "GPU"), "device copy"),
        (CPU0, CPU0.replace("task:0", "task:1"), "network"),
    ],
)
def test_how_a_tensor_travels(source, target, how):
    assert transport(source, target) == how


# --- folding


def test_folded_once_a_scope_is_a_box_and_its_edges_are_bundled(logical):
    folded = fold(logical, 1)
    box = folded.nodes["layer_0"]
    assert (box.op, box.num_ops) == ("", logical.groups["layer_0"].num_ops)
    bundle = next(e for e in folded.edges if (e.source, e.target) == ("layer_0", "layer_1"))
    assert (bundle.num_edges, bundle.tensor) == (1, "layer_0/out:0")
    assert not any(group.kind is GroupKind.SCOPE for group in folded.groups.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.booleans())
def test_a_fold_keeps_all_operations_and_all_edges_between_boxes(depth, series):
    for view in VIEWS:
        whole = with_series(view) if series else view
        folded = fold(whole, depth)
        assert sum(node.num_ops for node in folded.nodes.values()) == len(view.nodes)
        for edge in folded.edges:
            assert edge.source in folded.nodes
            assert edge.target in folded.nodes
            assert edge.source != edge.target
        assert sum(e.num_edges for e in folded.edges) <= len(view.edges)
        again = fold(folded, depth)
        assert (again.nodes, list(again.edges)) == (folded.nodes, list(folded.edges))
        assert all(node.group in ("", *folded.groups) for node in folded.nodes.values())


VIEWS = [view_of({"": built(graph)}) for graph in (network(3)[0], nested()[0])]


def test_deep_enough_a_fold_changes_nothing(logical):
    folded = fold(logical, 99)
    assert folded.nodes == logical.nodes
    assert len(folded.edges) == len({(e.source, e.target) for e in logical.edges})  # none is a transfer


def test_like_scopes_are_a_series_and_closed(logical):
    folded = fold(with_series(logical), 99)
    series = next(group for group in with_series(logical).groups.values() if group.label == "layer × 4")
    assert series.kind is GroupKind.SERIES
    assert series.name == "layer[0..3]"
    assert folded.nodes[series.name].num_ops == 4 * logical.groups["layer_0"].num_ops


def test_two_scopes_or_unlike_ones_are_no_series():
    with tf.Graph().as_default() as graph:
        for i in range(3):
            with tf.name_scope(f"part_{i}"):
                x = tf.constant(1.0)
                for _ in range(i):
                    x = tf.sin(x)
    view = view_of({"": built(graph)})
    assert with_series(view).groups == view.groups


# --- boxes of many


@st.composite
def scoped_graphs(draw):
    """A view of scopes of two stems and of one or two operations, with edges forward in execution order."""
    count = draw(st.integers(3, 9))
    groups, nodes = {}, {}
    for i in range(count):
        name = f"{draw(st.sampled_from('ab'))}_{i}"
        groups[name] = GroupView(name, name, GroupKind.SCOPE, "", 2)
    order = draw(st.permutations([f"{name}/{k}" for name in groups for k in range(2)]))
    for name in order:
        nodes[name] = NodeView(name, name, "Op", name.partition("/")[0], "", {}, (), "")
    ends = st.tuples(st.integers(0, 2 * count - 1), st.integers(0, 2 * count - 1))
    pairs = draw(st.sets(ends, max_size=3 * count))
    edges = [EdgeView(order[a], order[b], EdgeKind.DATA) for a, b in sorted(pairs) if a < b]
    return GraphView(nodes, edges, groups)


def on_cycles(view):
    """The operations in boxes on cycles."""
    after = {name: {e.target for e in view.edges if e.source == name} for name in view.nodes}
    for _ in view.nodes:
        after = {name: ends.union(*[after[end] for end in ends]) for name, ends in after.items()}
    return {name for name, ends in after.items() if name in ends}


@settings(max_examples=300, deadline=None)
@given(scoped_graphs())
def test_series_make_no_cycle_that_scopes_do_not_make(view):
    scopes_alone, in_series = fold(view, 1), fold(with_series(view), 1)
    assert on_cycles(in_series) == on_cycles(scopes_alone)


@settings(max_examples=100, deadline=None)
@given(scoped_graphs())
def test_large_boxes_are_divided_along_the_edges(view):
    closed = fold(view, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "MAX_CHILDREN", 2)
        divided = fold(series.split_clusters(closed), 1)
    if not on_cycles(closed):
        assert not on_cycles(divided)


def test_a_series_ends_at_what_stands_between_its_members():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", [4], name="x")
        for i in range(7):
            with tf.name_scope(f"layer_{i}"):
                x = tf.sin(tf.cos(x))
            if i == 3:
                x = tf.exp(x, name="between")
    view = with_series(view_of({"": built(graph)}))
    found = [g.name for g in view.groups.values() if g.kind is GroupKind.SERIES]
    assert found == ["layer[0..3]", "layer[4..6]"]


# --- groups that are open at first


def test_groups_are_open_as_far_as_there_is_room():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", [4], name="x")
        with tf.name_scope("short"):
            x = tf.sin(tf.cos(x))
        for i in range(2):
            with tf.name_scope(f"long_{i}"):
                for _ in range(5):
                    x = tf.exp(x)
    view = view_of({"": built(graph)})
    assert open_groups(view, Screen(13, 13)) == {"short", "long_0", "long_1"}
    assert open_groups(view, Screen(99, 12)) == {"short"}  # like scopes open together
    assert open_groups(view, Screen(5, 99)) == {"short"}
    assert open_groups(view, Screen(4, 4)) == set()
    assert set(fold_to_screen(view).nodes) == set(view.nodes)


# --- focusing


def test_who_is_near_an_unknown_focus_is_named_once(logical):
    with pytest.raises(NotFoundError, match="Nearest") as near:
        focus(logical, "layer_1/v", 1)
    assert str(near.value).count("layer_1/w,") + str(near.value).endswith("layer_1/w") == 1
    with pytest.raises(NotFoundError, match=r"got 'qqq'. It has .*gradients"):
        focus(logical, "qqq", 1)


def test_a_focus_is_what_is_near(logical):
    near = focus(logical, "layer_1/MatMul", 1)
    assert set(near.nodes) >= {"layer_1/MatMul", "layer_0/out", "layer_1/out"}
    assert "layer_2/MatMul" not in near.nodes
    assert all(e.source in near.nodes and e.target in near.nodes for e in near.edges)
    assert set(focus(logical, "layer_1/MatMul", 0).nodes) == {"layer_1/MatMul"}


def test_a_focus_on_a_scope_has_all_of_it(logical):
    near = focus(logical, "layer_1", 0)
    assert set(near.nodes) == {name for name in logical.nodes if name.startswith("layer_1/")}


def test_a_focus_on_nothing_names_the_nearest(logical):
    with pytest.raises(NotFoundError, match=r"got 'layer_9'\. Nearest: layer_"):
        focus(logical, "layer_9", 1)


def test_an_empty_graph_is_an_empty_view():
    view = view_of({"": built(tf.Graph())})
    assert fold(with_series(view), 1) == view


def test_arrays_of_text_and_of_half_precision_are_shown():
    with tf.Graph().as_default() as graph:
        tf.constant(["a", "b"], name="texts")
        tf.constant(np.ones([3], np.float16), name="halves")
    attrs = {name: node.attrs["value"] for name, node in view_of({"": built(graph)}).nodes.items()}
    assert "2" in attrs["texts"]
    assert attrs["halves"].startswith("f16[3]")
