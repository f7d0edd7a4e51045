"""The sections of a report: each returns a `Run`'s charts and tables, or a note on what is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import islice

from flowrt.base.markup import Child, Markup, element, joined
from flowrt.distribute.observe.flight_recorder import Record, What
from flowrt.distribute.observe.missing_sender import explain, short_name
from flowrt.profiler.costs import NodeCost, live_bytes, node_costs, short_device
from flowrt.profiler.steps import Operation, Step
from flowrt.profiler.text_table import size_text
from flowrt.report import charts
from flowrt.report.charts import Bar, Mark
from flowrt.report.parts import legend, missing, section, table
from flowrt.report.plan_sections import PLAN_SECTIONS
from flowrt.report.read_run import Point, Run
from flowrt.report.scale import byte_ticks, duration, number, share
from flowrt.report.setup_sections import comparison, setup
from flowrt.report.step_times import ACTIVITIES, Traffic, activities, activity_of, mean_span, streams, traffic

MAX_OPS = 20
MAX_CURVES = 24
MAX_ABORTS = 20
MAX_LINES = 40

TRACES_BY = (
    "Run steps with RunOptions(trace_level=FULL_TRACE) and pass the RunMetadata to "
    "FileWriter.add_run_metadata, or use train.ProfilerHook."
)


def header(run: Run) -> Markup:
    """The title and one line of facts."""
    steps = [point.step for lines in run.curves.values() for points in lines.values() for point in points]
    facts = [("files read", str(len(run.files)))]
    if run.first_time and run.last_time:
        facts.insert(0, ("from", _date(run.first_time)))
        facts.insert(1, ("duration", duration((run.last_time - run.first_time) * 1e9)))
    if steps:
        facts.append(("last step", str(max(steps))))
    if run.traces:
        facts.append(("traced steps", str(len(run.traces))))
        facts.append(("mean traced step", duration(mean_span(_steps(run)))))
    for plan in run.plans[:1]:
        facts += [("planned step", duration(plan.seconds * 1e9)), ("on", f"{plan.product.devices} devices"),
                  ("planned rate", f"{number(plan.product.samples_per_second)} samples/s")]  # fmt: skip
    if run.records:
        facts.append(("tasks with records", str(len({record.task for record in run.records}))))
    shown = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    return joined([element("h1", run.directory.resolve().name), element("dl", shown, class_="facts")])


def notes(run: Run) -> Markup:
    """The files that could not be read."""
    if not run.notes:
        return Markup("")
    lines = [element("li", note) for note in run.notes]
    return element("aside", element("h2", "Unreadable files"), element("ul", lines))


def curves(run: Run) -> Markup:
    """The scalars, one chart per tag, those of losses first."""
    if not run.curves:
        return missing("Curves", "no scalars", "Write summary.scalar with a FileWriter.")
    figures = []
    for tag in sorted(run.curves, key=lambda tag: ("loss" not in tag.lower(), tag))[:MAX_CURVES]:
        lines = run.curves[tag]
        last = [points[-1].value for points in lines.values()]
        caption = element("figcaption", element("b", tag), element("span", f"last {number(last[-1])}"))
        figures.append(element("figure", caption, charts.curves(lines), legend(list(lines))))
    more = len(run.curves) - MAX_CURVES
    note = element("p", f"The event files contain {more} more scalars.") if more > 0 else ""
    return section("Curves", element("div", figures, class_="grid"), note)


def step_times(run: Run) -> Markup:
    """Activities of the streams, and the last traced step's timeline."""
    if not run.traces:
        return missing("Step time", "no traced steps", TRACES_BY)
    steps, last = _steps(run), run.traces[-1]
    cells = [
        [element("td", each.stream), element("td", _stack(each.nanos), class_="wide")]
        + [element("td", duration(each.nanos[kind]), class_="number") for kind in ACTIVITIES]
        for each in activities(steps)
    ]
    heads = ["stream", "", *ACTIVITIES]
    return section(
        "Step time",
        element("p", f"Mean step time {duration(mean_span(steps))} over {len(steps)} traced steps."),
        table(heads, cells, number_from=2),
        element("h3", f"Timeline of {last.tag}"),
        _went(last.step),
        legend(ACTIVITIES, classes=ACTIVITIES),
    )


