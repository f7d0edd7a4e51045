"""HTML: one self-contained file with the graph in all stages of its compilation.

    stages -> page_data -> JSON -> gzip -> base64
    page/*.js, style.css, template.html -> one script, one style, their hashes -> the file

A step with a mesh has one stage more, the global graph in its layouts, and its page layouts.js to draw them.

The page's content security policy allows only the two inline texts, by hash: no name can cause anything to be
loaded or run. Names are strings in the data, decoded there and set as text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from flowrt.executor.observe.gc_pause import paused_collector
from flowrt.viz.formats.picture import Picture
from flowrt.viz.from_parts import AttrTexts, view_of
from flowrt.viz.laid_out import LaidOut, view_of_layouts
from flowrt.viz.op_facts import OpFacts, facts_of, measured_seconds, step_like
from flowrt.viz.page_data import PageStage, page_data
from flowrt.viz.roles import Roles, inherited
from flowrt.viz.sources import LAYOUTS
from flowrt.viz.stages import PHASES_OF_PASSES, Stage
from flowrt.viz.view import GraphView

NOTES = {
    "built": "The graph as built by the program.",
    "extract": "Only the operations that the fetches need are kept. Fed tensors become _Feed operations"
    " without inputs.",
    "check_set_shapes": "A shape that was set by hand is checked in each step, unless it can be inferred.",
    "lower": "Calls are inlined; branches and loops get their executable form.",
    "order_effects": "Control edges keep the reads and writes of each variable in program order.",
    "infer_shapes": "Shapes are inferred again from the shapes of the feeds.",
    "fold_constants": "Operations with constant inputs are evaluated.",
    "simplify": "Operations that have no effect, such as x * 1, are removed.",
    "eliminate_common_subexpressions": "Equal operations are merged.",
    "clean_dependencies": "Redundant control edges are removed.",
    "optimise_functions": "The same optimizations inside functions and across their boundaries.",
    "lower_layouts": "Each operation is computed in parts, by the devices of the mesh.",
    "place": "Each operation is assigned a device.",
    "split": "Loops and branches on several devices are split into one per device.",
    "partitioned": "One subgraph per device; cut edges become _Send/_Recv pairs.",
    "gather_slices": "Slices of rows at an index that a loop computes become gathers.",
    "lay_out_factors": "Factors of products in a loop are transposed once, before it.",
    "narrow_products": "Matrix products compute only the block that is read.",
    "read_rows_in_place": "Rows of variables are gathered in place, by the loops that read them.",
    "accumulate_products": "Matrix products are added to running sums as they are computed.",
    "fuse_epilogues": "Convolutions are computed together with the elementwise operations that follow them.",
    "fuse": "Operations that share a compiled loop are fused.",
    "scheduled": "Each operation is assigned a stream.",
    "before": "The graph that the other one is compared with.",
    "after": "The graph, with its changes from the one before.",
}
"""Notes by the name of a pass or of another stage, or by its phase."""


def encode_html(picture: Picture) -> bytes:
    """The page of all of ``picture``'s stages. Raises `FailedPreconditionError` without igraph."""
    stages = picture.stages()
    code, unplanned = picture.code()
    facts = facts_of(stages[-1])
    in_groups = {name: code[group] for name, group in facts.fused.items() if group in code}
    facts = facts._replace(code={**in_groups, **code}, unplanned=unplanned, training=picture.training)
    traced = step_like(picture.step_stats, stages)
    if traced is not None:
        facts = facts._replace(seconds=measured_seconds(traced), seconds_are="measured")
    with paused_collector():  # a sixth of the time for 20,000 operations
        found = picture.laid_out()
        data = _data(picture.title, stages, facts, picture.view_name, found, picture.roles)
        return page(data, found is not None)


def _data(
    title: str, stages: Sequence[Stage], facts: OpFacts, view_name: str, found: LaidOut | None, roles: Roles
) -> dict[str, Any]:
    """The page's data. It opens at the last stage of the phase named like the view, or at what is compared,
    else at that of layouts, else at the first.
    """
    opens_at = max((i for i, stage in enumerate(stages) if stage.phase in (view_name, "after")), default=0)
    texts = AttrTexts()
    actions = {} if found is None else _actions(found)
    shown = []
    known = roles
    for name, stage in zip(_names(stages), stages, strict=True):
        known = inherited(stage.parts.values(), known)
        view = _view(stage, texts, actions, known)
        shown.append(PageStage(name, _note(stage), stage.phase in PHASES_OF_PASSES, view))
    if found is not None:
        at = [stage.name for stage in stages].index("lower_layouts")
        shown.insert(at, _of_layouts(found, texts, roles))
        opens_at = opens_at + 1 if opens_at >= at else at
    return page_data(title, shown, facts, opens_at)


def _actions(found: LaidOut) -> dict[str, str]:
    """The actions of the nodes of a pipeline, ``F(1,3)``."""
    lowered = found.lowered
    return {} if lowered.layouts.schedule is None else {n: str(a) for n, a in lowered.actions.items() if a}


def _of_layouts(found: LaidOut, texts: AttrTexts, roles: Roles) -> PageStage:
    note = f"The global graph, with the layout of each tensor over the mesh {found.lowered.layouts.mesh}."
    return PageStage(LAYOUTS, note, True, view_of_layouts(found, texts, roles), found.moves)


def page(data: dict[str, Any], has_layouts: bool = False) -> bytes:
    """The file around ``data``, see `flowrt.viz.page_data`."""
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6, mtime=0)
    extra = (LAYOUTS,) if has_layouts else ()
    script = _script("main.js", *[f"{name}.js" for name in extra])
    style = "".join([_text("style.css"), *[_text(f"{name}.css") for name in extra]])
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


def _view(stage: Stage, texts: AttrTexts, actions: Mapping[str, str], roles: Roles) -> GraphView:
    """The view with the action of each node of a pipeline, and with its stream, if there are several."""
    view = view_of(stage.parts, texts, roles)
    streams = stage.streams if any(stage.streams.values()) else {}
    nodes = dict(view.nodes)
    for attr, values in (("action", actions), ("stream", streams)):
        for name in values.keys() & nodes.keys():
            nodes[name] = nodes[name]._replace(attrs={**nodes[name].attrs, attr: str(values[name])})
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
def _script(*entries: str) -> str:
    """``entries`` and what they import as one script: each after its imports, without import and export
    statements.
    """
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        text = _text(name)
        for imported in _IMPORT.findall(text):
            if imported not in ordered:
                add(imported)
        ordered[name] = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)

    for entry in entries:
        add(entry)
    return "\n".join(ordered.values())
