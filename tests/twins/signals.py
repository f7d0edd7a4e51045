"""Transforms of signals, their frames and spectra, with gradients; fake quantization."""

import numpy as np


def transforms(tf, x, z):
    fetches = {}
    for rank, suffix in ((1, ""), (2, "2d"), (3, "3d")):
        for lengths in (None, [5] * rank, [2] * rank, [8] * rank):
            key = "" if lengths is None else f"_{lengths[0]}"
            there = getattr(tf.signal, f"rfft{suffix}")(x, lengths)
            back = getattr(tf.signal, f"irfft{suffix}")(z, lengths)
            fetches[f"rfft{suffix}{key}"] = tf.stack([tf.real(there), tf.imag(there)])
            fetches[f"irfft{suffix}{key}"] = back
            if rank == 3 or lengths not in (None, [8] * rank):
                continue  # TensorFlow has no gradient of three dimensions, nor of what it cuts off
            weights = tf.cast(tf.range(tf.size(there)), tf.float32) / 100
            score = tf.reduce_sum(tf.reshape(tf.real(there) + 2 * tf.imag(there), [-1]) * weights)
            fetches[f"rfft{suffix}{key}_slope"] = tf.gradients(score, x)[0]
            weights = tf.cast(tf.range(tf.size(back)), tf.float32) / 100
            slope = tf.gradients(tf.reduce_sum(tf.reshape(back, [-1]) * weights), z)[0]
            fetches[f"irfft{suffix}{key}_slope"] = tf.stack([tf.real(slope), tf.imag(slope)])
        for name in (f"fft{suffix}", f"ifft{suffix}"):
            found = getattr(tf.signal, name)(z)
            fetches[name] = tf.stack([tf.real(found), tf.imag(found)])
    for type_ in (1, 2, 3, 4):
        for norm in (None, "ortho")[: 1 if type_ == 1 else 2]:
            for n in (None, 3, 9):
                found = tf.signal.dct(x, type_, n=n, norm=norm)
                fetches[f"dct{type_}_{norm}_{n}"] = found
                fetches[f"dct{type_}_{norm}_{n}_slope"] = tf.gradients(found**2, x)[0]
                fetches[f"idct{type_}_{norm}_{n}"] = tf.signal.idct(x, type_, n=n, norm=norm)
    for axes in (None, -1, [0, 2]):
        fetches[f"shift{axes}"] = tf.signal.fftshift(x, axes)
        fetches[f"back{axes}"] = tf.signal.ifftshift(x, axes)
    return fetches


def spectra(tf, samples):
    signal, fetches = tf.signal, {}
    for length in (1, 2, 7, 8):
        for periodic in (True, False):
            fetches[f"hann{length}{periodic}"] = signal.hann_window(length, periodic)
            fetches[f"hamming{length}{periodic}"] = signal.hamming_window(length, periodic, tf.float64)
    unknown = tf.placeholder_with_default(samples, [None, None])
    for length, step in ((8, 4), (7, 3), (4, 6), (30, 10)):
        for ends in (False, True):
            key = f"_{length}_{step}_{ends}"
            for kind, given in (("", samples), ("unknown", unknown)):
                frames = signal.frame(given, length, step, ends, pad_value=2.0)
                fetches[f"frame{kind}{key}"] = frames
                fetches[f"frame_slope{kind}{key}"] = tf.gradients(frames**2, given)[0]
                fetches[f"overlap{kind}{key}"] = signal.overlap_and_add(frames, step)
            found = signal.stft(samples, length, step, pad_end=ends)
            fetches[f"stft{key}"] = tf.stack([tf.real(found), tf.imag(found)])
            if length in (4, 8):  # elsewhere TensorFlow fails
                fetches[f"stft_slope{key}"] = tf.gradients(tf.abs(found) ** 2, samples)[0]
            fetches[f"inverse{key}"] = signal.inverse_stft(found, length, step)
    fetches["frame_axis"] = signal.frame(samples, 2, 1, axis=0)
    window = signal.inverse_stft_window_fn(4, signal.hamming_window)
    there = signal.stft(samples, 10, 4, 9, signal.hamming_window)
    fetches["window"] = window(10, dtype=tf.float32)
    fetches["about"] = signal.inverse_stft(there, 10, 4, 9, window)
    fetches["mel"] = signal.linear_to_mel_weight_matrix(12, 65, 8000, 80.0, 3600.0)
    fetches["mel64"] = signal.linear_to_mel_weight_matrix(dtype=tf.float64)
    fetches["mfcc"] = signal.mfccs_from_log_mel_spectrograms(samples)
    return fetches


def quantized(tf, rng):
    x = tf.constant(rng.normal(0, 4, (5, 3)).astype(np.float32))
    low, high = tf.constant([-3.0, -0.5, 0.5]), tf.constant([2.0, 4.0, 6.0])
    fetches = {}
    for bits in (2, 8):
        for narrow in (False, True):
            key, options = f"_{bits}_{narrow}", {"num_bits": bits, "narrow_range": narrow}
            fetches[f"args{key}"] = found = tf.fake_quant_with_min_max_args(x, -3, 5, **options)
            fetches[f"args_slope{key}"] = tf.gradients(found, x)[0]
            for name, ends in (("vars", [low[0], high[0]]), ("vars_per_channel", [low, high])):
                found = getattr(tf, f"fake_quant_with_min_max_{name}")(x, *ends, **options)
                fetches[f"{name}{key}"] = found
                for i, slope in enumerate(tf.gradients(found, [x, *ends])):
                    fetches[f"{name}_slope{i}{key}"] = slope
    return fetches


def results(tf):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4, 6, 5)).astype(np.float32)
    z = (rng.normal(size=(4, 6, 5)) + 1j * rng.normal(size=(4, 6, 5))).astype(np.complex64)
    samples = rng.normal(size=(2, 41)).astype(np.float32)
    fetches = transforms(tf, tf.constant(x), tf.constant(z))
    fetches |= spectra(tf, tf.constant(samples))
    fetches |= quantized(tf, rng)
    with tf.Session() as session:
        return session.run(fetches)
