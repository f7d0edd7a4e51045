"""The documentation site builds without a warning: no page is left out, no link leads nowhere."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("furo") is None, reason="Sphinx is not installed: make docs-site"
)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*command, "-c", "docs/site", ".", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "docs/site/reference/nn.html").read_text()
    assert "flowrt.nn.conv2d" in reference
    assert "'VALID'" in reference  # of its example, which may be highlighted: a tag around each word


def test_every_page_is_in_the_site() -> None:
    index = (ROOT / "docs/site/index.md").read_text()
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("*.md")]
    assert [page.name for page in pages if f"/{page.stem}" not in index] == []
