"""What the models of public repositories are trained with, in the place of their corpora: made data.

The files of models beside this one (`models.py` ...) are run by `recorded` as ``@FILE.py NAME [FOLDER [WORD ...]]``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

STEPS = 10
rng = np.random.RandomState(1)


def train(
    loss: Any, feeds: Any = None, optimizer: Any = None, train_op: Any = None, steps: int = STEPS,
    session: Any = None,
) -> None:  # fmt: skip
    """Train for some steps; ``feeds`` gives the ``feed_dict`` of one."""
    if train_op is None:
        train_op = (optimizer or tf.train.AdamOptimizer(1e-3)).minimize(loss)
    with session or tf.Session() as running:
        running.run([tf.global_variables_initializer(), tf.tables_initializer()])
        for _ in range(steps):
            _, value = running.run([train_op, loss], feeds() if feeds else None)
            print(value)


def made(given: Mapping[Any, Any] | None = None, high: int = 10, batch: int = 4, length: int = 6) -> Any:
    """Values for the placeholders of the default graph, but for the ``given`` ones: whole numbers from 1 to
    ``high``, floats in [0, 1), True. An unknown first dimension is ``batch``, any other one ``length``.
    """
    values = dict(given or {})
    for operation in tf.get_default_graph().get_operations():
        tensor = operation.outputs[0] if operation.type == "Placeholder" else None
        if tensor is not None and tensor not in values:
            sizes = tensor.shape.as_list() if tensor.shape.ndims is not None else []
            shape = [size or (length if i else batch) for i, size in enumerate(sizes)]
            if tensor.dtype.is_integer:
                values[tensor] = rng.randint(1, high, shape)
            else:
                values[tensor] = np.ones(shape, bool) if tensor.dtype.is_bool else rng.rand(*shape)
    return values


def one_hot(shape: Any, classes: int) -> Any:
    return np.eye(classes, dtype=np.float32)[rng.randint(0, classes, shape)]


def floats(*shape: int) -> Any:
    return tf.constant(rng.rand(*shape).astype(np.float32))


def stand_in(*names: str) -> None:
    """Modules that a program imports and does not use here."""
    for name in names:
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            path = ".".join(parts[:i])
            sys.modules[path] = ModuleType(path)
            if i > 1:
                setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], sys.modules[path])


def run_named(functions: Mapping[str, Callable[..., None]]) -> None:
    """Run the one of ``functions`` that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", nargs="?", default=".", help="of the model's modules, in the repository")
    parser.add_argument("words", nargs="*", help="arguments of the function")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(arguments.folder).resolve()))
    sys.argv = sys.argv[:1]
    functions[arguments.name](*arguments.words)
