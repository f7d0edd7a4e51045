"""Progress: a line on a terminal while work is long, nothing anywhere else, nothing left at the end."""

import io
import os
import pty
import threading
import time

import pytest

import flowrt as tf
from flowrt.base import progress as module
from flowrt.base.progress import Progress
from flowrt.executor.observe.compile_times import CompileTimes

DEADLINE_S = 30


class Terminal(io.StringIO):
    """Remembers what was drawn."""

    def isatty(self):
        return True


@pytest.fixture
def soon(monkeypatch):
    """Lines appear at once."""
    monkeypatch.setattr(module, "APPEARS_S", 0.0)
    monkeypatch.setattr(module, "REDRAW_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def wait_for(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_line_says_how_far_it_is_and_is_gone_at_the_end(soon):
    terminal = Terminal()
    with Progress("restoring", 12, "tensors", terminal) as progress:
        progress.update(6, "layer/w")
        wait_for(lambda: "layer/w" in terminal.getvalue())
    assert "restoring [##########..........] 6/12 tensors" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_line_is_alive_while_the_work_says_nothing(soon):
    terminal = Terminal()
    with Progress("waiting", stream=terminal):
        wait_for(lambda: terminal.getvalue().count("waiting") > 3)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_where_nobody_looks_nothing_is_drawn_and_no_thread_is_there(soon, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    stream = Terminal() if term == "dumb" else io.StringIO()
    with Progress("compiling", stream=stream) as progress:
        assert not progress.is_shown
        assert not [t for t in threading.enumerate() if t.name == "flowrt progress"]
    assert stream.getvalue() == ""


def test_what_is_quick_is_not_shown(monkeypatch):
    monkeypatch.setattr(module, "APPEARS_S", DEADLINE_S * 10)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with Progress("compiling", stream=terminal) as progress:
        progress.update(1)
    assert terminal.getvalue() == ""


def test_a_line_is_never_longer_than_the_terminal():
    progress = Progress("restoring", 10, "tensors", io.StringIO())
    progress.update(3, "x" * 200)
    for columns in (1, 10, 40, 79):
        assert len(progress.line(columns)) == columns


def test_work_that_is_broken_off_leaves_no_line(soon):
    terminal = Terminal()
    progress = Progress("training", stream=terminal)
    wait_for(lambda: "training" in terminal.getvalue())
    del progress
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "flowrt progress"])
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_terminal_that_goes_away_is_no_error(soon):
    terminal = Terminal()
    with Progress("training", stream=terminal):
        wait_for(lambda: "training" in terminal.getvalue())
        terminal.close()


def test_a_closed_stream_is_not_watched():
    stream = io.StringIO()
    stream.close()
    assert not module.is_watched(stream)


def test_a_compile_tells_its_phases():
    begun = []
    times = CompileTimes(begin=begun.append)
    with times.phase("place"), times.phase("fuse"):
        pass
    assert begun == ["place", "fuse"]


def test_a_real_terminal_shows_the_training_loop(soon, monkeypatch):
    leader, follower = pty.openpty()
    with open(follower, "w") as terminal, open(leader, "rb", buffering=0) as screen:
        monkeypatch.setattr("sys.stderr", terminal)
        seen = bytearray()
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            loss = tf.cast(step, tf.float32) * 0.5
            count = tf.assign_add(step, 1)
            with tf.train.MonitoredSession(hooks=[tf.train.ProgressHook(4, loss)]) as session:
                session.run(count)
                end = time.monotonic() + DEADLINE_S
                while b"training [" not in seen or b"/4 steps" not in seen:
                    assert time.monotonic() < end
                    seen += os.read(screen.fileno(), 4096)
                assert b"loss" in seen or session.run(loss) >= 0


def test_the_hook_fetches_nothing_where_nobody_looks(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        hook = tf.train.ProgressHook(4)
        with tf.train.MonitoredSession(hooks=[hook]):
            assert hook.before_run(None) is None
