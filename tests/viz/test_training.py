"""Training, told by facts of the graph: its losses, and the variables that are updated."""

import flowrt as tf
from flowrt.viz.compile_request import compile_request
from flowrt.viz.sources import Step, source_of
from flowrt.viz.training import Training, Update, joined
from tests.viz.graphs import network


def training_in(graph):
    return Step("", compile_request(graph)).training


def test_a_loss_that_nobody_called_so_and_the_variables_that_are_updated():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder("float32", [2, 3])
        w, b = tf.Variable(tf.ones([3, 4])), tf.Variable(tf.zeros([4]))
        idle = tf.Variable(tf.zeros([4]), trainable=False)
        y = tf.reduce_mean(tf.matmul(x, w) + b + idle)
        step = tf.train.get_or_create_global_step()
        tf.train.AdamOptimizer(0.1).minimize(y, step)
        tf.summary.scalar("mean", y)
    found = training_in(graph)
    assert found.losses == (y.op.name,)
    assert {update.variable for update in found.updates} == {w.op.name, b.op.name}
    assert {update.op for update in found.updates} == {"ResourceApplyAdam"}


def test_a_sum_of_which_the_gradient_is_no_operation_ends_nothing():
    with tf.Graph().as_default() as graph:
        y = tf.Variable(1.0)
        for _ in range(3):
            y = tf.sin(y) + y
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.square(y, name="last"))
    assert training_in(graph).losses == ("last",)


def test_every_player_of_a_game_has_its_loss():
    with tf.Graph().as_default() as graph:
        made, judged = tf.Variable(1.0, name="made"), tf.Variable(2.0, name="judged")
        both = tf.sigmoid(made * judged)
        players = [(tf.log(both, name="of_maker"), made), (tf.log(1 - both, name="of_judge"), judged)]
        for player, variable in players:
            tf.train.GradientDescentOptimizer(0.1).minimize(player, var_list=[variable])
    found = training_in(graph)
    assert found.losses == ("of_maker", "of_judge")
    assert [update.variable for update in found.updates] == ["made", "judged"]


def test_an_update_by_hand_is_one():
    with tf.Graph().as_default() as graph:
        v = tf.Variable(3.0, name="v")
        (slope,) = tf.gradients(tf.square(v, name="squared"), v)
        v.assign_sub(0.1 * slope, read_value=False, name="by_hand")
    found = training_in(graph)
    assert found.losses == ("squared",)
    assert found.updates == (Update("by_hand", "AssignSubVariableOp", "v"),)


def test_gradients_alone_train_nothing():
    with tf.Graph().as_default() as graph:
        v = tf.Variable(3.0)
        tf.gradients(tf.square(v), v)
    found = training_in(graph)
    assert not found.losses
    assert not found.updates


def test_a_derivative_is_of_the_operation_that_it_differentiates_whatever_their_names():
    with tf.Graph().as_default() as graph:
        x, w = tf.placeholder("float32", [2, 3]), tf.Variable(tf.ones([3, 4]))
        y = tf.matmul(x, w, name="odd")
        (slope,) = tf.gradients(tf.sin(y, name="even"), w, name="other")
    found = training_in(graph).derivatives
    assert found[slope.op.name] == "odd"
    assert {*found.values()} >= {"odd", "even"}
    assert not {"odd", "even", x.op.name} & found.keys()


def test_the_sum_of_a_variables_gradients_is_of_the_variable():
    with tf.Graph().as_default() as graph:
        w = tf.Variable(tf.ones([3]))
        loss = tf.reduce_sum(tf.sin(w)) + 0.1 * tf.reduce_sum(tf.square(w))
        (slope,) = tf.gradients(loss, w)
    of = training_in(graph).derivatives[slope.op.name]
    assert of.startswith(w.op.name)


def test_of_two_graphs_the_derivatives_on_which_they_agree_are_told():
    before = Training(derivatives={"g/a": "a", "g/b": "b", "g/sum": "a"})
    after = Training(derivatives={"g/a": "a", "g/c": "c", "g/sum": "c"})
    assert joined(before, after).derivatives == {"g/a": "a", "g/b": "b", "g/c": "c"}


def test_a_stored_graph_tells_the_updates(tmp_path):
    graph, *_ = network(layers=1)
    path = str(tmp_path / "graph.pb")
    tf.viz.export(graph, path)
    found = source_of(path).training
    assert [update.variable for update in found.updates] == ["layer_0/w"]
    assert found.losses == ()
