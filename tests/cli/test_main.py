"""The command line: exit statuses, mistakes in one line, pipes."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flowrt.cli.completion import SHELLS, script
from flowrt.cli.main import main
from flowrt.cli.run import new_run_parser
from flowrt.cli.tf1 import new_tf1_parser
from flowrt.cli.worker import new_worker_parser
from flowrt_command import COMMANDS, new_main_parser
from tests.each import nightly

PARSERS = {"flowrt-run": new_run_parser, "flowrt-worker": new_worker_parser, "flowrt-tf1": new_tf1_parser}
ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "flowrt", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command line ``words`` is told, with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_the_list_of_commands_has_each_beside_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    new_main_parser(()).print_help()
    lines = capsys.readouterr().out.splitlines()
    for name, about in COMMANDS.items():
        assert [line for line in lines if line.split() and line.split()[:2] == [name, about.split()[0]]]


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


@pytest.mark.parametrize("command", ["flowrt", *PARSERS])
def test_the_version_is_printed_without_an_import_of_flowrt(command: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, name = scripts[command].split(":")
    script = f"import sys, {module}; sys.argv[1:] = ['--version']; {module}.{name}(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    version, modules = done.stdout.splitlines()
    assert version == f"{command} {sys.modules['flowrt'].__version__}"
    assert not {"flowrt", "numpy"} & set(modules.split())


@pytest.mark.parametrize("command", [*COMMANDS, *PARSERS])
def test_the_examples_of_a_command_are_command_lines_that_it_takes(command: str) -> None:
    parser = PARSERS[command]() if command in PARSERS else new_main_parser([command])
    help_text = _help_of(parser, command)
    lines = help_text.partition("examples:\n")[2].splitlines()
    examples = [line.partition("    ")[0] for each in lines if (line := each.strip()).startswith(parser.prog)]
    assert examples, help_text
    for example in examples:
        words = shlex.split(example.partition(" && ")[0])
        parser.parse_known_args(words[1 : words.index("--") if "--" in words else None])


def _help_of(parser: argparse.ArgumentParser, command: str) -> str:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return str(action.choices[command].format_help())
    return parser.format_help()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_has_no_mistake(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n"], input=script(shell), text=True, timeout=200, check=True)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("flowrt ex", "export explain"),
        ("flowrt export --vi", "--view"),
        ("flowrt export --view p", "placed partitioned"),
        ("flowrt export --format m", "mermaid model-explorer"),
    ],
)
def test_bash_completes_a_command_and_an_option(words: str, found: str) -> None:
    last = len(words.split()) - 1
    ask = f"COMP_WORDS=({words}); COMP_CWORD={last}; _shtab_flowrt; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash"], input=f"{script('bash')}\n{ask}", text=True, capture_output=True, timeout=200, check=True
    )
    assert done.stdout.split() == found.split()


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
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=200, check=False,
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
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
