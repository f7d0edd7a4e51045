"""``flowrt env``: what a bug report shows, and what it hides."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flowrt.cli import env
from flowrt.cli.machine import DeviceFacts
from flowrt.cli.main import main


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
    assert list(report) == ["system", "libraries", "environment", "devices"]
    assert report["environment"]["FLOWRT_SOMETHING"] == "17"
    assert report["system"]["flowrt"].startswith(sys.modules["flowrt"].__version__)
    assert {"numpy", "protobuf", "grpcio", "ml_dtypes", "safetensors", "cupy"} <= report["libraries"].keys()
    printed = env.lines(report)
    for heading, facts in report.items():
        start = printed.index(f"[{heading}]") + 1
        for line, (name, value) in zip(printed[start:], facts.items(), strict=False):
            assert line.split(maxsplit=1)[0] == name.split()[0]
            assert line.endswith(value)


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
