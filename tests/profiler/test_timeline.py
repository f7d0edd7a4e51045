"""Traces keep the viewers' rules, and show what happened where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import flowrt as tf
from flowrt.profiler import Timeline
from flowrt.profiler.steps import Edge, Transfer, read_step
from flowrt.profiler.timeline import phases_of
from flowrt.protos.step_stats_pb2 import StepStats
from tests.distribute.processes import cluster
from tests.profiler.chrome_trace import arrows, ends_of, named, ns, read_trace
from tests.profiler.made_stats import BASE, DEVICES, add, several_stats

TRACED = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)


def traced(session: tf.Session, fetches: Any) -> Any:
    metadata = tf.RunMetadata()
    session.run(fetches, options=TRACED, run_metadata=metadata)
    return metadata.step_stats


def shown(*stats: Any) -> list[dict[str, Any]]:
    return read_trace(Timeline(list(stats)).generate_chrome_trace_format(show_memory=True))


@given(several_stats())
def test_whatever_was_recorded_keeps_the_viewers_rules(steps: list[Any]) -> None:
    events = shown(*steps)
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == sum(len(device.node_stats) for each in steps for device in each.dev_stats)
    for one, other in arrows(events):
        assert one["args"]["name"] in [v for k, v in other["args"].items() if k.startswith("input")]


def test_a_device_is_a_thread_and_an_arrow_leads_from_send_to_receive() -> None:
    with tf.device("/cpu:1"):
        x = tf.random_uniform([100, 100], name="x")
    with tf.device("/cpu:0"):
        y = tf.reduce_sum(x)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        events = shown(traced(session, y))
    assert list(named(events, "process_name").values()) == ["steps", "/job:localhost/replica:0/task:0"]
    assert list(named(events, "thread_name").values()) == ["CPU:0", "CPU:1"]
    ((sent, received),) = arrows(events)
    assert (sent["name"], sent["cat"]) == ("send x:0", "_Send")
    assert (received["name"], received["cat"]) == ("receive x:0", "_Recv")
    assert {e["name"] for e in events if e["ph"] in "sf"} == {"x:0"}
    assert [e["name"] for e in events if e["ph"] == "b"] == ["step 0"]
    assert received["args"]["output0"] == "float32[100, 100]"
    assert received["args"]["bytes"] == 40000
    assert ends_of(received)[1] >= ends_of(sent)[0]


def test_every_iteration_of_a_loop_over_devices_has_its_arrows() -> None:
    def body(i: Any, x: Any) -> Any:
        with tf.device("/cpu:1"):
            x = x * 2.0
        with tf.device("/cpu:0"):
            return i + 1, x + 1.0

    with tf.device("/cpu:0"):
        last = tf.while_loop(lambda i, x: i < 3, body, [tf.constant(0), tf.random_uniform([])])
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        events = shown(traced(session, last))
    iterations = [one["args"]["input0"] for one, _ in arrows(events)]
    assert max(map(iterations.count, iterations)) >= 3
    for sent, received in arrows(events):
        assert ends_of(received)[1] >= ends_of(sent)[0]


def test_streams_of_a_device_are_threads_of_their_own() -> None:
    stats = StepStats()
    add(stats, DEVICES[0], "a = Op()", BASE, BASE + 10)
    add(stats, DEVICES[0], "b = Op(a)", BASE + 20, BASE + 30, stream=1)
    stats.dev_stats[0].thread_names[0], stats.dev_stats[0].thread_names[1] = "stream 0", "stream 1"
    events = shown(stats)
    assert list(named(events, "thread_name").values()) == ["CPU:0 stream 0", "CPU:0 stream 1"]
    ((one, other),) = arrows(events)
    assert (one["args"]["name"], other["args"]["name"]) == ("a", "b")


def test_steps_that_run_at_once_have_lanes() -> None:
    first, second = StepStats(), StepStats()
    add(first, DEVICES[0], "a = Op()", BASE, BASE + 100)
    add(second, DEVICES[0], "b = Op()", BASE + 50, BASE + 150)
    events = shown(first, second)
    assert list(named(events, "thread_name").values()) == ["CPU:0", "CPU:0 (2)"]
    assert [e["name"] for e in events if e["ph"] == "b"] == ["step 0", "step 1"]


def test_memory_is_counted_by_the_pool_and_by_live_tensors() -> None:
    x = tf.random_uniform([256, 256])
    y = tf.matmul(x, x)
    with tf.Session() as session:
        events = shown(traced(session, tf.matmul(y, y)))
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert counters == {"CPU:0 pool", "CPU:0 tensors"}
    assert max(e["args"]["bytes"] for e in events if e["name"] == "CPU:0 tensors") == 2 * 4 * 256**2


def test_a_cluster_has_a_process_a_task_and_the_split_of_each_receive() -> None:
    with cluster(2, 0) as tasks, tf.Graph():
        with tf.device("/job:worker/task:1"):
            x = tf.matmul(tf.random_uniform([300, 300]), tf.random_uniform([300, 300]), name="there")
        with tf.device("/job:worker/task:0"):
            y = tf.reduce_sum(x)
        with tf.Session(tasks.target) as session:
            events = shown(traced(session, y))
    names = [f"/job:worker/replica:0/task:{task}" for task in range(2)]
    assert list(named(events, "process_name").values()) == ["steps", *names]
    ((sent, received),) = arrows(events)
    assert (sent["name"], received["name"]) == ("send there:0", "receive there:0")
    assert sent["pid"] != received["pid"]
    begins = [e for e in events if e["ph"] == "b" and e["cat"] == "Transfer"]
    assert [e["name"].partition(" from ")[0] for e in begins] == ["there:0", "queue", "wire", "copy"]
    (whole,) = (e for e in begins if "args" in e and "bytes" in e["args"])
    assert whole["args"]["bytes"] == 4 * 300**2
    end = max(ns(e["ts"]) for e in events if e["ph"] == "e" and e["cat"] == "Transfer")
    parts = sum(ns(whole["args"][f"{phase}_us"]) for phase in ("queue", "wire", "copy"))
    assert parts == end - ns(whole["ts"])


def test_clocks_of_tasks_are_aligned(tmp_path: Path) -> None:
    """Those of a worker whose clock is an hour ahead."""
    ahead = "import time\nreal = time.time_ns\ntime.time_ns = lambda: real() + 3600 * 10**9\n"
    (tmp_path / "sitecustomize.py").write_text(ahead)
    with cluster(1, 1, environ={"PYTHONPATH": str(tmp_path)}) as tasks, tf.Graph():
        with tf.device("/job:worker/task:1"):
            x = tf.random_uniform([10], name="there")
        with tf.device("/job:worker/task:0"):
            y = tf.reduce_sum(x)
        with tf.Session(tasks.target) as session:
            step = read_step(traced(session, y))
    (transfer,) = step.transfers
    assert transfer.sent is not None
    seconds = {op.name: (op.end - step.start) / 1e9 for op in step.operations}
    assert len(seconds) == 4
    assert max(seconds.values()) < 600  # not an hour
    made = next(op.start for op in step.operations if op.name == "there")
    assert made - transfer.arrived < 600e9


@pytest.mark.parametrize(
    ("sent", "phases"),
    [
        (15, [("queue", 10, 15), ("wire", 15, 20), ("copy", 20, 30)]),
        (5, [("queue", 10, 10), ("wire", 10, 20), ("copy", 20, 30)]),  # it was there, or clocks differ
        (25, [("queue", 10, 20), ("wire", 20, 20), ("copy", 20, 30)]),  # clocks differ
        (None, [("queue and wire", 10, 20), ("copy", 20, 30)]),
    ],
)
def test_phases_follow_one_another(sent: int | None, phases: list[tuple[str, int, int]]) -> None:
    transfer = Transfer(Edge("x:0", DEVICES[0], DEVICES[2]), 4, 10, sent, 20)
    assert phases_of(transfer, 30) == phases


def test_tensorflows_own_trace_is_read() -> None:
    """Labels as TensorFlow 1.15 writes them."""
    stats = StepStats()
    device = stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:CPU:0")
    device.node_stats.add(
        node_name="MatMul",
        timeline_label="[CPU] MatMul = MatMul(a, b)",
        all_start_micros=7,
        op_end_rel_micros=3,
    )
    device.node_stats.add(
        node_name="RecvTensor", all_start_micros=1, op_end_rel_micros=4,
        timeline_label="[64B] edge_5_a from /job:w/task:0/device:CPU:0 to /job:w/task:1/device:CPU:0",
    )  # fmt: skip
    step = read_step(stats)
    assert [(op.op, op.operands, op.start, op.end) for op in step.operations] == [
        ("MatMul", ("a", "b"), 7000, 10000)
    ]
    assert [(t.edge.tensor, t.asked, t.arrived) for t in step.transfers] == [("edge_5_a", 1000, 5000)]


def test_the_name_of_tensorflows_module() -> None:
    from flowrt.python.client import timeline

    assert timeline.Timeline is Timeline


@pytest.mark.parametrize("wrong", [tf.RunMetadata(), None, [None]])
def test_what_is_no_step_stats_is_said(wrong: Any) -> None:
    with pytest.raises(tf.errors.DTypeError, match="expected the step_stats of a RunMetadata; got"):
        Timeline(wrong)


def test_perfettos_trace_processor_agrees(tmp_path: Path) -> None:
    trace_processor = pytest.importorskip(
        "perfetto.trace_processor", reason="Perfetto's package is not installed: the rules are checked by us"
    )
    path = tmp_path / "trace.json"
    stats = StepStats()
    add(stats, DEVICES[0], "a = Op()", BASE, BASE + 10)
    path.write_text(Timeline(stats).generate_chrome_trace_format())
    try:
        processor = trace_processor.TraceProcessor(trace=str(path))
    except Exception as error:  # noqa: BLE001 (whatever the download raises)
        pytest.skip(f"Perfetto's trace processor could not be had ({error}): the rules are checked by us")
    with processor:
        assert [row.name for row in processor.query("select name from slice")] == ["Op"]
