"""WAV files, held against the standard library's; `tests/twins/sounds.py` has TensorFlow's."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError


def test_sounds_are_written_and_read() -> None:
    sound = np.array([[0, 0.5], [-1, 2]], np.float32)
    file = tf.audio.encode_wav(sound, 8000)
    with tf.Session() as session:
        written, (found, rate) = session.run((file, tf.audio.decode_wav(file)))
        padded = session.run(tf.audio.decode_wav(file, desired_channels=1, desired_samples=3)[0])
        with pytest.raises(InvalidArgumentError, match="expected a WAV file"):
            session.run(tf.audio.decode_wav("nothing")[0])
    with wave.open(io.BytesIO(written)) as read:
        assert read.getparams()[:4] == (2, 2, 8000, 2)
        samples = np.frombuffer(read.readframes(2), "<i2").reshape(2, 2)
    np.testing.assert_array_equal(samples, [[0, 16384], [-32768, 32767]])
    np.testing.assert_array_equal(found, samples / np.float32(1 << 15))
    assert rate == 8000
    assert padded.tolist() == [[0], [-1], [0]]


def test_a_summary_of_sounds() -> None:
    summary = tf.summary.audio("beep", np.zeros((5, 7, 2), np.float32), 16000, max_outputs=2)
    with tf.Session() as session:
        found = tf.Summary.FromString(session.run(summary)).value
    assert [value.tag for value in found] == ["beep/audio/0", "beep/audio/1"]
    assert (found[0].audio.length_frames, found[0].audio.num_channels) == (7, 2)
    assert tf.get_collection(tf.GraphKeys.SUMMARIES) == [summary]
