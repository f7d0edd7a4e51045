"""`Played`: the seconds of a step that was played, and their causes; its rate as a product of factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from flowrt.errors import InvalidArgumentError

Vector: TypeAlias = npt.NDArray[np.float64]
"""A number for each device of a class, in row-major order of the mesh's coordinates."""

MESSAGE = "message"
"""The kind of all messages, beside the kinds of meetings."""


class Product(NamedTuple):
    """A rate of training as a product: ``device_rate * devices * efficiency`` samples a second."""

    device_rate: float
    """Samples a second of one device that only computes, and nothing twice."""
    devices: int
    useful: float
    """The share of computing that is not repeated."""
    bubble: float
    exposed: float
    imbalance: float

    @property
    def efficiency(self) -> float:
        return self.useful * (1 - self.bubble) * (1 - self.exposed) * (1 - self.imbalance)

    @property
    def samples_per_second(self) -> float:
        return self.device_rate * self.devices * self.efficiency


@final
@dataclass(frozen=True)
class PlayedClass:
    """The devices at ``position``: seconds of each."""

    position: int
    planned: float
    """Seconds of computing as in the program, equal for all."""
    busy: Vector
    """Seconds of computing, with slowness and jitter."""
    exposed: Mapping[str, Vector]
    """Seconds without computing while the links were busy, by the kind that was waited for."""
    skew: Vector
    """Seconds without computing until others came to a meeting."""
    start: npt.NDArray[np.float64] | None = None
    """Starts of all works, shape [works, devices]; None unless asked for."""
    end: npt.NDArray[np.float64] | None = None


@final
@dataclass(frozen=True)
class Played:
    """A step that was played, which began at 0."""

    makespan: float
    classes: tuple[PlayedClass, ...]
    nbytes: Mapping[str, int]
    """Bytes by kind: those of a meeting once per group, those of a message once per pair of devices."""

    @property
    def devices(self) -> int:
        return sum(len(each.busy) for each in self.classes)

    @property
    def bubble(self) -> float:
        """Seconds in which the busiest device waits for other positions or for the end of the step."""
        each, number = self._busiest()
        exposed = sum(float(waits[number]) for waits in each.exposed.values())
        return float(self.makespan - each.busy[number] - each.skew[number] - exposed)

    @property
    def exposed(self) -> dict[str, float]:
        """Seconds by kind in which the busiest device waits for communication."""
        each, number = self._busiest()
        return {kind: float(waits[number]) for kind, waits in each.exposed.items()}

    def product(self, samples: float, useful: float = 1.0) -> Product:
        """The rate of a step of ``samples``, of which the share ``useful`` of computing is not repeated.

        The shares are those of the busiest device: of the makespan, a share is exposed; of the rest, a share
        is bubble; of the rest, the average device computes all but the imbalance. So slow devices, unequal
        stages and waits in meetings are imbalance.

        Raises `InvalidArgumentError` if nothing is computed.
        """
        planned = sum(each.planned * len(each.busy) for each in self.classes)
        if not planned > 0:
            raise InvalidArgumentError("product: expected a step with seconds of computing; got none")
        hidden = self.makespan - sum(self.exposed.values())
        running = hidden - self.bubble
        return Product(
            samples / (useful * planned),
            self.devices,
            useful,
            bubble=1 - running / hidden,
            exposed=1 - hidden / self.makespan,
            imbalance=1 - planned / self.devices / running,
        )

    def _busiest(self) -> tuple[PlayedClass, int]:
        each = max(self.classes, key=lambda each: float(each.busy.max()))
        return each, int(each.busy.argmax())
