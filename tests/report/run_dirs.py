"""Directories of runs, written as a run writes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from flowrt.distribute.observe.flight_recorder import Event, Record, What, write_record
from flowrt.plan.explain import Other
from flowrt.plan.plan_record import FILE, Memory, PlanRecord, Scaling
from flowrt.plan.plan_record import write_record as write_plan
from flowrt.plan.replay.spans import Row, Span
from flowrt.plan.replay.step_times import Product
from flowrt.protos.event_pb2 import Summary
from flowrt.protos.step_stats_pb2 import RunMetadata
from flowrt.rendezvous.matching.key import create_key
from flowrt.summary import FileWriter
from flowrt.summary.run_facts import RunFacts, is_facts_file
from tests.profiler.made_stats import BASE, DEVICES, add

STEPS = 150


def scalar(tag: str, value: float) -> Any:
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def write_curves(directory: Path, *tags: str, steps: int = STEPS) -> Path:
    """``1 / (step + 1)`` under each tag. The file."""
    with FileWriter(directory) as writer:
        for step in range(steps):
            for tag in tags:
                writer.add_summary(scalar(tag, 1 / (step + 1)), step)
    (path,) = directory.glob("events.*")
    return path


def metadata(name: str = "net/a") -> Any:
    """Device 0 computes for 4 us and sends; device 2 waits for 5 us, and computes for 1."""
    made = RunMetadata()
    here, there = DEVICES[0], DEVICES[2]
    add(made.step_stats, here, f"{name} = MatMul()", BASE, BASE + 4000, nbytes=400)
    add(made.step_stats, here, f"s = _Send({name}:0 @{there})", BASE + 4000, BASE + 4500)
    received = add(made.step_stats, there, f"r = _Recv({name}:0 @{here})", BASE, BASE + 5000, nbytes=400)
    received.output.add().tensor_description.allocation_description.requested_bytes = 400
    add(made.step_stats, there, "net/b = Relu(r)", BASE + 5000, BASE + 6000, nbytes=400)
    return made


def write_trace(directory: Path, name: str = "net/a") -> None:
    with FileWriter(directory) as writer:
        writer.add_run_metadata(metadata(name), "step_7", 7)


def write_flight(directory: Path) -> None:
    """A task asked another, which never sent."""
    here, there = (device.partition("/device")[0] for device in (DEVICES[0], DEVICES[2]))
    key = create_key(DEVICES[2], 1, DEVICES[0], "loss:0", 0, 0)
    at = BASE / 1e9
    events = (
        Event(at, What.STARTED, 5, "", ""),
        Event(at + 0.1, What.ASKED, 5, key, there),
        Event(at + 3.0, What.ABORTED, 5, "the step did not end within 3000 ms", ""),
    )
    write_record(directory, Record(here, 1, 0, at + 3.0, events))


def write_whole_run(directory: Path) -> Path:
    write_curves(directory / "train", "loss", "accuracy")
    write_curves(directory / "eval", "loss", steps=10)
    write_trace(directory / "train" / "trace")
    write_flight(directory / "logs")
    with FileWriter(directory / "odd") as writer:
        for step, value in enumerate([1.0, math.nan, 2.0, math.inf]):
            writer.add_summary(scalar("odd", value), step)
    (directory / "timeline-7.json").write_text('{"traceEvents": []}')
    return directory


def write_plan_record(directory: Path, script: str = "train.py") -> Path:
    """A plan of a pipeline of two positions, which was played. The file."""
    directory.mkdir(exist_ok=True)
    first = Span("forward", 0, 0.002, "F(0,0)"), Span("bubble", 0.002, 0.004, "the end")
    second = Span("message", 0, 0.002, "x"), Span("backward", 0.002, 0.004, "B(1,0)")
    rows = [Row(0, 0, first), Row(1, 0, second)]
    record = PlanRecord(
        script, "[device.a100]\n", "pp=2", "dp=1  tp=1  pp=2", ["w [-, tp]"], "2 of 9 choices that fit", 8,
        0.004, {"computing": 0.003, "bubble": 0.001}, Product(1000.0, 2, 1.0, 0.25, 0.0, 0.2), 1 << 30,
        [Memory(0, 3000, {"weights": 1000, "states": 2000}), Memory(1, 1000, {"weights": 1000})],
        [Other("dp=2", "1 ms more of waiting for all-reduces", {"computing": 0.003, "all_reduce": 0.002}),
         Other("one device", "needs 2 GiB of 1 GiB")],
        rows, [Scaling(1, 0.006, 1.0, 1.0, "one device"), Scaling(2, 0.004, 1.5, 1.8, "pp=2")],
    )  # fmt: skip
    path = directory / FILE
    write_plan(path, record)
    return path


def write_facts(directory: Path, *records: RunFacts) -> None:
    """Replace the facts of this process by ``records``, of one process each."""
    for path in filter(is_facts_file, list(directory.iterdir())):
        path.unlink()
    for number, record in enumerate(records):
        (directory / f"run_facts.{int(record.start)}.h{number}.1.json").write_text(
            json.dumps(record._asdict())
        )
