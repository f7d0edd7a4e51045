"""Sounds as TensorFlow's speech models read them: spectrograms, and mel-frequency cepstral coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.shape_manipulation import transpose
from flowrt.graph.ops.elementwise.arithmetic import maximum
from flowrt.graph.ops.elementwise.complex_parts import imag, real
from flowrt.graph.ops.elementwise.math import log, sqrt, square
from flowrt.graph.ops.linalg.matmul import tensordot
from flowrt.signal.short_time import stft
from flowrt.signal.windows import hann_window
from flowrt.tf1.composed_ops.composition import composed, known

MAX_WEIGHTS = 1 << 22
"""Weights of the bands or the cosines: what a model asks for is made while it is imported."""


@composed(
    "AudioSpectrogram",
    "input: float32 -> spectrogram: float32",
    "window_size: int, stride: int, magnitude_squared: bool = False",
)
def spectrogram(samples: Tensor, window_size: int, stride: int, magnitude_squared: bool) -> Any:
    """``[samples, channels] -> [channels, steps, bins]``: magnitudes of windows under a Hann window, padded
    to the next power of two.
    """
    parts = stft(transpose(samples, [1, 0]), window_size, stride, window_fn=hann_window)
    power = square(real(parts)) + square(imag(parts))
    return power if magnitude_squared else sqrt(power)


@composed(
    "Mfcc",
    "spectrogram: float32, sample_rate: int32 -> output: float32",
    "upper_frequency_limit: float = 4000.0, lower_frequency_limit: float = 20.0, "
    "filterbank_channel_count: int = 40, dct_coefficient_count: int = 13",
)
def mfcc(
    squared: Tensor, sample_rate: Tensor, upper_frequency_limit: float, lower_frequency_limit: float,
    filterbank_channel_count: int, dct_coefficient_count: int,
) -> Any:  # fmt: skip
    """``[channels, steps, bins]`` of squared magnitudes ``-> [channels, steps, coefficients]``: the cosine
    transform of the logarithms of the sums of magnitudes in bands of the mel scale.
    """
    bins, rate = squared.shape.as_list()[-1], known(sample_rate, "sample_rate")
    if bins is None:
        raise UnimplementedError(f"expected a known number of bins; got {squared!r}")
    channels, limits = filterbank_channel_count, (lower_frequency_limit, upper_frequency_limit)
    weights = channels * max(bins, dct_coefficient_count)
    are_bands = bins > 1 and 0 <= limits[0] < limits[1] and weights <= MAX_WEIGHTS
    if not (are_bands and 1 <= dct_coefficient_count <= channels):
        raise InvalidArgumentError(
            "expected 2 or more bins, at least as many channels as coefficients, ascending limits and "
            f"at most {MAX_WEIGHTS:,} weights; got {bins} bins, {channels} channels, {dct_coefficient_count} "
            f"coefficients, limits {limits}"
        )
    bands = _bands(bins, rate, *limits, channels)
    heard = tensordot(sqrt(squared), bands.astype(np.float32), 1)
    turns = np.outer(np.arange(channels) + 0.5, np.arange(dct_coefficient_count)) / channels
    cosines = np.cos(np.pi * turns) * np.sqrt(2 / channels)
    return tensordot(log(maximum(heard, 1e-12)), cosines.astype(np.float32), 1)


def _bands(bins: int, rate: int, lower: float, upper: float, count: int) -> Any:
    """``[bins, count]``: the weights of triangles between the centres of neighbouring bands; a bin below
    the first centre is in band 0 alone.
    """
    low, high = _mel(lower), _mel(upper)
    centers = low + (high - low) / (count + 1) * np.arange(1, count + 2)
    per_bin = 0.5 * rate / (bins - 1)
    weights = np.zeros((bins, count + 1))
    for i in range(int(1.5 + lower / per_bin), min(int(upper / per_bin), bins - 1) + 1):
        mel = _mel(i * per_bin)
        above = int(np.searchsorted(centers[:count], mel))
        before = centers[above - 1] if above else low
        part = (centers[above] - mel) / (centers[above] - before)
        if above:
            weights[i, above - 1] = part
        weights[i, above] = 1 - part
    return weights[:, :count]


def _mel(frequency: float) -> Any:
    return 1127.0 * np.log1p(frequency / 700.0)
