"""`pass_changes`: what each stage of a pipeline did to a step, as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flowrt.errors import InvalidArgumentError
from flowrt.graph.passes.pipeline import PIPELINE, format_pipeline, parse_pipeline
from flowrt.profiler.text_table import aligned
from flowrt.viz.compile_request import CompileRequest, compile_request
from flowrt.viz.sources import WORKER, Foreign, read_source
from flowrt.viz.stages import stages_of

ALL = "all"


def pass_changes(
    source: CompileRequest | str | os.PathLike[str], passes: str = ALL, fetches: Sequence[str] | None = None
) -> str:
    """The stages of a step that changed it, with the numbers of operations that each added, removed and
    changed, outside of functions.

    ``source`` is a step, or the path of a GraphDef; ``passes`` is ``"all"`` or a text for `parse_pipeline`.
    Raises `InvalidArgumentError` for other ``passes`` and for a source that is compiled elsewhere, and as
    `Session.run`.
    """
    pipeline = PIPELINE if passes == ALL else parse_pipeline(passes)
    rows: list[tuple[str, ...]] = [("stage", "operations", "added", "removed", "changed")]
    for stage in stages_of(_request_of(source, fetches), pipeline):
        count = sum(len(part) for part in stage.parts.values())
        rows.append((stage.name, str(count), *[str(len(names)) for names in stage.change]))
    return "\n".join([f"passes: {format_pipeline(pipeline)}", *aligned(rows)])


def _request_of(
    source: CompileRequest | str | os.PathLike[str], fetches: Sequence[str] | None
) -> CompileRequest:
    if isinstance(source, CompileRequest):
        return source
    path = os.fspath(source)
    found = None if path.startswith(WORKER) else read_source(path, fetches)
    if found is None or isinstance(found, Foreign):
        raise InvalidArgumentError(f"passes: expected a script or a GraphDef that runs here; got {path}")
    return compile_request(found, fetches)
