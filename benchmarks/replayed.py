"""How fast steps of many devices are played: ``python -m benchmarks.replayed``. No such devices are needed.

A pipeline of 16 stages with 512 micro-batches, interleaved, on 10,000 unequal devices: first the passes and
messages alone, then with the all-reduces of 96 blocks of a tensor-parallel model, and of its gradients.
Prints the seconds to make the programs and to play them, and the largest memory of the process so far.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.report import format_seconds
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import Times
from flowrt.plan.replay.played import ClassProgram, Meeting, Message, Work
from flowrt.plan.replay.replay import play
from flowrt.plan.replay.schedule_programs import programs_of_schedule

STAGES, MICRO_BATCHES, CHUNKS, BLOCKS = 16, 512, 2, 96
LANES = 625
PASSES = Times(0.04, 0.04, 0.04)
"""Seconds of the passes of a micro-batch on one device."""


class Links:
    """Seconds of a collective and of a message: about those of 25 MB inside a host and between hosts."""

    def meeting(self, position: int, meeting: Meeting) -> float:
        return 2e-4

    def message(self, position: int, message: Message) -> float:
        return 1e-3


def pipeline() -> tuple[ClassProgram, ...]:
    return programs_of_schedule(
        order("interleaved", STAGES, MICRO_BATCHES, CHUNKS), PASSES, nbytes=25_000_000
    )


def with_meetings(program: ClassProgram) -> ClassProgram:
    """``program`` with two all-reduces per block in each of its passes, and one of its gradients."""
    reduce = Meeting("all_reduce", ("tp",), 25_000_000)
    pieces = 2 * BLOCKS // STAGES // CHUNKS
    works: list[Work] = []
    ends: list[int] = []  # of each work of ``program``, the number here of what it ends with
    for work in program.works:
        after = tuple(ends[number] for number in work.after)
        if work.action is None:
            works.append(Work(work.name, 0.0, after, work.meets))
        for piece in range(pieces if work.action is not None else 0):
            works.append(Work(f"{work.name} {piece}", work.seconds / pieces, after, None, work.action))
            works.append(Work(f"reduce {work.name} {piece}", after=(len(works) - 1,), meets=reduce))
            after = (len(works) - 1,)
        ends.append(len(works) - 1)
    works.append(Work("gradients", after=(ends[-1],), meets=Meeting("all_reduce", ("dp",), 400_000_000)))
    return ClassProgram(program.position, tuple(works))


def report(name: str, programs: Sequence[ClassProgram], made_s: float, mesh: Mapping[str, int]) -> None:
    rng = np.random.default_rng(0)
    slowness = {each.position: 1 + 0.05 * rng.random(tuple(mesh.values())) for each in programs}
    start = time.perf_counter()
    played = play(programs, mesh, Links(), slowness)
    played_s = time.perf_counter() - start
    works = sum(len(each.works) for each in programs)
    product = played.product(samples=MICRO_BATCHES * mesh["dp"])
    print(
        f"{name}: {played.devices:,} devices, {works:,} works of a class, {works * LANES:,} of devices: "
        f"made in {format_seconds(made_s)}, played in {format_seconds(played_s)}, efficiency "
        f"{product.efficiency:.3f} = {product.useful:.3f} x (1 - {product.bubble:.3f} bubble) x (1 - "
        f"{product.exposed:.3f} exposed) x (1 - {product.imbalance:.3f} imbalance), at most "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"
    )


def main() -> None:
    start = time.perf_counter()
    programs = pipeline()
    made = time.perf_counter()
    report("pipeline", programs, made - start, {"dp": LANES})
    start = time.perf_counter()
    parallel = [with_meetings(each) for each in programs]
    report("with tensor parallelism", parallel, time.perf_counter() - start, {"dp": 125, "tp": 5})


if __name__ == "__main__":
    main()
