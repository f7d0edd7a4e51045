"""A job that loses a worker every 20 s: ``python -m benchmarks.elastic --seconds 300 [--torch PYTHON]``.

Four workers train a small network by data parallelism. One of them, drawn at random, is killed every
`KILL_S` seconds; ``flowrt-run`` starts it again, and it comes back after a random time. Beside it torchrun's
DDP, which starts all workers again after each loss, from the newest snapshot. Printed, as Markdown: how long
each change took, how often each record counted, and the final loss beside that of an undisturbed run; of a
job that takes more than `SLOWER` times as long as its pauses, how far it came.

``elastic.py worker SIDE FOLDER STEPS PAUSE_S`` is a worker. It writes a line a step to ``FOLDER/steps``, by
the clock that all processes of a host share.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

WORKERS, KILL_S, BACK_S = 4, 20.0, 10.0
"""A killed worker comes back within `BACK_S` seconds."""
PAUSE_S = 0.1
"""Pause of each worker after a step: the job lasts for about as long as it is disturbed."""
SIZES, RECORDS, BATCH = (64, 128, 10), 2400, 240
RATE, MOMENTUM = 0.05, 0.9
SNAPSHOT_STEPS = 10
"""Steps between two snapshots of PyTorch's side. flowrt commits each step, in memory."""
TARGET_S = 3.0
SLOWER = 2.0
"""A job that takes so many times as long as its pauses is given up, where it is by then."""
ENVIRON = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""The store that torchrun's workers share with it keeps the addresses of dead ones, at which those that are
started again fail, for minutes (pytorch/pytorch#135712). So each start has a store of its own.
"""
LIMIT_S = 120.0
"""Time for a start, and for an end that nobody disturbs."""


# --- the work


def data() -> tuple[Any, Any, list[Any]]:
    """Rows, labels, and the weights before the first step."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((RECORDS, SIZES[0]))
    labels = np.argmax(rows @ rng.standard_normal((SIZES[0], SIZES[-1])), axis=1)
    return rows, labels, [0.1 * rng.standard_normal(shape) for shape in itertools.pairwise(SIZES)]


def loss_of(weights: Sequence[Any]) -> float:
    """Mean over all records."""
    rows, labels, _ = data()
    logits = np.maximum(rows @ weights[0], 0.0) @ weights[1]
    logits -= logits.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(RECORDS), labels]))


