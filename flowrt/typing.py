"""``flowrt.typing``: types for the annotations of scripts, as `numpy.typing` has them.

def scale(x: TensorLike, factor: float = 2.0) -> tf.Tensor: ...
"""

from flowrt.dtypes import DTypeLike
from flowrt.graph.typing import FetchLike, NumericLike, ShapeLike, TensorLike

__all__ = ["DTypeLike", "FetchLike", "NumericLike", "ShapeLike", "TensorLike"]
