"""Pipelines, each rank a process: a GPT's training step with Adam, and stages that only sleep.

Stages that sleep use no CPU, so they show the schedule alone: a micro-batch takes `SLEEP_S` forward and twice
that backward, and `formula_s` says how long a step takes if nothing else does. PyTorch's side is
torch.distributed.pipelining.

The CPU time of the GPT's step follows the speed of the host, which other machines share: it differs by half
from one minute to another. Schedules have the same operations, so where one takes more than another, measure
both again in turns before you look for a cause.

As a program, ``python pipelines.py SIDE KIND.SCHEDULE RANK ADDRESSES...``, it is one process.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks import layouts
from benchmarks.inputs import Gpt
from benchmarks.ranks import outcome_of_first
from benchmarks.timing import CHECKED_CALL, Outcome

MICRO_BATCHES = 8
SLEEP_S = 0.02
STEPS = {"gpt": (20, 30), "sleep": (3, 5)}
"""Warm ones, and those that are timed: all processes make as many."""

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zbv": 2}


def formula_s(schedule: str, ranks: int) -> float:
    """The seconds of a step of stages that sleep: Narayanan et al. 2021, section 2.2."""
    each = 3 * SLEEP_S
    return MICRO_BATCHES * each + (ranks - 1) * each / CHUNKS[schedule]


# --- flowrt


def flowrt_step(net: str, schedule: str, rank: int, addresses: Sequence[str]) -> Callable[[], float]:
    import flowrt as tf

    spec = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=rank)
    strategy = tf.distribute.PipelineStrategy(
        tf.distribute.Mesh([("pp", len(addresses))]), "pp", MICRO_BATCHES, schedule, chunks=CHUNKS[schedule],
        cluster_resolver=resolver,
    )  # fmt: skip
    with strategy.scope():
        loss, feed = _flowrt_gpt(tf) if net == "gpt" else _flowrt_sleep(tf, strategy.schedule)
        train = tf.train.AdamOptimizer(1e-3).minimize(loss)
    session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1))
    session.run(tf.global_variables_initializer())
    return lambda: float(session.run([train, loss], feed)[1])


def _flowrt_gpt(tf: Any) -> tuple[Any, dict[Any, Any]]:
    given = tf.placeholder(tf.int64, [Gpt.batch, Gpt.length + 1])
    weights = {name: tf.Variable(value, name=name) for name, value in layouts.parameters().items()}
    return layouts.flowrt_loss(tf, weights, given), {given: layouts.tokens()}


def _flowrt_sleep(tf: Any, schedule: Any) -> tuple[Any, dict[Any, Any]]:
    sleep = _sleep_op()
    x = tf.placeholder(tf.float32, [MICRO_BATCHES, 8])
    h = x
    for stage in range(schedule.stages):
        with tf.distribute.stage(stage):
            w = tf.get_variable(f"w{stage}", [8], initializer=tf.ones_initializer())
            h = sleep(h * w, seconds=SLEEP_S / schedule.chunks)
    return tf.reduce_mean(tf.squared_difference(h, 0.5)), {x: np.ones((MICRO_BATCHES, 8), np.float32)}


@functools.cache
def _sleep_op() -> Any:
    from flowrt.graph.op_def import LINEAR, define_op, sample

    def kernel(xp: Any, x: Any, seconds: float, out: Any = None) -> Any:
        time.sleep(seconds)
        if out is None:
            return x.copy()
        out[...] = x
        return out

    op: Any = define_op(
        "SleepForBenchmark",
        "x: float32 -> float32",
        attrs="seconds: float",
        shape=lambda s: [s.shapes[0]],
        kernel=kernel,
        vjp=lambda op, dy: op.op_def(dy, seconds=2 * op.get_attr("seconds")),
        jvp=LINEAR,
        samples=lambda rng: [sample(rng.random((2, 3)), seconds=0.0)],
        axes="a b -> a b",
        cost=lambda inputs, outputs: 1e9,
        doc="Takes time, but no CPU.",
    )
    return op


# --- PyTorch


def torch_step(net: str, schedule: str, rank: int, addresses: Sequence[str]) -> Callable[[], float]:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, schedules

    torch.set_num_threads(1)
    ranks = len(addresses)
    dist.init_process_group("gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=ranks)
    kind = {
        "gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B,
        "interleaved": schedules.ScheduleInterleaved1F1B, "zbv": schedules.ScheduleZBVZeroBubble,
    }[schedule]  # fmt: skip
    chunks, count = CHUNKS[schedule], ranks * CHUNKS[schedule]
    mine = [rank, count - 1 - rank] if schedule == "zbv" else [rank + i * ranks for i in range(chunks)]
    parts, given, loss_of = (_torch_gpt if net == "gpt" else _torch_sleep)(mine, count, chunks)
    device = torch.device("cpu")
    made = [PipelineStage(part, i, count, device) for i, part in zip(mine, parts, strict=True)]
    runner = kind(made if chunks > 1 else made[0], n_microbatches=MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.Adam([p for part in parts for p in part.parameters()], 1e-3, foreach=False)

    def step() -> float:
        optimizer.zero_grad()
        losses: list[Any] = []
        last = {"target": given[1], "losses": losses} if count - 1 in mine else {}
        runner.step(*([given[0]] if 0 in mine else []), **last)
        optimizer.step()
        total = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.all_reduce(total)
        return float(total)

    return step


def _torch_gpt(mine: Sequence[int], count: int, chunks: int) -> tuple[list[Any], Any, Callable[..., Any]]:
    import torch
    import torch.nn.functional as F

    whole = layouts.torch_model()
    each = Gpt.layers // count

    class Part(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(whole.layers[number * each : (number + 1) * each])
            self.symbols = whole.symbols if number == 0 else None
            self.positions = whole.positions if number == 0 else None
            self.output = whole.output if number == count - 1 else None

        def forward(self, h: Any) -> Any:
            h = h if self.symbols is None else self.symbols[h] + self.positions
            for layer in self.layers:
                h = layer(h)
            return h if self.output is None else h @ self.output

    tokens = torch.tensor(layouts.tokens())

    def loss_of(logits: Any, labels: Any) -> Any:
        return F.cross_entropy(logits.reshape(-1, Gpt.symbols), labels.reshape(-1))

    return [Part(number) for number in mine], (tokens[:, :-1], tokens[:, 1:]), loss_of


def _torch_sleep(mine: Sequence[int], count: int, chunks: int) -> tuple[list[Any], Any, Callable[..., Any]]:
    import torch

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, seconds: float) -> Any:
            ctx.seconds = seconds
            time.sleep(seconds)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *dy: Any) -> Any:
            time.sleep(2 * ctx.seconds)
            return dy[0], None

    class Stage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            return Sleep.apply(x * self.w, SLEEP_S / chunks)

    given = torch.ones(MICRO_BATCHES, 8), torch.full((MICRO_BATCHES, 8), 0.5)
    return [Stage() for _ in mine], given, lambda a, b: ((a - b) ** 2).mean()


# --- processes

STEP_OF = {"flowrt": flowrt_step, "torch": torch_step}


PR_SET_TIMERSLACK = 29


def end_sleeps_on_time() -> None:
    """Linux ends sleeps up to 50 us late, so that processors wake less often; not those of this thread and of
    threads that it starts. The formula knows of no such time.
    """
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def run_process(side: str, name: str, rank: int, addresses: Sequence[str]) -> Outcome:
    """The seconds of a step, the CPU time that it takes this rank, and the loss of the third step. Both sides
    add their epsilon to Adam's root in different places, so losses agree to four digits.
    """
    net, schedule = name.split(".")
    if net == "sleep":
        end_sleeps_on_time()
    step, losses, times = STEP_OF[side](net, schedule, rank, addresses), [], []
    warm, timed = STEPS[net]
    used = 0.0
    for number in range(warm + timed):
        if number == warm:
            used = time.process_time()
        start = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - start)
    seconds = {"step": median(times[warm:]), "cpu": (time.process_time() - used) / timed}
    if net == "sleep":
        seconds["beyond_formula"] = seconds["step"] - formula_s(schedule, len(addresses))
    return Outcome(seconds, losses[CHECKED_CALL - 1])


def _case(net: str, schedule: str, ranks: int) -> Callable[[str], Outcome]:
    def case(side: str) -> Outcome:
        return outcome_of_first(__file__, side, f"{net}.{schedule}", ranks)

    what = "A GPT" if net == "gpt" else "Stages that sleep"
    case.__name__ = f"pipeline_{net}_{schedule}_{ranks}"
    case.__doc__ = f"{what} on {ranks} ranks by {schedule}, {MICRO_BATCHES} micro-batches."
    return case


_ALL = [
    *[_case("gpt", schedule, 2) for schedule in CHUNKS],
    *[_case("sleep", schedule, ranks) for ranks in (2, 4) for schedule in ("gpipe", "1f1b", "interleaved")],
]
CASES: dict[str, Callable[[str], Outcome]] = {case.__name__: case for case in _ALL}

if __name__ == "__main__":
    print(json.dumps(run_process(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])), flush=True)