class StepLog:
    """Appends a line a step: when, which, in which membership epoch, by which process."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._file = os.open(folder / "steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._epoch = epoch

    def write(self, step: int) -> None:
        os.write(self._file, f"{time.monotonic():.6f} {step} {self._epoch} {os.getpid()}\n".encode())


def save(folder: Path, weights: Sequence[Any], seen: Any) -> None:
    part = folder / f"result.{os.getpid()}.npz"
    np.savez(part, *weights, seen=seen)
    part.rename(folder / "result.npz")


def flowrt_worker(folder: Path, steps: int, pause_s: float) -> None:
    import flowrt as tf

    if int(os.environ.get("RESTART_COUNT", "0")):
        time.sleep(random.uniform(0.0, BACK_S))
    rows, labels, before = data()

    def train(job: Any) -> list[Any]:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        records = tf.data.Dataset.from_tensor_slices((rows, labels, np.arange(RECORDS)))
        with strategy.scope():
            step = tf.train.get_or_create_global_step()
            weights = [tf.get_variable(f"w{i}", initializer=w) for i, w in enumerate(before)]
            seen = tf.get_variable(
                "seen", initializer=np.zeros(RECORDS), trainable=False, aggregation=tf.VariableAggregation.SUM
            )
            optimizer = tf.train.MomentumOptimizer(RATE, MOMENTUM)
        shuffled = records.shuffle(RECORDS, seed=3).repeat().batch(BATCH, drop_remainder=True)
        iterator = job.distribute(strategy, shuffled).make_initializable_iterator()

        def one_step(batch: Any) -> Any:
            x, y, numbers = batch
            logits = tf.matmul(tf.nn.relu(tf.matmul(x, weights[0])), weights[1])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_sum(losses) / BATCH
            counts = tf.reduce_sum(tf.one_hot(numbers, RECORDS, dtype=tf.float64), 0)
            updates = [optimizer.minimize(loss, global_step=step), seen.assign_add(counts)]
            with tf.control_dependencies(updates):
                return tf.identity(loss)

        loss = strategy.reduce("SUM", strategy.run(one_step, args=(iterator.get_next(),)), axis=None)
        local = tf.train.Scaffold.default_local_init_op()
        scaffold = tf.train.Scaffold(local_init_op=tf.group(local, iterator.initializer))
        log, at = StepLog(folder, job.epoch), job.step
        with job.session([tf.train.StopAtStepHook(last_step=steps)], scaffold=scaffold) as session:
            while not session.should_stop():
                session.run(loss)
                log.write(at := at + 1)
                time.sleep(pause_s)
            found = session.run_step_fn(lambda step_context: step_context.session.run([*weights, seen]))
        return [np.asarray(value) for value in found]

    *weights, seen = tf.train.run_elastic(train)
    save(folder, weights, seen)


def torch_worker(folder: Path, steps: int, pause_s: float) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))  # by default half an hour
    rank, size = dist.get_rank(), dist.get_world_size()
    rows, labels, before = data()
    x, y = torch.tensor(rows), torch.tensor(labels)
    layers = [torch.nn.Linear(*shape, bias=False, dtype=torch.float64) for shape in itertools.pairwise(SIZES)]
    for layer, weight in zip(layers, before, strict=True):
        layer.weight.data = torch.tensor(weight.T.copy())
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    optimizer = torch.optim.SGD(network.parameters(), RATE, MOMENTUM)
    seen, at, snapshot = np.zeros(RECORDS), 0, folder / "snapshot"
    if snapshot.exists():
        kept = torch.load(snapshot, weights_only=False)
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
        seen, at = kept["seen"], kept["step"]
    model = DistributedDataParallel(network)
    log = StepLog(folder, int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1)
    steps_a_pass, share = RECORDS // BATCH, BATCH // size
    while at < steps:
        order = np.random.default_rng(at // steps_a_pass).permutation(RECORDS)
        batch = order[at % steps_a_pass * BATCH :][:BATCH]
        own = batch[rank * share :][:share]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[own]), y[own], reduction="sum") * size / BATCH
        loss.backward()
        optimizer.step()
        seen[batch] += 1
        log.write(at := at + 1)
        if rank == 0 and at % SNAPSHOT_STEPS == 0:
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "seen": seen, "step": at}, folder / "snapshot.part")
            (folder / "snapshot.part").rename(snapshot)
        time.sleep(pause_s)
    if rank == 0:
        save(folder, [layer.weight.data.numpy().T for layer in layers], seen)
    dist.destroy_process_group()


SIDES: dict[str, Callable[[Path, int, float], None]] = {"flowrt": flowrt_worker, "torch": torch_worker}


# --- the disturbance


class Step(NamedTuple):
    """``number`` ended at ``at``, in the membership epoch ``epoch``, in the process ``pid``."""

    at: float
    number: int
    epoch: int
    pid: int


class Result(NamedTuple):
    """The loss after a job, and how often each record counted."""

    loss: float
    seen: Any


class Ran(NamedTuple):
    """A job: its steps in order, when workers were killed, and how long it took; None: it was given up."""

    steps: list[Step]
    kills: list[float]
    seconds: float
    result: Result | None


class Change(NamedTuple):
    """The group ``epoch`` began: ``seconds`` without a step, since the kill that caused it or, if none did,
    since the last step of the one before.
    """

    epoch: int
    seconds: float
    is_kill: bool


def command_of(side: str, python: str, workers: int) -> list[str]:
    """The launcher, without the script."""
    if side == "flowrt":
        words = ["-m", "flowrt.cli.run", "--standalone", "--nproc", f"1:{workers}", "--max-restarts", "1000"]
    else:
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        words += ["--max-restarts", "1000"]
    return [python, *words]


def run(side: str, python: str, steps: int, workers: int, kill_s: float | None, seed: int) -> Ran:
    """The job of ``steps``, with a worker killed every ``kill_s`` seconds until it ends or is given up; None:
    undisturbed, without pauses. Raises RuntimeError if it fails.
    """
    kills = list[float]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [__file__, "worker", side, name, str(steps), str(0.0 if kill_s is None else PAUSE_S)]
        root = str(Path(__file__).resolve().parent.parent)
        environ = {**os.environ, **ENVIRON, "PYTHONPATH": root}
        began = time.monotonic()
        with (folder / "output").open("w") as output:
            job = subprocess.Popen(
                [*command_of(side, python, workers), *words], stdout=output, stderr=output, env=environ
            )
        try:
            _wait(lambda: job.poll() is not None or steps_of(folder), LIMIT_S, "the first step")
            if kill_s is None:
                _wait(lambda: job.poll() is not None, LIMIT_S + steps, "the end")
            else:
                kills = _disturb(job, folder, kill_s, began + LIMIT_S + SLOWER * steps * PAUSE_S, seed)
            seconds, was_given_up = time.monotonic() - began, job.poll() is None
        finally:
            job.terminate()
            job.wait(LIMIT_S)
        if was_given_up:
            return Ran(steps_of(folder), kills, seconds, None)
        if job.returncode != 0:
            raise RuntimeError(
                f"{side}: ended with {job.returncode}: {(folder / 'output').read_text()[-2000:]}"
            )
        with np.load(folder / "result.npz") as result:
            weights = [result[f"arr_{i}"] for i in range(len(SIZES) - 1)]
            return Ran(steps_of(folder), kills, seconds, Result(loss_of(weights), result["seen"]))


def _disturb(
    job: subprocess.Popen[bytes], folder: Path, kill_s: float, until: float, seed: int
) -> list[float]:
    """Kill a worker every ``kill_s`` seconds, until the job ends or the time ``until``; returns when."""
    rng, kills = random.Random(seed), list[float]()
    while time.monotonic() < until and not _ends_within(job, kill_s):
        if (pid := _victim(folder, rng)) is not None:
            kills.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)
    return kills


def _ends_within(job: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        job.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _wait(is_done: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > end:
            raise RuntimeError(f"expected {what} within {seconds:g} s")
        time.sleep(0.05)


def _victim(folder: Path, rng: random.Random) -> int | None:
    """A process that made one of the last steps, unless it is the last that lives: it has the state."""
    last = steps_of(folder)[-WORKERS:]
    alive = sorted({step.pid for step in last if Path(f"/proc/{step.pid}").exists()})
    return rng.choice(alive) if len(alive) > 1 else None


def steps_of(folder: Path) -> list[Step]:
    path = folder / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(Step(float(line.split()[0]), *map(int, line.split()[1:])) for line in lines)


def changes_of(ran: Ran) -> list[Change]:
    """One for each membership epoch with a step, but the first. A kill belongs to the next epoch that makes
    one: two before it are one change.
    """
    first: dict[int, float] = {}
    for step in ran.steps:
        first.setdefault(step.epoch, step.at)
    changes, begins = list[Change](), sorted(first.items())
    for (before, since), (epoch, at) in itertools.pairwise(begins):
        killed = [kill for kill in ran.kills if since < kill < at]
        last = max(step.at for step in ran.steps if step.epoch == before and step.at < at)
        changes.append(Change(epoch, at - (killed[0] if killed else last), bool(killed)))
    return changes


# --- the report


def lines_of(disturbed: Ran, calm: Sequence[Ran], steps: int) -> Iterator[str]:
    """A column of the table, line by line."""
    changes = changes_of(disturbed)
    kills = [change.seconds for change in changes if change.is_kill]
    comers = [change.seconds for change in changes if not change.is_kill]
    epochs = {(step.number, step.epoch) for step in disturbed.steps}
    again = len(epochs) - len({number for number, _ in epochs})
    yield f"{len(disturbed.kills)}"
    yield _times(kills)
    yield _times(comers)
    yield f"{again}"
    if disturbed.result is None:
        yield from ("-", "-")
    else:
        wrong = int(np.sum(disturbed.result.seen != steps * BATCH / RECORDS))
        yield f"{wrong} of {RECORDS}"
        yield f"{disturbed.result.loss:.9f}"
    losses = [ran.result.loss for ran in calm if ran.result]
    yield f"{losses[0]:.9f}; {max(losses) - min(losses):.1e}"
    yield f"{max(step.number for step in disturbed.steps)} of {steps}"
    yield f"{disturbed.seconds:.0f} s{', then given up' * (disturbed.result is None)}"


ROWS = (
    "workers killed", "from the kill to the next step", "pause when a worker comes", "steps made again",
    "records that counted more or less often", "final loss", "undisturbed, and by how much two runs differ",
    "steps made", "whole job",
)  # fmt: skip


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"{median(seconds):.2f} s, at most {max(seconds):.2f}"


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["worker"]:
        _, side, folder, steps, pause_s = arguments
        SIDES[side](Path(folder), int(steps), float(pause_s))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long each job lasts, about")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with PyTorch: its job, too")
    parser.add_argument("--seed", type=int, default=1, help="which workers are killed")
    options = parser.parse_args(arguments)
    passes = max(1, round(options.seconds / PAUSE_S / 1.2 * BATCH / RECORDS))
    steps = passes * (RECORDS // BATCH)
    sides = {"flowrt": sys.executable} | ({"torch": options.torch} if options.torch else {})
    print(f"seed {options.seed}, {steps} steps, load {os.getloadavg()[0]:.1f}", flush=True)
    columns = []
    for side, python in sides.items():
        try:
            calm = [run(side, python, steps, workers, None, 0) for workers in (WORKERS, 1)]
            disturbed = run(side, python, steps, WORKERS, KILL_S, options.seed)
        except RuntimeError as error:
            print(f"failed: {error}", flush=True)
            columns.append(["failed"] * len(ROWS))
            continue
        columns.append(list(lines_of(disturbed, calm, steps)))
        for change in changes_of(disturbed):
            print(f"{side}: epoch {change.epoch} after {change.seconds:.2f} s{' (kill)' * change.is_kill}")
        for title, cell in zip(ROWS, columns[-1], strict=True):  # the other side may take long, or not end
            print(f"{side}: {title}: {cell}", flush=True)
    print(f"| | {' | '.join(sides)} |\n|---|{'---|' * len(sides)}")
    for title, *cells in zip(ROWS, *columns, strict=True):
        print(f"| {title} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
