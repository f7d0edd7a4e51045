"""A step that runs out of memory says what took it, gives its own back, and the next one may be smaller.

Memory ends here as it does on a device: the pool's allocator finds no room and may not grow.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, product, takewhile

import numpy as np
import pytest

import flowrt as tf
from flowrt.device import local_devices
from flowrt.device.bfc import round_up
from flowrt.device.cuda import cuda
from flowrt.device.cuda.cuda import GpuDescription
from flowrt.device.device import MIN_POOLED
from flowrt.device.host.host import HostExecutor
from flowrt.device.local_devices import TEMPORARY
from flowrt.device.memory_pool import _size
from flowrt.device.transfer import TransferManager
from flowrt.executor.plan import plan as plan_module
from flowrt.executor.session import session as session_module
from tests.device.pretend_cupy import Cupy
from tests.each import daily

MIB = 1 << 20
HERE = r"\S*test_out_of_memory\.py:\d+"


# --- running out


class Refusals:
    """A pool's requests for memory: how many got some, and the bytes of the one that did not."""

    granted = 0
    refused: int | None = None


@contextmanager
def only(requests: int, pool) -> Iterator[Refusals]:
    """``pool`` has memory for so many requests more."""
    seen, allocate, growth = Refusals(), pool._bfc.allocate, pool._bfc.growth

    def allocate_some(nbytes, stream=None):
        if seen.granted == requests:
            seen.refused = nbytes
            return None
        address = allocate(nbytes, stream)
        seen.granted += address is not None
        return address

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool._bfc, "allocate", allocate_some)
        patch.setattr(pool._bfc, "growth", lambda n: None if seen.granted == requests else growth(n))
        yield seen


@pytest.fixture(autouse=True)
def no_garbage_collection():
    """Memory comes back at once, not with the next collection."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def in_use(session):
    return sum(device.pool.stats().bytes_in_use for device in session.devices)


def bytes_of(device, value):
    """What a variable takes of the device's pool."""
    return round_up(value.nbytes) if device.is_asynchronous or value.nbytes >= MIN_POOLED else 0


def check_report(error, graph, nbytes):
    """``error`` names the operation and its line, and tells what there is."""
    assert type(error) is tf.errors.ResourceExhaustedError
    first, *rest = error.message.splitlines()
    assert graph.get_operation_by_name(error.op)
    assert re.fullmatch(HERE, error.source)
    where = rf"(\w+ )?'{re.escape(error.op)}' \({re.escape(error.source)}\): \S*device:\w+:\d"
    memory = rf"{re.escape(_size(nbytes))} of memory(?P<plan> for the plan of a step)?"
    told = re.match(rf"{where}: expected {memory}; got a largest free piece of", first)
    if told["plan"]:
        assert rest[0].endswith(" tensors that the plan must hold simultaneously:")
        rest = rest[1 + check_table(rest) :]
    assert re.search(r" B?.* in use .*reserved, limit .*, largest free piece .*, fragmentation", rest[0])
    if "with 0 B in use" not in first:
        assert rest[1].endswith(" live tensors:")
        check_table(rest[1:])
        assert re.fullmatch(r"\[[#~.]{100}\]", rest[-1])


def check_table(lines):
    """``lines`` begin with a table of tensors; how many rows it has."""
    shown, number = map(int, re.match(r"The largest (\d+) of (\d+) .*tensors.*:", lines[0]).groups())
    assert shown == min(number, 10) > 0
    for line in lines[1 : 1 + shown]:
        assert re.fullmatch(rf" +[\d.]+ (B|KiB|MiB)  (\S+  {HERE}|{TEMPORARY.name})", line)
    return shown


# --- a training step

LARGE, SMALL = 2048, 1024
BATCHES = {rows: np.random.default_rng(rows).random((rows, 1024), np.float32) for rows in (LARGE, SMALL)}


