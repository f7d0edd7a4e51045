"""Names of before TensorFlow 1.0: only the alias `tensorflow` has them.

Their arguments are TensorFlow 1's where the new name has them in another order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


def look_up(path: str) -> Any:
    """The object at ``path`` below flowrt; flowrt itself for ""."""
    found: Any = sys.modules["flowrt"]
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return found


def _batch_matmul(x: Any, y: Any, adj_x: bool = False, adj_y: bool = False, name: str | None = None) -> Any:
    return look_up("matmul")(x, y, adjoint_a=adj_x, adjoint_b=adj_y, name=name)


def _image_summary(
    tag: Any, tensor: Any, max_images: int = 3, collections: Any = None, name: str | None = None
) -> Any:
    return look_up("summary.image")(tag, tensor, max_images, collections)


def _scalar_summary(tags: Any, values: Any, collections: Any = None, name: str | None = None) -> Any:
    return look_up("summary.scalar")(tags, values, collections)


def _histogram_summary(tag: Any, values: Any, collections: Any = None, name: str | None = None) -> Any:
    return look_up("summary.histogram")(tag, values, collections)


NAMES: Mapping[str, Mapping[str, str | Callable[..., Any]]] = {
    "": {
        "mul": "multiply",
        "sub": "subtract",
        "neg": "negative",
        "pack": "stack",
        "unpack": "unstack",
        "select": "where",
        "inv": "reciprocal",
        "complex_abs": "abs",
        "listdiff": "setdiff1d",
        "concat_v2": "concat",
        "histogram_summary": _histogram_summary,
        "image_summary": _image_summary,
        "scalar_summary": _scalar_summary,
        "merge_summary": "summary.merge",
        "merge_all_summaries": "summary.merge_all",
        "batch_matmul": _batch_matmul,
        "batch_cholesky": "cholesky",
        "batch_cholesky_solve": "cholesky_solve",
        "batch_matrix_band_part": "matrix_band_part",
        "batch_matrix_determinant": "matrix_determinant",
        "batch_matrix_diag": "matrix_diag",
        "batch_matrix_diag_part": "matrix_diag_part",
        "batch_matrix_inverse": "matrix_inverse",
        "batch_matrix_set_diag": "matrix_set_diag",
        "batch_matrix_solve": "matrix_solve",
        "batch_matrix_transpose": "matrix_transpose",
        "batch_matrix_triangular_solve": "matrix_triangular_solve",
        "batch_self_adjoint_eig": "self_adjoint_eig",
        "batch_svd": "svd",
    },
    "nn": {
        "deconv2d": "nn.conv2d_transpose",
        "rnn": "nn.static_rnn",
        "seq2seq": "contrib.legacy_seq2seq",
        "bidirectional_rnn": "nn.static_bidirectional_rnn",
    },
    "train": {"SummaryWriter": "summary.FileWriter", "SummaryWriterCache": "summary.FileWriterCache"},
}
"""Module -> old name -> what it is, or where."""
