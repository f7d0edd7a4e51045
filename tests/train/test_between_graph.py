"""Between-graph replication in processes, as its users start them; a worker that is killed rejoins."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import flowrt as tf
from flowrt.train import MonitoredTrainingSession
from tests.train.counting_job import between_graph, filters
from tests.train.server_process import ROOT, free_cluster, server_process

END_S = 60.0
SCRIPT = ROOT / "tests" / "scripts" / "cluster" / "between_graph.py"


@contextmanager
def running(*command: object) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, *map(str, command)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=END_S)


def test_a_script_of_three_processes_trains_to_its_last_step(tmp_path):
    steps = 100
    with free_cluster(ps=1, worker=2) as cluster, ExitStack() as stack:
        hosts = [f"--ps_hosts={cluster['ps'][0]}", f"--worker_hosts={','.join(cluster['worker'])}"]
        options = [*hosts, f"--train_dir={tmp_path}", f"--train_steps={steps}"]

        def start(job, index):
            task = [f"--job_name={job}", f"--task_index={index}"]
            return stack.enter_context(running(SCRIPT, *task, *options))

        start("ps", 0)
        workers = [start("worker", index) for index in range(2)]
        printed = [worker.communicate(timeout=END_S)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0]
    runs = [int(re.search(r"made (\d+) runs", text)[1]) for text in printed]
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", printed[0])]
    assert steps <= sum(runs) <= steps + 2  # two may begin before the last step and see its end in their next
    assert steps <= tf.train.load_variable(str(tmp_path), "global_step") <= sum(runs)
    assert losses[-1] < losses[0] / 10


@pytest.mark.slow
def test_a_killed_worker_rejoins_and_the_chief_does_not_notice():
    """SIGKILL of worker 1, a second life at the same port; each step that it has told of counts once."""
    with free_cluster(ps=1, worker=2) as cluster, server_process(cluster, "ps", 0):
        server = tf.train.Server(cluster, "worker", 0)
        op, total = between_graph(cluster, 0)
        counted, lives = 0, []
        try:
            with MonitoredTrainingSession(server.target, config=filters(0), max_wait_secs=END_S) as session:
                for _ in range(2):
                    with running("-m", "tests.train.counting_job", json.dumps(cluster), 1) as worker:
                        lives.append(lines := [])
                        reader = threading.Thread(target=lines.extend, args=(worker.stdout,))
                        reader.start()
                        end = time.monotonic() + END_S
                        while len(lines) < 3 and time.monotonic() < end:
                            session.run(op)
                            counted += 1
                        worker.kill()
                        reader.join(END_S)
                    for _ in range(5):
                        session.run(op)
                        counted += 1
                found = session.run(total)
        finally:
            server.stop()
    told = sum(map(len, lives))
    assert [len(lines) >= 3 for lines in lives] == [True, True]
    assert counted + told <= found <= counted + told + len(lives)  # a step that it did not live to tell of
