"""Public models give what onnxruntime gives. They are skipped where their packages were not fetched."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from flowrt.onnx import load
from tests.models import fetch
from tests.models.public import ONNX_MODELS, PublicModel

RTOL, ATOL = 1e-3, 1e-4


def expected(model: PublicModel, feeds: Any) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("model", ONNX_MODELS, ids=str)
def test_an_onnx_model_gives_what_onnxruntime_gives(model: PublicModel) -> None:
    if model.why_absent:
        pytest.skip(model.why_absent)
    feeds = model.feeds(np.random.default_rng(0))
    found, wanted = load(model.path).run(feeds), expected(model, feeds)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, RTOL, ATOL, err_msg=name)


def test_only_what_has_the_known_sum_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_MODELS", str(tmp_path / "cache"))

    def downloaded(package: fetch.Package, scratch: Path) -> Path:
        with zipfile.ZipFile(scratch / "m.whl", "w") as wheel:
            wheel.writestr(zipfile.ZipInfo("nudenet/320n.onnx"), b"weights")
            wheel.writestr(zipfile.ZipInfo("nudenet.py"), b"code")
        return scratch / "m.whl"

    monkeypatch.setattr(fetch, "_download", downloaded)
    package = next(each for each in fetch.PACKAGES if each.name == "nudenet")
    with pytest.raises(RuntimeError, match="expected SHA-256 5937dbd8"):
        fetch.fetch(package)
    assert not fetch.folder_of("nudenet").exists()
    right = downloaded(package, tmp_path).read_bytes()
    folder = fetch.fetch(package._replace(sha256=hashlib.sha256(right).hexdigest()))
    assert [each.name for each in folder.parent.rglob("*") if each.is_file()] == ["320n.onnx"]


def test_a_package_that_cannot_be_had_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(package: fetch.Package) -> Path:
        raise subprocess.CalledProcessError(1, ["pip", "download", package.name])

    monkeypatch.setattr(fetch, "fetch", refused)
    assert fetch.main() == len(fetch.PACKAGES)
    assert "silero-vad 6.2.3" in capsys.readouterr().err
