"""``flowrt plan``: what to run where, and how long a step takes, on a cluster that is only described."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowrt.cli.options import positive, positive_number, report_mistake, spellings
from flowrt.device.llvm.host_pool import usable_cpus
from flowrt.errors import InvalidArgumentError, OpError, nearest
from flowrt.graph.collectives.cost import LINKS_VARIABLE
from flowrt.plan.choice import Choice, mistake_of
from flowrt.plan.cluster.cluster_file import (
    MAX_DEVICES,
    Cluster,
    Speed,
    format_cluster,
    parse_cluster,
    read_cluster,
    this_host,
)
from flowrt.plan.cluster.probed_links import probed_links, with_kept_links
from flowrt.plan.explain import TextRow, estimates_text, explain, if_fewer, predicted, scaling_text
from flowrt.plan.machine import CORE
from flowrt.plan.plan_file import Plan, read_plan, variables_of, write_plan
from flowrt.plan.plan_record import FILE, record_of, write_record
from flowrt.plan.planning import Planned
from flowrt.plan.replay.trace import trace_of
from flowrt.plan.stage_search import REPLAYED
from flowrt.plan.step.recorded import record
from flowrt.plan.task import Measured, Scaled, Task, costs_of
from flowrt.plan.what_if import if_devices_fail, if_workers_are_late
from flowrt.profiler.text_table import aligned
from flowrt.storage.durable_files import replace_file, typed_os_errors

EXAMPLES = """
  flowrt plan train.py --processes 4 --measure               the best for four processes of this host
  flowrt plan train.py --cluster gpus.toml --json plan.json  for tf.distribute.AutoStrategy("plan.json")
  flowrt plan train.py --cluster gpus.toml --fix tp=2        with layers that two devices share
  flowrt plan train.py --cluster gpus.toml --sweep devices=1..1024
  flowrt plan train.py --simulate --plan plan.json           a plan, played without a search
  flowrt plan train.py --cluster gpus.toml --log-dir run && flowrt report run

