"""``flowrt convert IN OUT``: a model, or a checkpoint, from one kind of files to another."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from flowrt.cli.model_files import FORMATS, Asked, add_signature, read_model, writer_of
from flowrt.cli.options import report_mistake
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.train.checkpoints.checkpoint import check_prefix, write_checkpoint
from flowrt.train.checkpoints.open_checkpoint import checkpoint_exists, read_checkpoint
from flowrt.train.checkpoints.tensorflow_writer import write_bundle_files

EXAMPLES = """
  flowrt convert model.pb model.onnx                    a frozen TensorFlow graph, for ONNX
  flowrt convert runs/model-100 model.ckpt              a checkpoint of flowrt's, for TensorFlow
  flowrt convert model.ckpt runs/model --to flowrt      and back
"""

CHECKPOINTS: dict[str, Callable[[str, dict[str, Any]], None]] = {
    "flowrt": write_checkpoint,
    "tensorflow": lambda prefix, found: write_bundle_files(check_prefix(prefix), found.items()),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = ", ".join(each.ending for each in FORMATS)
    parser.add_argument("source", metavar="IN", help=f"a model ({kinds}), or the prefix of a checkpoint")
    parser.add_argument("target", metavar="OUT", help="the files to write, replaced only on success")
    parser.add_argument(
        "--output", action="append", metavar="NAME", help="an output of the model (default: all); repeatable"
    )
    add_signature(parser)
    parser.add_argument(
        "--to", choices=tuple(CHECKPOINTS), default="tensorflow", help="whose checkpoint to write"
        " (default: tensorflow)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    source, target = arguments.source, arguments.target
    try:
        if os.path.abspath(source) == os.path.abspath(target):
            raise InvalidArgumentError(f"expected another place for the result; got {target} twice")
        if checkpoint_exists(source):
            CHECKPOINTS[arguments.to](target, read_checkpoint(source))
        else:
            write = writer_of(target)
            kind, model = read_model(source, Asked(arguments.output, arguments.signature))
            write(kind.as_graph(model), target)
    except OpError as error:
        return report_mistake("convert", str(error))
    print(target)
    return 0
