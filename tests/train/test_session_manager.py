"""Sessions that begin ready: restored, initialized, or waited for."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import flowrt as tf
from flowrt.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from flowrt.train import Saver, Scaffold, SessionManager
from tests.train.server_process import servers

POLL_S = 0.02
JOIN_S = 30.0


@pytest.fixture
def v():
    return tf.get_variable("v", [], initializer=tf.constant_initializer(1.0))


def manager(**options):
    ready = tf.report_uninitialized_variables()
    return SessionManager(ready_op=ready, recovery_wait_secs=POLL_S, **options)


def save(v, directory, value, step):
    saver = Saver([v])
    with tf.Session() as session:
        v.load(value, session)
        return saver.save(session, str(directory / "model"), global_step=step)


# --- the chief


def test_without_a_checkpoint_the_variables_are_initialized(v, tmp_path):
    local = tf.get_local_variable("l", [], initializer=tf.constant_initializer(5.0))
    made = manager(local_init_op=tf.local_variables_initializer())
    init = tf.global_variables_initializer()
    with made.prepare_session("", init, Saver(), str(tmp_path)) as session:
        assert session.run([v, local]) == [1.0, 5.0]


def test_the_newest_checkpoint_is_restored_and_nothing_initialized(v, tmp_path):
    save(v, tmp_path, 2.0, 1)
    save(v, tmp_path, 3.0, 2)
    tf.train.update_checkpoint_state(tmp_path, tmp_path / "model-2", [tmp_path / "model-1"])
    saver = Saver([v])
    init = tf.group(v.initializer, tf.py_func(pytest.fail, [], []))
    with manager().prepare_session("", init, saver, str(tmp_path)) as session:
        assert session.run(v) == 3.0
    assert [path.rpartition("-")[2] for path in saver.last_checkpoints] == ["1", "2"]


def test_a_checkpoint_can_be_named(v, tmp_path):
    first = save(v, tmp_path, 2.0, 1)
    save(v, tmp_path, 3.0, 2)
    with manager().prepare_session("", saver=Saver(), checkpoint_filename_with_path=first) as session:
        assert session.run(v) == 2.0
    with pytest.raises(
        InvalidArgumentError, match="expected either checkpoint_dir or checkpoint_filename_with_path"
    ):
        manager().prepare_session("", None, Saver(), str(tmp_path), first)


def test_a_checkpoint_can_be_waited_for(v, tmp_path):
    writer = threading.Timer(3 * POLL_S, save, (v, tmp_path, 2.0, 1))
    writer.start()
    made = manager()
    arguments = {"wait_for_checkpoint": True, "max_wait_secs": JOIN_S}
    with made.prepare_session("", v.initializer, Saver([v]), str(tmp_path), **arguments) as session:
        assert session.run(v) == 2.0
    writer.join(JOIN_S)


def test_init_fn_and_feeds_take_part(v):
    x = tf.placeholder(tf.float32, [])
    w = tf.Variable(x, name="w")
    init = tf.variables_initializer([w])
    with manager().prepare_session(
        "", init, init_feed_dict={x: 7.0}, init_fn=lambda s: v.load(4.0, s)
    ) as session:
        assert session.run([v, w]) == [4.0, 7.0]


def test_what_is_not_initialized_is_named(v):
    tf.get_variable("other", [2])
    with pytest.raises(FailedPreconditionError, match="after the init operations; uninitialized: other"):
        manager().prepare_session("", v.initializer)
    with pytest.raises(
        FailedPreconditionError, match="expected a checkpoint, init_op, init_fn or local_init_op"
    ):
        manager().prepare_session("")


def test_what_a_checkpoint_leaves_is_named(v, tmp_path):
    save(v, tmp_path, 2.0, 1)
    saver = Saver([v])
    tf.get_variable("other", [2])
    with pytest.raises(FailedPreconditionError, match=r"after restoring .*model-1; uninitialized: other"):
        manager().prepare_session("", tf.no_op(), saver, str(tmp_path))
    session, is_ready = manager().recover_session("", saver, str(tmp_path))
    with session:
        assert not is_ready
        assert session.run(v) == 2.0


def test_recover_says_whether_a_checkpoint_made_it_ready(v, tmp_path):
    for expected in (False, True):
        session, is_ready = manager().recover_session("", Saver([v]), str(tmp_path))
        assert is_ready is expected
        session.close()
        save(v, tmp_path, 2.0, 1)


# --- the others


def test_waiting_ends_with_the_names_of_what_is_missing(v):
    tf.get_variable("w", [2])
    with pytest.raises(
        DeadlineExceededError,
        match=r"variables within 0.1 s; still uninitialized: v, w\. Is the chief running",
    ):
        manager().wait_for_session("", max_wait_secs=0.1)


def test_a_worker_waits_until_the_chief_has_initialized(v, caplog):
    """Two tasks: the worker looks for the variables before the chief gives them their values."""
    caplog.set_level("INFO", "flowrt")
    local = tf.get_local_variable("l", [], initializer=tf.constant_initializer(5.0))
    arguments = {
        "local_init_op": tf.local_variables_initializer(),
        "ready_for_local_init_op": tf.report_uninitialized_variables(tf.global_variables()),
    }
    waiting, init = manager(**arguments), tf.global_variables_initializer()
    found = []

    def work():
        with waiting.wait_for_session(worker.target, max_wait_secs=JOIN_S) as session:
            found.append(session.run([v, local]))

    with servers(chief=1, worker=1) as (chief, worker):
        thread = threading.Thread(target=work)
        thread.start()
        end = time.monotonic() + JOIN_S
        while "waiting for the chief to initialize v" not in caplog.text and time.monotonic() < end:
            time.sleep(POLL_S)
        with tf.Session(chief.target) as session:
            session.run(init)
            thread.join(JOIN_S)
    assert "waiting for the chief to initialize v" in caplog.text
    assert found == [[1.0, 5.0]]


def test_a_worker_that_waits_names_few_variables(caplog):
    caplog.set_level("INFO", "flowrt")
    for index in range(33):
        tf.get_variable(f"v{index}", [], initializer=tf.constant_initializer(1.0))
    waiting, init = manager(), tf.global_variables_initializer()
    with servers(worker=1) as (worker,), ThreadPoolExecutor(1) as pool:
        ready = pool.submit(waiting.wait_for_session, worker.target, max_wait_secs=JOIN_S)
        end = time.monotonic() + JOIN_S
        while "waiting for the chief" not in caplog.text and time.monotonic() < end:
            time.sleep(POLL_S)
        with tf.Session(worker.target) as session:
            session.run(init)
            ready.result(JOIN_S).close()
    assert "waiting for the chief to initialize v0, v1, v2 and 30 more\n" in caplog.text


# --- Scaffold


def test_a_scaffold_makes_what_the_graph_lacks_and_freezes_it(v):
    scaffold = Scaffold().finalize()
    assert v.graph.finalized
    with tf.Session() as session:
        assert list(session.run(scaffold.ready_op)) == [b"v"]
        session.run([scaffold.init_op, scaffold.local_init_op])
        assert session.run(scaffold.ready_for_local_init_op).size == 0
    assert scaffold.summary_op is None
    assert tf.get_collection(tf.GraphKeys.SAVERS) == [scaffold.saver]


def test_collections_and_arguments_come_first(v):
    init, local = tf.no_op("mine"), tf.no_op("local")
    tf.add_to_collection(tf.GraphKeys.INIT_OP, init)
    scaffold = Scaffold(local_init_op=local, init_fn=lambda scaffold, session: (scaffold, session)).finalize()
    assert scaffold.init_op is init
    assert scaffold.local_init_op is local
    assert scaffold.init_fn(3) == (scaffold, 3)
    assert Scaffold(copy_from_scaffold=scaffold).init_op is init


def test_two_items_to_choose_from_are_an_error(v):
    for _ in range(2):
        tf.add_to_collection(tf.GraphKeys.INIT_OP, tf.no_op())
    with pytest.raises(
        InvalidArgumentError, match=r"one item in the collection 'init_op'; got 2\. Pass init_op="
    ):
        Scaffold().finalize()


def test_iterators_are_initialized_by_the_collection_of_tables(v):
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.range(3))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    item = iterator.get_next()
    scaffold = Scaffold().finalize()
    with tf.Session() as session:
        session.run(scaffold.local_init_op)
        assert [int(session.run(item)) for _ in range(3)] == [0, 1, 2]
