"""`Times`: how long the passes of a micro-batch take; and the same as whole ticks, which add up exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Kind

Number: TypeAlias = int | float | Fraction


class Times(NamedTuple):
    """Times of the forward pass ``f``, input gradients ``i`` and weight gradients ``w``, in any unit.

    They are those of one micro-batch on one device. A device with v chunks has v stages, and each takes 1/v.
    The backward pass B takes ``i + w``.
    """

    f: Number = 1
    i: Number = 1
    w: Number = 1


EQUAL = Times()
"""The three passes take the same time: close to the truth for matrix products."""

AnyTimes: TypeAlias = Times | Sequence[Times]
"""`Times` of all devices alike, or a sequence with those of each stage, which are not divided."""


class Ticks(NamedTuple):
    """Durations as integers, in units of ``tick``: ``of[stage][kind]``, and ``hop`` between two devices."""

    of: list[dict[Kind, int]]
    hop: int
    tick: Fraction


def in_ticks(times: AnyTimes, stages: int, chunks: int, hop: Number = 0) -> Ticks:
    """``times`` and ``hop`` in the largest unit that divides them all: no sum of them is rounded.

    Raises `InvalidArgumentError` for times that are negative or not finite, and for a sequence with more or
    fewer items than ``stages``.
    """
    if isinstance(times, Times):
        per_stage = [[_exact(time, "times") / chunks for time in times]] * stages
    else:
        if len(times) != stages:
            raise InvalidArgumentError(
                f"times: expected one Times, or {stages}, one per stage; got {len(times)}"
            )
        per_stage = [[_exact(time, f"times of stage {i}") for time in each] for i, each in enumerate(times)]
    exact_hop = _exact(hop, "hop")
    scale = math.lcm(exact_hop.denominator, *[time.denominator for each in per_stage for time in each])
    ticks = [[int(time * scale) for time in each] for each in per_stage]
    return Ticks(
        [{"F": f, "B": i + w, "I": i, "W": w} for f, i, w in ticks],
        int(exact_hop * scale),
        Fraction(1, scale),
    )


def _exact(time: object, where: str) -> Fraction:
    if not isinstance(time, int | float | Fraction) or not math.isfinite(time) or time < 0:
        raise InvalidArgumentError(f"{where}: expected finite numbers >= 0; got {time!r}")
    return Fraction(time)
