"""The table of faults in docs/faults.md: it has all of them, and the tests that it names exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = [f"F{number}" for number in range(1, 26)]


def rows() -> dict[str, list[str]]:
    """For each fault its tests, as pytest names them."""
    page = (ROOT / "docs/faults.md").read_text()
    found = re.findall(r"^\| (F\d+) \| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE)
    return {number: re.findall(r"`([^`]+)`", tests) for number, tests in found}


@functools.cache
def names_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_each_fault_has_a_row() -> None:
    assert list(rows()) == NUMBERS


@pytest.mark.parametrize("number", NUMBERS)
def test_each_test_of_a_fault_exists(number: str) -> None:
    tests = rows()[number]
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        assert not name or name in names_in(ROOT / path), test
        assert names_in(ROOT / path)
