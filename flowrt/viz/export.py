"""`export`: a graph as a file for a viewer, written atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError, ResourceExhaustedError, nearest
from flowrt.executor.observe.gc_pause import paused_collector
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.graph import Graph
from flowrt.profiler.steps import several
from flowrt.viz.compile_request import CompileRequest
from flowrt.viz.folding.fold import focus as in_focus
from flowrt.viz.folding.fold import fold, fold_to_screen, set_apart
from flowrt.viz.folding.series import with_series
from flowrt.viz.formats.picture import Picture
from flowrt.viz.formats.table import FORMATS, Format
from flowrt.viz.from_parts import view_of
from flowrt.viz.laid_out import LaidOut, view_of_layouts
from flowrt.viz.roles import inherited
from flowrt.viz.sources import LAYOUTS, VIEWS, Source, compared
from flowrt.viz.target import check_target, write_target
from flowrt.viz.view import GraphView

RADIUS = 2


@paused_collector()
def export(
    what: BaseSession | Graph | CompileRequest | str | os.PathLike[str],
    path: str | os.PathLike[str],
    format: str | None = None,
    view: str = "logical",
    *,
    fetches: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    depth: int | None = None,
    focus: str | None = None,
    radius: int = RADIUS,
    step_stats: Any = (),
    against: BaseSession | Graph | str | os.PathLike[str] | None = None,
) -> str:
    """Write ``what`` (see `flowrt.viz.sources.source_of`) to ``path``; returns the path.

    ``format`` is one of `FORMATS`, by default from the suffix of ``path``; ``view`` one of `VIEWS`, or of a
    step with a mesh "layouts". ``depth`` is the number of levels of scopes to draw; ``focus`` restricts the
    drawing to an operation or scope and its surroundings of ``radius`` edges. ``step_stats`` is the
    ``StepStats`` of one traced step or of several (``RunMetadata.step_stats``,
    `flowrt.profiler.recent_step_stats`): the HTML page has the times of the last one of this step; without
    one they are estimated. ``against`` is another graph, such as an earlier version's GraphDef: the HTML page
    then has both, with what was added, removed and changed, and no stages of a compilation. The file at
    ``path`` is written atomically.

    Raises `NotFoundError` for an unknown format, view, operation or file, `InvalidArgumentError` for options
    that a format does not support, a ``depth`` below 1, a ``radius`` below 0, the layouts of a step without a
    mesh, and a ``path`` that is not a regular file, or that of ``what``, `DTypeError` if one of the two is
    not an integer, or for invalid ``step_stats``, `ResourceExhaustedError` if the graph is too large for the
    format, `UnavailableError` and `FailedPreconditionError` without the program or library that a format
    needs, and the errors of `Session.run`.
    """
    chosen = check_export(what, path, format, view, depth, focus, radius, against)
    messages = several(step_stats, "export")
    drawn = picture(compared(what, against, fetches, feed_dict), view, chosen, depth, focus, radius)
    return write_target(path, chosen.encode(drawn._replace(step_stats=messages)))


def check_export(
    what: object,
    path: str | os.PathLike[str],
    format: str | None,
    view: str,
    depth: int | None,
    focus: str | None,
    radius: int,
    against: object = None,
) -> Format:
    """The format of an `export` with these arguments. Raises its errors before there is a graph."""
    name = format or format_for(path)
    chosen = _chosen(name)
    check_view(view)
    if name == "tensorboard" and "tfevents" not in Path(path).name:
        raise InvalidArgumentError(
            f"{os.fspath(path)}: expected a name with 'tfevents' in it: TensorBoard ignores other files"
        )
    if not chosen.has_view and (depth is not None or focus is not None):
        raise InvalidArgumentError(f"format {name}: expected no depth or focus: it contains every operation")
    if against is not None and name != "html":
        raise InvalidArgumentError(f"format {name}: expected html, to compare with another graph; got {name}")
    if depth is not None:
        _check_least("depth", depth, 1)
    _check_least("radius", radius, 0)
    check_target(path, what)
    chosen.check()
    return chosen


def check_view(view: str) -> None:
    """Raises `NotFoundError` unless there is such a view."""
    views = (*VIEWS, LAYOUTS)
    if view not in views:
        raise NotFoundError(f"view: expected one of {', '.join(views)}; got {view!r}.{nearest(view, views)}")


def _check_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DTypeError(f"{name}: expected an integer; got {value!r}")
    if value < least:
        raise InvalidArgumentError(f"{name}: expected an integer >= {least}; got {value}")


def format_for(path: str | os.PathLike[str]) -> str:
    """The format of ``path``, by the longest matching suffix. Raises `NotFoundError`."""
    name = Path(path).name
    fitting = [key for key, row in FORMATS.items() if name.endswith(row.suffix)]
    if "tfevents" in name:
        return "tensorboard"
    if not fitting:
        suffixes = ", ".join(row.suffix for row in FORMATS.values())
        raise NotFoundError(
            f"{os.fspath(path)}: expected a name that ends in one of {suffixes}; or name the format"
        )
    return max(fitting, key=lambda key: len(FORMATS[key].suffix))


def _chosen(name: str) -> Format:
    if name not in FORMATS:
        raise NotFoundError(
            f"format: expected one of {', '.join(FORMATS)}; got {name!r}.{nearest(name, FORMATS)}"
        )
    return FORMATS[name]


def picture(
    source: Source, view: str, format: Format, depth: int | None, focus: str | None, radius: int
) -> Picture:
    """The input of ``format``. Raises `ResourceExhaustedError` if its viewer could not handle it, and
    `InvalidArgumentError` for a view of layouts if there are none.
    """
    found = _laid_out(source) if view == LAYOUTS else None
    parts = source.parts(view) if found is None else {"": found.step}
    drawn = GraphView({}, (), {})
    if format.has_view:
        roles = inherited(parts.values(), source.roles)
        drawn = view_of(parts, roles=roles) if found is None else view_of_layouts(found, roles=source.roles)
        if focus is not None:
            drawn = in_focus(drawn, focus, radius)
        elif format.max_boxes:
            drawn = set_apart(drawn)
        if format.max_boxes or depth is not None:
            drawn = _folded(drawn, depth)
    if 0 < format.max_boxes < len(drawn.nodes):
        raise ResourceExhaustedError(
            f"drawing: expected at most {format.max_boxes} boxes in this format; got {len(drawn.nodes)}."
            " Reduce depth, or set focus"
        )
    title = f"{source.title}, {view}" if format.has_view else source.title
    return Picture(
        title,
        view,
        parts,
        drawn,
        source.stages,
        source.code,
        lambda: source.laid_out,
        roles=source.roles,
        training=source.training,
    )


def _laid_out(source: Source) -> LaidOut:
    if source.laid_out is None:
        raise InvalidArgumentError("view layouts: expected a step with a mesh; got one without")
    return source.laid_out


def _folded(view: GraphView, depth: int | None) -> GraphView:
    """``view`` with ``depth`` levels of scopes; if None, with as many as remain legible."""
    view = with_series(view)
    return fold_to_screen(view) if depth is None else fold(view, depth)