def slowest_ops(run: Run) -> Markup:
    """The nodes that took the most time."""
    if not run.traces:
        return missing("Slowest operations", "no traced steps", TRACES_BY)
    steps = _steps(run)
    costs = sorted((cost for cost in node_costs(steps) if cost.micros), key=lambda cost: -cost.micros)
    whole = sum(cost.micros for cost in costs)
    rows = [_cost_row(cost, costs[0].micros, whole, len(steps)) for cost in costs[:MAX_OPS]]
    rest = costs[MAX_OPS:]
    took = sum(cost.micros for cost in rest)
    note = f"The other {len(rest)} operations take {share(took, whole)} of the time." if rest else ""
    heads = ["operation", "type", "device", "", "time per step", "share", "runs", "allocated"]
    return section("Slowest operations", table(heads, rows, number_from=4), element("p", note))


def sent(run: Run) -> Markup:
    """Bytes from device to device."""
    if not run.traces:
        return missing("Transfers between devices", "no traced steps", TRACES_BY)
    found = traffic(_steps(run))
    if not found:
        return section("Transfers between devices", element("p", "No tensors were transferred."))
    sources = sorted({each.source for each in found})
    targets = sorted({each.target for each in found})
    cells = {(each.source, each.target): each for each in found}
    most = max(each.nbytes for each in found)
    rows = [
        [element("th", source, scope="row"), *(_heat(cells.get((source, t)), most) for t in targets)]
        for source in sources
    ]
    heads = ["from \\ to", *targets]
    return section("Transfers between devices", table(heads, rows, number_from=1, kind="matrix"))


def memory(run: Run) -> Markup:
    """Live tensors: the peak of each traced step, those during the last one, and the pool's peak."""
    if not run.traces:
        return missing("Memory", "no traced steps", TRACES_BY)
    step = run.traces[-1].step
    lines = {
        short_device(device): [((at - step.start) * 1.0, float(nbytes)) for at, nbytes in samples]
        for device, samples in sorted(live_bytes(step).items())
    }
    if not lines:
        return section("Memory", element("p", "No operation of the step produced a tensor of known size."))
    pools = {short_device(op.device): 0 for op in step.operations if op.pool_bytes}
    for op in step.operations:
        if op.pool_bytes:
            pools[short_device(op.device)] = max(pools[short_device(op.device)], op.pool_bytes)
    over_run = _peaks(run)
    peaks = [
        f"{name} {size_text(max(value for _, value in pairs))}"
        + (f" (pool incl. variables and plans {size_text(pools[name])})" if name in pools else "")
        for name, pairs in lines.items()
    ]
    return section(
        "Memory",
        element(
            "p",
            f"Live outputs of operations during {run.traces[-1].tag} (last traced step):"
            f" peak {', '.join(peaks)}.",
        ),
        charts.areas(lines),
        legend(list(lines)),
        element("h3", "Over the run"),
        element("p", "Peak bytes of live outputs in each traced step."),
        charts.curves(over_run, width=charts.WIDE, name_y=size_text, ticks_y=byte_ticks),
        legend(list(over_run)),
    )


def cluster_events(run: Run) -> Markup:
    """Events of the tasks' flight recorders, and their records of failed steps."""
    if not run.records:
        return missing(
            "Cluster events", "no flight records", "Tasks with --log-dir write them when a step is aborted."
        )
    marks = {short_name(record.task): _marks(record) for record in run.records}
    times = [mark.at for each in marks.values() for mark in each]
    start = min(times, default=0.0)
    moved = {name: [mark._replace(at=mark.at - start) for mark in each] for name, each in marks.items()}
    last = max((mark.at for each in moved.values() for mark in each), default=0.0)
    kinds = [what.value for what in What]
    return section(
        "Cluster events",
        charts.rows({}, moved, (0.0, max(last, 1e3))),
        legend(kinds, classes=kinds),
        _aborts(run.records),
        element("h3", "Pending at the end"),
        element("pre", "\n".join(islice(explain(run.records), MAX_LINES))),
    )


def files(run: Run) -> Markup:
    """Sources of the report."""
    names = [str(path.relative_to(run.directory)) for path in run.files]
    parts: list[Child] = [element("ul", [element("li", name) for name in names])]
    if run.trace_files:
        traces = [str(path.relative_to(run.directory)) for path in run.trace_files]
        parts.append(element("p", "Timelines, for Perfetto or chrome://tracing:"))
        parts.append(element("ul", [element("li", name) for name in traces]))
    return section("Files", *parts)


