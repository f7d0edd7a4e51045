"""Stragglers and failures in closed form: backup workers, the checkpoint interval, restarts, efficiency.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (9), 1974
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
      Generation Computer Systems 22 (3), 2006
    J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016

Failures are independent of each other and of age: the time to the next one is exponential. A failure of any
device stops the job. It starts again from the last checkpoint, and a failure during that starts it once more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from flowrt.errors import InvalidArgumentError

# --- stragglers


@final
@dataclass(frozen=True)
class Stragglers:
    """Seconds of a worker's step: ``least``, and beyond that an exponential time of mean ``tail``.

    Raises `InvalidArgumentError` for numbers below 0.
    """

    least: float
    tail: float

    def __post_init__(self) -> None:
        _check("stragglers", least=self.least, tail=self.tail)

    def update_seconds(self, workers: int, backups: int = 0) -> float:
        """Mean seconds until all but ``backups`` of ``workers`` have ended, all having begun together.

        It is a lower bound where late workers first finish what they compute, as flowrt's do: their next step
        begins late. `flowrt.plan.replay.parameter_servers` simulates that.

        >>> round(Stragglers(0.0, 1.0).update_seconds(workers=54, backups=4), 2)
        2.49

        Raises `InvalidArgumentError` unless ``0 <= backups < workers``.
        """
        if not 0 <= backups < workers:
            raise InvalidArgumentError(
                f"backups: expected 0 to {workers - 1} of {workers} workers; got {backups}"
            )
        return self.least + self.tail * math.fsum(1 / each for each in range(backups + 1, workers + 1))

    def share_lost(self, workers: int, backups: int = 0) -> float:
        """The share of all workers' time that makes no gradient of an update: waits, and dropped gradients.

        It is relative to workers that each compute without a pause, one gradient in ``least + tail``.
        """
        useful = (workers - backups) * (self.least + self.tail)
        seconds = workers * self.update_seconds(workers, backups)
        return 1 - useful / seconds if seconds else 0.0

    def best_backups(self, workers: int) -> int:
        """The number of ``workers`` to leave out of each update, for most gradients a second."""
        return min(range(workers), key=lambda backups: self.share_lost(workers, backups))


# --- failures


@final
@dataclass(frozen=True)
class Failures:
    """``mean`` seconds between failures of a job; seconds to write a ``checkpoint``; and to ``restart``, from
    a failure until training goes on from the checkpoint.

    Raises `InvalidArgumentError` for a mean or a checkpoint that is not above 0.
    """

    mean: float
    checkpoint: float
    restart: float = 0.0

    def __post_init__(self) -> None:
        _check("failures", mean=self.mean, checkpoint=self.checkpoint, restart=self.restart)
        for name in ("mean", "checkpoint"):
            if not getattr(self, name):
                raise InvalidArgumentError(f"failures: {name}: expected seconds above 0; got 0")

    @property
    def young_interval(self) -> float:
        """Seconds of work between two checkpoints, to first order: ``sqrt(2 * checkpoint * mean)``."""
        return math.sqrt(2 * self.checkpoint * self.mean)

    @property
    def daly_interval(self) -> float:
        """The same to higher order, which holds up to a checkpoint of twice the mean; then it is the mean."""
        ratio = self.checkpoint / (2 * self.mean)
        if ratio >= 1:
            return self.mean
        return self.young_interval * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.checkpoint

    def outlook(self, work: float, interval: float | None = None) -> Outlook:
        """``work`` seconds of training, with a checkpoint after each ``interval`` of it, by default the
        `daly_interval`. Exact in the mean (Daly, 2006), for whole intervals.

        Raises `InvalidArgumentError` for an interval or work that is not above 0.
        """
        interval = self.daly_interval if interval is None else interval
        _check("outlook", work=work, interval=interval)
        if not work * interval:
            raise InvalidArgumentError(
                f"outlook: expected seconds above 0; got work {work}, interval {interval}"
            )
        exponent = (interval + self.checkpoint) / self.mean
        if max(exponent, self.restart / self.mean) > _MOST:
            return Outlook(interval, math.inf, math.inf, 0.0)
        each = self.mean * math.exp(self.restart / self.mean) * math.expm1(exponent)
        seconds = work / interval * each
        return Outlook(interval, seconds, seconds / self.mean, work / seconds)


_MOST = 300.0
"""Exponent of a number of attempts that has no end in practice, and does not overflow."""


@final
@dataclass(frozen=True)
class Outlook:
    """Means over all that may fail."""

    interval: float
    """Seconds of work between two checkpoints."""
    seconds: float
    """Seconds until the work is done; infinite where an interval hardly ever passes without a failure."""
    restarts: float
    efficiency: float
    """The share of the seconds that is work which was not lost."""


def job_mean(device_mean: float, devices: int) -> float:
    """Mean seconds between failures of a job that any of its ``devices`` stops.

    Raises `InvalidArgumentError` for numbers that are not above 0.
    """
    _check("job", device_mean=device_mean)
    if devices < 1:
        raise InvalidArgumentError(f"job: devices: expected at least 1; got {devices}")
    return device_mean / devices


def _check(what: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number < math.inf:
            raise InvalidArgumentError(f"{what}: {name}: expected a finite number >= 0; got {number!r}")
