"""How soon a cluster names a task that died: ``python -m benchmarks.detection``. Three of four workers have a
step that needs the last one; that is killed or, in another run, stopped. Prints when the survivors failed,
and how long 16 workers take to start.

``python -m benchmarks.detection survivor INDEX ADDRESSES...`` is a worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import flowrt as tf
from benchmarks.cluster import reserve_addresses

WORKERS, MANY = 4, 16
TARGETS_S = {signal.SIGKILL: "at most 1 s", signal.SIGSTOP: "10 +- 2 s"}
START_TARGET_S = 15.0


class Noticed(NamedTuple):
    """``error`` of a survivor's step, ``seconds`` after the last worker was killed or stopped."""

    worker: int
    seconds: float
    error: str


def survive(index: int, addresses: Sequence[str]) -> None:
    """Be a worker: say when the step runs, and when and why it failed. The last one only serves."""
    victim = len(addresses) - 1
    server = tf.train.Server({"worker": list(addresses)}, "worker", index)
    if index == victim:
        print("ready", flush=True)
        server.join()
        return
    with tf.device(f"/job:worker/task:{victim}"):
        endless = tf.while_loop(lambda x: x >= 0.0, lambda x: tf.abs(x) + 1.0, [0.0])
    with tf.device(f"/job:worker/task:{index}"):
        here = tf.identity(endless) + 1.0
    with tf.Session(server.target) as session:
        session.run(tf.constant(1.0))
        print("ready", flush=True)
        try:
            session.run(here, options=tf.RunOptions(timeout_in_ms=60_000))
        except tf.errors.OpError as error:
            print(json.dumps([time.monotonic(), str(error)]), flush=True)
    os._exit(0)  # nobody is left to say goodbye to


def measure(number: signal.Signals, workers: int = WORKERS) -> list[Noticed]:
    """What the survivors said after the last worker got the signal ``number``."""
    with ExitStack() as stack:
        addresses = reserve_addresses(workers, stack)
        processes = [_start(stack, "survivor", str(index), *addresses) for index in range(workers)]
        for process in processes:
            assert _line_of(process) == "ready\n"
        _wait_for_steps(addresses[-1], workers - 1)
        done = time.monotonic()
        processes[-1].send_signal(number)
        said = [json.loads(_line_of(process)) for process in processes[:-1]]
        return [Noticed(index, at - done, error) for index, (at, error) in enumerate(said)]


def _start(stack: ExitStack, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.detection", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _wait_for_steps(address: str, number: int) -> None:
    """Until so many steps run in the task."""
    from tests.distribute.processes import status_of

    while status_of(address).running_steps < number:
        time.sleep(0.02)


class Started(NamedTuple):
    """What the start of a cluster took, until the last worker had made a step that reaches all: seconds, and
    those of the processor.
    """

    wall_s: float
    cpu_s: float


STARTING = """
import os, sys, time
from pathlib import Path

import flowrt as tf
from flowrt.distribute.resolvers import resolve

cluster = resolve(os.environ)
server = tf.train.Server(cluster.spec, cluster.job, cluster.task)
count = cluster.spec.num_tasks(cluster.job)
ones = []
for task in range(count):
    with tf.device(f"/job:{cluster.job}/task:{task}"):
        ones.append(tf.random_uniform([]))
with tf.device(f"/job:{cluster.job}/task:{cluster.task}"):
    total = tf.add_n(ones)
with tf.Session(server.target) as session:
    session.run(total)
    Path(sys.argv[1], str(cluster.task)).touch()
    while len(os.listdir(sys.argv[1])) < count:
        time.sleep(0.1)
server.drain(5.0)
"""


def start(workers: int = MANY) -> Started:
    """Start ``workers`` tasks by ``flowrt-run``, each of which makes a step with all others."""
    with tempfile.TemporaryDirectory() as folder:
        script, arrived = Path(folder, "starting.py"), Path(folder, "arrived")
        script.write_text(STARTING)
        arrived.mkdir()
        began = time.monotonic()
        command = [sys.executable, "-m", "flowrt.cli.run", "--standalone", "--nproc", str(workers)]
        with subprocess.Popen([*command, str(script), str(arrived)], stdout=subprocess.DEVNULL) as process:
            while len(os.listdir(arrived)) < workers:
                if process.poll() is not None:
                    raise RuntimeError(f"flowrt-run ended with {process.returncode}")
                time.sleep(0.05)
            wall_s = time.monotonic() - began
            cpu_s = sum(map(_cpu_s, _family(process.pid)))
        return Started(wall_s, cpu_s)


def _family(pid: int) -> list[int]:
    """The process and its children, grandchildren and so on."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _family(int(child)))]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines() -> Iterator[str]:
    """Markdown."""
    yield "| fault | worker 0 | worker 1 | worker 2 | target |"
    yield "|---|---|---|---|---|"
    for number, target in TARGETS_S.items():
        times = [f"{each.seconds:.2f} s" for each in measure(number)]
        yield f"| {number.name} | {' | '.join(times)} | {target} |"
    wall_s, cpu_s = start()
    yield ""
    yield (
        f"{MANY} workers started in {wall_s:.1f} s (target on 2 quiet cores: {START_TARGET_S:g} s), with "
        f"{cpu_s:.1f} s of the processor"
    )


def main(arguments: Sequence[str]) -> int:
    if arguments:
        _, index, *addresses = arguments
        survive(int(index), addresses)
        return 0
    print(f"load {os.getloadavg()[0]:.1f} before the run, {len(os.sched_getaffinity(0))} cores")
    for line in lines():
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
