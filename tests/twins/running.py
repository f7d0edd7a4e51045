"""Runs one program of this folder: in flowrt and, without flowrt, in TensorFlow's interpreter.

A program has ``results(tf)``, a dict of arrays, or ``calls(tf)``, a dict of (function, arrays): its results
are the values of each function at constants, and the gradients of their weighted sum by each of them.
"""

from __future__ import annotations

import runpy
from typing import Any

WITHOUT_GRADIENT = "_value"
"""The end of names of calls that are compared without gradients."""


def results_of(program: str, tf: Any) -> dict[str, Any]:
    """The arrays of the program at the path ``program``, run with the module ``tf``."""
    found = runpy.run_path(program)
    return found["results"](tf) if "results" in found else results_of_calls(tf, found["calls"](tf))


def results_of_calls(tf: Any, calls: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """A call ``name`` gives ``name/0``, ``name/1`` ..., and ``name/by_0`` for the gradient by argument 0."""
    fetches: dict[str, Any] = {}
    for name, (function, *arrays) in calls.items():
        arguments = [tf.constant(array) for array in arrays]
        outputs = flat(function(*arguments))
        fetches.update({f"{name}/{i}": output for i, output in enumerate(outputs)})
        smooth = [output for output in outputs if output.dtype.is_floating or output.dtype.is_complex]
        if smooth and not name.endswith(WITHOUT_GRADIENT):
            by = [i for i, x in enumerate(arguments) if x.dtype.is_floating or x.dtype.is_complex]
            slopes = tf.gradients([weighted(tf, output) for output in smooth], [arguments[i] for i in by])
            for i, slope in zip(by, slopes):  # noqa: B905 - Python 3.7 runs this too
                fetches[f"{name}/by_{i}"] = (
                    tf.constant("no gradient") if slope is None else tf.convert_to_tensor(slope)
                )
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run(fetches)  # type: ignore[no-any-return]


def flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, (list, tuple)):
        return [output for part in outputs for output in flat(part)]
    return [outputs]


def weighted(tf: Any, output: Any) -> Any:
    """The sum of ``output`` times weights that differ from one element to the next."""
    if output.dtype.is_complex:
        return weighted(tf, tf.real(output)) + 0.5 * weighted(tf, tf.imag(output))
    weights = tf.sin(tf.cast(tf.range(tf.size(output)), output.dtype) * 0.7 + 0.3)
    return tf.reduce_sum(output * tf.reshape(weights, tf.shape(output)))
