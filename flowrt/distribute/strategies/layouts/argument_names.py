"""`known_names`: the error for an argument that a strategy does not have, with its name here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from flowrt.errors import DTypeError, nearest
from flowrt.graph.source import misuse
from flowrt.graph.tf1_signatures import parameters_of

P = ParamSpec("P")
Made = TypeVar("Made")

_PYTORCH = {
    "device_mesh": ("mesh", "a Mesh"),
    "sharding_strategy": ("stage", "0 to 3"),
    "auto_wrap_policy": ("units", "a regular expression, or found"),
    "cpu_offload": ("offload", "'parameters' or 'optimizer'"),
    "offload_policy": ("offload", "'parameters' or 'optimizer'"),
    "mixed_precision": ("policy", "a Precision"),
    "mp_policy": ("policy", "a Precision"),
    "parallelize_plan": ("plan", "styles by names of variables"),
    "n_microbatches": ("micro_batches", "their number"),
    "num_microbatches": ("micro_batches", "their number"),
    "num_chunks": ("chunks", "the stages of a device"),
    "checkpoint": ("remat", "None or 'stage'"),
}
"""Arguments of PyTorch's FSDP, tensor parallelism and pipelines: their names here, and what is given."""


def known_names(init: Callable[Concatenate[Made, P], None]) -> Callable[Concatenate[Made, P], None]:
    """A decorator for a constructor: an unknown argument is a `DTypeError`, a `TypeError` as Python's own,
    that says how the argument is called here.
    """
    names = [parameter.name for parameter in parameters_of(init)]

    @functools.wraps(init)
    def checked(self: Made, /, *args: P.args, **kwargs: P.kwargs) -> None:
        unknown = next((name for name in kwargs if name not in names), None)
        if unknown is not None:
            where, hint = type(self).__name__, _hint(unknown, names[1:])
            raise misuse(f"{where}: expected one of its arguments; got {unknown!r}.{hint}", DTypeError)
        init(self, *args, **kwargs)

    return checked


def _hint(unknown: str, names: list[str]) -> str:
    name, what = _PYTORCH.get(unknown, ("", ""))
    if name in names:
        return f" Here it is {name}, {what}"
    return nearest(unknown, names) or f" They are {', '.join(names)}"
