"""GLOSSARY.md has each word once, in order, in one sentence, with a place in the source that is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_readme import exists

ROOT = Path(__file__).resolve().parent.parent


class Entry(NamedTuple):
    word: str
    meaning: str
    place: str


def entries() -> list[Entry]:
    _, _, rows = (ROOT / "GLOSSARY.md").read_text().partition("|---|---|---|\n")
    return [Entry(*(cell.strip() for cell in row.strip("|").split("|"))) for row in rows.splitlines()]


def test_words_are_in_alphabetical_order_and_each_is_there_once() -> None:
    words = [entry.word for entry in entries()]
    assert len(words) > 40
    assert words == sorted(set(words))


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.word)
def test_a_word_has_one_sentence(entry: Entry) -> None:
    assert re.fullmatch(r"[A-Z][^.]*(?:`[^`]*`[^.]*)*\.", entry.meaning)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.word)
def test_a_word_names_its_place_in_the_source(entry: Entry) -> None:
    found = re.fullmatch(r"`([\w.]+)`", entry.place)
    assert found
    assert exists(f"flowrt.{found[1]}")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_a_reader_finds_the_glossary(page: str) -> None:
    assert "](GLOSSARY.md)" in (ROOT / page).read_text()
