"""``flowrt env``: what a bug report shows, and what it hides."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from flowrt.base.environment import VARIABLES, unknown_variables
from flowrt.cli import env
from flowrt.cli.machine import DeviceFacts
from flowrt.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"FLOWRT_[A-Z_]*[A-Z]")


def test_only_variables_that_matter_are_shown_and_secrets_are_not() -> None:
    variables = {
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "",
        "FLOWRT_TOKEN": "abc",
        "CUPY_API_KEY": "abc",
        "OMP_PROXY": "https://me:abc@proxy:80/x",
        "TF_CONFIG": "{}",
        "TF_CLI_CONFIG_FILE": "/home/me/.terraformrc",
        "TF_CONFIG_OF_ANOTHER": "x",
        "AWS_SECRET_ACCESS_KEY": "abc",
        "PATH": "/bin",
    }
    assert env.shown_variables(variables) == {
        "CUDA_VISIBLE_DEVICES": "",
        "FLOWRT_TOKEN": "***",
        "OMP_NUM_THREADS": "2",
        "CUPY_API_KEY": "***",
        "OMP_PROXY": "https://***@proxy:80/x",
        "TF_CONFIG": "{}",
    }


def test_text_and_json_say_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_SOMETHING", "17")
    assert main(["env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["system", "libraries", "environment", "unknown variables", "devices"]
    assert report["environment"]["FLOWRT_SOMETHING"] == "17"
    assert report["system"]["flowrt"].startswith(sys.modules["flowrt"].__version__)
    assert {"numpy", "protobuf", "grpcio", "ml_dtypes", "safetensors", "cupy"} <= report["libraries"].keys()
    assert report["unknown variables"]["FLOWRT_SOMETHING"].startswith("not read by flowrt.")
    printed = env.lines(report)
    for heading, facts in report.items():
        start = printed.index(f"[{heading}]") + 1
        for line, (name, value) in zip(printed[start:], facts.items(), strict=False):
            assert line.split(maxsplit=1)[0] == name.split()[0]
            assert line.endswith(value)


def test_a_misspelled_variable_is_named_with_the_nearest() -> None:
    names = ["FLOWRT_TRASNPORT", "flowrt_jit", "FLOWRTLOG", "FLOWRT_XYZ", "FLOWRT_LOG", "PATH", "FLOW_RT"]
    assert unknown_variables(names) == {
        "FLOWRT_XYZ": "not read by flowrt.",
        "FLOWRTLOG": "not read by flowrt. Nearest: FLOWRT_LOG",
        "FLOWRT_TRASNPORT": "not read by flowrt. Nearest: FLOWRT_TRANSPORT",
        "flowrt_jit": "not read by flowrt. Nearest: FLOWRT_JIT",
    }


def test_flowrt_reads_the_variables_that_are_listed_and_no_others() -> None:
    """In the source, in the list, and in the table of the docs."""
    sources = [path for path in (ROOT / "flowrt").rglob("*.py") if path.name != "environment.py"]
    in_source = {name for path in sources for name in NAME.findall(path.read_text("utf-8"))}
    assert in_source == VARIABLES
    table = (ROOT / "docs" / "observe.md").read_text("utf-8").partition("## Environment variables")[2]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = [name for row in rows for name in NAME.findall(row)]
    assert listed == sorted(VARIABLES)


def test_a_library_that_is_not_there_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrt.cli.machine.OPTIONAL", ("no-package-has-this-name",))
    assert env.gather()["libraries"]["no-package-has-this-name"] == "not installed"


@pytest.mark.parametrize(
    ("capability", "line"),
    [
        (None, "A model, 1.0 GiB free of 2.0 GiB"),
        ((9, 0), "A model, 1.0 GiB free of 2.0 GiB, compute capability 9.0"),
    ],
)
def test_a_device_line_says_what_its_numbers_are(capability: tuple[int, int] | None, line: str) -> None:
    device = DeviceFacts("/device:GPU:0", "GPU", "A model", 1 << 30, 2 << 30, capability)
    assert env._device_line(device) == line


def test_what_is_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert env._commit(tmp_path) == ""
