"""The command line: exit statuses, mistakes in one line, pipes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flowrt.cli.main import COMMANDS, main
from tests.each import nightly

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "flowrt", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command line ``words`` is told, with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_no_command_prints_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"    {name}" in printed.replace("\n", " ") for name in COMMANDS)


def test_the_version_is_printed() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"flowrt {sys.modules['flowrt'].__version__}\n",
        "",
    )


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    said = mistake(capsys, "devcies")
    assert said == f"flowrt: expected one of {', '.join(COMMANDS)}; got 'devcies'. Nearest: devices"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "g.pb", "--out", "x", "--depth", "a"], "expected an integer >= 1; got a"),
        (["devices", "--jsn"], "unrecognized arguments: --jsn"),
        (["explain", "a.py", "--steps", "2"], "--steps 2; put the script's arguments after --"),
        (["selftest", "--only", "opps"], "got 'opps'. Nearest: ops"),
        (["selftest", "--only", ""], "expected sections of ops"),
        (["selftest", "--device", "cpu0"], "device 'cpu0': expected parts of the form /job:NAME"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in mistake(capsys, *words)


def test_a_device_that_is_not_there_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--device", "/device:TPU:0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "flowrt selftest: expected a device of type CPU, GPU or NULL; got /device:TPU:0\n"


@pytest.mark.parametrize("command", nightly(["devices", "env"], 1))
def test_a_full_disk_is_told_in_one_line(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flowrt", command],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == f"flowrt {command}: [Errno 28] No space left on device\n"


def test_a_section_that_is_named_twice_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--only", "streams,streams"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m flowrt env | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