RUN_SECTIONS = (setup, comparison, curves, step_times, slowest_ops, sent, memory, cluster_events)


def sections_of(run: Run) -> list[Callable[[Run], Markup]]:
    """The sections of a report, from the top of the page to its end: of plans, and of what was run unless
    there are only plans.
    """
    has_run = len(run.files) > len(run.plans)
    of_plans = PLAN_SECTIONS if run.plans else ()
    return [header, notes, *of_plans, *(RUN_SECTIONS if has_run or not run.plans else ()), files]


# --- parts of sections


def _steps(run: Run) -> list[Step]:
    return [trace.step for trace in run.traces]


def _peaks(run: Run) -> dict[str, list[Point]]:
    """The peaks by device, and by folder if there are several."""
    folders = {folder for each in run.peaks.values() for folder in each}
    return {
        short_device(device) + (f", {folder}" if len(folders) > 1 else ""): points
        for device, each in sorted(run.peaks.items())
        for folder, points in each.items()
    }


def _went(step: Step) -> Markup:
    span = max(1, step.end - step.start)
    bars = {
        name: charts.merged((_op_bar(step, op) for op in operations), span / 800)
        for name, operations in streams(step).items()
    }
    return charts.rows(bars, {}, (0.0, float(span)))


def _op_bar(step: Step, op: Operation) -> Bar:
    text = f"{op.name} ({op.op}): {duration(op.end - op.start)}"
    return Bar(op.start - step.start, op.end - step.start, activity_of(op), text)


def _stack(nanos: dict[str, float]) -> Markup:
    """The activities of a stream as one bar."""
    whole = sum(nanos.values()) or 1.0
    parts = [
        element(
            "i",
            class_=f"bar {kind}",
            style=f"width:{100 * took / whole:.2f}%",
            title=f"{kind} {duration(took)}, {share(took, whole)}",
        )
        for kind, took in nanos.items()
        if took
    ]
    return element("div", parts, class_="stack")


def _cost_row(cost: NodeCost, most: float, whole: float, steps: int) -> list[Markup]:
    bar = element("i", class_="bar compute", style=f"width:{100 * cost.micros / (most or 1):.2f}%")
    cells = [
        duration(cost.micros * 1e3 / steps),
        share(cost.micros, whole),
        f"{cost.occurrence / steps:.3g}",
        size_text(cost.bytes / steps),
    ]
    return [
        element("td", cost.name, class_="name", title=cost.name),
        element("td", cost.op, class_="name", title=cost.op),
        element("td", short_device(cost.device), class_="device"),
        element("td", element("div", bar, class_="stack bare"), class_="narrow"),
        *(element("td", cell, class_="number") for cell in cells),
    ]


def _heat(traffic: Traffic | None, most: float) -> Markup:
    if traffic is None:
        return element("td", "–", class_="number none")
    level = round(4 * (traffic.nbytes / most) ** 0.5) if most else 0
    tensors = f"{traffic.tensors:.3g} tensor{'' if traffic.tensors == 1 else 's'}"
    return element("td", size_text(traffic.nbytes), element("small", tensors), class_=f"number amount{level}")


def _marks(record: Record) -> list[Mark]:
    """The events of a record, at nanoseconds."""
    return [
        Mark(
            event.time * 1e9, event.what.value, f"{event.what.value}, step {event.step:x} {event.key}".strip()
        )
        for event in record.events
    ]


def _aborts(records: Iterable[Record]) -> Markup:
    """One row per aborted step: the first error, and the tasks that it reached."""
    steps: dict[int, list[tuple[float, str, str]]] = defaultdict(list)
    for record in records:
        for event in record.events:
            if event.what is What.ABORTED:
                steps[event.step].append((event.time, short_name(record.task), event.key))
    if not steps:
        return element("p", "No step was aborted.")
    rows = []
    for step, aborts in sorted(steps.items(), key=lambda item: min(item[1]))[-MAX_ABORTS:]:
        time, _, error = min(aborts)
        tasks = ", ".join(sorted({task for _, task, _ in aborts}))
        cells = [element("td", text, class_="device") for text in (_date(time), f"{step:x}", tasks)]
        rows.append([*cells, element("td", error)])
    return table(["aborted at", "step", "tasks", "first error"], rows)


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
