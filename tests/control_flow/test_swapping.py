"""``swap_memory``, and lists in loops of a device of its own memory: a pretended GPU, as late as it may be,
whose freed memory may be anybody's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.base.structure import flatten
from flowrt.device import transfer
from flowrt.executor.lists import swapping
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from tests.executor.test_remote_device import config, plug_in

ELEMENT = 4 * 256 * 8
"""Bytes of what a program keeps of an iteration, one tensor or two."""


@pytest.fixture(autouse=True)
def own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both devices, so that results are equal bit for bit."""
    monkeypatch.setenv("FLOWRT_JIT", "off")


def start() -> Any:
    return tf.constant(np.random.default_rng(0).standard_normal((4, 256)))


def elementwise(n: int, **options: Any) -> tuple[Any, list[Any]]:
    x = start()

    def body(i: Any, h: Any) -> Any:
        return i + 1, tf.tanh(h) * x + tf.sin(h)

    return tf.while_loop(lambda i, _: i < n, body, [0, x], **options)[1], [x]


def shared_weights(n: int, **options: Any) -> tuple[Any, list[Any]]:
    x, w = start(), tf.constant(np.random.default_rng(1).standard_normal((256, 256)) / 16)

    def body(i: Any, h: Any) -> Any:
        return i + 1, tf.tanh(tf.matmul(h, w) + x)

    return tf.while_loop(lambda i, _: i < n, body, [0, x], **options)[1], [x, w]


def nested(n: int, **options: Any) -> tuple[Any, list[Any]]:
    x = start()

    def body(i: Any, h: Any) -> Any:
        inner = tf.while_loop(lambda j, _: j < 2, lambda j, g: (j + 1, tf.sin(g) * x), [0, h], **options)
        return i + 1, tf.tanh(inner[1])

    return tf.while_loop(lambda i, _: i < n, body, [0, x], **options)[1], [x]


def branches(n: int, **options: Any) -> tuple[Any, list[Any]]:
    x = start()

    def body(i: Any, h: Any) -> Any:
        return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: tf.tanh(h) * h + x, lambda: tf.sin(h) * h * x)

    return tf.while_loop(lambda i, _: i < n, body, [0, x], **options)[1], [x]


def rows_of_unknown_number(n: int, **options: Any) -> tuple[Any, list[Any]]:
    x = tf.placeholder_with_default(start(), [None, 256])

    def body(i: Any, h: Any) -> Any:
        return i + 1, tf.tanh(h + x) * tf.cos(h)

    shapes = [tf.TensorShape([]), tf.TensorShape([None, 256])]
    return tf.while_loop(lambda i, _: i < n, body, [0, x], shapes, **options)[1], [x]


def scanned(n: int, **options: Any) -> tuple[Any, list[Any]]:
    x = tf.constant(np.random.default_rng(0).standard_normal((n, 4, 256)))
    return tf.scan(lambda a, row: tf.sin(row) * tf.cos(a), x, **options), [x]


def on_two_devices(n: int, **options: Any) -> tuple[Any, list[Any]]:
    x = start()

    def body(i: Any, h: Any) -> Any:
        with tf.device("/cpu:0"):
            h = tf.sin(h) * h
        return i + 1, tf.tanh(h) * x

    return tf.while_loop(lambda i, _: i < n, body, [0, x], **options)[1], [x]


PROGRAMS = [elementwise, shared_weights, nested, branches, rows_of_unknown_number, scanned, on_two_devices]


def results(program: Any, n: int, where: tf.ConfigProto, second: bool = True, **options: Any) -> Any:
    """Value, gradients and second derivatives, and the session's last device."""
    device = "/gpu:0" if where.device_count["GPU"] else "/cpu:0"
    with tf.Graph().as_default(), tf.device(device):
        y, inputs = program(n, **options)
        first = tf.gradients(tf.reduce_sum(y * y), inputs)
        fetched = [y, first]
        if second:
            total = tf.add_n([tf.reduce_sum(g * g) for g in first])
            fetched.append(tf.gradients(total, inputs))
        where.allow_soft_placement = True  # a CPU alone takes what is for another device
        with tf.Session(config=where) as session:
            return flatten(session.run(fetched)), session.devices[-1]


