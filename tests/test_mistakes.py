"""Over a hundred mistakes, as Python and the shell show them: in at most eight lines, which name the user's
line, and never one of ours.
"""

from __future__ import annotations

import importlib
import linecache
import shlex
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt.base.user_traceback import shorten

LINES = 8
FILE = "mistake.py"
MISTAKES = Path(__file__).with_name("mistakes.txt")
COMMANDS = {"flowrt": "main", "flowrt-run": "run", "flowrt-worker": "worker", "flowrt-tf1": "tf1"}


def mistakes() -> list[tuple[str, str]]:
    lines = MISTAKES.read_text().splitlines()[1:]
    return list(zip(lines[::2], (line.strip() for line in lines[1::2]), strict=True))


PROGRAMS = [pair for pair in mistakes() if not pair[0].startswith("$ ")]
COMMAND_LINES = [(line[2:], told) for line, told in mistakes() if line.startswith("$ ")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    linecache.cache.pop(FILE, None)


def test_there_are_a_hundred() -> None:
    assert len({line for line, _ in mistakes()}) > 100


@pytest.mark.parametrize(("program", "told"), PROGRAMS)
def test_an_error_of_a_program_shows_its_line_and_what_was_expected(
    program: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shown_error(program, monkeypatch)
    assert len(shown) <= LINES, "\n".join(shown)
    assert {line for line in shown if line.startswith("  File ")} <= {
        f'  File "{FILE}", line 1, in <module>', f'  File "{FILE}", line 1, in <lambda>'
    }  # fmt: skip
    assert told in shown[-1]


def shown_error(program: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of the error of ``program``, which runs in a thread, so that no frame of ours is below."""
    linecache.cache[FILE] = (len(program), None, [f"{program}\n"], FILE)
    caught: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: caught.append(ended.exc_value))
    code = compile(program, FILE, "exec")
    thread = threading.Thread(target=exec, args=(code, {"tf": tf, "np": np}))
    thread.start()
    thread.join()
    shorten(caught[0])
    return "".join(traceback.format_exception(caught[0])).splitlines()


@pytest.mark.parametrize(("line", "told"), COMMAND_LINES)
def test_a_wrong_command_line_is_told_in_one_line(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("import flowrt as tf\ntf.Session().run(tf.constant(1.0))\n")
    Path("broken.py").write_text("import flowrt as tf\ntf.matmul(1, 2)\n")
    Path("gpus.toml").write_text('[devices]\nmemory = "80 GiB"\n')
    Path("junk.pb").write_text("junk")
    command, *words = shlex.split(line)
    main = importlib.import_module(f"flowrt.cli.{COMMANDS[command]}").main
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    (said,) = err.splitlines()
    assert told in said
