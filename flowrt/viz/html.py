"""HTML: one self-contained file with the graph in all stages of its compilation.

    stages -> page_data -> JSON -> gzip -> base64
    page/*.js, style.css, template.html -> one script, one style, their hashes -> the file

The page's content security policy allows only the two inline texts, by hash: no name can cause anything to be
loaded or run. Names are strings in the data, decoded there and set as text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from flowrt.executor.observe.gc_pause import paused_collector
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.graph import Graph
from flowrt.viz.compile_request import compile_request
from flowrt.viz.formats.picture import Picture
from flowrt.viz.from_parts import AttrTexts, view_of
from flowrt.viz.op_facts import OpFacts, facts_of, measured_seconds, step_like
from flowrt.viz.page_data import PageStage, page_data
from flowrt.viz.sources import Step
from flowrt.viz.stages import PHASES_OF_PASSES, Stage
from flowrt.viz.target import check_target, write_target
from flowrt.viz.view import GraphView

NOTES = {
    "built": "The graph as the program built it.",
    "extract": "The operations that the fetches need. A fed tensor becomes a _Feed, without inputs.",
    "lower": "Calls are inlined; branches and loops get their executable form.",
    "order_effects": "Control edges keep the reads and writes of each variable in program order.",
    "infer_shapes": "Shapes are inferred again, from those of the feeds.",
    "fold_constants": "Operations with constant inputs are computed now.",
    "simplify": "Operations that have no effect, such as x * 1, are removed.",
    "eliminate_common_subexpressions": "Equal operations are merged.",
    "clean_dependencies": "Redundant control edges are removed.",
    "optimise_functions": "The same inside functions, and across their boundaries.",
    "place": "Every operation has a device.",
    "split": "A loop or branch on several devices becomes one on each.",
    "partitioned": "One part per device, with a _Send and a _Recv on each cut edge.",
    "gather_slices": "Rows at an index that a loop computes are gathered, not sliced.",
    "lay_out_factors": "Factors of products in a loop are transposed once, before it.",
    "narrow_products": "Products of matrices compute only the block that is read.",
    "read_rows_in_place": "Rows of variables are gathered in place, by the loops that read them.",
    "fuse": "Operations that one compiled loop computes are one group.",
    "scheduled": "Each operation has its stream.",
}
"""Notes by the name of a pass or of another stage, or by its phase."""


def encode_html(picture: Picture) -> bytes:
    """The page of all of ``picture``'s stages. Raises `FailedPreconditionError` without igraph."""
    stages = picture.stages()
    code, unplanned = picture.code()
    facts = facts_of(stages[-1])
    in_groups = {name: code[group] for name, group in facts.fused.items() if group in code}
    facts = facts._replace(code={**in_groups, **code}, unplanned=unplanned)
    traced = step_like(picture.step_stats, stages)
    if traced is not None:
        facts = facts._replace(seconds=measured_seconds(traced), seconds_are="measured")
    with paused_collector():  # of 20,000 operations a sixth of the time
        return page(_data(picture.title, stages, facts, picture.view_name))


def write_html(
    source: BaseSession | Graph,
    path: str | os.PathLike[str],
    fetches: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
    run_metadata: Any = None,
    title: str = "graph",
) -> str:
    """Write the page of a step to ``path``; returns the path. For ``fetches`` and ``feed_dict`` see
    `flowrt.viz.compile_request.compile_request`.

    Same as `flowrt.viz.export`, with a custom title. With the ``run_metadata`` of a traced step its times are
    measured, not estimated. Raises the errors of `Session.run` if the step does not compile, and
    `FailedPreconditionError` without igraph.
    """
    check_target(path)
    step = Step(
        title,
        compile_request(source, fetches, feed_dict),
        source if isinstance(source, BaseSession) else None,
    )
    steps = [] if run_metadata is None else [run_metadata.step_stats]
    nothing = GraphView({}, (), {})
    return write_target(
        path, encode_html(Picture(title, "logical", {}, nothing, step.stages, step.code, steps))
    )


def _data(title: str, stages: Sequence[Stage], facts: OpFacts, view_name: str = "logical") -> dict[str, Any]:
    """The page's data. It opens at the last stage of the phase named like the view, else at the first."""
    opens_at = max((i for i, stage in enumerate(stages) if stage.phase == view_name), default=0)
    texts = AttrTexts()
    shown = [
        PageStage(name, _note(stage), stage.phase in PHASES_OF_PASSES, _view(stage, texts))
        for name, stage in zip(_names(stages), stages, strict=True)
    ]
    return page_data(title, shown, facts, opens_at)


def page(data: dict[str, Any]) -> bytes:
    """The file around ``data``, see `flowrt.viz.page_data`."""
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6, mtime=0)
    script, style = _script(), _text("style.css")
    return (
        Template(_text("template.html"))
        .substitute(
            script=script,
            style=style,
            script_hash=_hash(script),
            style_hash=_hash(style),
            data=base64.b64encode(packed).decode(),
        )
        .encode()
    )


# --- texts of the stages


def _names(stages: Sequence[Stage]) -> list[str]:
    """The names of passes, and the phase for the first stage of a phase without passes."""
    phases = [stage.phase for stage in stages]
    return [
        stage.phase if stage.phase not in (*PHASES_OF_PASSES, *phases[:i]) else stage.name
        for i, stage in enumerate(stages)
    ]


def _note(stage: Stage) -> str:
    return NOTES.get(re.sub(r" \d+$", "", stage.name)) or NOTES.get(stage.phase, "")


def _view(stage: Stage, texts: AttrTexts) -> GraphView:
    """The view with each node's stream, if there are several."""
    view = view_of(stage.parts, texts)
    if not any(stage.streams.values()):
        return view
    nodes = {
        name: node._replace(attrs={**node.attrs, "stream": str(stage.streams[name])})
        if name in stage.streams
        else node
        for name, node in view.nodes.items()
    }
    return view._replace(nodes=nodes)


# --- the file


@cache
def _text(name: str) -> str:
    return files("flowrt.viz.page").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """A hash in the format of a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_IMPORT = re.compile(r'^import .* from "\./(\w+\.js)";\n', re.MULTILINE)


@cache
def _script() -> str:
    """The modules of the page as one script: each after its imports, without import and export statements."""
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        text = _text(name)
        for imported in _IMPORT.findall(text):
            if imported not in ordered:
                add(imported)
        ordered[name] = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)

    add("main.js")
    return "\n".join(ordered.values())
