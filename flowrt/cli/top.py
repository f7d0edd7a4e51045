"""``flowrt top grpc://HOST:PORT``: the work of the tasks of a running cluster, read again and again."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from flowrt.cli.watching import add_target, watch_cluster
from flowrt.distribute.launch.cluster_watch import ClusterWatch
from flowrt.distribute.observe.cluster_view import Reading, TaskView, read_metrics, view
from flowrt.distribute.wire.messages import Message
from flowrt.errors import OpError, UnavailableError
from flowrt.profiler.text_table import aligned, size_text
from flowrt.protos import cluster_pb2 as pb

EXAMPLES = """
  flowrt top grpc://10.0.0.1:2222                  a table, every two seconds
  flowrt top grpc://10.0.0.1:2222 --once --json    one reading, for a program
"""
ANSWER_S = 2.0
"""Time for a task to answer; one that is stopped does not."""
HEADINGS = (
    "task", "steps/s", "step", "oldest", "waits for", "collectives", "sent/s", "received/s", "memory",
    "devices", "cpu", "",
)  # fmt: skip
_CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=2.0,
        metavar="S",
        help="seconds between two readings (default: 2)",
    )
    parser.add_argument("--once", action="store_true", help="print one table, of the first interval, and end")
    parser.add_argument("--json", action="store_true", help="print a JSON object a reading, one a line")


def run(arguments: argparse.Namespace) -> int:
    return watch_cluster("top", arguments.target, lambda watch: _show(watch, arguments))


def _show(watch: ClusterWatch, arguments: argparse.Namespace) -> int:
    before = _read(watch)
    while True:
        time.sleep(arguments.interval)
        now = _read(watch)
        if all(isinstance(each, str) for each in now.values()):
            raise UnavailableError(f"no task answers any more. {next(iter(now.values()))}")
        tasks = view({task: each for task, each in before.items() if isinstance(each, Reading)}, now)
        if arguments.json:
            print(json.dumps({"time": time.time(), "tasks": [asdict(each) for each in tasks]}), flush=True)
        else:
            clear = _CLEAR if sys.stdout.isatty() and not arguments.once else ""
            print(clear + "\n".join(lines(arguments.target, tasks)), flush=True)
        if arguments.once:
            return 0
        before = now


def _read(watch: ClusterWatch) -> dict[str, Reading | str]:
    """The reading of each task, or the reason why there is none."""
    answers = watch.ask(Message(pb.GetMetrics()), ANSWER_S)
    return {
        task: answer.message if isinstance(answer, OpError) else read_metrics(answer.body)
        for task, answer in answers.items()
    }


def lines(target: str, tasks: Sequence[TaskView]) -> list[str]:
    """The table: a line a task, and below it the reasons why tasks do not answer."""
    answering = [each for each in tasks if not each.error]
    stragglers = [each.task for each in tasks if each.is_straggler]
    head = f"{target}: {len(tasks)} task{'s' * (len(tasks) != 1)}"
    if len(answering) < len(tasks):
        head += f", {len(tasks) - len(answering)} without an answer"
    if stragglers:
        head += f"; the others wait for {', '.join(stragglers)}"
    table = aligned([HEADINGS, *map(_line, tasks)])
    return [head, *table, *(f"{each.task}: {each.error}" for each in tasks if each.error)]


def _line(each: TaskView) -> list[str]:
    """One task under `HEADINGS`."""
    if each.error:
        return [each.task, *["-"] * (len(HEADINGS) - 2), each.state]
    peer, share = max(each.waits.items(), key=lambda wait: wait[1], default=("", 0.0))
    devices = [
        f"{name} {size_text(memory.in_use)}" + (f" of {size_text(memory.limit)}" if memory.limit else "")
        for name, memory in each.devices.items()
    ]
    marks = [each.state] if each.state != "ok" else []
    marks += [f"straggler, {each.delay:.0%}"] if each.is_straggler else []
    marks += [f"{each.failed_per_s:.2g} failed/s"] if each.failed_per_s else []
    return [
        each.task,
        _number(each.steps_per_s),
        "-" if each.step_s is None else _time(each.step_s),
        _time(each.oldest_step_s) if each.running_steps else "-",
        f"{peer} {share:.0%}" if share >= 0.005 else "-",
        f"{each.collective_share:.0%}" if each.collective_share else "-",
        "-" if each.sent_bytes_per_s is None else size_text(each.sent_bytes_per_s),
        "-" if each.received_bytes_per_s is None else size_text(each.received_bytes_per_s),
        size_text(each.resident_bytes),
        ", ".join(devices),
        "-" if each.cpu_share is None else f"{each.cpu_share:.0%}",
        ", ".join(marks),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _time(seconds: float) -> str:
    """``350 us``, ``12.5 ms``, ``3.2 s``."""
    for scale, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.1 to 3600; got {text}")
    return seconds