Arguments after -- are passed to the script, which is left at its first training step.
"""

FIXED = ("dp", "tp", "pp", "micro_batches")
GIVEN = tuple(each.name for each in dataclasses.fields(Choice) if each.name != "layouts")
PLAN, TRACE = "plan.json", "plan.trace.json"


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
        help=f"a size that is given: {', '.join(FIXED)}; with --simulate also {', '.join(GIVEN[4:])}; "
        "repeatable",
    )  # fmt: skip
    add("--simulate", action="store_true", help="play what --fix or --plan gives, "
        "without a search, and write the timeline")  # fmt: skip
    add("--plan", metavar="FILE", help="with --simulate: a plan that --json has written, on "
        "the plan's own cluster if --cluster gives none")  # fmt: skip
    add("--measure", action="store_true", help="measure this host first, and what is played")
    add("--probe", action="store_true", help="measure the links between processes of this host first")
    add("--memory", action="store_true", help="show the bytes of a device for all choices, not only the best")
    add("--sweep", metavar="devices=A..B", help="show how the step scales from A to B devices")
    add("--device-hours", type=positive_number, metavar="H",
        help="what if a device fails every H hours on average")  # fmt: skip
    add("--checkpoint-s", type=positive_number, default=60.0, metavar="S",
        help="seconds of a checkpoint (default: 60)")  # fmt: skip
    add("--late-ms", type=positive_number, metavar="MS", help="what if workers are late by MS on average")
    add("--json", metavar="FILE", help="write the plan, for tf.distribute.AutoStrategy(FILE)")
    add(*spellings("--log-dir"), type=Path, metavar="DIR", help="write the plan, its timeline and "
        "what flowrt report DIR shows")  # fmt: skip
    add("--top", type=positive, default=REPLAYED, metavar="K", help=f"choices to play (default: {REPLAYED})")


def run(arguments: argparse.Namespace) -> int:
    try:
        print("\n".join(_lines(arguments)))
    except OpError as error:
        return report_mistake("plan", error.message)
    return 0


def _lines(arguments: argparse.Namespace) -> list[str]:
    sizes = _sizes(arguments.sweep)
    _check_together(arguments)
    plan = read_plan(arguments.plan) if arguments.plan else None
    cluster = _cluster(arguments, plan)
    given = _given(arguments.fix, cluster) if arguments.simulate and plan is None else None
    fixed = {} if arguments.simulate else _fixed(arguments.fix, FIXED)
    recorded = record(arguments.source, arguments.script_arguments)
    measured = Measured(cluster.num_devices) if arguments.measure else None
    costs = costs_of(recorded, cluster) if measured is None else measured.costs_of_one(recorded)
    if plan is not None:
        plan.check(variables_of(recorded), f"plan {arguments.plan}")
        given = plan.choice
    task = Task(recorded, cluster, costs, fixed if given is None else {"tp": given.tp}, measured)
    if sizes:
        return scaling_text(task.sweep(sizes))
    if arguments.memory:
        found = task.estimates()
        return estimates_text(sorted([*found.fitting, *found.too_large], key=lambda each: each.nbytes))
    planned = task.planned(arguments.top) if given is None else task.given(given)
    rows = explain(planned, task.machine, recorded.samples)
    rows += if_fewer(planned.best, task.on_fewer()) if given is None else []
    if arguments.device_hours is not None:
        rows.append(if_devices_fail(planned.best, arguments.device_hours, arguments.checkpoint_s))
    if arguments.late_ms is not None:
        rows.append(if_workers_are_late(planned.best, arguments.late_ms / 1000))
    return aligned([*rows, *_written(arguments, task, planned)])


def _check_together(arguments: argparse.Namespace) -> None:
    """Raise `InvalidArgumentError` for options that do not go together."""
    if arguments.sweep and arguments.memory:
        raise InvalidArgumentError("--memory: expected it without --sweep, which shows another table")
    chooses_none = bool(arguments.sweep or arguments.memory)
    for name, value in (("--json", arguments.json), ("--log-dir", arguments.log_dir),
                        ("--simulate", arguments.simulate), ("--device-hours", arguments.device_hours),
                        ("--late-ms", arguments.late_ms)):  # fmt: skip
        if value and chooses_none:
            raise InvalidArgumentError(f"{name}: expected a plan; --sweep and --memory choose none")
    if arguments.plan and not arguments.simulate:
        raise InvalidArgumentError("--plan: expected it with --simulate, which plays the plan")
    if arguments.plan and arguments.fix:
        raise InvalidArgumentError(f"--plan: expected it without --fix; got {', '.join(arguments.fix)}, too")


def _written(arguments: argparse.Namespace, task: Task, planned: Planned) -> list[TextRow]:
    """Write the files that were asked for. Rows that name them."""
    best, recorded, script = planned.best, task.recorded, arguments.source
    cluster, folder, rows = format_cluster(task.cluster), arguments.log_dir, []
    plan = Plan(best.choice, variables_of(recorded), script, cluster, predicted(best, recorded.samples))
    if arguments.json:
        write_plan(arguments.json, plan)
    if not (folder or arguments.simulate):
        return []
    detailed = task.detailed(best.choice)
    trace = Path(f"{Path(script).stem}.trace.json") if folder is None else folder / TRACE
    if folder is not None:
        with typed_os_errors(f"--log-dir {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        write_plan(str(folder / PLAN), plan)
        scaled = _scaled(task)
        write_record(
            folder / FILE,
            record_of(planned, detailed, task.machine, recorded.samples, scaled, script, cluster),
        )
        rows.append(("page", f"flowrt report {folder}"))
    with typed_os_errors(f"timeline {trace}"):
        replace_file(str(trace), trace_of(best.programs, detailed).encode())
    return [("timeline", f"{trace}, for Perfetto or chrome://tracing"), *rows]


def _scaled(task: Task) -> Sequence[Scaled]:
    """The scaling up to the devices that there are; nothing for sizes that only fit all of them."""
    try:
        return task.sweep(_powers(1, task.machine.devices)).rows
    except InvalidArgumentError:
        return []


def _cluster(arguments: argparse.Namespace, plan: Plan | None) -> Cluster:
    if not arguments.cluster:
        if plan is not None and not (arguments.processes or arguments.measure or arguments.probe):
            return parse_cluster(plan.cluster, f"{arguments.plan}: cluster")
        links = {LINKS_VARIABLE: probed_links()} if arguments.probe else with_kept_links(os.environ)
        processes = arguments.processes or 2
        share = Speed(0, 0, min(1.0, usable_cpus() / processes))  # of a core for each
        return dataclasses.replace(this_host(processes, CORE, links), speeds=(share,))
    names = [name for name in ("processes", "measure", "probe") if getattr(arguments, name)]
    if names:
        name = f"--{names[0]}"
        raise InvalidArgumentError(f"{name}: expected it without --cluster, as it is of this host")
    return read_cluster(arguments.cluster)


def _fixed(words: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The values of ``NAME=N``. Raises `InvalidArgumentError`."""
    found: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in names:
            hint = nearest(name, names)
            more = " Add --simulate, which searches nothing." if name in GIVEN else ""
            raise InvalidArgumentError(
                f"--fix: expected one of {', '.join(names)}; got {word!r}.{hint}{more}"
            )
        if name in found:
            raise InvalidArgumentError(f"--fix: expected {name} once; got {' and '.join(words)}")
        least = 0 if name in ("sharding", "remat") else 1
        if name != "schedule" and (not text.isdecimal() or int(text) < least):
            raise InvalidArgumentError(f"--fix: expected {name}=N with N of at least {least}; got {word!r}")
        found[name] = text if name == "schedule" else bool(int(text)) if name == "remat" else int(text)
    return found


def _given(words: Sequence[str], cluster: Cluster) -> Choice:
    """The choice with the values of ``NAME=N``; all other devices share the batch. Raises
    `InvalidArgumentError`.
    """
    values: Mapping[str, Any] = _fixed(words, GIVEN)
    others = values.get("tp", 1) * values.get("pp", 1)
    choice = Choice(**{"dp": max(1, cluster.num_devices // others), **values})
    mistake = mistake_of(choice)
    if mistake is not None:
        raise InvalidArgumentError(f"--fix {mistake.field}: expected {mistake.expected}; got {mistake.got!r}")
    return choice


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
    return _powers(low, high)


def _powers(low: int, high: int) -> list[int]:
    """The powers of two from ``low`` to ``high``, and ``high``."""
    powers = [1 << k for k in range(high.bit_length()) if low <= 1 << k <= high]
    return sorted({*powers, high})
