"""``flowrt plan``: what to run where, and how long a step takes, on a cluster that is only described."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from flowrt.cli.options import positive, report_mistake
from flowrt.errors import InvalidArgumentError, OpError, nearest
from flowrt.plan.cluster.cluster_file import MAX_DEVICES, Cluster, DeviceKind, read_cluster, this_host
from flowrt.plan.explain import estimates_text, explain, scaling_text
from flowrt.plan.plan_file import Plan, variables_of, write_plan
from flowrt.plan.stage_search import REPLAYED
from flowrt.plan.step.recorded import record
from flowrt.plan.task import Task, costs_of
from flowrt.plan.what_if import if_devices_fail, if_workers_are_late

HELP = "find what to run where for a script's training step, and how long it takes"
FIXED = ("dp", "tp", "pp", "micro_batches")
CORE = DeviceKind("core", {"float32": 60e9, "float64": 30e9}, 4 << 30, 10e9, {"float32": 0.7, "float64": 0.7})
"""A core of a host, unless it is measured."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SCRIPT", help="a script that trains a model in the default graph, for one device")
    add("--cluster", metavar="FILE", help="the devices and links, such as examples/clusters/gpus_64.toml")
    add(
        "--processes", type=positive, metavar="N",
        help="without --cluster: processes of this host (default: 2)",
    )  # fmt: skip
    add(
        "--fix", action="append", default=[], metavar="NAME=N",
        help=f"a size that is given: {', '.join(FIXED)}; repeatable",
    )  # fmt: skip
    add("--measure", action="store_true", help="measure the step's operations on this device first")
    add("--memory", action="store_true", help="show the bytes of a device for all choices, not only the best")
    add("--sweep", metavar="devices=A..B", help="show how the step scales from A to B devices")
    add("--device-hours", type=float, metavar="H", help="what if a device fails every H hours on average")
    add("--checkpoint-s", type=float, default=60.0, metavar="S", help="seconds of a checkpoint (default: 60)")
    add("--late-ms", type=float, metavar="MS", help="what if workers are late by MS on average")
    add("--json", metavar="FILE", help="write the plan, for tf.distribute.AutoStrategy(FILE)")
    add("--top", type=positive, default=REPLAYED, metavar="K", help=f"choices to play (default: {REPLAYED})")
    parser.epilog = "Arguments after -- are passed to the script, which is left at its first training step."


def run(arguments: argparse.Namespace) -> int:
    try:
        print("\n".join(_lines(arguments)))
    except OpError as error:
        return report_mistake("plan", error.message)
    return 0


def _lines(arguments: argparse.Namespace) -> list[str]:
    fixed, sizes = _fixed(arguments.fix), _sizes(arguments.sweep)
    if arguments.json and (sizes or arguments.memory):
        raise InvalidArgumentError("--json: expected a plan to write; --sweep and --memory choose none")
    cluster = _cluster(arguments)
    recorded = record(arguments.source, arguments.script_arguments)
    task = Task(recorded, cluster, costs_of(recorded, cluster, arguments.measure), fixed)
    if sizes:
        return scaling_text(task.sweep(sizes))
    if arguments.memory:
        found = task.estimates()
        return estimates_text(sorted([*found.fitting, *found.too_large], key=lambda each: each.nbytes))
    planned = task.planned(arguments.top)
    if arguments.json:
        write_plan(arguments.json, Plan(planned.best.choice, variables_of(recorded), arguments.source))
    lines = explain(planned, task.machine, recorded.samples)
    if arguments.device_hours is not None:
        lines += if_devices_fail(planned.best, arguments.device_hours, arguments.checkpoint_s)
    if arguments.late_ms is not None:
        lines += if_workers_are_late(planned.best, arguments.late_ms / 1000)
    return lines


def _cluster(arguments: argparse.Namespace) -> Cluster:
    if not arguments.cluster:
        return this_host(arguments.processes or 2, CORE)
    if arguments.processes or arguments.measure:
        name = "--processes" if arguments.processes else "--measure"
        raise InvalidArgumentError(f"{name}: expected it without --cluster, as it is of this host")
    return read_cluster(arguments.cluster)


def _fixed(words: Sequence[str]) -> dict[str, int]:
    """The sizes of ``NAME=N``. Raises `InvalidArgumentError`."""
    found: dict[str, int] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in FIXED:
            hint = nearest(name, FIXED)
            raise InvalidArgumentError(f"--fix: expected one of {', '.join(FIXED)}; got {word!r}.{hint}")
        if not text.isdecimal() or int(text) < 1:
            raise InvalidArgumentError(f"--fix: expected {name}=N with N of at least 1; got {word!r}")
        if name in found:
            raise InvalidArgumentError(f"--fix: expected {name} once; got {' and '.join(words)}")
        found[name] = int(text)
    return found


def _sizes(text: str | None) -> list[int]:
    """The powers of two of ``devices=A..B``, and B. Raises `InvalidArgumentError`."""
    if text is None:
        return []
    name, _, bounds = text.partition("=")
    first, _, last = bounds.partition("..")
    if name != "devices" or not (first.isdecimal() and last.isdecimal()) or not 1 <= int(first) <= int(last):
        raise InvalidArgumentError(f"--sweep: expected devices=A..B with A from 1 to B; got {text!r}")
    low, high = int(first), int(last)
    if high > MAX_DEVICES:
        raise InvalidArgumentError(f"--sweep: expected at most {MAX_DEVICES:,} devices; got {high:,}")
    powers = [1 << k for k in range(high.bit_length()) if low <= 1 << k <= high]
    return sorted({*powers, high})
