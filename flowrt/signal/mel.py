"""The mel scale, on which equal distances sound equally far, and cepstral coefficients.

The scale is that of HTK: 1127 log(1 + frequency / 700).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.dtypes import DTypeLike, as_dtype, float32, int32
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.ranges import linspace
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.math import log, rsqrt
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.signal.sizes import last_sizes
from flowrt.signal.transforms import dct
from flowrt.variables.graph_scopes import name_scope

__all__ = ["linear_to_mel_weight_matrix", "mfccs_from_log_mel_spectrograms"]


def linear_to_mel_weight_matrix(
    num_mel_bins: int = 20,
    num_spectrogram_bins: NumericLike = 129,
    sample_rate: NumericLike = 8000,
    lower_edge_hertz: float = 125.0,
    upper_edge_hertz: float = 3800.0,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """The matrix, [num_spectrogram_bins, num_mel_bins], by which spectra are multiplied to get bands of the
    mel scale: triangles that overlap by half, of equal width on that scale, between the edges.

    ``num_spectrogram_bins`` is ``fft_length // 2 + 1``, ``sample_rate`` in samples a second. Raises
    `InvalidArgumentError` for sizes and edges that make no bands, `DTypeError` for a ``dtype`` without
    fractions.

    Example:
        >>> tf.signal.linear_to_mel_weight_matrix(20, 129, 8000).shape
        TensorShape([129, 20])
    """
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise misuse(f"linear_to_mel_weight_matrix: expected floats; got {kind.name}", DTypeError)
    if num_mel_bins <= 0 or not 0 <= lower_edge_hertz < upper_edge_hertz:
        raise misuse(
            "linear_to_mel_weight_matrix: expected num_mel_bins > 0 and 0 <= lower_edge_hertz < "
            f"upper_edge_hertz; got {num_mel_bins}, {lower_edge_hertz}, {upper_edge_hertz}",
            InvalidArgumentError,
        )
    rate: Any = sample_rate  # a tensor's is not known yet
    if isinstance(rate, int | float | np.number) and upper_edge_hertz > rate / 2:
        raise misuse(
            "linear_to_mel_weight_matrix: expected upper_edge_hertz of at most half of sample_rate, "
            f"{rate / 2}; got {upper_edge_hertz}",
            InvalidArgumentError,
        )
    with name_scope(name, "linear_to_mel_weight_matrix"):
        highest = cast(sample_rate, kind) / 2
        bins = linspace(cast(0.0, kind), highest, convert_to_tensor(num_spectrogram_bins, int32))
        spectrum = _mel(bins[1:])[:, None]  # without the constant part of a signal
        lowest, top = (_mel(convert_to_tensor(edge, kind)) for edge in (lower_edge_hertz, upper_edge_hertz))
        edges = linspace(lowest, top, num_mel_bins + 2)
        lower, center, upper = edges[:-2], edges[1:-1], edges[2:]
        rising = (spectrum - lower) / (center - lower)
        falling = (upper - spectrum) / (upper - center)
        return pad(maximum(cast(0.0, kind), minimum(rising, falling)), [[1, 0], [0, 0]])


def _mel(hertz: Tensor) -> Tensor:
    return 1127 * log(1 + hertz / 700)


def mfccs_from_log_mel_spectrograms(log_mel_spectrograms: NumericLike, name: str | None = None) -> Tensor:
    """Mel-frequency cepstral coefficients: [..., num_mel_bins], logarithms of magnitudes in bands of the mel
    scale, -> [..., num_mel_bins], of which the first 13 or so are used.
    """
    with name_scope(name, "mfccs_from_log_mel_spectrograms", [log_mel_spectrograms]):
        x = convert_to_tensor(log_mel_spectrograms)
        (bins,) = last_sizes(x, 1)
        return dct(x, 2) * rsqrt(2 * cast(bins, x.dtype))
