"""The sections "Example:" of the docstrings of public names print what they say."""

from __future__ import annotations

import doctest
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from benchmarks.names import DATA, read_corpus
from flowrt.graph.op_def import OpDef
from flowrt.tf1.missing_names import PUBLIC_NAMESPACES, public_names

PARSER = doctest.DocTestParser()


def examples() -> Iterator[doctest.DocTest]:
    """One test for each docstring with such a section, under the first public name."""
    seen = set[str]()
    for space in ("", *PUBLIC_NAMESPACES, "keras", "keras.layers"):
        module: Any = functools.reduce(getattr, filter(None, space.split(".")), tf)
        for name in public_names(space):
            doc = doc_of(getattr(module, name))
            if "\nExample:\n" in doc and doc not in seen:
                seen.add(doc)
                yield PARSER.get_doctest(doc, {"tf": tf, "np": np}, f"tf.{space}.{name}", None, 0)


def doc_of(value: Any) -> str:
    return inspect.cleandoc(value.doc) if isinstance(value, OpDef) else inspect.getdoc(value) or ""


def failures(test: doctest.DocTest) -> str:
    """The report of what fails, if anything; each test has a graph and a session of its own."""
    report: list[str] = []
    with tf.Graph():
        session = tf.InteractiveSession()
        test.globs["session"] = session
        try:
            doctest.DocTestRunner(verbose=False).run(test, out=report.append)
        finally:
            session.close()
    return "".join(report)


def test_examples_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    tests = list(examples())
    assert len(tests) > 150
    wrong = "".join(map(failures, tests))
    assert not wrong, wrong


WITHOUT_EXAMPLE = {
    "app.flags.FLAGS", "app.run", "disable_v2_behavior", "enable_eager_execution", "no_op",
    "reset_default_graph", "test.main",
}  # fmt: skip
"""Names used much whose example would be a whole program, or would show nothing."""


@functools.cache
def most_used() -> list[tuple[str, Any]]:
    """The 150 functions and classes that programs use most, each under the name that they use most."""
    found: dict[int, tuple[str, Any]] = {}
    for name in read_corpus(DATA.read_text()).names:
        if (value := public_value(name)) is not None:
            found.setdefault(id(value), (name, value))
    return list(found.values())[:150]


def test_the_names_that_programs_use_most_have_examples() -> None:
    without = {name for name, value in most_used() if "\nExample:\n" not in doc_of(value)}
    assert without <= WITHOUT_EXAMPLE


def test_the_names_that_programs_use_most_tell_of_arguments_and_results() -> None:
    assert [line for name, value in most_used() for line in untold(name, doc_of(value), value)] == []


def untold(name: str, doc: str, value: Any) -> Iterator[str]:
    """The arguments without a default that ``doc`` leaves out, those that it invents, a missing result."""
    parameters = inspect.signature(value).parameters
    told = set(re.findall(r"^    (\w+): ", section(doc, "Args"), re.MULTILINE))
    required = {
        each.name
        for each in parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }
    made_elsewhere = {"op", "index", "dtype"} if value is tf.Tensor else set[str]()
    yield from (f"{name}: {each} is not told of" for each in sorted(required - told - made_elsewhere))
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        yield from (f"{name}: there is no {each}" for each in sorted(told - parameters.keys()))
    is_function = inspect.isroutine(value) or isinstance(value, OpDef)
    returns = inspect.signature(value).return_annotation not in ("None", "NoReturn", None)
    if is_function and returns and not section(doc, "Returns"):
        yield f"{name}: expected a section Returns"


def section(doc: str, title: str) -> str:
    """The lines of a section, indented; "" if there is none."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n(?=    ))+)", doc + "\n", re.MULTILINE)
    return found[1] if found else ""


def test_an_argument_that_is_not_told_of_is_found() -> None:
    def scale(x: int, factor: int) -> int:
        return x * factor

    doc = "x times factor.\n\nArgs:\n    x: A number.\n    y: Another.\n"
    assert [*untold("scale", doc, scale)] == [
        "scale: factor is not told of",
        "scale: there is no y",
        "scale: expected a section Returns",
    ]


def public_value(name: str) -> Any:
    """The function or class of ours that is called ``name``; None if there is none, or it is a message."""
    value: Any = tf
    for part in name.split("."):
        value = getattr(value, part, None)
    module = getattr(value, "__module__", None) or "flowrt"
    is_ours = module.startswith("flowrt") and not module.startswith("flowrt.protos")
    return value if callable(value) and is_ours and not inspect.ismodule(value) else None


def test_a_wrong_example_is_found() -> None:
    wrong = PARSER.get_doctest(">>> tf.add(1, 2).eval()\nnp.int32(4)", {"tf": tf, "np": np}, "wrong", None, 0)
    assert "Expected:\n    np.int32(4)\nGot:\n    np.int32(3)" in failures(wrong)