CPU = config(gpus=0)


@pytest.mark.parametrize(("seed", "program"), list(enumerate(PROGRAMS)))
def test_a_gpu_that_swaps_computes_what_the_cpu_computes(monkeypatch, seed, program):
    monkeypatch.setattr(transfer, "MAX_SWAPPING", 3 * ELEMENT * (seed % 2))
    expected, _ = results(program, 5, CPU, swap_memory=True)
    plug_in(monkeypatch, seed)
    kept, unswapping = results(program, 5, config(), swap_memory=False)
    found, swapping_device = results(program, 5, config(), swap_memory=True)
    for a, b, c in zip(found, expected, kept, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-10)
    more = [
        getattr(swapping_device.transfer.stats, name) - getattr(unswapping.transfer.stats, name)
        for name in ("transfers_to_host", "transfers_to_device")
    ]
    assert min(more) >= 5


def peak(program: Any, n: int, **options: Any) -> int:
    """The most bytes of the GPU that are in use."""
    found: int = results(program, n, config(), **options)[1].pool.stats().peak_bytes_in_use
    return found


@pytest.mark.parametrize("program", [elementwise, shared_weights])
@pytest.mark.parametrize("second", [False, True])
def test_what_a_long_loop_keeps_is_not_on_the_device(monkeypatch, program, second):
    monkeypatch.setattr(transfer, "MAX_SWAPPING", 4 * ELEMENT)
    plug_in(monkeypatch, 0)
    short, long = [peak(program, n, second=second, swap_memory=True) for n in (6, 16)]
    assert long <= short + 4 * ELEMENT
    assert peak(program, 16, second=second) > long + 6 * ELEMENT


def test_each_kept_element_goes_to_the_host_once_and_comes_back_once(monkeypatch):
    plug_in(monkeypatch, 0)
    stats = [
        results(elementwise, n, config(), second=False, swap_memory=True)[1].transfer.stats for n in (5, 15)
    ]
    short, long = stats
    kept = (long.bytes_to_device - short.bytes_to_device) // ELEMENT
    assert kept in (10, 20)  # one tensor an iteration, or two
    assert (long.bytes_to_host - short.bytes_to_host) // ELEMENT == kept


def test_small_elements_stay(monkeypatch):
    plug_in(monkeypatch, 0)
    monkeypatch.setattr(swapping, "MIN_SWAPPED", ELEMENT + 1)
    options: dict[str, Any] = {"second": False}
    unswapped = results(elementwise, 10, config(), **options)[1].transfer.stats
    assert results(elementwise, 10, config(), swap_memory=True, **options)[1].transfer.stats == unswapped


def test_an_element_that_is_away_can_be_read_more_than_once(monkeypatch):
    plug_in(monkeypatch, 0)
    with tf.device("/gpu:0"), tf.Session(config=config()) as session:
        device = session.devices[-1]
        with device.step(), device.activate():
            value = np.arange(1024.0)
            away = swapping.swapped(device, device.put(value))
            handle = TensorList(ListSpec(tf.float64)).push(away)
            for _ in range(2):
                np.testing.assert_array_equal(device.to_host(handle.get(0)), value)
            popped, last = handle.pop()
            np.testing.assert_array_equal(device.to_host(last), value)
            assert (popped.length, handle.resized(2).kept()) == (0, [away, None])


LOOPS = [
    lambda **o: tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0], **o),
    lambda **o: tf.map_fn(tf.sin, tf.ones([3]), **o),
    lambda **o: tf.scan(tf.add, tf.ones([3]), **o),
    lambda **o: tf.foldl(tf.add, tf.ones([3]), **o),
    lambda **o: tf.foldr(tf.add, tf.ones([3]), **o),
    lambda **o: tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(2), tf.ones([1, 3, 2]), dtype=tf.float32, **o),
]


