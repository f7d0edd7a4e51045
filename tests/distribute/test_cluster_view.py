"""``flowrt top`` and ``flowrt profile``: rates and stragglers from metrics; both on real clusters."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.cli import top
from flowrt.cli.main import main
from flowrt.cli.profile import whole
from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.observe.cluster_view import Reading, TaskView, view
from flowrt.distribute.resolvers import VARIABLES, ResolvedCluster
from flowrt.distribute.server import server_as
from flowrt.distribute.strategies.kinds.watched_worker import group_transport
from flowrt.distribute.wire.messages import Message
from flowrt.distribute.worker.step_profiles import MAX_PROFILES, StepProfiles, TracedStep
from flowrt.distribute.worker.step_trace import StepTrace
from flowrt.errors import ResourceExhaustedError
from flowrt.executor.observe.step_watch import step_watch
from flowrt.protos import cluster_pb2 as pb
from tests.distribute.processes import ROOT, SOON_S, Cluster, cluster

TOKEN = "t" * 43


def reading(
    seconds: float, waits: Mapping[str, float] | None = None, collective_s: float = 0.0, **values: float
) -> Reading:
    found = {(name, ""): value for name, value in values.items()}
    found |= {("flowrt_wait_seconds_total", peer): value for peer, value in (waits or {}).items()}
    found["flowrt_collective_seconds_total", ""] = collective_s
    return Reading(seconds, found, "")


def seen(before: Mapping[str, Reading], now: Mapping[str, Reading | str]) -> dict[str, TaskView]:
    def named(readings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            f"/job:{job}/replica:0/task:{index}": each
            for task, each in readings.items()
            for job, index in [task.split(":")]
        }

    return {each.task: each for each in view(named(before), named(now))}


def test_rates_are_differences_by_the_tasks_own_clock() -> None:
    before = {
        "w:0": reading(
            100.0, flowrt_step_seconds_count=10, flowrt_step_seconds_sum=1.0, process_cpu_seconds_total=5.0
        )
    }
    now = {
        "w:0": reading(
            104.0, {"w:1": 1.0}, flowrt_step_seconds_count=18, flowrt_step_seconds_sum=3.0,
            process_cpu_seconds_total=7.0, flowrt_running_steps=1, flowrt_draining=1,
        )
    }  # fmt: skip
    (task,) = seen(before, now).values()
    assert (task.steps_per_s, task.step_s, task.cpu_share) == (2.0, 0.25, 0.5)
    assert task.waits == {"w:1": 0.25}
    assert (task.state, task.running_steps) == ("draining", 1)


def test_a_task_that_was_restarted_or_has_just_come_has_no_rates() -> None:
    (task,) = seen({"w:0": reading(100.0)}, {"w:0": reading(1.0)}).values()
    assert task.steps_per_s is task.cpu_share is None
    (task,) = seen({}, {"w:0": reading(1.0)}).values()
    assert task.steps_per_s is None


def test_tasks_are_in_the_order_of_their_numbers_and_say_why_they_do_not_answer() -> None:
    tasks = seen({}, {"w:10": "gone", "w:9": reading(1.0), "ps:0": reading(1.0)})
    assert list(tasks) == ["ps:0", "w:9", "w:10"]
    assert (tasks["w:10"].state, tasks["w:10"].error) == ("no answer", "gone")


def test_one_task_is_one_task() -> None:
    tasks = list(seen({}, {"w:0": reading(1.0)}).values())
    assert top.lines("grpc://h:1", tasks)[0] == "grpc://h:1: 1 task"


def stragglers(now: Mapping[str, Reading | str]) -> set[str]:
    before = {task: reading(0.0) for task in now}
    return {task for task, each in seen(before, now).items() if each.is_straggler}


def test_the_last_of_a_chain_of_waiting_tasks_is_the_straggler() -> None:
    waits = {
        "w:0": reading(10.0, {"w:1": 8.0, "w:3": 0.2}),
        "w:1": reading(10.0, {"w:2": 8.0}),
        "w:2": reading(10.0, {"w:3": 0.1}),
        "w:3": reading(10.0),
    }
    assert stragglers(waits) == {"w:2"}


def test_tasks_that_are_waited_for_alike_do_not_straggle() -> None:
    workers = {f"w:{i}": reading(10.0) for i in range(4)}
    assert stragglers({"ps:0": reading(10.0, {f"w:{i}": 6.0 + i / 10 for i in range(4)}), **workers}) == set()
    slow = reading(10.0, {"w:0": 1.0, "w:1": 1.1, "w:2": 1.0, "w:3": 9.0})
    assert stragglers({"ps:0": slow, **workers}) == {"w:3"}


def test_a_wait_that_is_short_makes_no_straggler() -> None:
    assert stragglers({"w:0": reading(10.0, {"w:1": 0.9}), "w:1": reading(10.0)}) == set()


def test_the_rank_that_waits_least_in_collectives_is_the_straggler() -> None:
    ranks: dict[str, Reading | str] = {f"w:{i}": reading(10.0, collective_s=6.0) for i in range(3)}
    assert stragglers(ranks) == set()
    assert stragglers({**ranks, "w:3": reading(10.0, collective_s=1.0), "w:4": "gone"}) == {"w:3"}


# --- profiles of next steps


def test_a_profile_has_the_next_steps_and_ends_with_them() -> None:
    profiles, told = StepProfiles(), list[list[TracedStep]]()
    assert not profiles.takes(1)
    profiles.add(2, 10.0, lambda steps: told.append(list(steps)))
    profiles.add(1, 10.0, lambda steps: told.append(list(steps)))
    traces = [StepTrace(is_for_client=False) for _ in range(4)]
    assert profiles.takes(2)
    assert profiles.takes(3)
    assert not profiles.takes(4)
    assert not profiles.is_active
    profiles.ended(3, traces[3])
    assert told == []
    profiles.ended(1, traces[1])  # began earlier, for its client
    profiles.ended(2, traces[2])
    assert sorted(told, key=len) == [[(2, traces[2])], [(3, traces[3]), (2, traces[2])]]
    profiles.expire(11.0)
    assert len(told) == 2


def test_a_late_profile_has_what_has_ended() -> None:
    profiles, told = StepProfiles(), list[Any]()
    profiles.add(5, 10.0, told.append)
    trace = StepTrace(is_for_client=False)
    assert profiles.takes(1)
    assert profiles.takes(2)
    profiles.ended(1, trace)
    profiles.expire(9.9)
    assert told == []
    profiles.expire(10.0)
    assert told == [[(1, trace)]]
    profiles.ended(2, trace)
    assert not profiles.takes(3)
    assert len(told) == 1


def test_there_are_not_too_many_profiles() -> None:
    profiles = StepProfiles()
    for _ in range(MAX_PROFILES):
        profiles.add(1, 1.0, list)
    with pytest.raises(ResourceExhaustedError, match="at most 8"):
        profiles.add(1, 1.0, list)


@pytest.mark.parametrize(
    ("traced", "chosen"),
    [
        ([[1, 2, 3, 4], [2, 3, 4, 5], []], [2, 3, 4]),
        ([[1, 2, 3, 4], [2]], [2]),
        ([[1, 2, 3, 4], [2, 4]], [2, 3, 4]),
        ([[1, 2], [3, 4]], [1, 2, 3, 4]),
    ],
    ids=["later", "one", "some", "none"],
)
def test_a_profile_is_the_mean_of_steps_that_all_have_traced(
    traced: list[list[int]], chosen: list[int]
) -> None:
    answers = [Message(pb.StepProfiles(steps=steps)) for steps in traced]
    assert whole(answers, sorted({step for steps in traced for step in steps})) == chosen


# --- the commands, on clusters


@contextmanager
def busy(tasks: Cluster) -> Iterator[None]:
    """A program runs steps on all tasks, of which the last works most."""
    given = tf.placeholder(tf.float32, [200, 200])
    sums = []
    for index in range(1, len(tasks.servers) + len(tasks.workers)):
        with tf.device(f"/job:worker/task:{index}"):
            product = given
            for _ in range(40 if index == 2 else 1):
                product = tf.matmul(product, given) * 0.001
            sums.append(tf.reduce_sum(product, name=f"sum_{index}"))
    with tf.device("/job:worker/task:0"):
        total = tf.add_n(sums)
    stops, errors = threading.Event(), list[tf.errors.OpError]()

    def run() -> None:
        try:
            while not stops.is_set():
                session.run(total, {given: np.ones([200, 200], np.float32)})
        except tf.errors.OpError as error:
            errors.append(error)

    with tf.Session(tasks.target) as session:
        session.run(total, {given: np.ones([200, 200], np.float32)})
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stops.set()
            thread.join(SOON_S)
    assert not errors


def test_top_and_profile_show_a_running_cluster_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(1, 2) as tasks, busy(tasks):
        target = f"grpc://{tasks.workers[0].address}"  # any task
        assert main(["top", target, "--once", "--json", "--interval", "1"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        found = {each["task"]: each for each in json.loads(line)["tasks"]}
        assert main(["top", target, "--once", "--interval", "0.5"]) == 0
        table = capsys.readouterr().out.splitlines()
        out = tmp_path / "run.json"
        assert main(["profile", target, "--steps", "4", "--out", str(out)]) == 0
        said = capsys.readouterr()
    assert list(found) == ["worker:0", "worker:1", "worker:2"]
    assert all(each["steps_per_s"] > 0 and each["state"] == "ok" for each in found.values())
    assert max(found, key=lambda task: found[task]["delay"]) == "worker:2"
    assert found["worker:0"]["waits"]["worker:2"] > found["worker:0"]["waits"].get("worker:1", 0.0)
    assert found["worker:2"]["devices"]["CPU:0"]["in_use"] > 0
    assert table[0].startswith(f"{target}: 3 tasks")
    assert [row.split()[0] for row in table[1:]] == ["task", *found]
    assert said.err == ""
    assert [" ".join(row.split()[:3]) for row in said.out.splitlines()[:3]] == [
        f"worker:{index} 4 steps" for index in range(3)
    ]
    assert "MatMul" in said.out
    events = json.loads(out.read_text())["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {f"/job:worker/replica:0/task:{index}" for index in range(3)} <= names
    sums = [each for each in events if each["ph"] == "X" and "sum_2" in each["args"]["name"]]
    assert len(sums) >= 4
    assert list(tmp_path.iterdir()) == [out]


def test_a_stopped_task_delays_top_by_its_patience_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "ANSWER_S", 0.5)
    with cluster(1, 1) as tasks:
        tasks.workers[0].wait_for_steps(0)
        target = tasks.target
        assert main(["top", target, "--once", "--interval", "0.1"]) == 0
        assert "no answer" not in capsys.readouterr().out
        tasks.workers[0].freeze()
        assert main(["top", target, "--once", "--interval", "0.1"]) == 0
        said = capsys.readouterr().out
        tasks.workers[0].send_signal(signal.SIGCONT)
    assert said.startswith(f"{target}: 2 tasks, 1 without an answer")
    assert said.splitlines()[3].split()[-2:] == ["no", "answer"]


def test_top_ends_when_the_cluster_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tf.train.Server.create_local_server()
    monkeypatch.setattr(top.time, "sleep", lambda seconds: server.stop())
    line = told(capsys, 4, "top", server.target)
    assert line.startswith("flowrt top: no task answers any more. ")


def test_watchers_are_no_peers_of_the_job() -> None:
    """They leave no connection between tasks: a task that ends then is nobody's loss."""
    with cluster(2, 0) as tasks:
        assert main(["top", tasks.target, "--once", "--interval", "0.1"]) == 0
        assert [list(server._connections._connections) for server in tasks.servers] == [[], []]


