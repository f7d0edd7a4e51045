"""`profile`: a table of the costs of traced steps, by scope, operation, device or line of the script.

Stages: node costs, a `Row` for all of them (`by_scope` or `flat`), its filtering by the options
(`shown`), a `Profile`, which is text or rows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from flowrt.errors import InvalidArgumentError
from flowrt.profiler import costs
from flowrt.profiler.costs import NodeCost, Row
from flowrt.profiler.profile_options import ProfileOptions, read_options
from flowrt.profiler.steps import read_step
from flowrt.profiler.text_table import first_few, size_text

VIEWS = ("scope", "graph", "op", "device", "code")

_HEADS = {"micros": "time", "bytes": "memory", "occurrence": "runs", "device": "device", "op_types": "ops"}

_NUMBERS = ("micros", "bytes", "occurrence")

MAX_NAMED_OPS = 3
"""Op types that a row names."""


@final
class Profile:
    """The result of `profile`: ``root`` is the sum of all, with the shown rows below it."""

    def __init__(self, root: Row, columns: Sequence[str], steps: int) -> None:
        self.root, self._columns, self._steps = root, columns, steps

    @property
    def total_micros(self) -> float:
        """The mean of one step."""
        return self.root.micros / self._steps

    def __str__(self) -> str:
        """The table. Times and bytes are of one step, on the average."""
        rows = [["", *(_HEADS[column] for column in self._columns)]]
        rows += [self._line(row, depth) for row, depth in _walk(self.root)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        adjust = [str.ljust, *(str.rjust if column in _NUMBERS else str.ljust for column in self._columns)]
        lines = [
            [fit(cell, width) for fit, cell, width in zip(adjust, row, widths, strict=True)] for row in rows
        ]
        return "\n".join("  ".join(cells).rstrip() for cells in lines)

    def _line(self, row: Row, depth: int) -> list[str]:
        cells = {
            "micros": f"{_time(row.micros / self._steps)} {_share(row.micros, self.root.micros)}",
            "bytes": size_text(row.bytes / self._steps),
            "occurrence": f"{row.occurrence / self._steps:.4g}",
            "device": ", ".join(row.devices),
            "op_types": first_few(row.ops, MAX_NAMED_OPS),
        }
        return ["  " * depth + (row.name or "total"), *(cells[column] for column in self._columns)]


def profile(
    graph: Any = None,
    run_meta: Any = None,
    op_log: Any = None,
    cmd: str = "scope",
    options: Mapping[str, Any] | None = None,
) -> Profile:
    """A table of the run recorded in ``run_meta``, a `RunMetadata`; it is also printed.

    ``cmd``: ``scope`` (or ``graph``) is a tree of names, ``op``, ``device`` and ``code`` (lines of the
    script, by ``graph``) are sums. ``options``: see `ProfileOptions`; `ProfileOptionBuilder` builds them.
    ``op_log`` is accepted for compatibility. Raises `InvalidArgumentError` for anything else.
    """
    if not hasattr(run_meta, "step_stats"):
        raise InvalidArgumentError(
            f"profile: run_meta: expected the RunMetadata of a run with FULL_TRACE; got {run_meta!r:.60}"
        )
    return _profile(graph, [run_meta], cmd, read_options(options))


@final
class Profiler:
    """Several traced steps of one ``graph`` together. TensorFlow's ``tf.profiler.Profiler``."""

    def __init__(self, graph: Any = None, op_log: Any = None) -> None:
        self._graph = graph
        self._steps: dict[int, Any] = {}

    def add_step(self, step: int, run_meta: Any) -> None:
        """Add the `RunMetadata` of step number ``step``."""
        self._steps[step] = run_meta

    def profile_name_scope(self, options: Mapping[str, Any] | None = None) -> Profile:
        return self._of("scope", options)

    def profile_graph(self, options: Mapping[str, Any] | None = None) -> Profile:
        return self._of("graph", options)

    def profile_operations(self, options: Mapping[str, Any] | None = None) -> Profile:
        return self._of("op", options)

    def profile_devices(self, options: Mapping[str, Any] | None = None) -> Profile:
        return self._of("device", options)

    def profile_python(self, options: Mapping[str, Any] | None = None) -> Profile:
        return self._of("code", options)

    def _of(self, cmd: str, options: Mapping[str, Any] | None) -> Profile:
        read = read_options(options)
        if read.step != -1 and read.step not in self._steps:
            raise InvalidArgumentError(
                f"Profiler: step: expected -1 or one of {sorted(self._steps)}; got {read.step}"
            )
        chosen = list(self._steps.values()) if read.step == -1 else [self._steps[read.step]]
        return _profile(self._graph, chosen, cmd, read)


