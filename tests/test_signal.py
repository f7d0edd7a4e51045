"""Signals against NumPy; `tests/twins/signals.py` has TensorFlow's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError

rng = np.random.default_rng(0)
X = rng.normal(size=(2, 6, 5))
SAMPLES = rng.normal(size=(2, 41))


def run(fetches: Any) -> Any:
    with tf.Session() as session:
        return session.run(fetches)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("size", [None, 2, 4, 9])
def test_transforms_of_real_numbers_and_their_gradients(rank: int, size: int | None) -> None:
    suffix = "" if rank == 1 else f"{rank}d"
    lengths = None if size is None else [size] * rank
    axes = range(3 - rank, 3)
    expected = np.fft.rfftn(X, lengths, axes)
    x = tf.constant(X)
    there = getattr(tf.signal, f"rfft{suffix}")(x, lengths)
    back = getattr(tf.signal, f"irfft{suffix}")(there, lengths or X.shape[3 - rank :])
    assert there.shape == expected.shape
    weights = rng.normal(size=expected.shape) + 1j * rng.normal(size=expected.shape)
    score = tf.reduce_sum(tf.real(tf.conj(weights) * there)) + tf.reduce_sum(back**3)
    (slope,) = tf.gradients(score, x)
    step = 1e-6 * rng.normal(size=X.shape)
    values, same, rise, difference = run((
        there, back, tf.reduce_sum(slope * step),
        tf.reduce_sum(tf.jvp(lambda x: tf.real(tf.signal.rfft(x)), [x], [tf.constant(step)])[1]),
    ))  # fmt: skip
    np.testing.assert_allclose(values, expected, atol=1e-12)
    np.testing.assert_allclose(
        same, np.fft.irfftn(expected, lengths or X.shape[3 - rank :], axes), atol=1e-12
    )
    with tf.Session() as session:
        above, below = (session.run(score, {x: X + sign * step}) for sign in (1, -1))
    assert rise == pytest.approx((above - below) / 2, rel=1e-4)
    assert difference == pytest.approx(np.fft.rfft(step).real.sum())


def test_cosine_transforms_are_sums_of_cosines() -> None:
    count = X.shape[-1]
    k, n = np.arange(count)[:, None], np.arange(count)[None]
    rows = {
        1: np.where((n == 0) | (n == count - 1), 1, 2) * np.cos(np.pi * k * n / (count - 1)),
        2: 2 * np.cos(np.pi * k * (2 * n + 1) / (2 * count)),
        3: np.where(n == 0, 1, 2) * np.cos(np.pi * n * (2 * k + 1) / (2 * count)),
        4: 2 * np.cos(np.pi * (2 * n + 1) * (2 * k + 1) / (4 * count)),
    }
    for type_, matrix in rows.items():
        np.testing.assert_allclose(run(tf.signal.dct(X, type_)), X @ matrix.T, atol=1e-12)
        scale = 2 * (count - 1) if type_ == 1 else 2 * count
        np.testing.assert_allclose(run(tf.signal.idct(tf.signal.dct(X, type_), type_)), scale * X, atol=1e-11)
        if type_ > 1:
            whole = tf.signal.dct(X, type_, norm="ortho")
            same, back = run((tf.norm(whole), tf.signal.idct(whole, type_, norm="ortho")))
            assert same == pytest.approx(np.linalg.norm(X))
            np.testing.assert_allclose(back, X, atol=1e-12)
    with pytest.raises(InvalidArgumentError, match=r"expected type 1, 2, 3 or 4.*got type=5"):
        tf.signal.dct(X, 5)


@pytest.mark.parametrize("length, step", [(8, 4), (7, 3), (4, 6), (42, 1)])
def test_frames_add_up_to_the_signal_they_were_cut_from(length: int, step: int) -> None:
    unknown = tf.placeholder(tf.float64, [None, None])
    count = max(0, 1 + (41 - length) // step)
    expected = np.zeros((2, count, length))
    times = np.zeros(max(0, (count - 1) * step + length))
    for i in range(count):
        expected[:, i] = SAMPLES[:, i * step : i * step + length]
        times[i * step : i * step + length] += 1
    for x in (tf.constant(SAMPLES), unknown):
        frames = tf.signal.frame(x, length, step)
        whole = tf.signal.overlap_and_add(frames, step)
        assert x is unknown or frames.shape == expected.shape
        with tf.Session() as session:
            found, added = session.run((frames, whole), {unknown: SAMPLES})
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(added, times * SAMPLES[:, : len(times)])


def test_a_signal_comes_back_from_its_spectra() -> None:
    window = tf.signal.inverse_stft_window_fn(4, tf.signal.hamming_window)
    spectra = tf.signal.stft(SAMPLES, 10, 4, window_fn=tf.signal.hamming_window, pad_end=True)
    back = tf.signal.inverse_stft(spectra, 10, 4, window_fn=window)
    assert spectra.shape == [2, 11, 9]
    np.testing.assert_allclose(run(back)[:, 6:41], SAMPLES[:, 6:], atol=1e-12)


def test_windows_and_bands() -> None:
    hann, hamming, one, mel = run((
        tf.signal.hann_window(9, periodic=False), tf.signal.hamming_window(8), tf.signal.hann_window(1),
        tf.signal.linear_to_mel_weight_matrix(12, 65, dtype=tf.float64),
    ))  # fmt: skip
    np.testing.assert_allclose(hann, np.hanning(9), atol=1e-7)
    np.testing.assert_allclose(hamming, np.hamming(9)[:8], atol=1e-7)
    assert one == [1]
    assert mel.shape == (65, 12)
    inside = mel[4:50].sum(1)  # neighbours overlap by half: between the first and the last centre they make 1
    assert (mel >= 0).all()
    np.testing.assert_allclose(inside, 1)
    with pytest.raises(InvalidArgumentError, match=r"edge_hertz < upper_edge_hertz; got 20, 125.0, 5"):
        tf.signal.linear_to_mel_weight_matrix(upper_edge_hertz=5)
    with pytest.raises(InvalidArgumentError, match=r"half of sample_rate, 4000.0; got 7600.0"):
        tf.signal.linear_to_mel_weight_matrix(sample_rate=8000, upper_edge_hertz=7600.0)
