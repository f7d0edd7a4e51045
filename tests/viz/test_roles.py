"""Roles: what is no part of the model is told by facts of the graph, and set apart in every view."""

from collections import Counter

import pytest

import flowrt as tf
from flowrt.graph.ops.text.checkpoint_files import restore_op
from flowrt.viz import EdgeKind, GroupKind, fold, view_of, with_series
from flowrt.viz.compile_request import compile_request
from flowrt.viz.export import picture
from flowrt.viz.folding.fold import set_apart
from flowrt.viz.formats.table import FORMATS
from flowrt.viz.roles import inherited
from flowrt.viz.sources import Step
from flowrt.viz.view import Role, around
from tests.viz.graphs import CPU0, CPU1, network


def roles_in(graph):
    return Step("", compile_request(graph)).roles


def names_of(roles, role):
    return {name for name, found in roles.items() if found is role}


@pytest.fixture(scope="module")
def trained():
    """A small CNN with all that training adds, none of it under a name that tells. Returns its step."""
    with tf.Graph().as_default() as graph:
        x = h = tf.placeholder("float32", [2, 8, 8, 1], name="images")
        labels = tf.placeholder("int32", [2], name="labels")
        for i in range(3):
            h = tf.layers.conv2d(h, 4, 3, padding="same", activation=tf.nn.relu, name=f"conv{i}")
            h = tf.layers.max_pooling2d(h, 2, 2, name=f"pool{i}")
        logits = tf.layers.dense(tf.layers.flatten(h), 3, name="logits")
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss"
        )
        step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.1, step, 10, 0.5, name="rate")
        with tf.name_scope("a"):
            slopes = tf.gradients(loss, tf.trainable_variables(), name="b")
        slopes, _ = tf.clip_by_global_norm(slopes, 1.0, name="c")
        pairs = zip(slopes, tf.trainable_variables(), strict=True)
        train = tf.train.AdamOptimizer(rate).apply_gradients(pairs, step, name="d")
        said = tf.summary.scalar("e", loss)
        tf.global_variables_initializer()
    return Step("", compile_request(graph, [train, loss, said])), graph, x


def test_each_operation_has_the_role_that_it_is_for(trained):
    step, graph, _ = trained
    roles = step.roles
    assert roles.keys() == {op.name for op in graph.get_operations()}
    assert names_of(roles, Role.GRADIENT) == {name for name in roles if name.startswith("a/b/")}
    optimizer = names_of(roles, Role.OPTIMIZER)
    assert optimizer > {name for name in roles if name.startswith(("c/", "d/", "rate/"))}
    assert {"beta1_power", "global_step", "conv0/kernel/Adam"} < optimizer
    assert names_of(roles, Role.SUMMARY) == {"e", "e/tags"}
    started = names_of(roles, Role.INITIALIZER)
    assert {v.initializer.name for v in tf.global_variables()} <= started | {"init"}
    assert {"init", "conv0/kernel/Assign", "conv0/kernel/Initializer/random_uniform"} < started
    model = names_of(roles, None)
    assert {"images", "labels", "conv0/kernel", "conv0/Conv2D", "pool2/MaxPool", "loss"} < model
    assert not any("Adam" in name or "Initializer" in name for name in model)


def test_a_gradient_in_the_loss_leaves_the_loss_in_the_model():
    with tf.Graph().as_default() as graph:
        v = tf.get_variable("v", [3])
        y = tf.reduce_sum(v**3, name="y")
        (slope,) = tf.gradients(y, v, name="first")
        penalty = tf.reduce_sum(tf.square(slope, name="square"), name="penalty")
        loss = tf.add(y, penalty, name="loss")
        tf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    roles = roles_in(graph)
    assert [roles[name] for name in ("y", "square", "penalty", "loss")] == [None] * 4
    assert roles[slope.op.name] is Role.GRADIENT
    assert roles["train"] is Role.OPTIMIZER


def test_what_is_restored_is_for_checkpoints():
    with tf.Graph().as_default() as graph:
        v = tf.get_variable("v", [3])
        (restored,) = restore_op("x", ["v"], [""], dtypes=["float32"])
        assigned = v.assign(restored, read_value=False, name="assigned")
    assert {roles_in(graph)[op.name] for op in (restored.op, assigned)} == {Role.CHECKPOINT}


def test_what_passes_add_is_for_what_it_is_beside():
    graph, _, loss, train = network()
    step = Step("", compile_request(graph, [loss, train]))
    parts = step.parts("partitioned")
    roles = inherited(parts.values(), step.roles)
    receives = [node for part in parts.values() for node in part if node.op.name == "_Recv"]
    found = Counter(roles[node.name] for node in receives)
    assert found[None] == 4  # from layer to layer, and to the loss
    assert found[Role.GRADIENT] == 2
    assert found[Role.OPTIMIZER] == 4


# --- in views


def test_the_small_cnn_has_exactly_these_boxes(trained):
    step, *_ = trained
    drawn = picture(step, "logical", FORMATS["dot"], 1, None, 2).view
    assert Counter(node.label for node in drawn.nodes.values()) == Counter(
        ["images", "labels", "conv0", "pool0", "conv1", "pool1", "conv2", "pool2", "flatten", "logits"]
        + ["SparseSoftmaxCrossEntropyWithLogits", "loss", "Gradients", "Optimizer", "Summaries"]
    )
    names = {name: node.label for name, node in drawn.nodes.items()}
    edges = {(names[edge.source], names[edge.target]) for edge in drawn.edges}
    assert ("Gradients", "Optimizer") in edges
    apart = {"Gradients", "Optimizer", "Summaries"}
    assert not [edge for edge in edges if len(apart.intersection(edge)) == 1]


def test_a_role_is_a_group_without_the_scope_that_all_of_it_is_in(trained):
    step, *_ = trained
    view = view_of(step.parts("logical"), roles=step.roles)
    inside = [group.label for group in around(view.groups, view.nodes["a/b/loss_grad/RealDiv"].group)]
    assert inside == ["loss_grad", "b", "Gradients"]
    kinds = [group.name for group in view.groups.values() if group.kind is GroupKind.ROLE]
    assert sorted(kinds) == ["[gradients]", "[optimizer]", "[summaries]"]


def test_every_device_has_its_roles_and_transfers_to_them_are_drawn():
    graph, _, loss, train = network()
    step = Step("", compile_request(graph, [loss, train]))
    parts = step.parts("partitioned")
    view = view_of(parts, roles=inherited(parts.values(), step.roles))
    roles = [group for group in view.groups.values() if group.kind is GroupKind.ROLE]
    assert {(group.parent, group.label) for group in roles} == {
        (CPU0, "Gradients"), (CPU0, "Optimizer"), (CPU1, "Optimizer"),
    }  # fmt: skip
    count = sum(edge.kind is EdgeKind.TRANSFER for edge in view.edges)
    assert sum(edge.kind is EdgeKind.TRANSFER for edge in set_apart(view).edges) == count


def test_controls_from_one_device_are_one_box():
    with tf.Graph().as_default() as graph:
        with tf.device("/cpu:1"):
            waits = [tf.get_variable(f"v{i}", [2]).assign([1.0, 2.0]).op for i in range(5)]
        with tf.device("/cpu:0"), tf.control_dependencies(waits):
            end = tf.constant(1.0, name="end")
    view = view_of(Step("", compile_request(graph, end)).parts("partitioned"))
    drawn = fold(with_series(view), 9)
    bundles = [node for node in drawn.nodes.values() if node.label.startswith("control from")]
    assert [node.num_ops for node in bundles] == [5]
