"""The examples in the docstrings of the package give what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

NAMES = {
    "actions": ("Action", "dependencies"),
    "replay": ("replay",),
    "schedule_file": ("format_schedule", "parse_schedule"),
    "schedules": ("order",),
    "search": ("best_schedule",),
}
MODULES = {name: importlib.import_module(f"flowrt.graph.pipeline.{name}") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_examples(name: str) -> None:
    known = {each: getattr(MODULES[module], each) for module, names in NAMES.items() for each in names}
    found = doctest.testmod(MODULES[name], extraglobs=known)
    assert found.attempted
    assert not found.failed
