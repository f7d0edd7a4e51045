"""``flowrt profile grpc://HOST:PORT``: a timeline of the next steps of a running cluster, and their costs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from flowrt.cli.options import positive
from flowrt.cli.watching import add_target, watch_cluster
from flowrt.distribute.launch.cluster_watch import ClusterWatch
from flowrt.distribute.observe.metrics import short_task
from flowrt.distribute.wire.messages import Message
from flowrt.errors import DeadlineExceededError, InvalidArgumentError, OpError
from flowrt.profiler.profile import Profiler
from flowrt.profiler.steps import read_step
from flowrt.profiler.text_table import aligned
from flowrt.profiler.timeline import Timeline
from flowrt.protos import cluster_pb2 as pb
from flowrt.protos.step_stats_pb2 import RunMetadata, StepStats

EXAMPLES = """
  flowrt profile grpc://10.0.0.1:2222 --steps 10 --out steps.json    open it in Perfetto
"""
ANSWER_S = 10.0
"""Time for the answers after the last step."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "--steps", type=positive, default=10, metavar="N", help="steps of each task (default: 10)"
    )
    parser.add_argument(
        "--timeout", type=positive, default=60, metavar="S",
        help="end after S seconds, with the steps that there are (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("profile.json"), metavar="FILE",
        help="timeline for Perfetto or chrome://tracing (default: profile.json)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    return watch_cluster("profile", arguments.target, lambda watch: _profile(watch, arguments))


def _profile(watch: ClusterWatch, arguments: argparse.Namespace) -> int:
    out, asked = arguments.out, pb.ProfileSteps(steps=arguments.steps, timeout_ms=1000 * arguments.timeout)
    if out.is_dir() or not out.parent.is_dir():
        raise InvalidArgumentError(f"expected a file in a directory that exists; got {out}")
    answers = watch.ask(Message(asked), arguments.timeout + ANSWER_S)
    told = {task: answer for task, answer in answers.items() if not isinstance(answer, OpError)}
    for task, answer in answers.items():
        if isinstance(answer, OpError):
            print(f"flowrt profile: {short_task(task)}: {' '.join(str(answer).split())}", file=sys.stderr)
    steps = merged(told.values())
    if not steps:
        raise DeadlineExceededError(
            f"expected steps within {arguments.timeout} s; no task ran one to its end"
        )
    _write(out, Timeline(list(steps.values())).generate_chrome_trace_format())
    for line in lines(told, steps):
        print(line)
    print(f"{out}: open it at ui.perfetto.dev or chrome://tracing")
    return 0


def merged(answers: Iterable[Message]) -> dict[int, StepStats]:
    """Each step's ``StepStats``, of all tasks with a part in it, in the order of their beginnings."""
    by_step: dict[int, StepStats] = {}
    for answer in answers:
        for step, encoded in zip(answer.body.steps, answer.tensors, strict=True):
            by_step.setdefault(step, StepStats()).MergeFromString(encoded.tobytes())
    return dict(sorted(by_step.items(), key=lambda item: read_step(item[1]).start))


def whole(answers: Iterable[Message], steps: Iterable[int]) -> list[int]:
    """The members of ``steps``, in order, that every task has traced if it has a part in them: one that
    traced its first step later than the others, or its last one sooner, lacks some. All of them if there are
    none.
    """
    ordered = list(steps)
    places = {step: place for place, step in enumerate(ordered)}
    traced = [[places[step] for step in answer.body.steps] for answer in answers if answer.body.steps]
    return ordered[max(map(min, traced)) : min(map(max, traced)) + 1] or ordered


def lines(told: Mapping[str, Message], steps: Mapping[int, StepStats]) -> list[str]:
    """The steps of each task with the mean time of its part, and the operations of all by their time."""
    rows = []
    for task, answer in told.items():
        parts = [read_step(StepStats.FromString(each.tobytes())) for each in answer.tensors]
        seconds = [(part.end - part.start) / 1e9 for part in parts if part.operations]
        mean = f"{1000 * sum(seconds) / len(seconds):.3g} ms each" if seconds else ""
        rows.append([short_task(task), f"{len(parts)} steps", mean])
    profiler = Profiler()
    for number, step in enumerate(whole(told.values(), steps)):
        profiler.add_step(number, RunMetadata(step_stats=steps[step]))
    return [*aligned(sorted(rows)), "", str(profiler.profile_operations({"output": "none"})), ""]


def _write(out: Path, text: str) -> None:
    """Write the file whole or not at all. Raises OSError."""
    partial = out.with_name(f"{out.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
