"""Short-time Fourier transforms: the spectra of overlapping frames, and the signal that they belong to.

D. W. Griffin and J. S. Lim, Signal Estimation from Modified Short-Time Fourier Transform, IEEE Transactions
on Acoustics, Speech, and Signal Processing 32 (1984).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.dtypes import DType, float32
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.array.tile_and_reverse import tile
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.arithmetic import pow
from flowrt.graph.ops.elementwise.math import ceil, log, square
from flowrt.graph.typing import NumericLike
from flowrt.signal.frames import frame, overlap_and_add
from flowrt.signal.sizes import as_size, at_least_zero
from flowrt.signal.transforms import irfft, rfft
from flowrt.signal.windows import hann_window
from flowrt.variables.graph_scopes import name_scope

__all__ = ["inverse_stft", "inverse_stft_window_fn", "stft"]

Window = Callable[..., Tensor]
"""A function of the length and ``dtype`` of a window."""


def stft(
    signals: NumericLike,
    frame_length: NumericLike,
    frame_step: NumericLike,
    fft_length: NumericLike | None = None,
    window_fn: Window | None = hann_window,
    pad_end: bool = False,
    name: str | None = None,
) -> Tensor:
    """The spectra of the frames of ``signals``, [..., samples]: complex, [..., frames, fft_length // 2 + 1].

    ``fft_length`` is the smallest power of two that holds a frame, by default. ``window_fn(frame_length,
    dtype=...)`` returns the weights of a frame's samples; None leaves frames as they are.

    Example:
        >>> tf.signal.stft(tf.ones([8]), 4, 2, window_fn=None).eval().real
        array([[4., 0., 0.],
               [4., 0., 0.],
               [4., 0., 0.]], dtype=float32)
    """
    with name_scope(name, "stft", [signals, frame_length, frame_step]):
        x = convert_to_tensor(signals)
        length = as_size(frame_length)
        framed = frame(x, length, frame_step, pad_end)
        if window_fn is not None:
            framed *= window_fn(length, dtype=framed.dtype)
        return rfft(framed, [_transform_length(length, fft_length)])


def inverse_stft(
    stfts: NumericLike,
    frame_length: NumericLike,
    frame_step: NumericLike,
    fft_length: NumericLike | None = None,
    window_fn: Window | None = hann_window,
    name: str | None = None,
) -> Tensor:
    """The signal, [..., samples], that the spectra ``stfts``, [..., frames, fft_length // 2 + 1], belong to.

    It is the one that `stft` was computed from if the windows of both, multiplied and added up, make 1: see
    `inverse_stft_window_fn`.
    """
    with name_scope(name, "inverse_stft", [stfts]):
        spectra = convert_to_tensor(stfts)
        length = as_size(frame_length)
        transformed = _transform_length(length, fft_length)
        frames = irfft(spectra, [transformed])[..., :length]
        behind = at_least_zero(length - transformed)
        frames = pad(frames, [*[[0, 0]] * (len(frames.shape) - 1), [0, behind]])
        if window_fn is not None:
            frames *= window_fn(length, dtype=frames.dtype)
        return overlap_and_add(frames, frame_step)


def inverse_stft_window_fn(
    frame_step: NumericLike, forward_window_fn: Window = hann_window, name: str | None = None
) -> Window:
    """The ``window_fn`` with which `inverse_stft` undoes an `stft` with ``forward_window_fn``: the same
    window, divided by the sum of the squares of all that overlap.
    """

    def window(frame_length: NumericLike, dtype: DType = float32) -> Tensor:
        with name_scope(name, "inverse_stft_window_fn", [forward_window_fn]):
            length, step = as_size(frame_length), as_size(frame_step)
            forward = forward_window_fn(length, dtype=dtype)
            overlaps = (length + step - 1) // step
            pieces = pad(square(forward), [[0, overlaps * step - length]])
            total = reduce_sum(reshape(pieces, [overlaps, step]), 0)
            return forward / tile(total, [overlaps])[:length]

    return window


def _transform_length(frame_length: Any, fft_length: NumericLike | None) -> Any:
    if fft_length is not None:
        return as_size(fft_length)
    if isinstance(frame_length, int):
        return 1 << (frame_length - 1).bit_length()
    doublings = ceil(log(cast(frame_length, float32)) / log(2.0))
    return cast(pow(2.0, doublings), frame_length.dtype)
