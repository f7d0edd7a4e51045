"""A session's life: configuration, default sessions, placement log, tracing, and what it leaves behind."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
import threadpoolctl

import flowrt as tf

# --- configuration


def test_unknown_fields_are_refused_with_the_nearest_one():
    for make in (
        lambda: tf.ConfigProto(alow_soft_placement=True),
        lambda: setattr(tf.ConfigProto(), "alow_soft_placement", True),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Nearest: allow_soft_placement"):
            make()
    with pytest.raises(AttributeError, match="Nearest: timeout_in_ms"):
        _ = tf.RunOptions().timeout_ms


def test_parts_of_a_config_can_be_set_after_it_was_made():
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    config.device_count["CPU"] = 3
    with tf.Session(config=config) as session:
        names = [d.name for d in session.list_devices()]
    assert names == [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]
    assert tf.ConfigProto().device_count == {}


@pytest.mark.parametrize("count", [{"CPU": 0}, {"CPU": -1}, {"CPU": "two"}, {"TPU": 1}])
def test_impossible_device_counts_are_refused(count):
    with pytest.raises(tf.errors.InvalidArgumentError, match="device_count"):
        tf.Session(config=tf.ConfigProto(device_count=count))


def test_wrong_kinds_of_arguments_are_type_errors():
    with pytest.raises(TypeError, match="Graph"):
        tf.Session(graph="graph")
    with pytest.raises(TypeError, match="ConfigProto"):
        tf.Session(config={"device_count": {"CPU": 2}})
    with pytest.raises(ValueError, match="target"):
        tf.Session("localhost:1")
    with tf.Session() as session:
        with pytest.raises(TypeError, match="RunOptions"):
            session.run(tf.no_op(), options={"trace_level": 3})
        with pytest.raises(TypeError, match="RunMetadata"):
            session.run(tf.no_op(), run_metadata=[])


def test_a_device_that_does_not_exist_is_an_error_unless_placement_is_soft():
    with tf.device("/cpu:5"):
        x = tf.constant(1.0) + 1.0
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=r"test_session\.py"):
        session.run(x)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        assert session.run(x) == 2.0


def test_placement_is_logged_to_standard_error(capsys):
    with tf.device("/cpu:1"):
        x = tf.placeholder(tf.float32, [], name="x")
        y = tf.add(x, 1.0, name="sum")
    config = tf.ConfigProto(device_count={"CPU": 2}, log_device_placement=True)
    with tf.Session(config=config) as session:
        session.run(y, {x: 1.0})
        assert "sum: (AddV2): /job:localhost/replica:0/task:0/device:CPU:1" in capsys.readouterr().err
        session.run(y, {x: 2.0})
        assert capsys.readouterr().err == ""


def test_intra_op_threads_limit_blas():
    with threadpoolctl.threadpool_limits(2, "blas"):  # restores what was there
        tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1)).close()
        found = [i["num_threads"] for i in threadpoolctl.threadpool_info() if i["user_api"] == "blas"]
    assert found
    assert set(found) == {1}


# --- default sessions


def test_eval_and_run_use_the_default_session():
    v = tf.Variable(2.0)
    x = tf.placeholder(tf.float32, [])
    with pytest.raises(tf.errors.FailedPreconditionError, match="session"):
        x.eval()
    with tf.Session() as session:
        v.initializer.run()
        assert (x * v).eval({x: 4.0}) == 8.0
        assert tf.get_default_session() is session
    assert tf.get_default_session() is None
    other = tf.Session()
    with pytest.raises(tf.errors.FailedPreconditionError, match="no value"):
        v.eval(session=other)
    v.initializer.run(session=other)
    assert v.eval(other) == 2.0
    other.close()


def test_default_sessions_nest_and_are_of_one_thread():
    outer, inner = tf.Session(), tf.Session()
    with outer.as_default(), inner.as_default():
        with outer.as_default():
            assert tf.get_default_session() is outer
        assert tf.get_default_session() is inner
        seen = []
        thread = threading.Thread(target=lambda: seen.append(tf.get_default_session()))
        thread.start()
        thread.join()
        assert seen == [None]
    assert outer.run(tf.constant(1.0)) == 1.0  # as_default does not close
    outer.close()
    inner.close()


def test_a_with_block_makes_the_sessions_graph_the_default_and_closes_it_on_errors():
    graph = tf.Graph()
    session = tf.Session(graph=graph)
    with pytest.raises(ZeroDivisionError, match="default"), session:
        raise ZeroDivisionError("while the graph was the default" if tf.get_default_graph() is graph else "")
    assert tf.get_default_graph() is not graph
    assert tf.get_default_session() is None
    with pytest.raises(RuntimeError, match="closed"):
        session.run([])


def test_interactive_sessions_may_be_closed_in_any_order():
    first, second = tf.InteractiveSession(graph=tf.Graph()), tf.InteractiveSession(graph=tf.Graph())
    x = tf.constant(3.0)
    assert x.eval() == 3.0
    first.close()
    assert x.eval() == 3.0
    second.close()
    second.close()
    assert tf.get_default_session() is None
    tf.reset_default_graph()  # no graph is left on the stack


def test_a_cell_of_a_notebook_may_be_run_again():
    """The default graph is replaced while the session of the last time is open."""
    for _ in range(3):
        tf.reset_default_graph()
        session = tf.InteractiveSession()
        x = tf.Variable(2.0) * 3.0
        tf.global_variables_initializer().run()
        assert x.eval() == 6.0
        assert tf.get_default_session() is session
    while tf.get_default_session() is not None:
        tf.get_default_session().close()


def test_variables_belong_to_their_session():
    v = tf.Variable(1.0)
    a, b = tf.Session(), tf.Session()
    for session in (a, b):
        session.run(v.initializer)
    a.run(v.assign(5.0))
    assert (a.run(v), b.run(v)) == (5.0, 1.0)
    v.load(7.0, b)
    assert (a.run(v), b.run(v)) == (5.0, 7.0)
    a.close()
    assert b.run(v) == 7.0
    b.close()


# --- order


def test_reads_and_writes_happen_in_the_order_of_creation():
    v = tf.Variable([1.0, 2.0])
    before = v.read_value()
    doubled = before * 2.0
    first = v.assign_add([10.0, 10.0], read_value=False)
    between = v.read_value()
    second = v.assign(between * 0.0 + doubled, read_value=False)
    after = v + 0.0
    with tf.control_dependencies([second]):
        late = tf.identity(before)  # read before, used after both writes
    with tf.Session() as session:
        for _ in range(2):
            session.run(v.initializer)
            found, _ = session.run([[before, doubled, between, after, late], [first, second]])
            assert [f.tolist() for f in found] == [[1, 2], [2, 4], [11, 12], [2, 4], [1, 2]]


def test_a_variable_whose_shape_changes_is_read_as_it_is():
    v = tf.Variable([1.0, 2.0], validate_shape=False)
    x = tf.placeholder(tf.float32, None)
    total, update = tf.reduce_sum(v), v.assign(x, read_value=False)
    with tf.Session() as session:
        session.run(v.initializer)
        for n in (3, 5, 2):
            assert session.run(total) >= 0
            session.run(update, {x: np.ones(n)})
            assert session.run([total, v])[0] == n
        read = v.read_value()
        read.set_shape([2])
        assert session.run(read).tolist() == [1, 1]
        session.run(update, {x: [5.0, 6.0]})
        assert session.run(read).tolist() == [5, 6]


def test_all_variables_are_initialised_in_whatever_order_they_need():
    a = tf.Variable(2.0)
    b = tf.Variable(a.initialized_value() * 3.0)
    c = tf.Variable(lambda: tf.ones([2]) * b.initialized_value())
    init = tf.global_variables_initializer()
    missing = tf.report_uninitialized_variables()
    with tf.Session() as session:
        assert session.run(missing).tolist() == [v.op.name.encode() for v in (a, b, c)]
        session.run(init)
        assert session.run(c).tolist() == [6, 6]
        assert session.run(missing).tolist() == []


# --- tracing


@pytest.mark.parametrize("cost", [None, 0.0])
def test_a_trace_has_every_operation_of_every_device(cost, monkeypatch):
    if cost is not None:
        monkeypatch.setattr("flowrt.executor.plan.plan.THREADED_COST", cost)
    x = tf.placeholder(tf.float32, [2, 3], name="x")
    with tf.device("/cpu:0"):
        y = tf.exp(x, name="first")
    with tf.device("/cpu:1"):
        z = tf.tanh(y, name="second")
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        plain = session.run(z, {x: np.ones((2, 3))})
        for _ in range(2):  # a second trace replaces the first
            traced = session.run(z, {x: np.ones((2, 3))}, options, metadata)
    np.testing.assert_array_equal(plain, traced)
    stats = {d.device[-5:]: {n.node_name: n for n in d.node_stats} for d in metadata.step_stats.dev_stats}
    assert set(stats) == {"CPU:0", "CPU:1"}
    first, second = stats["CPU:0"]["first"], stats["CPU:1"]["second"]
    assert first.all_start_nanos + first.all_end_rel_nanos <= second.all_start_nanos
    assert [d.size for d in second.output[0].tensor_description.shape.dim] == [2, 3]
    assert len(metadata.step_stats.dev_stats) == 2
    graphs = [{n.name: n.op for n in g.node} for g in metadata.partition_graphs]
    assert len(graphs) == 2
    assert sorted(op for g in graphs for op in g.values() if op.startswith("_")) == [
        "_Feed",
        "_Recv",
        "_Send",
    ]


def test_without_a_trace_level_the_metadata_stays_empty():
    metadata = tf.RunMetadata()
    with tf.Session() as session:
        session.run(tf.constant(1.0), options=tf.RunOptions(), run_metadata=metadata)
    assert not metadata.step_stats.dev_stats
    assert not metadata.partition_graphs


# --- what is left behind


def test_many_runs_do_not_grow_memory():
    x = tf.placeholder(tf.float32, [None, 8])
    v = tf.Variable(np.zeros((8, 8), np.float32))
    y = tf.reduce_sum(tf.nn.relu(tf.matmul(x, v) + 1.0))
    step = tf.train.GradientDescentOptimizer(0.01).minimize(y)
    fed = np.ones((4, 8), np.float32)
    with tf.Session() as session:
        session.run(v.initializer)
        call = session.make_callable([y, step], [x])

        def runs(count):
            for _ in range(count):
                session.run([y, step], {x: fed})
                call(fed)

        runs(50)
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        runs(1000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert after - before < 100_000


def test_a_closed_session_and_its_graph_are_collected():
    with tf.Graph() as graph:
        v = tf.Variable(np.zeros(1000, np.float32))
        session = tf.Session()
        session.run(v.initializer)
        array = weakref.ref(next(iter(session._runtime._resources.values())).array)
        session.run(v + 1.0)
        session.close()
    gone = [weakref.ref(graph), weakref.ref(session), weakref.ref(v), array]
    del graph, session, v
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4


def test_a_session_that_was_not_closed_is_collected():
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [2])
        session = tf.Session()
        session.run(x * 2.0, {x: [1, 2]})
    gone = [weakref.ref(graph), weakref.ref(session)]
    del graph, session, x
    gc.collect()
    assert [ref() for ref in gone] == [None] * 2


def test_types_of_devices_may_be_in_lower_case() -> None:
    """As in public programs' ``device_count={"gpu": 0}``."""
    config = tf.ConfigProto(device_count={"cpu": 2, "gpu": 0})
    with tf.Session(config=config) as session:
        assert [device.device_type for device in session.list_devices()] == ["CPU", "CPU"]
