"""Code made from a user's function, with the user's line numbers: so tracebacks, warnings and operations show
the user's file, and debuggers stop in it.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping


def relocated(
    code: types.CodeType, text: str, lines: Mapping[int, int], user: types.CodeType
) -> types.CodeType:
    """``code``, a function of the module ``text``, as if compiled from the file of ``user``, under its name.

    ``lines`` has the user's line for each line of ``text`` that has one. Added code gets the line before it,
    and there are no columns: those of ``text`` are not the user's.
    """
    tree = ast.parse(text)
    found = _filled_in(lines, user.co_firstlineno, text.count("\n") + 1)
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            place = vars(node)
            place["lineno"] = place["end_lineno"] = found[place["lineno"]]
            place["col_offset"] = place["end_col_offset"] = -1
    module = compile(tree, user.co_filename, "exec", dont_inherit=True)
    (again,) = (inner for inner in functions_in(module) if inner.co_qualname == code.co_qualname)
    return again.replace(co_name=user.co_name, co_qualname=user.co_qualname)


def _filled_in(lines: Mapping[int, int], first: int, count: int) -> dict[int, int]:
    found, line = {}, first
    for number in range(1, count + 1):
        found[number] = line = lines.get(number, line)
    return found


def functions_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """All code inside ``code``."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from functions_in(inner)
