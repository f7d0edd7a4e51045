"""Plans as facts and as text: what is chosen, why, and why not something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.plan.choice import Choice
from flowrt.plan.planning import Candidate, Planned, Slower
from flowrt.plan.replay.laws import fit_amdahl, fit_gustafson
from flowrt.plan.replay.step_times import Product
from flowrt.plan.stage_search import Estimate, Machine, describe
from flowrt.plan.task import Scaling
from flowrt.profiler.text_table import aligned

SHOWN = 5
"""The number of other choices that are shown."""

CLEARLY = 0.9
"""An estimate of at most this share of a played step is not a matter of how either is found."""

WORDS = {
    "all_reduce": "all-reduces", "all_gather": "all-gathers", "reduce_scatter": "reduce-scatters",
    "all_to_all": "all-to-alls", "broadcast": "broadcasts", "message": "sends",
}  # fmt: skip


class Other(NamedTuple):
    """A choice that was not taken, as text, and ``why``. ``parts`` are the seconds of its step by cause, none
    if it was not played.
    """

    choice: str
    why: str
    parts: Mapping[str, float] = {}

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


TextRow = tuple[str, str]
"""A name and a text; without a name, more of the row before."""


def explain(planned: Planned, machine: Machine, samples: int) -> list[TextRow]:
    """Rows on the best of ``planned``, and on the others."""
    best = planned.best
    return [
        ("mesh", mesh_text(best.choice)),
        ("step", _step(best)),
        ("rate", _rate(best, samples)),
        *[("memory" if i == 0 else "", line) for i, line in enumerate(_memory(best, machine))],
        *[("layouts" if i == 0 else "", line) for i, line in enumerate(layouts_text(best.choice))],
        ("played", played_text(planned)),
        *[
            ("why not" if i == 0 else "", _other_text(each))
            for i, each in enumerate(others(planned, machine))
        ],
    ]


def if_fewer(best: Candidate, fewer: Estimate | None) -> list[TextRow]:
    """A row that tells of a step on ``fewer`` devices, if it is faster than the ``best`` on all of them."""
    if fewer is None or fewer.seconds > CLEARLY * best.seconds:
        return []
    count, all_of_them = fewer.choice.devices, best.choice.devices
    times = f"{best.seconds / fewer.seconds:.1f} times as fast"
    what = f"{count} device{'s' if count > 1 else ''} of the {all_of_them}: {seconds_text(fewer.seconds)}"
    return [("fewer", f"{what} by estimates, {times}; see --sweep devices=1..{all_of_them}")]


def predicted(best: Candidate, samples: int) -> dict[str, Any]:
    """The facts of ``best`` in a plan's file: times in seconds, and bytes of a device by position."""
    return {
        "seconds": best.seconds,
        "samples_per_second": product_of(best, samples).samples_per_second,
        "parts": parts_of(best),
        "bytes": [program.peak_bytes for program in best.programs],
    }


def mesh_text(choice: Choice) -> str:
    """The sizes and the other decisions of ``choice``.

    >>> mesh_text(Choice(dp=4, sharding=2))
    'dp=4  tp=1  pp=1, stage 2 of sharding'
    """
    parts = [f"dp={choice.dp}  tp={choice.tp}  pp={choice.pp}"]
    if choice.pp > 1:
        chunks = f", {choice.chunks} stages a device" if choice.chunks > 1 else ""
        parts.append(f"schedule {choice.schedule}{chunks}")
        parts.append("with recomputation" if choice.remat else "no recomputation")
    if choice.micro_batches > 1:
        parts.append(f"{choice.micro_batches} micro-batches")
    if choice.sharding:
        parts.append(f"stage {choice.sharding} of sharding")
    return ", ".join(parts)


def _step(candidate: Candidate) -> str:
    parts, makespan = parts_of(candidate), candidate.seconds
    compute, bubble = parts.pop("computing"), parts.pop("bubble")
    shown = [f"compute {seconds_text(compute)} ({compute / makespan:.0%})", f"bubble {seconds_text(bubble)}"]
    longest = sorted(parts.items(), key=lambda pair: -pair[1])
    shown += [f"{part_text(kind)} {seconds_text(seconds)}" for kind, seconds in longest]
    return f"{seconds_text(makespan)}: " + ", ".join(shown)


