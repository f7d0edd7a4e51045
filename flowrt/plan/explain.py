"""Plans as text: what is chosen, why, and why not something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from flowrt.plan.choice import Choice
from flowrt.plan.planning import Candidate, Planned
from flowrt.plan.replay.laws import fit_amdahl, fit_gustafson
from flowrt.plan.stage_search import Estimate, Machine, describe
from flowrt.plan.task import Scaled
from flowrt.profiler.text_table import aligned

SHOWN = 5
"""The number of other choices that are shown."""

WORDS = {
    "all_reduce": "all-reduces", "all_gather": "all-gathers", "reduce_scatter": "reduce-scatters",
    "all_to_all": "all-to-alls", "broadcast": "broadcasts", "message": "sends",
}  # fmt: skip


def explain(planned: Planned, machine: Machine, samples: int) -> list[str]:
    """Lines on the best of ``planned``, and on the others."""
    best = planned.best
    rows = [
        ("mesh", _mesh(best.choice)),
        ("step", _step(best)),
        ("rate", _rate(best, samples)),
        *[("memory" if i == 0 else "", line) for i, line in enumerate(_memory(best, machine))],
        *[("layouts" if i == 0 else "", line) for i, line in enumerate(_layouts(best.choice))],
        ("played", f"{len(planned.candidates)} of {planned.fitting} choices that fit, the best by estimates"),
        *[("why not" if i == 0 else "", line) for i, line in enumerate(_others(planned, machine))],
    ]
    return aligned(rows)


def _mesh(choice: Choice) -> str:
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
    played = candidate.played
    exposed = {WORDS[kind]: seconds for kind, seconds in played.exposed.items() if seconds > 0}
    compute = played.makespan - played.bubble - sum(exposed.values())
    share = f"{compute / played.makespan:.0%}"
    shown = [f"compute {seconds_text(compute)} ({share})", f"bubble {seconds_text(played.bubble)}"]
    longest = sorted(exposed.items(), key=lambda pair: -pair[1])
    shown += [f"waiting for {kind} {seconds_text(seconds)}" for kind, seconds in longest]
    return f"{seconds_text(played.makespan)}: " + ", ".join(shown)


def _rate(candidate: Candidate, samples: int) -> str:
    useful = 0.75 if candidate.choice.remat else 1.0  # F, F again and twice F instead of three
    found = candidate.played.product(samples, useful)
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


def _layouts(choice: Choice) -> list[str]:
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


def _others(planned: Planned, machine: Machine) -> list[str]:
    best = planned.best
    lines = [
        f"{describe(other.choice)}: {seconds_text(other.seconds)}, {_more(other, best)}"
        for other in _of_other_meshes(planned.candidates[1:], best.choice)
    ]
    large = min(planned.too_large, key=lambda each: each.nbytes, default=None)
    if large is not None:
        sizes = f"needs {bytes_text(large.nbytes)} of {bytes_text(machine.memory)}"
        lines.append(f"{describe(large.choice)}: {sizes}")
    lines += [f"{describe(choice)}: {why}" for choice, why in planned.refused[:1]]
    return lines


def _of_other_meshes(candidates: Iterable[Candidate], best: Choice) -> list[Candidate]:
    seen = {(best.dp, best.tp, best.pp, best.sharding)}
    found: list[Candidate] = []
    for each in candidates:
        key = (each.choice.dp, each.choice.tp, each.choice.pp, each.choice.sharding)
        if key not in seen and len(found) < SHOWN:
            found.append(each)
            seen.add(key)
    return found


def _more(other: Candidate, best: Candidate) -> str:
    """The part of a step of which ``other`` has most more than ``best``."""
    mine, its = _parts(best), _parts(other)
    name = max(its, key=lambda part: its[part] - mine.get(part, 0.0))
    return f"{seconds_text(its[name] - mine.get(name, 0.0))} more of {name}"


def _parts(candidate: Candidate) -> Mapping[str, float]:
    played = candidate.played
    exposed = {f"waiting for {WORDS[kind]}": seconds for kind, seconds in played.exposed.items()}
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
    """A table of estimates, none of which was played."""
    rows = [("choice, by estimates", "step", "bytes")]
    rows += [(describe(e.choice), seconds_text(e.seconds), bytes_text(e.nbytes)) for e in estimates]
    return aligned(rows)


def scaling_text(rows: Sequence[Scaled]) -> list[str]:
    """A table of numbers of devices, and the laws that fit them."""
    lines = [("devices", "step", "speed-up", "efficiency", "with a growing batch", "choice, by estimates")]
    for row in rows:
        efficiency, weak = row.strong / row.devices, row.weak / row.devices
        lines.append(
            (
                str(row.devices), seconds_text(row.best.seconds), f"{row.strong:.3g}", f"{efficiency:.0%}",
                f"{weak:.0%}", describe(row.best.choice),
            )
        )  # fmt: skip
    text = aligned(lines)
    if len(rows) > 1:
        devices = [row.devices for row in rows]
        amdahl = fit_amdahl(devices, [row.strong for row in rows])
        gustafson = fit_gustafson(devices, [row.weak for row in rows])
        text += [
            "",
            f"Amdahl: {amdahl.share:.2%} of a step is divided among devices (R^2 {amdahl.r_squared:.3f})",
            f"Gustafson, with a growing batch: {gustafson.share:.2%} (R^2 {gustafson.r_squared:.3f})",
        ]
    return text
