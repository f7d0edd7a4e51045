"""Cases for TensorFlow of public models: the graph or SavedModel, its inputs, and what flowrt gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowrt.saved_model.tfjs import read_graph_model
from tests.models.fetch import folder_of

ROOT = Path(__file__).parents[2]

GRAPHS = (
    "antispoof", "blazeface", "centernet", "emotion", "facemesh", "faceres", "handlandmark-lite", "handtrack",
    "iris", "liveness", "movenet-lightning",
)  # fmt: skip
"""The graphs in @vladmandic/human."""


SNIPPETS = [
    b"import os\n\nclass A:\n    def f(self, x):\n        return [y for y in x if y is not None]\n",
    b'#include <stdio.h>\n\nint main(void) {\n  printf("%d\\n", 3);\n  return 0;\n}\n',
    b"SELECT name, count(*) FROM t WHERE a > 3 GROUP BY name ORDER BY 2 DESC;\n",
    b"<html><body><p class='a'>text</p></body></html>",
    b"x",
]


class SavedModel(NamedTuple):
    """A public SavedModel, in ``folder`` of a ``package``, and the inputs of its default signature."""

    package: str
    folder: str
    feeds: dict[str, Any]

    @property
    def path(self) -> Path:
        return folder_of(self.package) / self.folder


_NOISE = 0.1 * np.random.default_rng(0).normal(size=(1, 43844, 1))

SAVED_MODELS = {
    "basic-pitch": SavedModel("basic-pitch", "nmp", {"input_2": _NOISE.astype(np.float32)}),
    "guesslang": SavedModel("guesslang", "model", {"inputs": np.array(SNIPPETS, object)}),
}


def pictures(inputs: Any) -> dict[str, Any]:
    """Noise for the inputs of a model."""
    rng = np.random.default_rng(0)
    found = {}
    for name, tensor in inputs.items():
        shape = [1 if size is None else size for size in tensor.shape.as_list()]
        values = rng.uniform(0, 1, shape)
        dtype = tensor.dtype.as_numpy_dtype
        found[name] = (values if dtype == np.float32 else values * 255).astype(dtype)
    return found


def write_case(path: Path, target: Path, model: Any, feeds: Any, found: Any) -> None:
    """The graph at ``path`` as ``target``.pb, and the values by their tensors' names as ``target``.npz, for
    `tests.models.run_tensorflow`.
    """
    given = {f"in/{model.inputs[key].name}": value for key, value in feeds.items()}
    given |= {f"out/{model.outputs[key].name}": value for key, value in found.items()}
    np.savez(target.with_name(f"{target.name}.npz"), **given)
    target.with_name(f"{target.name}.pb").write_bytes(read_graph_model(str(path))[0].SerializeToString())


def write_saved_model_case(name: str, target: Path) -> None:
    """A SavedModel's path as ``target``.path, and its inputs as ``target``.npz."""
    model = SAVED_MODELS[name]
    np.savez(target.with_name(f"{target.name}.npz"), **{f"in/{k}": v for k, v in model.feeds.items()})
    target.with_name(f"{target.name}.path").write_text(str(model.path))
