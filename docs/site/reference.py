"""The pages of the API reference: one for each namespace, with the names that scripts may use there."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon import Config, GoogleDocstring

import flowrt
from flowrt.graph.op_def import OpDef
from flowrt.tf1.missing_names import PUBLIC_NAMESPACES, public_names

_STYLE = Config(napoleon_use_rtype=False)

LEFT_OUT = ("contrib", "autograph", "resource_loader", "estimator.inputs")
"""Namespaces that no new script should use, or with one name."""


def write_reference(folder: Path) -> None:
    """Write ``folder``/NAMESPACE.rst for each, and index.rst; a page that is up to date is left alone."""
    folder.mkdir(exist_ok=True)
    pages = {page_name(space): page_of(space) for space in documented()}
    pages["index"] = "\n".join(
        [*title("API reference"), "", _INTRODUCTION, ".. toctree::", "", *(f"   {page}" for page in pages)]
    )
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


_INTRODUCTION = """
The names that scripts use after ``import flowrt as tf``. Examples run in an interactive session,
so that ``eval`` needs no other::

    import numpy as np
    import flowrt as tf

    session = tf.InteractiveSession()

``TensorLike`` is a tensor, a variable, an array, a number, a string, or nested lists of those;
``NumericLike`` the same without strings; ``ShapeLike`` a static shape; ``DTypeLike`` a dtype or its name.
"""


def documented() -> list[str]:
    spaces = ["", *sorted(PUBLIC_NAMESPACES)]
    return [space for space in spaces if not space.startswith(LEFT_OUT) and _entries(space)]


def page_name(space: str) -> str:
    return space or "flowrt"


def title(text: str) -> list[str]:
    return [text, "=" * len(text)]


def page_of(space: str) -> str:
    """The page of a namespace: what it is for, then its names in the order of the alphabet."""
    path = f"flowrt.{space}".strip(".")
    lines = [*title(f"tf.{space}".strip(".") if space else "tf"), ""]
    for name, value in _entries(space):
        lines += [*_entry(path, name, value), ""]
    return "\n".join(lines)


@functools.cache
def _homes() -> dict[int, str]:
    """The first public path of each class and function, by its id: it is documented there."""
    found: dict[int, str] = {}
    for space in ("", *PUBLIC_NAMESPACES):
        for name in public_names(space):
            value = getattr(_module(space), name)
            found.setdefault(id(value), f"flowrt.{space}.{name}".replace("..", "."))
    return found


def _module(space: str) -> Any:
    return functools.reduce(getattr, filter(None, space.split(".")), flowrt)


def _entries(space: str) -> list[tuple[str, Any]]:
    values = [(name, getattr(_module(space), name)) for name in sorted(public_names(space), key=str.lower)]
    return [(name, value) for name, value in values if _is_documented(value)]


def _is_documented(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return False
    return isinstance(value, OpDef) or inspect.isroutine(value) or inspect.isclass(value)


class _Bare(str):
    """An annotation without quotes in a signature."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(value: Any) -> inspect.Signature:
    signature = inspect.signature(value)
    bare = [
        p.replace(annotation=_Bare(p.annotation)) if isinstance(p.annotation, str) else p
        for p in signature.parameters.values()
    ]
    returned = signature.return_annotation
    return signature.replace(
        parameters=bare, return_annotation=_Bare(returned) if isinstance(returned, str) else returned
    )


def _entry(path: str, name: str, value: Any) -> Iterator[str]:
    """The directive of one name; a second path to a function refers to its first."""
    here = f"{path}.{name}"
    home = _homes()[id(value)]
    if home != here:
        yield from (f".. py:function:: {here}", "   :no-index:", "", f"   The same as `{home}`.")
    elif inspect.isclass(value):
        yield from (f".. autoclass:: {here}", "   :members:")
    else:
        doc = inspect.getdoc(value) or ""
        if isinstance(value, OpDef):
            doc = inspect.cleandoc(value.doc)
        yield f".. py:function:: {here}{_signature(value)}"
        yield ""
        yield from (f"   {line}" for line in str(GoogleDocstring(doc, _STYLE)).splitlines())
