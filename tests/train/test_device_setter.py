"""Which parameter server a variable goes to, and the container that it belongs to."""

from __future__ import annotations

import pytest

import flowrt as tf
from flowrt.contrib.training import GreedyLoadBalancingStrategy, byte_size_load_fn
from flowrt.errors import DTypeError, InvalidArgumentError
from tests.train.server_process import servers

CLUSTER = {"ps": ["ps0:1", "ps1:1"], "worker": ["w0:1", "w1:1", "w2:1"]}
setter = tf.train.replica_device_setter


def variable(name="v", shape=(2,)):
    return tf.get_variable(name, shape)


def test_variables_are_spread_in_turn_and_the_rest_is_the_workers():
    with tf.device(setter(cluster=CLUSTER, worker_device="/job:worker/task:1")):
        v, w, x = variable("v"), variable("w"), variable("x")
        total = v + w
    assert [u.device for u in (v, w, x)] == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert v.initializer.device == "/job:ps/task:0"
    assert total.device == "/job:worker/task:1"


def test_the_same_program_chooses_alike_in_every_worker():
    def devices(worker):
        with (
            tf.Graph().as_default(),
            tf.device(setter(cluster=CLUSTER, worker_device=f"/job:worker/task:{worker}")),
        ):
            step = tf.train.get_or_create_global_step()
            loss = tf.reduce_sum(variable("a") * variable("b"))
            tf.train.AdamOptimizer().minimize(loss, step)
            return {v.name: v.device for v in tf.global_variables()}

    assert devices(0) == devices(1)
    assert devices(0)["a/Adam:0"] == devices(0)["a:0"]


def test_an_inner_job_keeps_the_variable_there_and_takes_no_turn():
    with tf.device(setter(cluster=CLUSTER)):
        v = variable("v")
        with tf.device("/job:moon"):
            w = variable("w")
            with tf.device("/job:ps"):
                x = variable("x")
        total = v + w + x
    assert v.device == "/job:ps/task:0"
    assert w.device == "/job:moon"
    assert x.device == "/job:ps/task:1"
    assert total.device == "/job:worker"


def test_inner_and_outer_scopes_are_merged_field_by_field():
    with tf.device("/device:CPU:0"), tf.device(setter(cluster=CLUSTER)), tf.device("/replica:0"):
        v = variable()
        total = v + 1.0
    assert v.device == "/job:ps/replica:0/task:0/device:CPU:0"
    assert total.device == "/job:worker/replica:0/device:CPU:0"


def test_without_merging_what_is_asked_for_is_all():
    with tf.device(setter(cluster=CLUSTER, merge_devices=False)):
        v = variable("v")
        with tf.device("/cpu:0"):
            w = variable("w")
    assert v.device == "/job:ps/task:0"
    assert w.device == "/device:CPU:0"


@pytest.mark.parametrize("options", [{}, {"cluster": {"worker": ["w0:1"]}}, {"ps_tasks": 0}])
def test_no_parameter_servers_no_scope(options):
    assert setter(**options) is None
    with tf.device(setter(**options)):
        assert variable().device == ""


def test_other_names_of_jobs_and_the_number_of_tasks_alone():
    with tf.device(setter(ps_tasks=2, ps_device="/job:store", worker_device="/job:train")):
        assert [variable(n).device for n in "ab"] == ["/job:store/task:0", "/job:store/task:1"]
        assert tf.constant(1).device == "/job:train"


def test_a_list_of_types_says_what_a_parameter_server_keeps():
    with tf.device(setter(cluster=CLUSTER, ps_ops=["Const"])):
        assert tf.constant(1).device == "/job:ps/task:0"
        assert variable().device == "/job:worker"


def test_greedy_fills_the_least_loaded_task():
    greedy = GreedyLoadBalancingStrategy(2, byte_size_load_fn)
    with tf.device(setter(cluster=CLUSTER, ps_strategy=greedy)):
        tasks = [variable(f"v{n}", (n,)).device[-1] for n in (10, 1, 2, 3, 5)]
    assert tasks == ["0", "1", "1", "1", "1"]
    assert byte_size_load_fn(variable("w", (3, 5)).op) == 60


def test_wrong_arguments():
    with pytest.raises(DTypeError, match="expected a ps_strategy to call; got 3"):
        setter(cluster=CLUSTER, ps_strategy=3)
    with pytest.raises(InvalidArgumentError, match="expected a load of at least 0; got -1"):
        with tf.device(setter(ps_tasks=1, ps_strategy=GreedyLoadBalancingStrategy(1, lambda op: -1))):
            variable()
    with pytest.raises(InvalidArgumentError, match="expected a variable's operation"):
        byte_size_load_fn(tf.constant(1).op)


# --- containers


def test_a_variable_has_the_innermost_container():
    with tf.container("outer"):
        v = variable("v")
        with tf.container("inner"):
            w = variable("w")
        x = variable("x")
    assert [u.op.get_attr("container") for u in (v, w, x, variable("y"))] == ["outer", "inner", "outer", ""]
    with pytest.raises(InvalidArgumentError, match="container: expected a name; got 3"), tf.container(3):
        pass


def test_a_function_is_built_in_the_container_around_it():
    made = []

    def branch():
        made.append(tf.Variable(1.0))
        with tf.container("own"):
            made.append(tf.Variable(2.0))
        return tf.constant(0.0)

    with tf.container("c"):
        tf.cond(tf.constant(True), branch, lambda: tf.constant(1.0))
    assert [v.op.get_attr("container") for v in made] == ["c", "own"]


def test_reset_empties_the_containers_that_it_names():
    with tf.container("a"):
        a = tf.Variable(1.0, name="a")
    with tf.container("b"):
        b = tf.Variable(2.0, name="b")
    missing = tf.report_uninitialized_variables()
    with servers(worker=1) as (server,):
        with tf.Session(server.target) as session:
            session.run(tf.global_variables_initializer())
            assert session.run([a, b]) == [1.0, 2.0]
        tf.Session.reset(server.target, ["a"])
        with tf.Session(server.target) as session:
            assert list(session.run(missing)) == [b"a"]
            assert session.run(b) == 2.0


def test_one_name_in_two_containers_is_two_variables():
    def in_container(container, *, value):
        with tf.Graph().as_default(), tf.container(container):
            v = tf.get_variable("v", [], initializer=tf.constant_initializer(value))
            with tf.Session(server.target) as session:
                if session.run(tf.report_uninitialized_variables()).size:
                    session.run(v.initializer)
                return session.run(v)

    with servers(worker=1) as (server,):
        assert in_container("a", value=1.0) == 1.0
        assert in_container("b", value=2.0) == 2.0
        assert in_container("a", value=3.0) == 1.0