def product_of(candidate: Candidate, samples: int) -> Product:
    """The rate of a step of ``samples`` as a product."""
    useful = 0.75 if candidate.choice.remat else 1.0  # F, F again and twice F instead of three
    return candidate.played.product(samples, useful)


def _rate(candidate: Candidate, samples: int) -> str:
    found = product_of(candidate, samples)
    return (
        f"{found.samples_per_second:.4g} samples/s = {found.device_rate:.4g} of a device x {found.devices} x "
        f"{found.efficiency:.1%} ({found.useful:.0%} useful x {1 - found.bubble:.1%} without bubble x "
        f"{1 - found.exposed:.1%} without waiting x {1 - found.imbalance:.1%} of balance)"
    )


def _memory(candidate: Candidate, machine: Machine) -> list[str]:
    lines = []
    for program in candidate.programs[:SHOWN]:
        held = ", ".join(f"{name} {bytes_text(size)}" for name, size in program.held.items() if size)
        where = f" on pp={program.position}" if len(candidate.programs) > 1 else ""
        lines.append(f"{bytes_text(program.peak_bytes)} of {bytes_text(machine.memory)}{where} ({held})")
    return lines


def played_text(planned: Planned) -> str:
    """The number of choices that were played, of all that fit, and of those that need not be."""
    if planned.fitting == 0:
        return "the choice that was given, without a search"
    text = f"{len(planned.candidates)} of {planned.fitting} choices that fit, the best by estimates"
    if planned.slower:
        text += f"; not {len(planned.slower)} more, slower for certain"
    return text


def layouts_text(choice: Choice) -> list[str]:
    """Each layout, with the number of variables that have it, and the first of them."""
    by_entries: Counter[str] = Counter()
    first: dict[str, str] = {}
    for name, entries in choice.layouts:
        if any(entries):
            text = f"[{', '.join(entry or '-' for entry in entries)}]"
            by_entries[text] += 1
            first.setdefault(text, name)
    return [
        f"{first[text]} {text}" + (f", and {count - 1} more" if count > 1 else "")
        for text, count in by_entries.most_common(SHOWN)
    ]


def others(planned: Planned, machine: Machine) -> list[Other]:
    """The best choices of other meshes, the smallest of those that do not fit, and one that is refused."""
    best = planned.best
    not_taken: list[Candidate | Slower] = [*planned.candidates[1:], *planned.slower]
    found = [_other(each, best) for each in _of_other_meshes(not_taken, best.choice)]
    large = min(planned.too_large, key=lambda each: each.nbytes, default=None)
    if large is not None:
        sizes = f"needs {bytes_text(large.nbytes)} of {bytes_text(machine.memory)}"
        found.append(Other(describe(large.choice), sizes))
    return found + [Other(describe(choice), why) for choice, why in planned.refused[:1]]


def _other(other: Candidate | Slower, best: Candidate) -> Other:
    if isinstance(other, Slower):
        return Other(describe(other.choice), f"{seconds_text(other.seconds)} at least")
    return Other(describe(other.choice), _more(other, best), parts_of(other))


def _other_text(other: Other) -> str:
    seconds = f"{seconds_text(other.seconds)}, " if other.parts else ""
    return f"{other.choice}: {seconds}{other.why}"


def _of_other_meshes(candidates: Iterable[Candidate | Slower], best: Choice) -> list[Candidate | Slower]:
    seen = {(best.dp, best.tp, best.pp, best.sharding)}
    found: list[Candidate | Slower] = []
    for each in candidates:
        key = (each.choice.dp, each.choice.tp, each.choice.pp, each.choice.sharding)
        if key not in seen and len(found) < SHOWN:
            found.append(each)
            seen.add(key)
    return found


