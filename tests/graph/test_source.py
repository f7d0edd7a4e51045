"""Source lines: found once an instruction, of the right code."""

from __future__ import annotations

from flowrt.graph.node import Source


def lines_of(text: str) -> set[str]:
    code = compile(text, "step.py", "exec")
    return {str(Source(code, at)) for at in range(0, len(code.co_code), 2)}


def test_code_that_differs_in_its_lines_alone_has_its_own_lines() -> None:
    assert {"step.py:1", "step.py:2"} <= lines_of("x = 1\ny = 2\n")
    assert {"step.py:1", "step.py:4"} <= lines_of("x = 1\n\n\ny = 2\n")
    assert "step.py:2" not in lines_of("x = 1\n\n\ny = 2\n")
