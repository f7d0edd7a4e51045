"""``flowrt run-model MODEL --input x=x.npy``: the outputs of a model for arrays in files."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

import numpy as np

from flowrt.cli.model_files import FORMATS, Asked, add_signature, read_model
from flowrt.cli.options import report_mistake
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.storage.durable_files import typed_os_errors

EXAMPLES = """
  flowrt run-model model.onnx --input x.npy                      prints the outputs
  flowrt run-model saved_model --input images=x.npy --save y.npz
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = ", ".join(each.ending for each in FORMATS)
    parser.add_argument("model", metavar="MODEL", help=kinds)
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]FILE.npy",
        help="an input; without names in the model's order; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--output", action="append", metavar="NAME", help="an output to show (default: all); repeatable"
    )
    add_signature(parser)
    parser.add_argument("--save", metavar="FILE.npz", help="write the outputs to this file")


def run(arguments: argparse.Namespace) -> int:
    try:
        _, model = read_model(arguments.model, Asked(arguments.output, arguments.signature))
        with closing(model):
            found = model.run(_inputs(arguments.input, list(model.inputs)))
    except OpError as error:
        return report_mistake("run-model", str(error))
    if arguments.output is not None:
        found = {name: found[name] for name in arguments.output if name in found}
    for name, value in found.items():
        print(f"{name}: {_description(value)}")
    if arguments.save:
        with typed_os_errors(arguments.save):
            np.savez(arguments.save, allow_pickle=False, **found)
    return 0


def _inputs(words: list[str], names: list[str]) -> dict[str, Any]:
    """The arrays by name. Raises `InvalidArgumentError` for a file that is none."""
    found: dict[str, Any] = {}
    for position, word in enumerate(words):
        name, equals, path = word.partition("=")
        if not equals:
            if position >= len(names):
                raise InvalidArgumentError(
                    f"--input: expected at most {len(names)} inputs ({', '.join(names)}); got {len(words)}"
                )
            name, path = names[position], word
        with typed_os_errors(f"--input {word}"):
            try:
                found[name] = np.load(path, allow_pickle=False)
            except (ValueError, EOFError) as error:
                raise InvalidArgumentError(f"--input {word}: expected an array (.npy); {error}") from None
    return found


def _description(value: Any) -> str:
    array = np.asarray(value)
    shown = np.array2string(array, threshold=20, precision=6)
    return f"{array.dtype.name if array.dtype != object else 'string'}{list(array.shape)} {shown}"