class Training:
    """The step of a net whose layers' results are of a size that only the step knows, 64 bytes a row. The
    layers are spread over ``devices``. The rows are no integer feed, which would have a plan of its own.
    """

    def __init__(self, depth, devices=("/cpu:0",), config=None, seed=None):
        with tf.Graph().as_default() as self.graph:
            tf.set_random_seed(1)
            self.x, self.rows = tf.placeholder(tf.float32, [None, 1024]), tf.placeholder(tf.float32, [])
            with tf.device(devices[0]):
                h = self.x[: tf.cast(self.rows, tf.int32)]
            for i in range(depth):
                with tf.device(devices[i * len(devices) // depth]):
                    h = tf.layers.dense(h, 16, activation=tf.nn.tanh, name=f"layer{i}")
            with tf.device(devices[-1]):
                self.loss = tf.reduce_mean(tf.square(h - 1.0))
                self.train = tf.train.AdamOptimizer(0.01).minimize(self.loss)
            self.variables, self.initializer = tf.global_variables(), tf.global_variables_initializer()
        self.session = tf.Session(graph=self.graph, config=config, seed=seed)
        self.session.run(self.initializer)
        self.start = self.state()
        self.right = {rows: self.step_from_start(rows) for rows in (LARGE, SMALL)}
        """What `step_from_start` gives, by the rows."""

    def step(self, rows):
        """The loss."""
        feed = {self.x: BATCHES[rows], self.rows: rows}
        return self.session.run([self.loss, self.train], feed)[0]

    def state(self):
        return self.session.variable_values(self.variables)

    def step_from_start(self, rows):
        """The loss, and the variables after it."""
        self.restart()
        return self.step(rows), self.state()

    def restart(self):
        self.session.assign_variables(dict(zip(self.variables, self.start, strict=True)))

    def fails_at(self, number, device=0):
        """Whether a step has so many requests of the device; if so the last is refused, and all must be in
        order.
        """
        self.restart()
        with only(number - 1, self.session.devices[device].pool) as seen:
            try:
                self.step(LARGE)
            except tf.errors.ResourceExhaustedError as error:
                check_report(error, self.graph, seen.refused)
                self.check_memory()
                kept = error  # as by somebody who tries a smaller step meanwhile
            else:
                return False
        for value, before, after in zip(self.state(), self.start, self.right[LARGE][1], strict=True):
            assert np.array_equal(value, before) or np.array_equal(value, after)
        loss, state = self.step_from_start(SMALL)
        assert loss == self.right[SMALL][0]
        assert all(map(np.array_equal, state, self.right[SMALL][1]))
        del kept
        return True

    def check_memory(self):
        """Nothing but the variables has any."""
        found = self.session._runtime._places(self.variables, self.session.run)
        of_variables = sum(bytes_of(device, variable.array) for device, variable in found)
        assert in_use(self.session) == of_variables >= 3 * MIN_POOLED
        for device in self.session.devices:
            device.pool.check()


@pytest.fixture(scope="module")
def deep():
    made = Training(depth=42)
    yield made
    made.session.close()


def test_allocations_of_all_of_a_step_may_fail(deep):
    assert all(map(deep.fails_at, range(1, 201, 20)))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 201, 20))
def test_any_allocation_of_a_step_may_fail(deep, first):
    assert all(map(deep.fails_at, range(first, first + 20)))


@pytest.mark.parametrize(
    ("device", "way"),
    daily(product([0, 1], ["inline", "threaded", "seeded"]), lambda device, way: device or way == "inline"),
)
def test_it_ends_the_step_on_all_devices(monkeypatch, way, device):
    if way == "threaded":
        monkeypatch.setattr(plan_module, "THREADED_COST", 0.0)
    config = tf.ConfigProto(device_count={"CPU": 2})
    seed = 3 if way == "seeded" else None
    net = Training(4, ("/cpu:0", "/cpu:1"), config, seed)
    numbers = takewhile(lambda number: net.fails_at(number, device), count(1))
    assert len(list(numbers)) > 5
    net.session.close()


# --- each kind of request


