"""Uncaught errors show the user's frames, and the calls that made the operation that failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import pytest

import flowrt as tf
from flowrt.base import user_traceback
from flowrt.errors import InternalError, InvalidArgumentError

SCRIPT = """\
import flowrt as tf

def model(x):
    return tf.check_numerics(tf.log(x), "log")

def main():
    x = tf.placeholder(tf.float32)
    y = model(x)
    tf.Session().run(y, {x: 0.0})

main()
"""


def run(script: Path, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, env={**os.environ, **settings}
    )
    assert done.returncode == 1
    return done.stderr


def test_a_script_that_fails_shows_its_own_lines_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert run(script).replace(str(script), "train.py").splitlines() == [
        "Traceback (most recent call last):",
        '  File "train.py", line 11, in <module>',
        "    main()",
        '  File "train.py", line 9, in main',
        "    tf.Session().run(y, {x: 0.0})",
        "flowrt.errors.InvalidArgumentError: CheckNumerics 'CheckNumerics' (train.py:4): log: expected finite"
        " values; got Inf values",
        "CheckNumerics 'CheckNumerics' was made by",
        '  File "train.py", line 11, in <module>',
        "    main()",
        '  File "train.py", line 8, in main',
        "    y = model(x)",
        '  File "train.py", line 4, in model',
        '    return tf.check_numerics(tf.log(x), "log")',
    ]
    assert "flowrt/executor/session/session.py" in run(script, FLOWRT_TRACEBACK="full")


def files_of(error: BaseException) -> list[str]:
    found, entry = [], error.__traceback__
    while entry is not None:
        found.append(entry.tb_frame.f_code.co_filename)
        entry = entry.tb_next
    return found


def raised_by_flowrt(error: BaseException) -> BaseException:
    def fail(_: object) -> tf.Tensor:
        raise error

    with pytest.raises(type(error)):
        tf.map_fn(fail, tf.ones([2]))
    assert any("/flowrt/" in file for file in files_of(error))
    return error


def innermost_of_flowrt(error: BaseException) -> TracebackType:
    """A traceback of one frame: the last of flowrt's own."""
    entry, found = error.__traceback__, None
    while entry is not None:
        found = entry if "/flowrt/" in entry.tb_frame.f_code.co_filename else found
        entry = entry.tb_next
    assert found is not None
    return TracebackType(None, found.tb_frame, found.tb_lasti, found.tb_lineno)


@pytest.mark.parametrize("error", [ValueError("x"), InvalidArgumentError("x")], ids=["users", "ours"])
def test_frames_between_the_users_are_left_out(error: BaseException) -> None:
    user_traceback.shorten(raised_by_flowrt(error))
    assert set(files_of(error)) == {__file__}


def test_a_bug_in_flowrt_shows_everything() -> None:
    bug = raised_by_flowrt(InternalError("x"))
    before = files_of(bug)
    user_traceback.shorten(bug)
    assert files_of(bug) == before
    with pytest.raises(TypeError) as caught:
        tf.Graph().as_graph_def(from_version="x")  # type: ignore[arg-type]
    user_traceback.shorten(caught.value)
    assert files_of(caught.value)[-1] != __file__


def test_a_cause_that_flowrt_raised_and_caught_is_its_message_alone() -> None:
    cause = raised_by_flowrt(InvalidArgumentError("refused"))
    cause.__traceback__ = innermost_of_flowrt(cause)
    error = raised_by_flowrt(InvalidArgumentError("did not answer"))
    error.__cause__ = cause
    user_traceback.shorten(error)
    assert cause.__traceback__ is None
    assert set(files_of(error)) == {__file__}


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="FLOWRT_TRACEBACK: expected full; got 'all'"):
        user_traceback.install({"FLOWRT_TRACEBACK": "all"})
