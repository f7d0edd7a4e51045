"""`Network`: bytes on their way between hosts, at rates that share each port and uplink fairly.

A *port* is a direction of a host's link, or of a rack's uplink. A *flow* is bytes that go through one or
more ports. Rates are max-min fair (Bertsekas and Gallager, "Data Networks", 1992): the port that can give its
flows the least is shared by weight, these flows keep their rates, and so on with what other ports have left.
Rates change only when a flow begins or ends. Pure: the caller has the clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from flowrt.errors import InvalidArgumentError

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]


@final
@dataclass(frozen=True)
class Fabric:
    """``hosts``, each with a link of ``bytes_per_second`` in each direction; if ``rack`` is given, in racks
    of so many hosts, each with an uplink of ``uplink_bytes_per_second``.

    Raises `InvalidArgumentError` for rates and sizes that are not positive.
    """

    hosts: int
    bytes_per_second: float = math.inf
    latency_s: float = 0.0
    rack: int | None = None
    uplink_bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        for name in ("hosts", "bytes_per_second", "rack", "uplink_bytes_per_second"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidArgumentError(f"fabric: {name}: expected a number above 0; got {value!r}")
        if not 0 <= self.latency_s < math.inf:
            raise InvalidArgumentError(f"fabric: latency_s: expected seconds >= 0; got {self.latency_s!r}")

    @property
    def capacities(self) -> Floats:
        """Bytes a second of all ports: out of and into each host, then out of and into each rack."""
        racks = math.ceil(self.hosts / self.rack) if self.rack else 0
        return np.repeat([self.bytes_per_second, self.uplink_bytes_per_second], [2 * self.hosts, 2 * racks])

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """The ports from one host to another; none within a host."""
        if source == target:
            return ()
        ports = (2 * source, 2 * target + 1)
        if self.rack is None or source // self.rack == target // self.rack:
            return ports
        first = 2 * self.hosts
        return (*ports, first + 2 * (source // self.rack), first + 2 * (target // self.rack) + 1)


class Flow(NamedTuple):
    """``nbytes`` through the ports ``route``. The flows of a full port have rates as their ``weight``."""

    route: tuple[int, ...]
    nbytes: float
    weight: float = 1.0


class Network:
    """Flows on ports of ``capacities``, in bytes a second."""

    def __init__(self, capacities: Floats) -> None:
        self._capacities = capacities
        self._next = 0
        self._numbers: Integers = np.zeros(0, np.int64)
        self._left: Floats = np.zeros(0)
        self._weights: Floats = np.zeros(0)
        self._sizes: Floats = np.zeros(0)
        self._flow_of: Integers = np.zeros(0, np.int64)  # of each pair of a flow and a port: the flow's index
        self._port_of: Integers = np.zeros(0, np.int64)
        self._rates: Floats | None = None

    def start(self, flows: Sequence[Flow]) -> list[int]:
        """Begin ``flows``, and return a number for each."""
        first, count = self._next, len(flows)
        self._next += count
        lengths = [len(flow.route) for flow in flows]
        index = len(self._left) + np.arange(count)
        self._flow_of = np.concatenate([self._flow_of, np.repeat(index, lengths)])
        ports = [port for flow in flows for port in flow.route]
        self._port_of = np.concatenate([self._port_of, np.array(ports, np.int64)])
        sizes = np.array([flow.nbytes for flow in flows], np.float64)
        self._sizes = np.concatenate([self._sizes, sizes])
        self._left = np.concatenate([self._left, sizes])
        self._weights = np.concatenate([self._weights, np.array([flow.weight for flow in flows], np.float64)])
        self._numbers = np.concatenate([self._numbers, first + np.arange(count)])
        self._rates = None
        return list(range(first, first + count))

    @property
    def rates(self) -> Floats:
        """Bytes a second of each flow, in the order of their numbers."""
        if self._rates is None:
            self._rates = fair_rates(self._weights, self._flow_of, self._port_of, self._capacities)
        return self._rates

    def seconds_to_next(self) -> float:
        """Seconds until the first flow ends; infinite without flows."""
        if not len(self._left):
            return math.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.where(self._left > 0, self._left / self.rates, 0.0).min())

    def advance(self, seconds: float) -> list[int]:
        """Let ``seconds`` pass, at most `seconds_to_next`; the numbers of the flows that have ended."""
        if not len(self._left):
            return []
        with np.errstate(invalid="ignore"):
            left = np.where(np.isinf(self.rates), 0.0, self._left - self.rates * seconds)
        is_over = left <= 1e-12 * self._sizes  # of equal flows, rounding would end one before the other
        ended: list[int] = self._numbers[is_over].tolist()
        self._left = left
        if ended:
            self._keep(~is_over)
        return ended

    def _keep(self, which: npt.NDArray[np.bool_]) -> None:
        pairs = which[self._flow_of]
        index = np.cumsum(which) - 1
        self._flow_of, self._port_of = index[self._flow_of[pairs]], self._port_of[pairs]
        self._numbers, self._left = self._numbers[which], self._left[which]
        self._weights, self._sizes = self._weights[which], self._sizes[which]
        self._rates = None


def fair_rates(weights: Floats, flow_of: Integers, port_of: Integers, capacities: Floats) -> Floats:
    """Max-min fair rates of flows with ``weights``; ``flow_of`` and ``port_of`` are pairs: which flow goes
    through which port. A flow without a bounded port has an infinite rate.
    """
    rates = np.full(len(weights), math.inf)
    is_open = np.zeros(len(weights), bool)
    is_open[flow_of] = True
    left = capacities.astype(np.float64)
    while is_open.any():
        pairs = is_open[flow_of]
        flows, ports = flow_of[pairs], port_of[pairs]
        demand = np.bincount(ports, weights[flows], len(left))
        level = np.full(len(left), math.inf)
        np.divide(left, demand, out=level, where=demand > 0)
        least = level.min()
        if math.isinf(least):
            break
        is_full: Any = level <= least * (1 + 1e-12)
        settled = np.unique(flows[is_full[ports]])
        rates[settled] = least * weights[settled]
        is_open[settled] = False
        gone = ~is_open[flows]
        left = np.maximum(left - np.bincount(ports[gone], rates[flows[gone]], len(left)), 0.0)
    return rates
