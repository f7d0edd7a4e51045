"""`plan_on`: the best choice for a recorded step on a cluster: searched by estimates, decided by playing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from flowrt.errors import InvalidArgumentError, OpError, UnimplementedError
from flowrt.plan.choice import Choice
from flowrt.plan.model import Model
from flowrt.plan.replay.played import ClassProgram
from flowrt.plan.replay.step_times import Played
from flowrt.plan.stage_search import REPLAYED, Estimate, Machine, Shared, does_not_fit, search

SEARCH_S = 40.0
"""Seconds of the processor for a search: once a choice is played, no further one is that would end later. For
a GPT of 48 blocks on 64 devices, all twenty are decided in at most 20. Others on the machine change little of
what is found.
"""


class Candidate(NamedTuple):
    """A choice that was lowered and played."""

    estimate: Estimate
    programs: tuple[ClassProgram, ...]
    played: Played

    @property
    def choice(self) -> Choice:
        return self.estimate.choice

    @property
    def seconds(self) -> float:
        return self.played.makespan

    @property
    def nbytes(self) -> int:
        """The bytes of the device that has most."""
        return max(program.peak_bytes for program in self.programs)


Play: TypeAlias = Callable[[Choice], tuple[tuple[ClassProgram, ...], Played]]
"""Lowers a step under a choice, and plays it."""


class Slower(NamedTuple):
    """A choice that was not played, as it takes ``seconds`` at least."""

    choice: Choice
    seconds: float


class Planned(NamedTuple):
    """The candidates that fit, fastest first; those that do not; and what could not be lowered, with why.
    Those that are ``slower`` than the best one for certain were not played.
    """

    candidates: tuple[Candidate, ...]
    too_large: tuple[Estimate | Candidate, ...]
    refused: tuple[tuple[Choice, str], ...]
    fitting: int
    """The number of choices that fit by their estimates, of which the candidates were played; 0 without
    a search.
    """
    slower: tuple[Slower, ...] = ()

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


def plan_on(
    machine: Machine,
    samples: int,
    shared: Mapping[int, Shared],
    model: Callable[[int], Model],
    play: Play,
    fixed: Mapping[str, int] = {},
    count: int = REPLAYED,
    cut_to_fit: Callable[[Choice], Model] | None = None,
    least: Callable[[Choice], float] = lambda choice: 0.0,
    began: float | None = None,
) -> Planned:
    """The ``count`` choices with the best estimates, played; fewer if that takes longer than `SEARCH_S` since
    it ``began``, by the time of the process: now by default. ``least``: the seconds that a choice takes at
    least; it is not played if another one was that does not take longer.

    Raises as `search`, also if no choice fits when it is lowered, and `InvalidArgumentError` if none can be.
    """
    end = (time.process_time() if began is None else began) + SEARCH_S
    found = search(machine, samples, shared, model, fixed, cut_to_fit)
    candidates: list[Candidate] = []
    too_large: list[Estimate | Candidate] = list(found.too_large)
    refused: list[tuple[Choice, str]] = []
    slower: list[Slower] = []
    best, took = math.inf, 0.0
    for estimate in _distinct(found.fitting):
        start = time.process_time()
        if len(candidates) + len(slower) == count or (candidates and start + took > end):
            break
        if (seconds := least(estimate.choice)) >= best:
            slower.append(Slower(estimate.choice, seconds))
            continue
        try:
            programs, played = play(estimate.choice)
        except (InvalidArgumentError, UnimplementedError) as error:
            refused.append((estimate.choice, _first_line(error)))
            continue
        candidate, took = Candidate(estimate, programs, played), time.process_time() - start
        if candidate.nbytes > machine.memory:
            too_large.append(candidate)
            continue
        candidates.append(candidate)
        best = min(best, candidate.seconds)
    if not candidates:
        lowered = [each for each in too_large if isinstance(each, Candidate)]
        if lowered:
            smallest = min(lowered, key=lambda each: each.nbytes)
            raise does_not_fit(smallest.choice, smallest.nbytes, machine)
        raise InvalidArgumentError(
            f"expected a choice that can be lowered; got {len(refused)} that cannot be; {refused[0][1]}"
        )
    candidates.sort(key=lambda candidate: candidate.seconds)
    return Planned(tuple(candidates), tuple(too_large), tuple(refused), len(found.fitting), tuple(slower))


def _distinct(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The best number of micro-batches of each mesh and schedule first, and all others behind them."""
    seen: set[object] = set()
    first, rest = list[Estimate](), list[Estimate]()
    for each in estimates:
        c = each.choice
        key = (c.dp, c.tp, c.pp, c.schedule, c.chunks, c.sharding, c.remat)
        (rest if key in seen else first).append(each)
        seen.add(key)
    return first + rest


def _first_line(error: OpError) -> str:
    return error.message.partition("\n")[0]
