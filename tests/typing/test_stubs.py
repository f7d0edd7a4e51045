"""Type checkers on flowrt as it is installed: stubs up to date, no false errors, planted mistakes found.

mypy checks the same two files in ``make types``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flowrt.tf1.missing_names import public_names
from tests.typing.stubs import ROOT, stubs

HERE = Path(__file__).parent
PYRIGHT = shutil.which("basedpyright", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
"""pyright with Node in its wheel."""


def test_stubs_are_what_make_stubs_writes() -> None:
    written = stubs()
    assert len(written) > 20
    assert [str(path) for path, text in written.items() if path.read_text() != text] == []


def test_dir_shows_public_names_only() -> None:
    import flowrt.rendezvous.matching.table

    names = dir(flowrt)
    assert {"Session", "train", "nn", "__version__"} < set(names)
    assert not {"rendezvous", "executor", "graph"} & set(names)
    assert [name for name in names if name.startswith("_")] == ["__version__"]
    assert {*names} - {"__version__"} == {*public_names("")}  # what the stub has


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: pip install basedpyright")
def test_pyright_finds_the_mistakes_and_no_others(tmp_path: Path) -> None:
    reported = errors_of_pyright(tmp_path, HERE / "script.py", HERE / "planted_mistakes.py")
    assert reported == []
    once_fixed = tmp_path / "fixed.py"
    once_fixed.write_text(
        re.sub(r"tf\.redcue_mean", "tf.reduce_mean", (HERE / "planted_mistakes.py").read_text())
    )
    (unneeded,) = errors_of_pyright(tmp_path, once_fixed)
    assert "Unnecessary" in unneeded


@pytest.mark.slow  # pyright reads the package, and all examples
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: pip install basedpyright")
def test_pyright_finds_nothing_in_the_examples_in_its_strict_mode(tmp_path: Path) -> None:
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert errors_of_pyright(tmp_path, HERE / "strict_script.py", *examples, mode="strict") == []


def errors_of_pyright(folder: Path, *scripts: Path, mode: str = "standard") -> list[str]:
    """The errors in ``scripts``, which see flowrt as a library in an environment of their own."""
    configured(folder, mode, *scripts)
    done = subprocess.run(
        [str(PYRIGHT), "--outputjson", "-p", str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [each["message"] for each in found if each["severity"] == "error"]


def configured(folder: Path, mode: str, *scripts: Path) -> None:
    """Make ``folder`` a project of ``scripts`` that has flowrt as a library."""
    libraries = folder / "env" / "lib" / "python3.11" / "site-packages"
    libraries.mkdir(parents=True, exist_ok=True)
    for library in (ROOT / "flowrt", Path(np.__file__).parent):
        if not (libraries / library.name).exists():
            (libraries / library.name).symlink_to(library)
    config = json.loads((HERE / "pyrightconfig.json").read_text())
    config |= {"include": [script.name for script in scripts] or ["."], "typeCheckingMode": mode}
    config |= {"venvPath": str(folder), "venv": "env"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    for script in scripts:
        if script.parent != folder:
            shutil.copy(script, folder)