@pytest.mark.parametrize("device", ["/cpu:0", "/device:NULL:0"])
def test_the_arena_of_a_plan(device):
    x = tf.placeholder(tf.float32, [None, 256])
    with tf.device(device):
        w = tf.Variable(np.eye(256, dtype=np.float32))
        h = tf.tanh(tf.matmul(x, w) + np.ones((1, 256), np.float32))
        step = tf.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(h))
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        session.run(w.initializer)
        pool = session.devices["NULL" in device].pool
        for number in count():
            with only(number, pool) as seen:
                try:
                    session.run(step, {x: np.ones((300, 256))})
                    break
                except tf.errors.ResourceExhaustedError as error:
                    check_report(error, session.graph, seen.refused)
                    assert in_use(session) == 256 * 256 * 4
                    named = session.graph.get_tensor_by_name(f"{error.op}:0")
            assert number or named.shape[1] == 256  # the arena: one of its largest
            session.run(step, {x: np.ones((200, 256))})
        assert number == seen.granted > 0
        pool.check()


def test_a_variable():
    v = tf.Variable(tf.zeros([1000, 100]), name="weights")
    with tf.Session() as session:
        pool = session.devices[0].pool
        with only(1, pool) as seen, pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            session.run(v.initializer)  # the arena has the zeros
        check_report(caught.value, session.graph, seen.refused)
        assert (caught.value.op, seen.refused) == ("weights", 400_000)
        assert in_use(session) == 0
        session.run(v.initializer)
        assert session.run(v).sum() == 0
        assert in_use(session) == 2 * round_up(400_000)  # of the plan, too


def test_the_hosts_own_memory_for_a_feed(monkeypatch):
    def fail(*_):
        raise MemoryError("there is no more")

    with tf.device("/device:NULL:0"):
        x = tf.placeholder(tf.float32, [4], name="x")
        y = x + x
    with tf.Session(config=tf.ConfigProto(device_count={"NULL": 1})) as session:
        with monkeypatch.context() as patch:
            patch.setattr(TransferManager, "_staged", fail)
            with pytest.raises(tf.errors.ResourceExhaustedError, match=rf"Feed 'x' \({HERE}\).*no more"):
                session.run(y, {x: np.ones(4)})
        assert session.run(y, {x: np.ones(4)}).shape == (4,)


def test_a_fetch_that_no_memory_is_large_enough_for():
    x = tf.placeholder(tf.float32, [None, None], name="x")
    with tf.Session() as session:
        with pytest.raises(tf.errors.ResourceExhaustedError, match=rf"Feed 'x' \({HERE}\): out of memory"):
            session.run(x, {x: np.broadcast_to(np.float32(1), (1 << 30, 1 << 30))})  # 4 EiB
        assert session.run(x, {x: [[2]]}) == 2


@pytest.fixture
def gpu(monkeypatch):
    """The name of a pretended one of 64 MiB, in a session of `GPU`, whose plans know no sizes."""
    monkeypatch.setattr(cuda, "load_cupy", lambda: Cupy(0))
    found = [GpuDescription(0, "Pretended GPU", 64 * MIB, (9, 0), "0000:00")]
    monkeypatch.setattr(local_devices, "visible_devices", lambda: found)
    monkeypatch.setattr(session_module, "MAX_SHAPES", 0)
    return "/gpu:0"


GPU = tf.ConfigProto(device_count={"GPU": 1})


def test_any_request_of_a_gpu(gpu):
    """Arena, constants, feeds, and what every kernel takes for itself."""
    x = tf.placeholder(tf.float32, [None, 64])
    h, w = x, []
    with tf.device(gpu):
        for i in range(4):
            w.append(tf.Variable(np.full((64, 64), i / 64, np.float32)))
            h = tf.tanh(tf.matmul(h, w[-1]) + np.float32(i) * np.ones((1, 64), np.float32))
    with tf.Session(config=GPU) as session:
        session.run([v.initializer for v in w])
        right = session.run(h, {x: BATCHES[SMALL][:30, :64]})
        for number in count():
            with only(number, session.devices[1].pool) as seen:
                try:
                    session.run(h, {x: BATCHES[SMALL][:40, :64]})
                    break
                except tf.errors.ResourceExhaustedError as error:
                    check_report(error, session.graph, seen.refused)
                    assert in_use(session) == 4 * 64 * 64 * 4
            found = session.run(h, {x: BATCHES[SMALL][:30, :64]})
            np.testing.assert_array_equal(found, right)
        assert number == seen.granted > 12


