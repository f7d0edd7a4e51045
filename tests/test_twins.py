"""Each program of `tests.twins` gives the same values in flowrt and in TensorFlow; no function is without.

FLOWRT_TENSORFLOW names an interpreter with TensorFlow 2.21, FLOWRT_TENSORFLOW_1 one with TensorFlow 1.15,
for the programs in ``first``.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.op_def import OpDef
from tests.twins.running import results_of

FOLDER = Path(__file__).parent / "twins"
INTERPRETERS = {"twins": os.environ.get("FLOWRT_TENSORFLOW"), "first": os.environ.get("FLOWRT_TENSORFLOW_1")}
PROGRAMS = sorted(
    str(path.relative_to(FOLDER).with_suffix(""))
    for path in FOLDER.rglob("*.py")
    if "(tf):" in path.read_text() and path.stem != "running"
)
TOLERANCE = 1e-5


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_are_tensorflows(program: str, tmp_path: Path) -> None:
    source, path = FOLDER / f"{program}.py", tmp_path / "results.npz"
    interpreter = INTERPRETERS[source.parent.name]
    if interpreter is None:
        pytest.skip(f"no interpreter with TensorFlow for {source.parent.name}")
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [interpreter, str(FOLDER / "__main__.py"), str(source), str(path)]
    subprocess.run(command, check=True, timeout=280, env=quiet)
    with tf.Graph().as_default():
        ours = results_of(str(source), tf)
    with np.load(path) as theirs:
        assert ours.keys() == set(theirs)
        wrong = [
            name
            for name in theirs
            if not same(np.asarray(ours[name]), theirs[name], name.startswith("about_"))
        ]
        told = "; ".join(f"{name}: {np.asarray(ours[name])!r:.300} {theirs[name]!r:.300}" for name in wrong)
    assert not wrong, told


def same(ours: np.ndarray, theirs: np.ndarray, nearly: bool) -> bool:
    if ours.dtype.kind in "OSU" or theirs.dtype.kind in "OSU":
        return ours.shape == theirs.shape and bool((ours.astype("S") == theirs.astype("S")).all())
    tolerance = (4 if ours.dtype == np.uint8 else 4 / 255) if nearly else TOLERANCE
    near = np.allclose(
        ours.astype(complex), theirs.astype(complex), rtol=TOLERANCE, atol=tolerance, equal_nan=True
    )
    return ours.shape == theirs.shape and ours.dtype == theirs.dtype and near


COMPARED = (
    "image", "io", "sparse", "lookup", "feature_column", "distributions", "contrib.distributions",
    "contrib.distributions.bijectors", "strings",
    "linalg", "signal", "nn", "math", "bitwise", "audio",
)  # fmt: skip
"""Modules of which every function is in a program."""

ELSEWHERE = {
    **dict.fromkeys(
        ("Bijector", "Distribution", "RegisterKL", "ReparameterizationType", "HasherSpec", "LinearOperator"),
        "computes nothing itself",
    ),
    **dict.fromkeys(("ndtr", "log_ndtr", "ndtri"), "TensorFlow 1.15 has them for its own distributions only"),
    **dict.fromkeys(("gelu", "layer_norm"), "TensorFlow 1 has none"),
    **dict.fromkeys(
        ("log_uniform_candidate_sampler", "uniform_candidate_sampler"), "draws differ: see tests.test_sampled"
    ),
}
"""Functions and classes in no program, and why."""


class Mentioned(ast.NodeVisitor):
    """The functions and classes of ``tf`` that a program mentions, found without running it.

    Chains as ``tf.nn.relu`` are looked up, also below a name that the program gives to a module; so is what
    ``getattr`` gives by a word of the program's constants, or by a formatted text with words in its gaps.
    """

    def __init__(self, source: str, seen: set[int]) -> None:
        tree = ast.parse(source)
        constants = [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        words = {word for constant in constants for word in constant.split()}
        self._any_word = f"({'|'.join(map(re.escape, words))}|)"
        self._named: dict[str, Any] = {"tf": tf}
        self._seen = seen
        self.visit(tree)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            is_pair = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=True) if is_pair else [(target, node.value)]
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(value, ast.Name | ast.Attribute):
                    self._named[name.id] = self._found(value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        self._seen.add(id(self._found(node)))

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "getattr":
            owner = self._found(node.args[0])
            if isinstance(owner, types.ModuleType):
                name = re.compile(self._pattern(node.args[1]))
                self._seen.update(id(getattr(owner, each)) for each in dir(owner) if name.fullmatch(each))

    def _found(self, node: ast.expr) -> Any:
        """What ``node`` is in flowrt, if it is a name or a chain below a module."""
        if isinstance(node, ast.Name):
            return self._named.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(owner := self._found(node.value), types.ModuleType):
            return getattr(owner, node.attr)
        return None

    def _pattern(self, node: ast.expr) -> str:
        if not isinstance(node, ast.JoinedStr):
            return self._any_word
        return "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else self._any_word
            for part in node.values
        )


def functions_of(path: str) -> Iterator[tuple[str, Any]]:
    module: Any = tf
    for part in path.split("."):
        module = getattr(module, part)
    for name in getattr(module, "__all__", dir(module)):
        found = getattr(module, name)
        if callable(found) and not name.startswith(("_", "missing_")) and found is not Any:
            yield name, found


def test_every_function_is_in_a_program() -> None:
    seen = set[int]()
    for program in PROGRAMS:
        Mentioned((FOLDER / f"{program}.py").read_text(), seen)
    missing = {
        f"{path}.{name}"
        for path in COMPARED
        for name, found in functions_of(path)
        if id(found) not in seen and not isinstance(found, OpDef)  # of which every sample is compared
    }
    assert {name for name in missing if name.rpartition(".")[2] not in ELSEWHERE} == set()
