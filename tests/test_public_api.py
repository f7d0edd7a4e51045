"""The names that TensorFlow 1 scripts use are there, with TensorFlow's arguments in order; no others leak.

tests/tf1_names.txt has one name a line, as a script writes it after ``tf.``, with the arguments that it takes
first. A name that is lost, or an argument that moves, breaks scripts.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import flowrt as tf
from flowrt.errors import UnimplementedError
from flowrt.graph.op_def import OpDef
from flowrt.tf1.missing_names import _MEANT, _REASONS, PUBLIC_NAMESPACES, hints

LINES = (Path(__file__).parent / "tf1_names.txt").read_text().split("\n")[:-1]
CONSTANTS = (str, int, float, bytes, tuple, types.NoneType, tf.DType, property, enum.Enum)
LATE = (
    "argparse", "cupy", "flowrt.linalg.linear_operator", "google.protobuf", "grpc", "llvmlite", "malt",
    "opt_einsum", "safetensors", "unittest",
)  # fmt: skip


def look_up(name: str) -> Any:
    found: Any = tf
    for part in name.split("."):
        found = getattr(found, part)
    return found


def parameters(found: Any) -> list[str]:
    if isinstance(found, OpDef):
        return [*(argument.name for argument in found.inputs), *found.attrs, "name"]
    return [p for p in inspect.signature(found).parameters if p != "self"]


def test_names_are_there_and_take_the_arguments() -> None:
    wrong = []
    for line in LINES:
        name, _, arguments = line.rstrip(")").partition("(")
        found = look_up(name)
        is_value = isinstance(found, (types.ModuleType, *CONSTANTS)) or name == "flags.FLAGS"
        expected = arguments.split(", ") if arguments else []
        taken = parameters(found)[: len(expected)] if expected else []
        if not (callable(found) or is_value) or taken != expected:
            wrong.append(f"{line}: {found!r} takes {taken}")
    assert not wrong


def test_the_list_covers_what_scripts_use() -> None:
    assert len(LINES) > 900


def test_no_helper_leaks_at_the_top_level() -> None:
    """A public name is a module of flowrt, a thing that one of its modules defines, or a constant."""
    constants = {"newaxis", "VERSION", "GIT_VERSION", "COMPILER_VERSION", "AUTO_REUSE"}
    for name in (n for n in dir(tf) if not n.startswith("_")):
        found = getattr(tf, name)
        if isinstance(found, types.ModuleType):
            assert found.__name__ == f"flowrt.{name}", name
        elif not isinstance(found, (OpDef, tf.DType)) and name not in constants:
            assert found.__module__.startswith("flowrt."), name


@pytest.mark.parametrize(
    "name", [f"{space}.{name}".strip(".") for space, names in _REASONS.items() for name in names]
)
def test_a_name_that_only_tensorflow_has_says_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match=r": \w.+\. Instead: \w") as caught:
        look_up(name)
    assert isinstance(caught.value, UnimplementedError)
    space, _, last = name.rpartition(".")
    assert not hasattr(look_up(space) if space else tf, last)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("io.parse_sequence_example", "Dataset.from_generator"),
        ("LMDBReader", "data.TFRecordDataset"),
        ("python.ops.parsing_ops.parse_sequence_example", "Dataset.from_generator"),
        ("strings.ngrams", "str.split in a py_func"),
        ("user_ops", "py_func"),
        ("raw_ops", "the functions of flowrt"),
        ("compat.v2", "compat.v1"),
    ],
)
def test_a_name_of_tensorflows_is_not_taken_for_a_misspelt_one(name: str, instead: str) -> None:
    with pytest.raises(UnimplementedError, match=rf"flowrt\.{name}: .* Instead: .*{instead}"):
        look_up(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("get_varible", "get_variable"),
        ("nn.sofmax", "softmax"),
        ("train.AdamOptimiser", "AdamOptimizer"),
        ("contrib.layer", "layers"),
        ("losess", "losses"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_ones(name: str, near: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"flowrt\.{name}: flowrt has no such name\. Nearest: .*\b{near}\b"
    ):
        look_up(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AdamOptimizer", "train.AdamOptimizer"),
        ("losses.AdamOptimizer", "train.AdamOptimizer"),
        ("nn.dense", "layers.dense"),
        ("optimizers", "train.AdamOptimizer"),
        ("sum", "reduce_sum"),
        ("train.LSTMCell", "nn.rnn_cell.LSTMCell"),
        ("gfile.Gfile", "gfile.GFile"),
        ("compat.v1.AdamOptimizer", "train.AdamOptimizer"),
    ],
)
def test_a_misplaced_name_gets_its_module(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"no such name\. Nearest: {meant}$"):
        look_up(name)


@pytest.mark.parametrize("space", PUBLIC_NAMESPACES)
def test_every_public_module_says_what_it_has_not(space: str) -> None:
    with pytest.raises(AttributeError) as caught:
        look_up(f"{space}.xqzt_wvk")
    assert str(caught.value) == f"flowrt.{space}.xqzt_wvk: flowrt has no such name."


def test_every_hint_is_a_name_that_there_is() -> None:
    """Of public names, with a letter lost and with two exchanged, asked for in its module and another."""
    names = [re.sub(r"\(.*", "", line) for line in LINES[::12]]
    asked = {
        (space, wrong)
        for name in names
        for last in [name.rpartition(".")[2]]
        for wrong in (last[:-1], last[1] + last[0] + last[2:] if len(last) > 1 else last, last)
        for space in ("", name.rpartition(".")[0], "linalg")
        if space in ("", *PUBLIC_NAMESPACES) and wrong
    }
    found = {hint for space, wrong in asked for hint in hints(space, wrong)} | set(_MEANT.values())
    assert len(found) > 80
    for hint in found:
        look_up(hint)  # which raises if there is no such name


def test_an_import_of_an_absent_name_is_an_import_error_with_the_hint() -> None:
    with pytest.raises(ImportError, match=r"flowrt\.linalg\.invv: .* Nearest: linalg\.inv, linalg\.pinv$"):
        from flowrt.linalg import invv  # noqa: F401
    with pytest.raises(ImportError, match=r"flowrt\.lite: TensorFlow's formats are not supported\. Instead"):
        from flowrt import lite  # noqa: F401


def test_scripts_may_import_what_they_name() -> None:
    for module in (
        "compat.v1",
        "contrib.layers",
        "contrib.slim",
        "contrib.framework",
        "layers",
        "losses",
        "app",
    ):
        assert importlib.import_module(f"flowrt.{module}")
    assert importlib.import_module("flowrt.compat.v1").get_variable is tf.get_variable


def test_the_module_functions_are_not_hidden_by_modules_of_their_names() -> None:
    """Importing flowrt.device and the like by full name must not put the module in the function's place."""
    for module in ("device.spec", "variables.get_variable", "train.optimizers.global_step"):
        importlib.import_module(f"flowrt.{module}")
    for name in ("device", "get_variable", "variable_scope", "train.global_step"):
        assert callable(look_up(name)), name


def test_importing_flowrt_leaves_optional_and_slow_libraries_alone() -> None:
    code = f"import sys, flowrt; print([m for m in {LATE!r} if m in sys.modules])"
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout == "[]\n"


def test_names_are_written_once() -> None:
    names = [re.sub(r"\(.*", "", line) for line in LINES]
    assert len(names) == len(set(names))