@pytest.mark.parametrize("loop", LOOPS)
def test_every_kind_of_loop_has_the_option(loop):
    for option in (False, True):
        with tf.Graph().as_default() as graph:
            loop(swap_memory=option)
            (op,) = [op for op in graph.get_operations() if op.type == "While"]
            assert op.node.attrs.get("_swap_memory", False) is option


@pytest.mark.parametrize("seed", range(6))
def test_what_comes_back_waits_until_it_has_left(monkeypatch, seed):
    plug_in(monkeypatch, seed)
    with tf.Session(config=config()) as session:
        device = session.devices[-1]
        with device.step(), device.activate():
            arriving = device.swap_in(device.swap_out(device.put(np.arange(1024.0)) * 2.0))
            np.testing.assert_array_equal(device.to_host(arriving.take()), 2.0 * np.arange(1024.0))


def test_a_host_that_runs_ahead_holds_few_elements_on_the_device(monkeypatch):
    value = np.arange(1024.0)
    monkeypatch.setattr(transfer, "MAX_SWAPPING", 2 * value.nbytes)
    plug_in(monkeypatch, 0)
    with tf.Session(config=config()) as session:
        device = session.devices[-1]
        with device.step(), device.activate():
            away = [device.swap_out(device.put(value) + i) for i in range(20)]
            for swapped in away:
                device.swap_in(swapped)
        assert device.pool.stats().peak_bytes_in_use < 8 * value.nbytes


# --- lists that cross


def values(n: int) -> Any:
    return tf.constant(np.random.default_rng(2).standard_normal((n, 4, 8)))


def list_of_the_cpu(n: int) -> tuple[Any, list[Any]]:
    v = values(n)
    with tf.device("/cpu:0"):
        rows = tf.TensorArray(tf.float64, size=n).unstack(v)
    body = lambda i, h: (i + 1, tf.tanh(h) + rows.read(i))  # noqa: E731
    return tf.while_loop(lambda i, _: i < n, body, [0, v[0]])[1], [v]


def list_of_the_gpu(n: int) -> tuple[Any, list[Any]]:
    v = values(n)
    rows = tf.TensorArray(tf.float64, size=n)
    body = lambda i, h, rows: (i + 1, tf.tanh(h) + v[0], rows.write(i, h))  # noqa: E731
    _, h, rows = tf.while_loop(lambda i, *_: i < n, body, [0, v[1], rows])
    with tf.device("/cpu:0"):
        return rows.stack() * h, [v]


def list_that_the_cpu_writes(n: int) -> tuple[Any, list[Any]]:
    v = values(n)
    with tf.device("/cpu:0"):
        rows = tf.TensorArray(tf.float64, size=n)

    def body(i: Any, h: Any, rows: Any) -> Any:
        with tf.device("/cpu:0"):
            rows = rows.write(i, h)
        return i + 1, tf.tanh(h) + v[0], rows

    _, h, rows = tf.while_loop(lambda i, *_: i < n, body, [0, v[1], rows])
    return rows.stack() * h, [v]


def list_that_another_gpu_writes(n: int) -> tuple[Any, list[Any]]:
    v = values(n)

    def body(i: Any, h: Any, rows: Any) -> Any:
        with tf.device("/gpu:1"):
            rows = rows.write(i, tf.sin(h))
        return i + 1, tf.tanh(h) + v[0], rows

    _, h, rows = tf.while_loop(lambda i, *_: i < n, body, [0, v[1], tf.TensorArray(tf.float64, size=n)])
    return rows.stack() * h, [v]


CROSSING = [list_of_the_cpu, list_of_the_gpu, list_that_the_cpu_writes, list_that_another_gpu_writes]


@pytest.mark.parametrize("program", CROSSING)
def test_lists_and_loop_variables_cross_between_devices(monkeypatch, program):
    expected, _ = results(program, 4, CPU)
    for seed in range(5):  # a loop variable that is written before it has left shows in most of them
        plug_in(monkeypatch, seed)
        found, _ = results(program, 4, config(gpus=2))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
