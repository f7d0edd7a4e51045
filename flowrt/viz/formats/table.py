"""The table of formats: name, file suffix, encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from flowrt.viz.formats.dot import encode_dot, encode_svg, find_dot
from flowrt.viz.formats.graph_def import encode_event_file, encode_pb, encode_pbtxt
from flowrt.viz.formats.json import encode_json
from flowrt.viz.formats.mermaid import encode_mermaid
from flowrt.viz.formats.model_explorer import encode_model_explorer
from flowrt.viz.formats.picture import Picture
from flowrt.viz.html import encode_html
from flowrt.viz.layout import load_igraph


class Format(NamedTuple):
    """``suffix`` of its files. ``max_boxes`` is the most that the viewer of a drawing can handle (else 0);
    ``has_view``: it writes the view, which may be folded or focused, and not the graph itself. ``check``
    raises if its requirements are not installed.
    """

    suffix: str
    encode: Callable[[Picture], bytes]
    max_boxes: int = 0
    has_view: bool = True
    check: Callable[[], object] = lambda: None


FORMATS: Mapping[str, Format] = {
    "html": Format(".html", encode_html, has_view=False, check=load_igraph),
    "dot": Format(".dot", encode_dot, 100_000),
    "svg": Format(
        ".svg", encode_svg, 1_500, check=find_dot
    ),  # dot takes 20 s for as many, and four times that for twice as many
    "mermaid": Format(".mmd", encode_mermaid, 400),  # Mermaid refuses more than 500 edges
    "json": Format(".json", encode_json),
    "graphdef": Format(".pb", encode_pb, has_view=False),
    "pbtxt": Format(".pbtxt", encode_pbtxt, has_view=False),
    "tensorboard": Format(".tfevents", encode_event_file, has_view=False),
    "model-explorer": Format(".model-explorer.json", encode_model_explorer),
    "netron": Format(".netron.pb", encode_pb, has_view=False),
}