def _profile(graph: Any, run_metas: Sequence[Any], cmd: str, options: ProfileOptions) -> Profile:
    if cmd not in VIEWS:
        raise InvalidArgumentError(f"profile: cmd: expected one of {', '.join(VIEWS)}; got {cmd!r}")
    found = [
        cost
        for cost in costs.node_costs(read_step(each.step_stats) for each in run_metas)
        if _matches(cost.op, options.account_type_regexes)
    ]
    made = Profile(shown(_view(cmd, found, graph), options), options.select, max(1, len(run_metas)))
    _put_out(made, options.output)
    return made


def _view(cmd: str, found: Sequence[NodeCost], graph: Any) -> Row:
    match cmd:
        case "op":
            return costs.flat(found, lambda cost: cost.op)
        case "device":
            return costs.flat(found, lambda cost: costs.short_device(cost.device))
        case "code":
            lines = _lines(graph)
            return costs.flat(found, lambda cost: lines.get(cost.name, "(made by flowrt)"))
        case _:
            return costs.by_scope(found)


def _lines(graph: Any) -> dict[str, str]:
    """The line that created each operation of ``graph``, a `Graph`."""
    if not hasattr(graph, "get_operations"):
        raise InvalidArgumentError(f"profile: the view 'code' needs the Graph; got {graph!r:.60}")
    return {op.name: str(op.node.source) for op in graph.get_operations() if op.node.source}


def shown(root: Row, options: ProfileOptions) -> Row:
    """The part of ``root`` that ``options`` show: children of a row that is hidden by name move up."""
    return Row(root.name, root.costs, list(_shown_below(root, options, 1, False)))


def _shown_below(row: Row, options: ProfileOptions, depth: int, is_started: bool) -> Iterator[Row]:
    for child in sorted(row.children, key=lambda each: _rank(each, options.order_by)):
        if _is_cut(child, options, depth):
            continue
        begins = is_started or _matches(child.name, options.start_name_regexes)
        below = list(_shown_below(child, options, depth + 1, begins))
        is_named = _matches(child.name, options.show_name_regexes)
        if begins and is_named and not _matches(child.name, options.hide_name_regexes):
            yield Row(child.name, child.costs, below)
        else:
            yield from below


def _is_cut(row: Row, options: ProfileOptions, depth: int) -> bool:
    """Whether the row and its descendants are all hidden."""
    return (
        depth > options.max_depth
        or row.micros < options.min_micros
        or row.bytes < options.min_bytes
        or row.occurrence < options.min_occurrence
        or _matches(row.name, options.trim_name_regexes)
    )


def _rank(row: Row, order_by: str) -> Any:
    return row.name if order_by == "name" else (-getattr(row, order_by), row.name)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(re.match(pattern, name) for pattern in patterns)


def _walk(row: Row, depth: int = 0) -> Iterator[tuple[Row, int]]:
    yield row, depth
    for child in row.children:
        yield from _walk(child, depth + 1)


def _put_out(made: Profile, output: str) -> None:
    if output == "stdout":
        sys.stdout.write(f"{made}\n")
    elif output != "none":
        Path(output.partition("=")[2]).write_text(f"{made}\n", encoding="utf-8")


def _time(micros: float) -> str:
    return f"{micros / 1000:.2f} ms" if micros >= 1000 else f"{micros:.1f} us"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:4.0%}" if whole else "  0%"