WORKER = """
import os, sys, time
import numpy as np
import flowrt as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.get_variable("weights", [8, 8], initializer=tf.zeros_initializer())
given = tf.placeholder(tf.float32, [8, 8])

def step():
    loss = tf.reduce_sum(tf.square(tf.matmul(given, weights) - 1.0))
    with tf.control_dependencies([tf.train.GradientDescentOptimizer(1e-6).minimize(loss)]):
        return tf.reduce_max(given)

has_ended = strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step), axis=None)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    print(os.environ["FLOWRT_CLUSTER"], flush=True)
    while not session.run(has_ended, {given: np.full([8, 8], os.path.exists(sys.argv[1]), np.float32)}):
        time.sleep(0.02 if os.environ["RANK"] == "1" else 0)
"""
"""Trains until the file of its argument exists; the second worker is slow."""


def test_workers_with_sessions_of_their_own_are_watched_if_metrics_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, stop, out = tmp_path / "train.py", tmp_path / "stop", tmp_path / "run.json"
    script.write_text(WORKER)
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-m", "flowrt.cli.run", "--standalone", "--nproc", "2", str(script), str(stop)]
    job = subprocess.Popen(
        command, cwd=ROOT, env={**kept, "FLOWRT_METRICS": "0"}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout
        described = job.stdout.readline().partition("] ")[2]  # of the first worker that is ready
        target = "grpc://" + json.loads(described)["worker"][0]
        assert main(["top", target, "--once", "--json", "--interval", "1"]) == 0
        found = {each["task"]: each for each in json.loads(capsys.readouterr().out)["tasks"]}
        assert main(["profile", target, "--steps", "3", "--out", str(out)]) == 0
        said = capsys.readouterr()
        stop.touch()
        assert job.wait(SOON_S) == 0
    finally:
        job.kill()
        job.communicate()
    assert all(each["steps_per_s"] > 0 for each in found.values())
    assert max(found, key=lambda task: found[task]["delay"]) == "worker:1"
    assert found["worker:0"]["collective_share"] > found["worker:1"]["collective_share"]
    assert said.err == ""
    events = json.loads(out.read_text())["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {f"/job:worker/replica:0/task:{index}" for index in range(2)} <= names


def test_a_worker_of_another_membership_gets_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with ReservedPorts(3) as reserved:
        first, *others = (f"127.0.0.1:{port}" for port in reserved.ports)
        memberships = [
            ResolvedCluster(ClusterSpec({"worker": [first, other]}), "worker", 0, "a test")
            for other in others
        ]
        assert group_transport(memberships[0]) is None
        monkeypatch.setenv("FLOWRT_METRICS", "0")
        for membership in memberships:
            assert group_transport(membership) is not None
            server = server_as(membership.spec, "/job:worker/replica:0/task:0")
            assert server is not None
            assert group_transport(membership) is not None
            assert server_as(membership.spec, server.task) is server
        assert server_as(memberships[0].spec, server.task) is None
        server.stop()


def test_local_steps_are_not_slowed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    server = tf.train.Server.create_local_server()
    assert step_watch() is None
    server.stop()
    monkeypatch.setenv("FLOWRT_METRICS", "0")
    server = tf.train.Server.create_local_server()
    try:
        with tf.Session() as session:
            assert session.run(tf.constant(2) * 3) == 6
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(tf.check_numerics(tf.placeholder_with_default(float("nan"), []), "no"))
        text = server._inspection.text()
        assert 'flowrt_steps_total{task="localhost:0",outcome="ok"} 1\n' in text
        assert 'flowrt_steps_total{task="localhost:0",outcome="failed"} 1\n' in text
    finally:
        server.stop()
    assert step_watch() is None


def told(capsys: pytest.CaptureFixture[str], status: int, *words: str) -> str:
    assert main(words) == status
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.mark.parametrize("command", ["top", "profile"])
def test_a_mistake_is_one_line(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    line = told(capsys, 2, command, "127.0.0.1:2222")
    assert line == f"flowrt {command}: expected a target like grpc://host:port; got '127.0.0.1:2222'"
    assert "expected a port" in told(capsys, 2, command, "grpc://127.0.0.1:x")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = told(capsys, 3, command, f"grpc://127.0.0.1:{port}")
    assert "refused; is it started?" in line
    assert line.endswith("is seen if it was started with FLOWRT_METRICS=PORT")
    monkeypatch.setenv("FLOWRT_TOKEN", TOKEN)
    assert "a token is never sent in clear text" in told(capsys, 6, command, "grpc://192.0.2.1:2222")
    server = tf.train.Server.create_local_server()
    try:
        monkeypatch.setenv("FLOWRT_TOKEN", TOKEN.replace("t", "u"))
        assert "token" in told(capsys, 6, command, server.target)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["top", "grpc://a:1", "--interval", "0"], "expected seconds from 0.1 to 3600; got 0"),
        (["profile", "grpc://a:1", "--steps", "0"], "expected an integer >= 1; got 0"),
        (["top"], "the following arguments are required: grpc://HOST:PORT"),
    ],
)
def test_a_wrong_option_is_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_profile_tells_what_it_cannot_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    server = tf.train.Server.create_local_server()
    out = str(tmp_path / "run.json")
    try:
        line = told(capsys, 1, "profile", server.target, "--timeout", "1", "--out", out)
        assert line == "flowrt profile: expected steps within 1 s; no task ran one to its end"
        for bad in (str(tmp_path), str(tmp_path / "none" / "run.json")):
            line = told(capsys, 2, "profile", server.target, "--out", bad)
            assert line == f"flowrt profile: expected a file in a directory that exists; got {bad}"
        line = "flowrt profile: localhost:0: profile: expected 1 to 1000 steps within 3600 s; got 9999"
        main(["profile", server.target, "--steps", "9999", "--out", out])
        assert capsys.readouterr().err.startswith(line)
    finally:
        server.stop()
    assert os.listdir(tmp_path) == []
