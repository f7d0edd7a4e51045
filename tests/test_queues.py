"""Queues: the state machine against a model, and the operations as TensorFlow's scripts use them; about 2
s.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import CancelledError, OutOfRangeError
from flowrt.graph.resources.element_queue import Giving, QueueState, Taking
from flowrt.graph.resources.element_stores import ByPriority, InOrder, Shuffled
from flowrt.graph.resources.random_stream import RandomStream

WAIT_S = 30.0


class QueueMachine(RuleBasedStateMachine):
    """Attempts of any size, withdrawn at any time: elements come out once, those of a store in order in the
    order in which they went in.
    """

    @initialize(extra=st.integers(0, 3), store=st.sampled_from(["in order", "shuffled", "by priority"]))
    def begin(self, extra, store):
        stores = {"in order": InOrder(), "shuffled": shuffled(2), "by priority": ByPriority()}
        self.store = stores[store]
        self.state = QueueState("q", self.store.reserve + 1 + extra, self.store)
        self.most = self.state.capacity
        """Elements that may be there: what is given back goes beyond the capacity."""
        self.number = 0
        self.giving, self.taking = [], []
        self.given, self.taken = deque(), []

    @rule(count=st.integers(1, 6))
    def give(self, count):
        elements = [(self.number + i,) for i in range(count)]
        self.number += count
        attempt = Giving(elements)
        self.state.give(attempt)
        self.giving.append((attempt, elements))

    @rule(count=st.integers(1, 6), up_to=st.booleans())
    def take(self, count, up_to):
        attempt = Taking(count, up_to)
        self.state.take(attempt)
        self.taking.append(attempt)

    @precondition(lambda self: any(not a.is_done for a in self.taking))
    @rule(data=st.data())
    def leave(self, data):
        waiting = [a for a in self.taking if not a.is_done]
        attempt = data.draw(st.sampled_from(waiting))
        self.taking.remove(attempt)
        there = len(self.state.elements) + len(attempt.taken)
        self.state.withdraw(attempt)
        self.most = max(self.most, there)
        assert not attempt.taken

    @precondition(lambda self: any(not a.is_done for a, _ in self.giving))
    @rule(data=st.data())
    def stop_giving(self, data):
        attempt = data.draw(st.sampled_from([a for a, _ in self.giving if not a.is_done]))
        self.state.withdraw(attempt)
        attempt.is_done = True

    @rule(cancel=st.booleans())
    def close(self, cancel):
        self.state.close(cancel)

    @invariant()
    def holds(self):
        if hasattr(self, "state"):
            self.state.check()
            assert len(self.state.elements) <= self.most
            left = {e for a, elements in self.giving for e in (elements if _was_refused(a) else a.left)}
            everything = [e for _, elements in self.giving for e in elements if e not in left]
            there = [e for a in self.taking for e in a.taken] + drained(self.state.elements)
            assert sorted(there) == sorted(everything)
            for attempt in self.taking:
                if isinstance(self.store, InOrder):
                    assert attempt.taken == sorted(attempt.taken)
                if attempt.is_done and attempt.error is None and not attempt.up_to:
                    assert len(attempt.taken) == attempt.wanted
                assert attempt.error is None or isinstance(attempt.error, OutOfRangeError)


def shuffled(reserve, seed=1):
    with tf.Graph().as_default():
        return Shuffled(RandomStream(tf.random_uniform([], seed=seed).op.node), reserve)


def drained(store):
    """What comes out of a copy of ``store``, in order."""
    store = copy.deepcopy(store)
    return [store.take() for _ in range(len(store))]


def _was_refused(attempt):
    return isinstance(attempt.error, CancelledError) and not attempt.left


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(stateful_step_count=30)


def test_nobody_is_overtaken():
    state = QueueState("q", 2)
    large, small = Taking(3), Taking(1)
    state.take(large)
    state.take(small)
    state.give(Giving([(1,), (2,)]))
    assert (large.taken, small.taken) == ([(1,), (2,)], [])
    state.give(Giving([(3,), (4,)]))
    assert (large.is_done, small.taken) == (True, [(4,)])


def test_who_wants_less_gets_what_a_closed_queue_could_not_give_another():
    state = QueueState("q", 4)
    large, small = Taking(3), Taking(1)
    state.give(Giving([(1,)]))
    state.take(large)
    state.take(small)
    state.close(False)
    assert isinstance(large.error, OutOfRangeError)
    assert (small.taken, small.error) == ([(1,)], None)


# --- operations


def start(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_elements_come_out_in_the_order_in_which_they_went_in():
    queue = tf.FIFOQueue(10, tf.float32)
    x = tf.placeholder(tf.float32)
    enqueue, dequeue, size = queue.enqueue([x]), queue.dequeue(), queue.size()
    with tf.Session() as session:
        for value in (10.0, 20.0, 30.0):
            session.run(enqueue, {x: value})
        assert session.run(size) == 3
        assert [session.run(dequeue) for _ in range(3)] == [10.0, 20.0, 30.0]
        assert session.run(size) == 0


def test_several_components_and_names():
    queue = tf.FIFOQueue(5, [tf.int32, tf.float32], shapes=[[], [2]], names=["i", "f"])
    enqueue = queue.enqueue_many({"i": [1, 2], "f": [[0.1, 0.2], [0.3, 0.4]]})
    one, many = queue.dequeue(), queue.dequeue_many(2)
    assert (queue.dtypes, queue.names) == ([tf.int32, tf.float32], ["i", "f"])
    assert one["f"].shape == [2]
    assert many["f"].shape == [2, 2]
    with tf.Session() as session:
        session.run(enqueue)
        assert session.run(one)["i"] == 1
        session.run(enqueue)
        found = session.run(many)
    assert list(found["i"]) == [2, 1]
    np.testing.assert_array_equal(found["f"], np.array([[0.3, 0.4], [0.1, 0.2]], np.float32))


def test_an_attempt_may_be_for_more_than_the_queue_holds():
    queue = tf.FIFOQueue(2, tf.int32, shapes=())
    enqueue, dequeue = queue.enqueue_many([list(range(7))]), queue.dequeue_many(7)
    with tf.Session() as session:
        thread = start(lambda: session.run(enqueue))
        assert list(session.run(dequeue)) == list(range(7))
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_closed_queue_gives_what_it_has_and_then_no_more():
    queue = tf.FIFOQueue(5, tf.int32, shapes=[[]])
    fill, more = queue.enqueue_many([[1, 2, 3]]), queue.enqueue(4)
    one, two, up_to = queue.dequeue(), queue.dequeue_many(2), queue.dequeue_up_to(5)
    with tf.Session() as session:
        session.run(fill)
        session.run(queue.close())
        assert session.run(queue.is_closed())
        with pytest.raises(tf.errors.CancelledError, match="is closed: it accepts no more"):
            session.run(more)
        assert session.run(one) == 1
        with pytest.raises(tf.errors.OutOfRangeError, match="3 requested, 2 available"):
            session.run(queue.dequeue_many(3))
        assert list(session.run(up_to)) == [2, 3]
        for empty in (one, two, up_to):
            with pytest.raises(tf.errors.OutOfRangeError, match="closed and has too few"):
                session.run(empty)


def test_closing_wakes_who_waits_for_elements_and_with_cancel_who_waits_for_room():
    queue = tf.FIFOQueue(1, tf.int32, shapes=[[]])
    empty = tf.FIFOQueue(1, tf.int32, shapes=[[]])
    found = []

    def run(session, op):
        try:
            found.append(session.run(op))
        except tf.errors.OpError as error:
            found.append(type(error))

    enqueue, dequeue = queue.enqueue(1), empty.dequeue()
    with tf.Session() as session:
        session.run(enqueue)
        threads = [start(lambda op=op: run(session, op)) for op in (enqueue, dequeue)]
        session.run([queue.close(cancel_pending_enqueues=True), empty.close()])
        for thread in threads:
            thread.join(WAIT_S)
    assert set(found) == {tf.errors.CancelledError, tf.errors.OutOfRangeError}


def test_a_deadline_ends_a_wait_and_takes_nothing():
    queue = tf.FIFOQueue(3, tf.int32, shapes=[[]])
    two, enqueue = queue.dequeue_many(2), queue.enqueue(5)
    with tf.Session() as session:
        session.run(enqueue)
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"queue '.*' is empty"):
            session.run(two, options=tf.RunOptions(timeout_in_ms=500))
        assert session.run(queue.size()) == 1


def test_sessions_of_a_cluster_share_a_queue():
    with ReservedPorts(2) as free:
        spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in free.ports]})
        servers = [tf.train.Server(spec, "worker", i) for i in range(2)]
        queues = []
        for server in servers:
            with tf.Graph().as_default() as graph, tf.device("/job:worker/task:0"):
                queue = tf.FIFOQueue(3, tf.int32, shapes=[[]], shared_name="shared")
                queues.append((tf.Session(server.target, graph=graph), queue.enqueue(7), queue.dequeue()))
        (first, enqueue, _), (second, _, dequeue) = queues
        thread = start(lambda: first.run(enqueue))
        assert second.run(dequeue) == 7
        thread.join(WAIT_S)
        for each in (first, second):
            each.close()
        for server in servers:
            server.stop()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda q: q.enqueue([1, 2.0, 3]), "expected 2 components; got 3"),
        (lambda q: q.enqueue({"a": 1}), "got a dict of"),
        (
            lambda q: q.enqueue([1, [1.0, 2.0, 3.0]]),
            r"component 1: expected a value of shape \[2\]; got \[3\]",
        ),
        (lambda q: tf.FIFOQueue(3, tf.int32).dequeue_many(2), "fully defined shapes"),
        (lambda q: tf.FIFOQueue(3, [tf.int32, tf.int32], shapes=[[]]), "one a component, 2; got 1"),
        (lambda q: tf.train.QueueRunner(q, []), "expected a queue and enqueue_ops"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_built(wrong, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        wrong(tf.FIFOQueue(3, [tf.int32, tf.float32], shapes=[[], [2]]))


# --- other orders


def filled(queue, *elements):
    """A session in which ``queue`` has ``elements``."""
    enqueue = queue.enqueue_many([list(component) for component in zip(*elements, strict=True)])
    session = tf.Session()
    session.run(enqueue)
    return session


def test_a_random_queue_gives_each_element_once_and_keeps_some_back_until_it_is_closed():
    queue = tf.RandomShuffleQueue(20, 3, tf.int64, [[]], seed=7)
    many, rest, close, size = queue.dequeue_many(7), queue.dequeue_up_to(9), queue.close(), queue.size()
    with filled(queue, *[(i,) for i in range(10)]) as session:
        first = session.run(many).tolist()
        with pytest.raises(tf.errors.DeadlineExceededError, match="is empty"):
            session.run(many, options=tf.RunOptions(timeout_in_ms=500))
        assert session.run(size) == 3
        session.run(close)
        last = session.run(rest).tolist()
    assert sorted(first + last) == list(range(10))
    assert first != sorted(first)


def test_the_order_of_a_random_queue_is_its_seeds():
    def order(seed):
        with tf.Graph().as_default():
            queue = tf.RandomShuffleQueue(20, 0, tf.int64, [[]], seed=seed)
            many = queue.dequeue_many(10)
            with filled(queue, *[(i,) for i in range(10)]) as session:
                return session.run(many).tolist()

    assert order(1) == order(1) != order(2)


def test_every_order_of_a_random_queue_is_as_likely():
    store, counts = shuffled(0, seed=5), Counter()
    for _ in range(6000):
        for element in "abc":
            store.add((element,))
        counts["".join(store.take()[0] for _ in range(3))] += 1
    expected = 1000
    assert len(counts) == 6
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 20.5  # chi2, 5, p 0.001


def test_a_priority_queue_gives_the_least_first_and_of_equals_the_earlier():
    queue = tf.PriorityQueue(10, [tf.string], [[]])
    many, one = queue.dequeue_many(3), queue.dequeue()
    assert queue.dtypes == [tf.int64, tf.string]
    with filled(queue, (5, "a"), (1, "b"), (3, "c"), (1, "d")) as session:
        numbers, texts = session.run(many)
        assert (numbers.tolist(), texts.tolist()) == ([1, 1, 3], [b"b", b"d", b"c"])
        assert session.run(one) == [5, b"a"]


@given(st.lists(st.integers(-3, 3), max_size=12), st.integers(0, 12))
def test_what_a_priority_queue_gets_back_comes_out_as_before(priorities, count):
    store = ByPriority()
    for place, priority in enumerate(priorities):
        store.add((priority, place))
    taken = [store.take() for _ in range(min(count, len(store)))]
    store.give_back(taken)
    assert drained(store) == sorted((priority, place) for place, priority in enumerate(priorities))


def test_a_padding_queue_pads_what_is_taken_together():
    queue = tf.PaddingFIFOQueue(10, [tf.float32, tf.string], [[None, 2], [None]])
    numbers, words = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.string, [None])
    enqueue, many, one = queue.enqueue([numbers, words]), queue.dequeue_many(2), queue.dequeue()
    assert [t.shape.as_list() for t in many] == [[2, None, 2], [2, None]]
    with tf.Session() as session:
        for rows, given in [(2, [b"a"]), (1, [b"b", b"cc"]), (3, [])]:
            session.run(enqueue, {numbers: np.full([rows, 2], rows), words: np.array(given, object)})
        padded, texts = session.run(many)
        assert padded.tolist() == [[[2, 2], [2, 2]], [[1, 1], [0, 0]]]
        assert texts.tolist() == [[b"a", b""], [b"b", b"cc"]]
        assert [np.shape(value) for value in session.run(one)] == [(3, 2), (0,)]


@pytest.mark.parametrize("kind", [tf.FIFOQueue, tf.PaddingFIFOQueue])
def test_an_element_of_another_shape_is_refused_when_it_comes(kind):
    queue = kind(10, [tf.float32], [[2]])
    value = tf.placeholder(tf.float32)
    enqueue, size = queue.enqueue(value), queue.size()
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"of shape \[2\]; got \[3\]"):
            session.run(enqueue, {value: np.ones(3)})
        assert session.run(size) == 0


def test_strings_are_added_a_row_each():
    queue = tf.FIFOQueue(10, tf.string, [[]])
    many = queue.dequeue_many(2)
    with filled(queue, ("a",), ("bb",)) as session:
        assert session.run(many).tolist() == [b"a", b"bb"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tf.RandomShuffleQueue(5, 5, tf.int32), "from 0 to below the capacity; got 5 of 5"),
        (lambda: tf.RandomShuffleQueue(5, -1, tf.int32), "got -1 of 5"),
        (lambda: tf.PaddingFIFOQueue(5, tf.int32, None), "a shape of known rank for each"),
        (lambda: tf.PaddingFIFOQueue(5, tf.int32, [tf.TensorShape(None)]), "a shape of known rank"),
        (lambda: tf.PriorityQueue(5, tf.int32, [[]]).enqueue([1.5, 2]), "int64"),
        (lambda: tf.PriorityQueue(5, tf.int32, [[]]).enqueue(1), "expected 2 components; got 1"),
    ],
)
def test_queues_that_cannot_be_are_refused(wrong, message):
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError), match=message):
        wrong()


# --- runners


def test_a_queue_runner_fills_a_queue_until_its_data_ends():
    counter = tf.get_variable("counter", initializer=0, trainable=False)
    queue = tf.FIFOQueue(2, tf.int32, shapes=[[]])
    runner = tf.train.QueueRunner(queue, [queue.enqueue(counter.count_up_to(5))])
    tf.train.add_queue_runner(runner)
    dequeue, coord = queue.dequeue(), tf.train.Coordinator()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        threads = tf.train.start_queue_runners(session, coord)
        assert runner.create_threads(session, coord) == []  # they run already
        assert [session.run(dequeue) for _ in range(5)] == list(range(5))
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(dequeue)
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=WAIT_S)


def test_a_coordinator_that_stops_ends_a_runner_that_waits_for_room():
    queue = tf.FIFOQueue(1, tf.int32, shapes=[[]])
    runner, coord = tf.train.QueueRunner(queue, [queue.enqueue(1)] * 2), tf.train.Coordinator()
    with tf.Session() as session:
        threads = runner.create_threads(session, coord, daemon=True, start=True)
        session.run(queue.dequeue())
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=WAIT_S)


def test_an_error_of_a_runner_is_the_coordinators():
    queue = tf.FIFOQueue(1, tf.int32, shapes=[[]])
    x = tf.placeholder(tf.int32, [])
    coord = tf.train.Coordinator()
    with tf.Session() as session:
        runner = tf.train.QueueRunner(queue, [queue.enqueue(x)])
        threads = runner.create_threads(session, coord, daemon=True, start=True)
        with pytest.raises(tf.errors.InvalidArgumentError):
            coord.join(threads, stop_grace_period_secs=WAIT_S)
