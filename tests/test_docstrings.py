"""Reads flowrt's docstrings and comments: each begins with a noun phrase or a verb, in plain words.

A docstring is that of a module, class or function, the string after an assignment, or an op's ``doc=``. The
second half of the file feeds the checkers bad texts: a checker that finds nothing there is broken.
"""

from __future__ import annotations

import ast
import inspect
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

OPENINGS = re.compile(
    r"(Who|Whose|Whom|Whoever|What|Whatever|Which|Whichever|Where|When|How|Why|That|Those|There"
    r"|Of|With|Without|For|In|Into|From|To|On|At|By|Per|Over|Beside|Before|After|Until"
    r"|If|As|Not|Nor|Only|And|But|So|Then|It|Its|They)\b(?!-)"
)
"""Relative clauses without a noun, fronted genitives and other words that begin no noun phrase."""

PEOPLE = re.compile(r"\b(who|whose|whom|whoever)\b", re.IGNORECASE)
PLACES = re.compile(r"\b(lies?|lay|lain|lying)\b", re.IGNORECASE)


class Text(NamedTuple):
    """A docstring (``is_doc``) or a comment. ``is_flag``: of a bool, or of a function that returns one."""

    line: int
    words: str
    is_doc: bool = True
    is_flag: bool = False


def texts_of(source: str) -> list[Text]:
    return [*_docstrings(ast.parse(source)), *_comments(source)]


def _docstrings(tree: ast.Module) -> Iterator[Text]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.expr, ast.expr_context)):  # most nodes, with nothing of the below
            continue
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            words = ast.get_docstring(node)
            if words is not None:
                is_flag = isinstance(node, ast.FunctionDef) and _is_bool(node.returns)
                yield Text(node.body[0].lineno, words, is_flag=is_flag)
        if isinstance(node, ast.keyword) and node.arg == "doc" and _string(node.value):
            yield Text(node.value.lineno, _string(node.value))
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            yield from _attributes(block) if isinstance(block, list) else ()


def _attributes(block: list[ast.stmt]) -> Iterator[Text]:
    for before, statement in itertools.pairwise(block):
        if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(statement, ast.Expr):
            words = _string(statement.value)
            is_flag = not isinstance(before, ast.AnnAssign) or _is_bool(before.annotation)
            if words:
                yield Text(statement.lineno, words, is_flag=is_flag)


def _string(node: ast.expr) -> str:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return inspect.cleandoc(ast.literal_eval(node)) if is_text else ""


def _is_bool(node: ast.expr | None) -> bool:
    return (
        node is not None
        and re.fullmatch(r"(ClassVar\[)?(bool|TypeGuard\b.*)\]?", ast.unparse(node)) is not None
    )


def _comments(source: str) -> Iterator[Text]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string.lstrip("# "), is_doc=False)


def openings(text: Text) -> Iterator[str]:
    """Docstrings that begin with something other than a noun phrase or a verb."""
    if text.is_doc and OPENINGS.match(text.words):
        yield f"expected a noun phrase or a verb at the beginning; got {text.words.split()[0]!r}"
    if text.is_doc and text.words.startswith("Whether") and not text.is_flag:
        yield "expected 'Whether' only for a bool"


def banned(text: Text) -> Iterator[str]:
    """People's pronouns for things, and ``lie`` for what is stored or located somewhere."""
    words = " ".join(text.words.split())
    for pattern, better in (
        (PEOPLE, "'that', 'with' or 'of which'"),
        (PLACES, "'is stored', 'is at', 'is between'"),
    ):
        yield from (f"expected {better}; got {found.group()!r}" for found in pattern.finditer(words))


def violations(name: str, source: str) -> list[str]:
    return [
        f"{name}:{text.line}: {violation}"
        for text in texts_of(source)
        for check in (openings, banned)
        for violation in check(text)
    ]


def _sources() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for path in sorted((ROOT / "flowrt").rglob("*.py"))
        if not path.name.endswith("_pb2.py")  # generated
    }


def test_docstrings_and_comments_are_plain() -> None:
    assert [found for name, source in _sources().items() for found in violations(name, source)] == []


GOOD = '''
"""`Cache`: kernels by key."""

LIMIT: int = 3
"""Maximum number of kernels."""

is_open = True
"""Whether new kernels are accepted."""

def find(key) -> bool:  # constant time
    """Whether there is a kernel for ``key``."""

def kernel(key):
    """The kernel for ``key``, compiled on first use."""

class Entry:
    """In-memory entry."""

    def drop(self):
        """Remove it from the cache."""
'''


def test_plain_texts_are_accepted() -> None:
    assert violations("good", GOOD) == []
    assert len(texts_of(GOOD)) == 8


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""What the cache has."""', "bad:1: expected a noun phrase or a verb at the beginning; got 'What'"),
        ('def f():\n    """Of a key, its kernel."""', "got 'Of'"),
        ('class A:\n    """Which tensor is read."""', "got 'Which'"),
        ('N = 3\n"""Of kernels, at most."""', "got 'Of'"),
        ('class A:\n    def __init__(self):\n        self.n = 3\n        """How many there are."""', "bad:4"),
        ('define("Add", doc="For sums.")', "got 'For'"),
        ('def f() -> int:\n    """Whether it is there."""', "expected 'Whether' only for a bool"),
        ('N: int = 3\n"""Whether it is there."""', "expected 'Whether' only for a bool"),
        ('"""A tensor whose shape is known."""', "got 'whose'"),
        ("x = 1  # the bytes lie behind the header", "got 'lie'"),
        ("# what lies\n# in memory\nx = 1", "bad:1"),
    ],
)
def test_a_bad_text_is_found(source: str, expected: str) -> None:
    (found,) = violations("bad", source)
    assert expected in found