def _more(other: Candidate, best: Candidate) -> str:
    """The part of a step of which ``other`` takes most more than ``best``."""
    mine, its = parts_of(best), parts_of(other)
    name = max(its, key=lambda part: its[part] - mine.get(part, 0.0))
    more = seconds_text(its[name] - mine.get(name, 0.0))
    return "as fast" if more == seconds_text(0.0) else f"{more} more of {part_text(name)}"


def part_text(kind: str) -> str:
    """A part of a step in words.

    >>> part_text("all_reduce")
    'waiting for all-reduces'
    """
    return f"waiting for {WORDS[kind]}" if kind in WORDS else kind


def parts_of(candidate: Candidate) -> dict[str, float]:
    """The seconds of a step by cause: computing, bubble, and waiting for each kind of communication. They are
    those of the busiest device, with what it waits for the others of a meeting as computing.
    """
    played = candidate.played
    exposed = {kind: seconds for kind, seconds in played.exposed.items() if seconds > 0}
    compute = played.makespan - played.bubble - sum(exposed.values())
    return {"computing": compute, "bubble": played.bubble, **exposed}


def seconds_text(seconds: float) -> str:
    """Seconds with three digits.

    >>> seconds_text(0.01234)
    '12.3 ms'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{max(round(seconds / 1e-6, 2), 0.0) + 0.0:.3g} us"


def bytes_text(nbytes: float) -> str:
    """Bytes with three digits.

    >>> bytes_text(1536)
    '1.5 KiB'
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} bytes"


def estimates_text(estimates: Sequence[Estimate]) -> list[str]:
    """A table of estimates, none of which was played.

    >>> estimates_text([Estimate(Choice(dp=2), 0.012, 1536, {})])
    ['choice, by estimates  step   bytes', 'dp=2                  12 ms  1.5 KiB']
    """
    rows = [("choice, by estimates", "step", "bytes")]
    rows += [(describe(e.choice), seconds_text(e.seconds), bytes_text(e.nbytes)) for e in estimates]
    return aligned(rows)


def scaling_text(scaling: Scaling) -> list[str]:
    """A table of numbers of devices, why some have no row, and the laws that fit them."""
    rows = scaling.rows
    lines = [("devices", "step", "speed-up", "efficiency", "with a growing batch", "choice, by estimates")]
    for row in rows:
        efficiency, weak = row.strong / row.devices, row.weak / row.devices
        lines.append(
            (
                str(row.devices), seconds_text(row.best.seconds), f"{row.strong:.3g}", f"{efficiency:.0%}",
                f"{weak:.0%}", describe(row.best.choice),
            )
        )  # fmt: skip
    laws = laws_text(
        SpeedUps([row.devices for row in rows], [row.strong for row in rows], [row.weak for row in rows])
    )
    none = [f"none for {devices}: {reason}" for devices, reason in scaling.left_out]
    return [*aligned(lines), *none, *(["", *laws] if laws else [])]


class SpeedUps(NamedTuple):
    """Speed-ups over one device by numbers of ``devices``: with the same batch, and with one that grows."""

    devices: Sequence[int]
    strong: Sequence[float]
    weak: Sequence[float]


def laws_text(found: SpeedUps) -> list[str]:
    """Lines on the laws of Amdahl and Gustafson; none for a single number of devices."""
    devices, strong, weak = found
    if len(devices) < 2:
        return []
    curves = (("Amdahl", fit_amdahl(devices, strong), strong),
              ("Gustafson, with a growing batch", fit_gustafson(devices, weak), weak))  # fmt: skip
    lines = []
    for name, fit, speedups in curves:
        why_not = fit.why_not(devices, speedups)
        share = f"{fit.share:.2%} of a step is divided among devices"
        text = share if why_not is None else f"does not fit, as {why_not}"
        lines.append(f"{name}: {text} (R^2 {fit.r_squared:.3f})")
    most = max(strong)
    fastest = devices[strong.index(most)]
    if fastest == 1:
        lines.append("The step is fastest on one device")
    elif fastest < devices[-1]:
        lines.append(f"The step is fastest on {fastest} devices, {most:.3g} times as fast as on one")
    return lines
