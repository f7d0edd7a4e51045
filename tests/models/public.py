"""The models of the fetched packages, with inputs: seeded pictures, noise of 0.1, and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.models.fetch import folder_of

Array = np.ndarray[Any, Any]


class PublicModel(NamedTuple):
    """The model in ``file`` of a ``package``; ``feeds(rng)`` makes its inputs, by name."""

    package: str
    file: str
    feeds: Callable[[np.random.Generator], Mapping[str, Array]]

    def __str__(self) -> str:
        return Path(self.file).stem

    @property
    def path(self) -> Path:
        return folder_of(self.package) / self.file

    @property
    def why_absent(self) -> str | None:
        """Why it cannot be tested here, or None."""
        return None if self.path.exists() else f"{self.package} is not there: python -m tests.models.fetch"


def _picture(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(0, 1, shape).astype(np.float32)


def _noise(rng: np.random.Generator, *shape: int) -> Array:
    return (0.1 * rng.normal(size=shape)).astype(np.float32)


def _voice(rng: np.random.Generator) -> dict[str, Array]:
    return {"input": _noise(rng, 1, 576), "state": _noise(rng, 2, 1, 128)}


def _voice_at_rate(rng: np.random.Generator) -> dict[str, Array]:
    return {**_voice(rng), "sr": np.array(16000, np.int64)}


def _voice_sequence(rng: np.random.Generator) -> dict[str, Array]:
    return {"input": _noise(rng, 20, 576), "h": _noise(rng, 1, 1, 128), "c": _noise(rng, 1, 1, 128)}


VOICE, OCR = "silero-vad", "rapidocr-onnxruntime"

ONNX_MODELS = (
    PublicModel(VOICE, "silero_vad.onnx", _voice_at_rate),
    PublicModel(VOICE, "silero_vad_16k_op15.onnx", _voice_at_rate),
    PublicModel(VOICE, "silero_vad_half.onnx", _voice),
    PublicModel(VOICE, "silero_vad_openvino_16k.onnx", _voice),
    PublicModel(VOICE, "silero_vad_op18_ifless.onnx", _voice_at_rate),
    PublicModel(VOICE, "silero_vad_16k_sequence.onnx", _voice_sequence),
    PublicModel(OCR, "ch_PP-OCRv4_det_infer.onnx", lambda rng: {"x": _picture(rng, 1, 3, 160, 320)}),
    PublicModel(OCR, "ch_PP-OCRv4_rec_infer.onnx", lambda rng: {"x": _picture(rng, 1, 3, 48, 160)}),
    PublicModel(OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", lambda rng: {"x": _picture(rng, 1, 3, 48, 192)}),
    PublicModel(
        "magika", "standard_v3_3/model.onnx",
        lambda rng: {"bytes": rng.integers(0, 257, (1, 2048)).astype(np.int32)},
    ),
    PublicModel("nudenet", "320n.onnx", lambda rng: {"images": _picture(rng, 1, 3, 320, 320)}),
    PublicModel(
        "basic-pitch", "nmp.onnx", lambda rng: {"serving_default_input_2:0": _noise(rng, 1, 43844, 1)}
    ),
)  # fmt: skip
