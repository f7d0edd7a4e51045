"""Scripts in the style of public TensorFlow 1 code run with their import line changed, with TensorFlow's
output.

Each file of tests/scripts is such a script. tests/scripts/expected has what it prints under TensorFlow
2.21's ``compat.v1`` (recorded by hand with ``import tensorflow.compat.v1 as tf`` in place of ``import flowrt
as tf``): texts must be equal, numbers nearly. Where a script depends on random initial values it prints
statements about its result, not numbers.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
TOLERANCE = 2e-3  # of max(1, |number|): float32 sums in another order, after up to hundreds of steps
names = sorted(path.stem for path in SCRIPTS.glob("*.py"))


def parts(text: str) -> tuple[str, list[float]]:
    """The text with its numbers and spaces taken out, and the numbers."""
    return "".join(NUMBER.sub("#", text).split()), [float(number) for number in NUMBER.findall(text)]


def assert_same_output(printed: str, expected: str) -> None:
    words, numbers = parts(printed)
    expected_words, expected_numbers = parts(expected)
    assert words == expected_words, f"printed:\n{printed}\nexpected:\n{expected}"
    assert numbers == [pytest.approx(n, rel=TOLERANCE, abs=TOLERANCE) for n in expected_numbers]


@pytest.mark.parametrize("name", names)
def test_script_prints_what_tensorflow_prints(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="the scripts' real data comes from scikit-learn")
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    exit_code: object = 0
    try:
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    except SystemExit as end:  # of app.run and test.main
        exit_code = end.code
    assert not exit_code
    assert_same_output(capsys.readouterr().out, (SCRIPTS / "expected" / f"{name}.txt").read_text())


def test_flags_come_from_the_command_line() -> None:
    flags = ["--max_steps=3", "--mode", "eval", "--model_dir=d"]
    command = [sys.executable, str(SCRIPTS / "app_flags.py"), *flags]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert_same_output(done.stdout, f"{5 * 0.8**3:.5f} eval d\n")


def test_every_script_changes_only_its_import_line() -> None:
    for name in names:
        source = (SCRIPTS / f"{name}.py").read_text()
        assert source.count("flowrt") == 1, name
        assert "import flowrt as tf\n" in source, name


def test_the_comparison_sees_a_wrong_number_and_a_wrong_word() -> None:
    assert_same_output("loss 1.0001", "loss  1.0")
    with pytest.raises(AssertionError):
        assert_same_output("loss 1.01", "loss 1.0")
    with pytest.raises(AssertionError):
        assert_same_output("cost 1.0", "loss 1.0")
