"""(19) Wall clocks that jump, stand still or are wrong: deadlines go by the monotonic clock.

The wall clock of a real process is wrong in C as in Python: a library that is preloaded (`wild_clock.c`) says
what time it is. It takes a C compiler.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from pathlib import Path

import pytest

import flowrt as tf
from tests.distribute.processes import ROOT, SOON_S, cluster
from tests.each import daily, nightly

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="the wrong clock is in C: no compiler (cc)")

READERS = {
    "cli/top.py": "what is shown at a time, for people",
    "distribute/observe/process_facts.py": "when the process started, as Prometheus wants it",
    "rendezvous/grpc/health.py": "gRPC takes deadlines of the wall clock, and makes them monotonic at once",
    "distribute/observe/flight_recorder.py": "events for people, and for comparison with other hosts",
    "distribute/wire/clock.py": "how far another task's wall clock is ahead",
    "distribute/wire/peer.py": "the same",
    "distribute/worker/step_trace.py": "traces, aligned by these",
    "device/llvm/code_cache.py": "compared with the times of files",
    "estimator/export_folder.py": "names of exported models, as TensorFlow has them",
    "executor/plan/instance.py": "traces",
    "graph/ops/text/python_calls.py": "the op `timestamp`",
    "train/checkpoints/saver.py": "takes times of files from its caller",
    "summary/event_file.py": "events for people, names of files, and compared with the times of files",
    "summary/run_facts.py": "when a run began, for people",
    "summary/writer.py": "events for people",
    "viz/formats/graph_def.py": "events for people",
}
"""Who may ask what time it is, and for what."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    made = tmp_path_factory.mktemp("clock") / "wild_clock.so"
    source = Path(__file__).with_name("wild_clock.c")
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def wild(library: Path, mode: str) -> Mapping[str, str]:
    """Variables of a process whose wall clock is wrong."""
    return {"LD_PRELOAD": str(library), "WILD_CLOCK": mode}


def options(timeout_s: float) -> tf.RunOptions:
    return tf.RunOptions(timeout_in_ms=int(timeout_s * 1000))


@needs_compiler
def test_the_clock_is_wrong(library: Path) -> None:
    """Else what follows shows nothing."""
    script = "import time\nfor _ in range(40): print(time.time(), time.monotonic()); time.sleep(0.01)"

    def seen(mode: str) -> list[tuple[float, float]]:
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env=wild(library, mode),
            capture_output=True,
            text=True,
            check=True,
        )
        return [(float(wall), float(steady)) for wall, steady in map(str.split, ran.stdout.splitlines())]

    jumps = seen("jumps")
    offsets = {round((wall - steady) / 3600, 1) for wall, steady in jumps}
    assert len(offsets) == 3
    assert max(offsets) - min(offsets) == pytest.approx(2)
    assert len({wall for wall, _ in seen("frozen")}) == 1
    assert seen("ahead")[0][0] - time.time() > 3500
    assert all(later[1] > earlier[1] for earlier, later in pairwise(jumps))


@needs_compiler
@pytest.mark.parametrize(
    ("mode", "kind"),
    daily(product(["jumps", "frozen", "ahead"], ["auto", "grpc"]), lambda *row: row == ("jumps", "grpc")),
)
def test_a_task_with_a_wrong_clock_works_and_is_not_given_up(
    library: Path, mode: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"FLOWRT_HEARTBEAT": "0.2", "FLOWRT_LOST_AFTER": "3", "FLOWRT_TRANSPORT": kind}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    with cluster(1, 1, environ=wild(library, mode)) as tasks, tf.Graph():
        with tf.device("/job:worker/task:1"):
            count = tf.get_variable("count", initializer=0.0)
            add = count.assign_add(tf.placeholder_with_default(1.0, []))
            endless = tf.while_loop(lambda x: x >= 0.0, lambda x: tf.abs(x) + 1.0, [add])
        with tf.Session(tasks.target) as session:
            session.run(count.initializer)
            steps, began = 0, time.monotonic()
            while time.monotonic() - began < 4.0:  # longer than a silent task is believed to live
                session.run(add, options=options(SOON_S))
                steps += 1
                time.sleep(0.01)
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(endless, options=options(0.5))
            assert session.run(count) == steps + 1
        assert not tasks.workers[0].has_ended
        assert tasks.workers[0].status().running_steps == 0


PROGRAM = """
import time
import flowrt as tf
from flowrt.distribute.launch.local_cluster import ReservedPorts

with ReservedPorts(2) as free:
    spec = {"worker": [f"127.0.0.1:{port}" for port in free.ports]}
    servers = [tf.train.Server(spec, "worker", index) for index in range(2)]
    with tf.device("/job:worker/task:1"):
        count = tf.get_variable("count", initializer=0)
        endless = tf.while_loop(lambda x: x >= 0.0, lambda x: tf.abs(x) + 1.0, [0.0])
    with tf.device("/job:worker/task:0"):
        here = tf.identity(count.assign_add(1))
    with tf.Session(servers[0].target, config=tf.ConfigProto(operation_timeout_in_ms=60_000)) as session:
        session.run(count.initializer)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            steps = session.run(here)
        began = time.monotonic()
        try:
            session.run(endless, options=tf.RunOptions(timeout_in_ms=500))
        except tf.errors.DeadlineExceededError:
            print("late", time.monotonic() - began >= 0.5)
        print("all", session.run(count) == steps)
    for server in servers:
        server.stop()
"""


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("mode", nightly(["jumps", "frozen"], 1))
def test_a_program_with_a_wrong_clock_trains(library: Path, mode: str, tmp_path: Path) -> None:
    """The session, its master and a worker."""
    environ = {"PYTHONPATH": str(ROOT), "FLOWRT_HEARTBEAT": "0.2", "FLOWRT_LOST_AFTER": "3"}
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, script],
        env=wild(library, mode) | environ,
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("late True\nall True\n", 0), ran.stderr


def readers() -> Iterator[str]:
    """The modules of flowrt that read the wall clock."""
    for path in sorted((ROOT / "flowrt").rglob("*.py")):
        source = path.read_text()
        if not re.search(
            r"import .*\btime\b|from (date)?time\b", source
        ):  # most files; parsing takes a while
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Attribute(ast.Name("time"), "time" | "time_ns" | "localtime" | "gmtime" | "ctime"):
                    yield path.relative_to(ROOT / "flowrt").as_posix()
                case ast.Attribute(_, "now" | "utcnow" | "today") if "datetime" in ast.unparse(node):
                    yield path.relative_to(ROOT / "flowrt").as_posix()
                case ast.ImportFrom("time", names) if any(n.name in ("time", "time_ns") for n in names):
                    yield path.relative_to(ROOT / "flowrt").as_posix()


def test_only_who_tells_people_the_time_or_looks_at_files_reads_the_wall_clock() -> None:
    assert set(readers()) == set(READERS)
