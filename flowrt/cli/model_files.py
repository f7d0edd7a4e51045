"""Model files: which kinds there are, as a table of readers and writers, by the names of paths.

A reader gives a model: something with ``inputs`` and ``outputs`` (names, in order), ``run`` and ``close``. A
writer takes a `GraphModel`; ``as_graph`` makes one of the reader's models, if they are others.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowrt import onnx
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.saved_model.builder import simple_save
from flowrt.saved_model.frozen_graph import freeze, load_frozen_graph
from flowrt.saved_model.graph_model import GraphModel
from flowrt.saved_model.loader import load_model
from flowrt.saved_model.signature_constants import DEFAULT_SERVING_SIGNATURE_DEF_KEY
from flowrt.saved_model.tfjs import load_graph_model
from flowrt.storage.durable_files import replace_file, typed_os_errors


class Asked(NamedTuple):
    """Settings of the command line: the outputs by name, or None for all; which of several signatures."""

    outputs: Sequence[str] | None = None
    signature: str = DEFAULT_SERVING_SIGNATURE_DEF_KEY


class Format(NamedTuple):
    """A kind of model files. ``is_named`` tells from a path, of a file that is or is to be, whether it is
    one; ``read`` or ``write`` is None where there is none.
    """

    name: str
    ending: str
    is_named: Callable[[str], bool]
    read: Callable[[str, Asked], Any] | None
    write: Callable[[Any, str], None] | None
    as_graph: Callable[[Any], Any] = lambda model: model


def _ends(*endings: str) -> Callable[[str], bool]:
    return lambda path: path.endswith(endings)


def _write_graph(model: Any, path: str) -> None:
    message = freeze(model)
    with typed_os_errors(path):
        replace_file(path, str(message).encode() if path.endswith(".pbtxt") else message.SerializeToString())


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) or path.endswith("/")


def _read_saved_model(path: str, asked: Asked) -> Any:
    return _of(load_model(path).signatures[asked.signature], asked)


def _of(model: GraphModel, asked: Asked) -> GraphModel:
    """``model`` with the outputs that are asked for."""
    outputs = {key: t for key, t in model.outputs.items() if asked.outputs is None or key in asked.outputs}
    return GraphModel(model.session, model.inputs, outputs)


FORMATS = (
    Format(
        "a SavedModel",
        "DIRECTORY/",
        _is_directory,
        _read_saved_model,
        lambda model, path: simple_save(model.session, path, model.inputs, model.outputs),
    ),
    Format(
        "an ONNX model",
        "FILE.onnx",
        _ends(".onnx"),
        lambda path, asked: onnx.load(path),
        lambda model, path: onnx.export(model.session, model.inputs, model.outputs, path),
        lambda model: model.as_graph_model(),
    ),
    Format(
        "a frozen TensorFlow graph",
        "FILE.pb",
        _ends(".pb", ".pbtxt"),
        lambda path, asked: load_frozen_graph(path, asked.outputs),
        _write_graph,
    ),
    Format(
        "a TensorFlow.js graph model",
        "model.json",
        _ends(".json"),
        lambda path, asked: _of(load_graph_model(path), asked),
        None,
    ),
)


def add_signature(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--signature", default=DEFAULT_SERVING_SIGNATURE_DEF_KEY, metavar="NAME",
        help="the signature of a SavedModel (default: %(default)s)",
    )  # fmt: skip


def read_model(path: str, asked: Asked) -> tuple[Format, Any]:
    """The model at ``path``, and its kind. Raises `InvalidArgumentError` for a path of no kind."""
    found = _format_of(path, [each for each in FORMATS if each.read is not None], "read")
    assert found.read is not None
    if not os.path.exists(path):
        raise InvalidArgumentError(f"{path}: there is no such file")
    return found, found.read(path, asked)


def writer_of(path: str) -> Callable[[Any, str], None]:
    """The writer for ``path``. Raises `InvalidArgumentError` for a path of no kind."""
    found = _format_of(path, [each for each in FORMATS if each.write is not None], "written")
    assert found.write is not None
    return found.write


def _format_of(path: str, formats: Sequence[Format], done: str) -> Format:
    found = next((each for each in formats if each.is_named(path)), None)
    if found is None:
        known = ", ".join(f"{each.ending} ({each.name})" for each in formats)
        raise UnimplementedError(f"{path}: expected a model that can be {done}: {known}")
    return found
