"""Search of the mesh, the micro-batches, the schedule, sharding and recomputation for a recorded step.

All choices that the devices allow are estimated by closed forms; those that fit, and take least, are lowered
and played, and the first of these is taken:

    compute     a stage's share of the operations, cut so that the longest stage takes least (`cut_stages`)
    pipeline    the sum of all stages and m - 1 times the longest one (Narayanan et al. 2021, section 2.2)
    gradients   one all-reduce; parts take a reduce-scatter and one or two all-gathers instead
    layers      what `layout_search` found for a number of devices that share them
    memory      states in their parts, and activations of the micro-batches in flight

An estimate leaves out what overlaps and what waits; the replay has both. A choice that takes longer than one
that was played, even if it waits for no message (`least_seconds`), is not played. The search is that of Alpa
(Zheng et al. 2022), with the sends between stages.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.pipeline.replay import peaks, recomputed_by_stages
from flowrt.graph.pipeline.schedules import order
from flowrt.plan.choice import Choice, Entries
from flowrt.plan.model import Model

REPLAYED = 20
"""The number of choices that are lowered and played."""

CUT_TO_FIT = 10
"""The number of pipelines that do not fit, of which stages are cut otherwise."""

SCHEDULES = (("1f1b", 1), ("interleaved", 2), ("zb_h1", 1))
"""Schedules of pipelines, and their chunks. The rows of the same table that are left out are slower, or take
more memory for the same time.
"""

GRADIENT_MESSAGES = {
    0: ("all_reduce",),
    1: ("reduce_scatter", "all_gather"),
    2: ("reduce_scatter", "all_gather"),
    3: ("all_gather", "all_gather", "reduce_scatter"),
}
"""The collectives of all variables in a step, by the stage of `FullyShardedStrategy`."""


class Machine(Protocol):
    """The devices, and the links between them."""

    devices: int
    devices_per_host: int
    memory: int
    """Bytes of a device."""

    def collective(self, kind: str, size: int, stride: int, nbytes: float) -> float:
        """Seconds of a collective of ``size`` devices, ``stride`` apart, of ``nbytes`` in all."""

    def message(self, stride: int, nbytes: float) -> float:
        """Seconds of a message to the device that is ``stride`` further."""


class Shared(NamedTuple):
    """Layers that several devices share: the layouts of variables; the parts of computing, of variables and
    of activations that each device has; and the seconds of collectives for a batch of one.
    """

    layouts: tuple[tuple[str, Entries], ...] = ()
    computing: float = 1.0
    variables: float = 1.0
    activations: float = 1.0
    seconds: Callable[[int], float] = lambda samples: 0.0
    """Seconds of all collectives of a step with so many samples."""


class Estimate(NamedTuple):
    """The seconds and bytes of a choice, by closed forms."""

    choice: Choice
    seconds: float
    nbytes: int
    parts: Mapping[str, float]
    """The seconds by what takes them: compute, bubble, gradients, layers, sends."""


class Found(NamedTuple):
    """The best choices, those that were played first, and all estimates that do not fit."""

    fitting: tuple[Estimate, ...]
    too_large: tuple[Estimate, ...]


def choices(
    machine: Machine, samples: int, shared: Mapping[int, Shared], fixed: Mapping[str, int] = {}
) -> Iterator[Choice]:
    """All choices for ``machine``: devices share layers inside a host only, and parts of the batch are equal.
    ``fixed`` are numbers of devices or micro-batches that are given.
    """
    for tp in sorted(shared):
        if machine.devices % tp or machine.devices_per_host % tp:
            continue
        for pp in divisors(machine.devices // tp):
            dp = machine.devices // (tp * pp)
            if samples % dp:
                continue
            for count in divisors(samples // dp):
                if all(fixed.get(key, value) == value for key, value in
                       (("dp", dp), ("tp", tp), ("pp", pp), ("micro_batches", count))):  # fmt: skip
                    base = Choice(dp, tp, pp, count, layouts=shared[tp].layouts)
                    yield from _on(base)


def _on(base: Choice) -> Iterator[Choice]:
    """``base`` with every schedule or sharding."""
    if base.pp == 1:
        for sharding in (0, 1, 2, 3) if base.dp > 1 else (0,):
            yield replace(base, sharding=sharding)
        return
    for (schedule, chunks), remat in itertools.product(SCHEDULES, (False, True)):
        is_fitting = base.micro_batches % base.pp == 0 if chunks > 1 else base.micro_batches >= base.pp
        if is_fitting:
            yield replace(base, schedule=schedule, chunks=chunks, remat=remat)


def divisors(number: int) -> list[int]:
    """All divisors of ``number``, in order."""
    return [k for k in range(1, number + 1) if number % k == 0]


def estimate(choice: Choice, model: Model, shared: Shared, machine: Machine, samples: int) -> Estimate:
    """The seconds and bytes of ``choice``, of which ``model`` has the stages."""
    m, per_device = choice.micro_batches, choice.dp * choice.micro_batches
    share = shared.computing / per_device
    forward = [stage.forward.seconds(share) for stage in model.stages]
    backward = [stage.backward.seconds(share) for stage in model.stages]
    again = forward if choice.remat else [0.0] * len(forward)
    each = [sum(passes) for passes in zip(forward, backward, again, strict=True)]
    v = choice.chunks
    of_devices = [sum(each[d :: choice.pp]) for d in range(choice.pp)]
    longest = max(of_devices)
    sends = [
        machine.message(choice.dp * choice.tp, stage.arriving / per_device) for stage in model.stages[1:]
    ]
    hops = 2 * sum(sends)
    bubble = (sum(of_devices) - longest) / v
    if choice.schedule.startswith("zb"):
        bubble /= 3  # Qi et al. 2023: (p - 1) (f + i - w) instead of (p - 1) (f + i + w)
    variables = model.variables * shared.variables / choice.pp
    gradients = sum(machine.collective(kind, choice.dp, choice.tp, variables)
                    for kind in GRADIENT_MESSAGES[choice.sharding]) if choice.dp > 1 else 0.0  # fmt: skip
    layers = shared.seconds(samples // choice.dp) / choice.pp
    per_variable = shared.variables / (choice.dp if choice.sharding else 1)
    update = sum(stage.update.seconds(per_variable) for stage in model.stages) / choice.pp
    parts = {
        "compute": longest * m + update, "bubble": bubble, "gradients": gradients, "layers": layers,
        "sends": hops,
    }  # fmt: skip
    return Estimate(choice, sum(parts.values()), _nbytes(choice, model, shared), parts)


def _nbytes(choice: Choice, model: Model, shared: Shared) -> int:
    """The bytes of the device that has most. If gradients of several turns are added up, they are whole until
    the last one, and so are variables that were gathered.
    """
    has_turns = choice.micro_batches > 1
    parts = (
        choice.dp if choice.sharding == 3 else 1,
        choice.dp if choice.sharding >= 2 and not has_turns else 1,
        choice.dp if choice.sharding >= 1 else 1,
    )
    held, again = _in_flight(choice)
    per_pass = choice.dp * choice.micro_batches
    most = 0.0
    for device in range(choice.pp):
        mine = model.stages[device :: choice.pp]
        variables = sum(stage.variables for stage in mine) * shared.variables
        states = sum(stage.states for stage in mine) * shared.variables
        kept = [stage.kept * shared.activations / per_pass for stage in mine]
        activations = held[device] * sum(kept)
        if choice.remat:
            arriving = sum(stage.arriving / per_pass for stage in mine)
            activations = held[device] * arriving + max(map(operator.mul, again[device :: choice.pp], kept))
        total = variables / parts[0] + variables / parts[1] + states / parts[2] + activations
        gathered = 2 * (variables if has_turns else model.largest) if choice.sharding == 3 else 0
        most = max(most, total + gathered)
    return int(most)


class _InFlight(NamedTuple):
    """Micro-batches of which each device holds activations at a time, and those of which each stage holds all
    at a time if it computes them again.
    """

    held: Sequence[float]
    again: Sequence[int]


def _in_flight(choice: Choice) -> _InFlight:
    if choice.pp == 1:
        return _InFlight([1.0], [1])
    rows = min(choice.micro_batches, 2 * choice.pp)  # more do not hold more
    rows -= rows % choice.pp if choice.chunks > 1 else 0
    return _peaks(choice.schedule, choice.pp, rows, choice.chunks)


@lru_cache(256)
def _peaks(schedule: str, devices: int, micro_batches: int, chunks: int) -> _InFlight:
    found = order(schedule, devices, micro_batches, chunks)
    return _InFlight([float(peak) for peak in peaks(found)], recomputed_by_stages(found))


def search(
    machine: Machine,
    samples: int,
    shared: Mapping[int, Shared],
    model: Callable[[int], Model],
    fixed: Mapping[str, int] = {},
    cut_to_fit: Callable[[Choice], Model] | None = None,
) -> Found:
    """All choices in the order of their estimates. ``model`` gives that of a number of stages, cut by costs;
    ``cut_to_fit`` that of a choice with stages that fit in its memory, for those that do not fit otherwise.

    Raises `InvalidArgumentError` if no choice has so many devices for such a batch, and
    `ResourceExhaustedError` if none fits in the memory of a device: with what is short, and what would fit.
    """
    models: dict[int, Model | None] = {}

    def model_with(stages: int) -> Model | None:
        if stages not in models:
            try:
                models[stages] = model(stages)
            except InvalidArgumentError:
                models[stages] = None  # fewer operations than stages
        return models[stages]

    found = [estimate(choice, known, shared[choice.tp], machine, samples)
             for choice in choices(machine, samples, shared, fixed)
             if (known := model_with(choice.stages)) is not None]  # fmt: skip
    if not found:
        given = "".join(f", {key}={value}" for key, value in fixed.items())
        raise InvalidArgumentError(
            f"expected dp x tp x pp = {machine.devices}, all of the cluster, and a batch of {samples} "
            f"that dp x micro_batches divides{given}; there are no such sizes"
        )
    found.sort(key=lambda each: each.seconds)
    if cut_to_fit is not None:
        found = _with_other_cuts(found, cut_to_fit, shared, machine, samples)
    fitting = [each for each in found if each.nbytes <= machine.memory]
    if not fitting:
        least = min(found, key=lambda each: each.nbytes)
        raise does_not_fit(least.choice, least.nbytes, machine)
    return Found(tuple(fitting), tuple(each for each in found if each.nbytes > machine.memory))


def _with_other_cuts(
    found: list[Estimate],
    cut_to_fit: Callable[[Choice], Model],
    shared: Mapping[int, Shared],
    machine: Machine,
    samples: int,
) -> list[Estimate]:
    """``found``, in which the fastest pipelines that do not fit, and are faster than all that do, are cut
    otherwise if they fit then.
    """
    first = next((n for n, each in enumerate(found) if each.nbytes <= machine.memory), len(found))
    pipelines = [each for each in found[:first] if each.choice.pp > 1][:CUT_TO_FIT]
    cut: dict[Choice, Estimate] = {}
    for each in pipelines:
        choice = replace(each.choice, memory=machine.memory)
        with suppress(ResourceExhaustedError):
            other = estimate(choice, cut_to_fit(choice), shared[choice.tp], machine, samples)
            if other.nbytes <= machine.memory:
                cut[each.choice] = other
    return sorted((cut.get(each.choice, each) for each in found), key=lambda each: each.seconds)


def does_not_fit(smallest: Choice, nbytes: int, machine: Machine) -> ResourceExhaustedError:
    """The error that ``smallest``, the choice with the fewest ``nbytes`` of a device, does not fit."""
    factor = math.ceil(nbytes / machine.memory)
    return ResourceExhaustedError(
        f"expected a choice that needs at most {machine.memory:,} bytes of a device; the smallest "
        f"needs {nbytes:,}: {describe(smallest)}. Devices of {-(-nbytes // 2**20):,} MiB would do, or about "
        f"{machine.devices * factor} devices of this kind, or a smaller batch"
    )


def describe(choice: Choice) -> str:
    """``choice`` as text, such as ``dp=4 tp=2 sharding=3``.

    >>> describe(Choice(dp=2, pp=2, micro_batches=4, schedule="gpipe"))
    'dp=2 pp=2 micro_batches=4 schedule=gpipe'
    """
    sizes = {"dp": choice.dp, "tp": choice.tp, "pp": choice.pp, "micro_batches": choice.micro_batches}
    named = [f"{key}={value}" for key, value in sizes.items() if value > 1]
    if choice.pp > 1:
        named += [f"schedule={choice.schedule}", *(["remat"] if choice.remat else [])]
        named += ["cut to fit"] if choice.memory is not None else []
    if choice.sharding:
        named.append(f"sharding={choice.sharding}")
    return " ".join(named) or "one device"
