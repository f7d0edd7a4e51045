"""How many public TensorFlow 1 programs find all the names that they use, and which names they miss.

    python -m benchmarks.names                   # the report, from names.txt
    python -m benchmarks.names --gather FOLDER   # write names.txt anew, from programs below FOLDER

names.txt has no code: a line ``count name`` for each name, most used first, with the number of files that use
it, then a blank line, and for each file the positions of its names in that list. A name is written as after
``tensorflow.``, as far as the program spells it. Names are looked up as `flowrt-tf1` gives them to a program.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import types
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrt.compat import tensorflow

DATA = Path(__file__).with_name("names.txt")
ROOT = "tensorflow"
_DEPTH = 5
"""Longer chains of attributes are methods of what is found."""


@dataclass(frozen=True)
class Corpus:
    """Names that public programs use: each file as the positions of its names in ``names``."""

    names: tuple[str, ...]
    files: tuple[tuple[int, ...], ...]


def read_corpus(text: str) -> Corpus:
    names, _, files = text.partition("\n\n")
    return Corpus(
        tuple(line.split(" ")[1] for line in names.splitlines()),
        tuple(tuple(map(int, line.split())) for line in files.splitlines()),
    )


def format_corpus(files: Sequence[Iterable[str]]) -> str:
    uses = Counter(name for names in files for name in set(names))
    ranked = sorted(uses, key=lambda name: (-uses[name], name))
    place = {name: i for i, name in enumerate(ranked)}
    lines = [" ".join(map(str, sorted({place[name] for name in names}))) for names in files]
    return "\n".join([*(f"{uses[name]} {name}" for name in ranked), "", *sorted(lines)]) + "\n"


# --- gathering


def names_of(source: str) -> set[str]:
    """The names below TensorFlow that the program ``source`` uses, those below ``compat.v1`` as TensorFlow
    1's own; not those that it sets itself. Raises `SyntaxError`.
    """
    with warnings.catch_warnings(action="ignore"):  # about the program's escapes and comparisons
        tree = ast.parse(source)
    bound = dict(_bindings(tree))
    found, own = set(bound.values()), set[str]()
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            start, *rest = _chain(node)
            if start in bound:
                name = ".".join(filter(None, [bound[start], *rest]))
                (own if isinstance(node.ctx, ast.Store) else found).add(name)
    shortened = {".".join(name.removeprefix("compat.v1.").split(".")[:_DEPTH]) for name in found}
    theirs = {name for name in shortened if not any(f"{name}.".startswith(f"{set_}.") for set_ in own)}
    return {name for name in theirs if name and "__" not in name}


def _bindings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that imports bind, with what is bound: "" is TensorFlow itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == ROOT:
                    path = alias.name.partition(".")[2]
                    yield (alias.asname, path) if alias.asname else (ROOT, "")
                    if not alias.asname and path:
                        yield alias.name, path  # no name, but something that has to be there
        elif (
            isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == ROOT
        ):
            path = (node.module or "").partition(".")[2]
            for alias in node.names:
                name = "" if alias.name == "*" else alias.name
                yield alias.asname or alias.name, ".".join(filter(None, [path, name]))


def _chain(node: ast.expr) -> list[str]:
    """The parts of ``a.b.c``; of other expressions, a chain that no import binds."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(parts)]


def gather(folder: Path) -> list[set[str]]:
    """The names of each program below ``folder`` that uses TensorFlow and that Python 3 parses."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text("utf-8", "replace")
        if ROOT in source:
            try:
                names = names_of(source)
            except (SyntaxError, ValueError):
                continue
            if names:
                found.append(names)
    return found


# --- the report


def missing(name: str) -> str | None:
    """None if a program finds ``name``; otherwise as much of it as is missing."""
    found: Any = importlib.import_module(ROOT)
    parts = name.split(".")
    for end, part in enumerate(parts, 1):
        if not isinstance(found, types.ModuleType):
            return None  # the rest are attributes of an object: methods, enumerators
        try:
            found = getattr(found, part)
        except (AttributeError, ImportError):
            try:
                found = importlib.import_module(f"{ROOT}.{'.'.join(parts[:end])}")
            except ImportError:
                return ".".join(parts[: max(end, 2)])
    return None


@dataclass(frozen=True)
class Report:
    """``complete`` of ``files`` find all names. ``alone``: how many files miss only one name, by name;
    ``blocked``: how many files miss a name; ``spaces``: how many miss only names of one namespace.
    """

    files: int
    complete: int
    alone: Counter[str]
    blocked: Counter[str]
    spaces: Counter[str]


def survey(corpus: Corpus) -> Report:
    lost = [missing(name) for name in corpus.names]
    each = [{name for i in names if (name := lost[i])} for names in corpus.files]
    spaces = [{_space(name) for name in names} for names in each]
    return Report(
        len(each),
        sum(not names for names in each),
        Counter([name for names in each if len(names) == 1 for name in names]),
        Counter(name for names in each for name in names),
        Counter([space for found in spaces if len(found) == 1 for space in found]),
    )


def _space(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] in ("contrib", "python") else 1])


def format_report(report: Report, count: int = 40) -> str:
    lines = [
        f"{report.complete} of {report.files} files find all names ({report.complete / report.files:.1%})"
    ]
    lines += ["", "files that miss only one namespace:"]
    lines += [f"{uses:6} {space}" for space, uses in report.spaces.most_common(count)]
    lines += ["", "missing names: files that miss it, and files that miss nothing else:"]
    lines += [f"{uses:6} {report.alone[name]:6} {name}" for name, uses in report.blocked.most_common(count)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Names that public TensorFlow 1 programs use and miss.")
    parser.add_argument("--gather", type=Path, metavar="FOLDER", help="write names.txt from programs")
    parser.add_argument("--count", type=int, default=40, help="how many names to list")
    arguments = parser.parse_args()
    if arguments.gather:
        DATA.write_text(format_corpus(gather(arguments.gather)))
    tensorflow.install()
    print(format_report(survey(read_corpus(DATA.read_text())), arguments.count))


if __name__ == "__main__":
    main()