def test_copies_to_a_gpu_that_are_over_hold_nothing_up(gpu):
    x = tf.placeholder(tf.float32, [None])
    with tf.device(gpu):
        total = tf.Variable(0.0)
        step = total.assign_add(tf.reduce_sum(x), read_value=False)
    with tf.Session(config=GPU) as session:
        session.run(total.initializer)
        for _ in range(3):
            session.run(step, {x: np.ones(10 * MIB, np.float32)})  # 40 of 64 MiB
        assert session.run(total) == 30 * MIB


# --- what is left for others


@pytest.fixture
def small_machine(monkeypatch):
    """5 MiB of memory."""
    monkeypatch.setattr(HostExecutor, "memory_info", lambda self: (5 * MIB, 5 * MIB))


def rows_and_sum():
    """A placeholder of rows of 1 KiB, and a step whose arena holds each once: no loop has a rule for cosh."""
    x = tf.placeholder(tf.float32, [None, 256])
    return x, tf.reduce_sum(tf.cosh(x))


def test_a_batch_is_halved_until_it_fits(small_machine):
    x, total = rows_and_sum()
    errors = []

    def run(rows):
        try:
            return session.run(total, {x: np.zeros((rows, 256))})
        except tf.errors.ResourceExhaustedError as error:
            errors.append(error)
            return run(rows // 2)  # while all of them are handled

    with tf.Session() as session:
        assert run(32768) == 4096 * 256
    for error, rows in zip(errors, (32768, 16384, 8192), strict=True):
        assert f"expected {rows // 1024}.0 MiB of memory" in error.message
        assert "with 0 B in use and a limit of 5.0 MiB." in error.message


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_closed_session_has_given_its_memory_back():
    v = tf.Variable(tf.ones([512, 1024]))
    y = tf.reduce_sum(tf.sqrt(tf.random_normal([512, 1024]) + v))
    session = tf.Session(config=tf.ConfigProto(device_count={"NULL": 1}))
    session.run(v.initializer)
    session.run(y)
    assert session.devices[0].pool.stats().bytes_reserved > v.shape.num_elements() * 4
    session.close()
    assert [device.pool.stats().bytes_reserved for device in session.devices] == [0, 0]


def test_plans_that_do_not_run_give_their_memory_to_those_that_do(small_machine):
    x, total = rows_and_sum()
    v = tf.Variable(tf.ones([512, 1024]))
    with tf.Session() as session:
        for rows in (4096, 3000, 5000, 4096, 3000):
            assert session.run(total, {x: np.zeros((rows, 256))}) == rows * 256
            assert in_use(session) == rows * 1024 + 256  # the sum's buffer
        session.run(v.initializer)
        assert session.run(total, {x: np.zeros((1000, 256))}) == 1000 * 256
        with pytest.raises(tf.errors.ResourceExhaustedError, match=r"with 2.0 MiB in use"):
            session.run(total, {x: np.zeros((4096, 256))})


def test_a_plan_may_lose_its_idle_memory_at_any_time():
    x, total = rows_and_sum()
    with tf.Session() as session:
        call, over = session.make_callable(total, [x]), threading.Event()
        assert call(np.zeros((8, 256))) == 8 * 256
        (plan,) = (p for request in session._requests.values() for p in request.plans.values())

        def drop():
            while not over.is_set():
                plan.let_go()

        thread = threading.Thread(target=drop)
        thread.start()
        try:
            assert all(call(np.zeros((8, 256))) == 8 * 256 for _ in range(500))
        finally:
            over.set()
            thread.join()


def test_another_session_goes_on():
    x, total = rows_and_sum()
    with tf.Session() as one, tf.Session() as other:
        feed = {x: np.zeros((100, 256))}
        other.run(total, feed)
        before = in_use(other)
        with only(0, one.devices[0].pool), pytest.raises(tf.errors.ResourceExhaustedError):
            one.run(total, feed)
        assert in_use(other) == before > in_use(one) == 0
        assert one.run(total, feed) == other.run(total, feed) == 25600
