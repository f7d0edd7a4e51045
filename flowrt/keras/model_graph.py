"""``flowrt.keras.utils``: models as pictures, drawn by Graphviz's ``dot``, and the inputs of a tensor."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowrt.errors import FailedPreconditionError
from flowrt.graph.source import misuse
from flowrt.keras.engine.nodes import history_of, source_inputs

get_source_inputs = source_inputs

_DIRECTIONS = ("TB", "BT", "LR", "RL")


class Dot:
    """A picture in Graphviz's language, with the methods of pydot's that programs use."""

    def __init__(self, text: str) -> None:
        self._text = text

    def to_string(self) -> str:
        return self._text

    def create(self, prog: str = "dot", format: str = "png") -> bytes:
        """The picture in ``format``. Raises `FailedPreconditionError` if Graphviz is not installed."""
        program = shutil.which(prog)
        if program is None:
            raise misuse(
                f"plot_model: expected Graphviz, whose {prog!r} draws the picture; there is none. A file "
                "whose name ends with .dot needs none",
                FailedPreconditionError,
            )
        return subprocess.run(
            [program, f"-T{format}"], input=self._text.encode(), capture_output=True, check=True
        ).stdout

    def write(self, path: str, prog: str = "dot", format: str = "png") -> None:
        """Write the picture to ``path``."""
        Path(path).write_bytes(self._text.encode() if format in ("dot", "raw") else self.create(prog, format))


def model_to_dot(
    model: Any, show_shapes: bool = False, show_layer_names: bool = True, rankdir: str = "TB",
    expand_nested: bool = False, dpi: int = 96, subgraph: bool = False,
) -> Dot:  # fmt: skip
    """``model`` as a picture: a box for each layer, an arrow for each tensor between two of them.

    ``expand_nested`` draws the layers of models within it, ``subgraph`` the model as part of another picture.
    Raises `InvalidArgumentError` for a model that is not built and for another ``rankdir``.
    """
    if rankdir not in _DIRECTIONS:
        raise misuse(f"plot_model: expected rankdir {', '.join(_DIRECTIONS)}; got {rankdir!r}")
    if not model.built:
        raise misuse(f"plot_model: model {model.name!r}: expected a model that is built, by build() or fit()")
    lines = [*_boxes(model, show_shapes, show_layer_names, expand_nested), *_arrows(model)]
    if subgraph:
        return Dot("\n".join([f"subgraph cluster_{id(model)} {{ label={_quoted(model.name)}", *lines, "}"]))
    first = f"rankdir={rankdir} dpi={dpi} concentrate=true node [shape=record]"
    return Dot("\n".join([f"digraph {{ {first}", *lines, "}\n"]))


def plot_model(
    model: Any, to_file: str = "model.png", show_shapes: bool = False, show_layer_names: bool = True,
    rankdir: str = "TB", expand_nested: bool = False, dpi: int = 96,
) -> None:  # fmt: skip
    """Draw ``model`` as `model_to_dot` does, in the format of the name ``to_file``: png, svg, pdf, dot.

    Raises `FailedPreconditionError` if Graphviz is not installed.
    """
    dot = model_to_dot(model, show_shapes, show_layer_names, rankdir, expand_nested, dpi)
    dot.write(to_file, format=Path(to_file).suffix.removeprefix(".") or "png")


def _boxes(model: Any, shapes: bool, names: bool, nested: bool) -> Iterator[str]:
    for layer in model.layers:
        if nested and hasattr(layer, "layers"):
            yield model_to_dot(layer, shapes, names, expand_nested=True, subgraph=True).to_string()
        kind = type(layer).__name__
        label = f"{layer.name}: {kind}" if names else kind
        if shapes:
            label += f"|{{input:|output:}}|{{{{{_shape(layer, 'input')}}}|{{{_shape(layer, 'output')}}}}}"
        yield f"  {id(layer)} [label={_quoted(label)}]"


def _shape(layer: Any, which: str) -> str:
    try:
        return str(getattr(layer, f"{which}_shape"))
    except AttributeError:
        return "multiple"


def _arrows(model: Any) -> Iterator[str]:
    own = set(model.layers)
    for layer in model.layers:
        for node in layer._inbound_nodes:
            for tensor in node.tensors():
                made = history_of(tensor)
                if made is not None and made.layer in own and made.layer is not layer:
                    yield f"  {id(made.layer)} -> {id(layer)}"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
