"""The sections of a report on a plan: what was chosen, its rate, its step, memory, why not, and scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrt.base.markup import Child, Markup, element, joined
from flowrt.plan.explain import SpeedUps, laws_text, part_text, seconds_text
from flowrt.plan.plan_record import Memory, PlanRecord, Scaling
from flowrt.plan.replay.laws import Fit, fit_amdahl, fit_gustafson
from flowrt.plan.replay.spans import Row, Span
from flowrt.profiler.text_table import size_text
from flowrt.report import charts
from flowrt.report.charts import Bar, Line
from flowrt.report.parts import legend, missing, section, table
from flowrt.report.read_run import Run
from flowrt.report.scale import number, share

KINDS = {
    "computing": "compute", "forward": "compute", "backward": "backward", "outside": "c2",
    "all_reduce": "wait", "all_gather": "c3", "reduce_scatter": "c7", "all_to_all": "c6", "broadcast": "c5",
    "message": "send", "others": "others", "bubble": "idle",
}  # fmt: skip
"""The colours of what a device does, in the order of legends."""

WORDS = {"outside": "updates, and all else outside of passes",
         "others": "waiting for the last device of a collective"}  # fmt: skip

MAX_ROWS = 64
"""The most rows of a timeline: beyond, those in the middle are left out."""


def plans(run: Run) -> Markup:
    """All sections of each plan."""
    return joined(part(plan) for plan in run.plans for part in (chosen, rate, step, memory, why_not, scaling))


PLAN_SECTIONS = (plans,)


def chosen(plan: PlanRecord) -> Markup:
    """The choice, for which script and cluster."""
    facts = [("strategy", plan.mesh), ("script", plan.script), ("batch", f"{plan.samples} samples"),
             ("searched", plan.searched)]  # fmt: skip
    facts += [("layouts" if i == 0 else "", line) for i, line in enumerate(plan.layouts)]
    rows = [[element("th", name, scope="row"), element("td", value)] for name, value in facts]
    return section(
        "Plan",
        element("table", element("tbody", [element("tr", row) for row in rows]), class_="pairs"),
        element("details", element("summary", "The cluster"), element("pre", plan.cluster)),
    )


def rate(plan: PlanRecord) -> Markup:
    """The rate as a product, and what each factor leaves of it."""
    found = plan.product
    ideal = found.device_rate * found.devices
    factors = [
        ("useful", found.useful, "nothing is computed twice"),
        ("without bubble", 1 - found.bubble, "no device waits for another stage, or for the end"),
        ("without waiting", 1 - found.exposed, "communication is hidden behind computing"),
        ("balance", 1 - found.imbalance, "all devices compute as much as the busiest"),
    ]
    formula = [
        _term(number(found.device_rate), "samples/s of a device"), _sign("×"),
        _term(str(found.devices), "devices"), _sign("×"),
        _term(f"{found.efficiency:.1%}", "efficiency"), _sign("="),
        _term(f"{number(found.samples_per_second)}", "samples/s"),
    ]  # fmt: skip
    rows, left = [_factor_row("devices that only compute", None, 1.0, ideal, "")], 1.0
    for name, factor, meaning in factors:
        left *= factor
        rows.append(_factor_row(name, factor, left, ideal * left, f"100 % if {meaning}"))
    heads = ["factor", "", "left", "samples/s", ""]
    return section("Rate", element("div", formula, class_="product"), table(heads, rows, number_from=99))


def step(plan: PlanRecord) -> Markup:
    """The parts of the step, and its timeline: one row for each position of the pipeline."""
    rows = list(plan.rows)
    left_out = max(0, len(rows) - MAX_ROWS)
    if left_out:
        rows = [*rows[: MAX_ROWS // 2], *rows[-MAX_ROWS // 2 :]]
    bars = {_row_name(row, len(plan.rows)): [_bar(span) for span in row.spans] for row in rows}
    seen = {span.kind for row in rows for span in row.spans}
    kinds = {kind: colour for kind, colour in KINDS.items() if kind in seen}
    note = f" {left_out} rows in the middle are left out." if left_out else ""
    who = "each position of the pipeline" if len(plan.rows) > 1 else "all"
    text = f"The busiest device of {who}, as the emitted step was played: nothing was run.{note}"
    return section(
        "Step",
        element("p", f"{seconds_text(plan.seconds)} on the busiest device: {_parts_text(plan.parts)}."),
        _stack(plan.parts, plan.seconds),
        element("h3", "Timeline"),
        element("p", text, class_="missing"),
        charts.rows(bars, {}, (0.0, plan.seconds * 1e9)),
        legend([_words(kind) for kind in kinds], classes=list(kinds.values())),
    )


def memory(plan: PlanRecord) -> Markup:
    """The bytes of a device of each position, by what they are for."""
    names = list(dict.fromkeys(name for each in plan.memory for name, size in each.held.items() if size))
    colours = {name: f"c{i % charts.NUM_COLOURS}" for i, name in enumerate(names)}
    most = max(each.nbytes for each in plan.memory)
    rows = [_memory_row(each, len(plan.memory), plan.device_bytes, most, colours) for each in plan.memory]
    heads = ["", "", "peak", f"of {size_text(plan.device_bytes)}", *names]
    return section(
        "Memory",
        element("p", "The most bytes of a device at a time, as the executor's own plan has them."),
        table(heads, rows, number_from=2),
        legend(names),
    )


def why_not(plan: PlanRecord) -> Markup:
    """The other choices, with the parts of their steps on one scale, and reasons."""
    if not plan.others:
        return section("Why not", element("p", f"{plan.searched[:1].upper()}{plan.searched[1:]}."))
    longest = max([plan.seconds, *(sum(other.parts.values()) for other in plan.others)])
    rows = [_choice_row(plan.choice, plan.parts, longest, "chosen")]
    rows += [_choice_row(other.choice, other.parts, longest, other.why) for other in plan.others]
    seen = {kind for other in plan.others for kind in other.parts} | plan.parts.keys()
    kinds = {kind: colour for kind, colour in KINDS.items() if kind in seen}
    return section(
        "Why not",
        table(["choice", "step", "", "why"], rows),
        legend([_words(kind) for kind in kinds], classes=list(kinds.values())),
    )


def scaling(plan: PlanRecord) -> Markup:
    """Speed-ups by the number of devices, with the laws of Amdahl and Gustafson."""
    found = plan.scaling
    if len(found) < 2:
        return missing("Scaling", "one number of devices only", "Without --fix, smaller ones are estimated.")
    devices = [each.devices for each in found]
    ups = SpeedUps(devices, [each.strong for each in found], [each.weak for each in found])
    figures = [
        _curve("The same batch", "Amdahl's law", devices, ups.strong, fit_amdahl(devices, ups.strong)),
        _curve("A batch that grows", "Gustafson's law", devices, ups.weak, fit_gustafson(devices, ups.weak)),
    ]
    rows = [_scaling_row(each) for each in found]
    heads = ["devices", "step", "speed-up", "efficiency", "growing batch", "choice, by estimates"]
    return section(
        "Scaling",
        element("p", "Speed-up over one device, by closed forms: nothing was played."),
        element("div", figures, class_="grid two"),
        element("ul", [element("li", line) for line in laws_text(ups)]),
        table(heads, rows),
    )


# --- parts of sections


def _term(value: str, text: str) -> Markup:
    return element("div", element("b", value), element("small", text))


def _sign(text: str) -> Markup:
    return element("i", text)


def _factor_row(name: str, factor: float | None, left: float, samples: float, meaning: str) -> list[Markup]:
    bar = element("i", class_="bar compute", style=f"width:{100 * left:.2f}%")
    return [
        element("td", name, class_="device"),
        element("td", "" if factor is None else f"× {factor:.1%}", class_="number"),
        element("td", element("div", bar, class_="stack"), class_="narrow"),
        element("td", number(samples), class_="number"),
        element("td", meaning, class_="none"),
    ]


def _row_name(row: Row, count: int) -> str:
    return f"pp={row.position}" if count > 1 else "a device"


def _bar(span: Span) -> Bar:
    text = f"{_words(span.kind)}: {seconds_text(span.end - span.start)}, {span.name}"
    return Bar(span.start * 1e9, span.end * 1e9, KINDS.get(span.kind, "c7"), text)


def _words(kind: str) -> str:
    return WORDS.get(kind, part_text(kind))


def _parts_text(parts: Mapping[str, float]) -> str:
    whole = sum(parts.values())
    return ", ".join(
        f"{_words(kind)} {seconds_text(seconds)} ({share(seconds, whole)})"
        for kind, seconds in parts.items()
        if seconds > 0
    )


def _stack(parts: Mapping[str, float], whole: float) -> Markup:
    """The parts of a step as one bar, of which ``whole`` seconds are the width."""
    shown = [
        element("i", class_=f"bar {KINDS.get(kind, 'c7')}", style=f"width:{100 * seconds / whole:.2f}%",
                title=f"{_words(kind)} {seconds_text(seconds)}")
        for kind, seconds in parts.items() if seconds > 0
    ]  # fmt: skip
    return element("div", shown, class_="stack open")


def _memory_row(each: Memory, count: int, whole: int, most: int, colours: Mapping[str, str]) -> list[Markup]:
    bars = [
        element("i", class_=f"bar {colours[name]}", style=f"width:{100 * size / most:.2f}%",
                title=f"{name} {size_text(size)}")
        for name, size in each.held.items() if size
    ]  # fmt: skip
    sizes = [size_text(each.held.get(name, 0)) for name in colours]
    return [
        element("td", f"pp={each.position}" if count > 1 else "a device", class_="device"),
        element("td", element("div", bars, class_="stack open"), class_="narrow"),
        *(element("td", text, class_="number")
          for text in (size_text(each.nbytes), share(each.nbytes, whole), *sizes)),
    ]  # fmt: skip


def _choice_row(choice: str, parts: Mapping[str, float], longest: float, why: str) -> list[Markup]:
    seconds = sum(parts.values())
    return [
        element("td", choice, class_="choice"),
        element("td", seconds_text(seconds) if parts else "–", class_="device"),
        element("td", _stack(parts, longest) if parts else "", class_="narrow"),
        element("td", why),
    ]


def _curve(title: str, law: str, devices: Sequence[int], speedups: Sequence[float], fit: Fit) -> Markup:
    """A figure of a scaling curve, of equal shares for all devices, and of the law if it fits."""
    lines = {
        "each device as fast as one": Line([(n, float(n)) for n in (devices[0], devices[-1])], "c8"),
        "estimated": Line(list(zip(devices, speedups, strict=True)), "c0", has_dots=True),
    }
    if fit.why_not(devices, speedups) is None:
        steps = 32
        at = [devices[0] * (devices[-1] / devices[0]) ** (k / steps) for k in range(steps + 1)]
        lines[law] = Line([(n, fit.speedup(n)) for n in at], "c1")
    caption = element("figcaption", element("b", title), element("span", f"R² {fit.r_squared:.3f}"))
    return element(
        "figure", caption, charts.powers_of_two(lines), legend(list(lines), [e.kind for e in lines.values()])
    )


def _scaling_row(each: Scaling) -> list[Markup]:
    cells: list[Child] = [str(each.devices), seconds_text(each.seconds), f"{each.strong:.3g}",
                          share(each.strong, each.devices), share(each.weak, each.devices)]  # fmt: skip
    return [*(element("td", cell, class_="device") for cell in cells), element("td", each.choice)]
