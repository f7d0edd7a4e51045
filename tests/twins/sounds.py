"""WAV files and summaries of sounds."""

import numpy as np


def results(tf):
    rng = np.random.default_rng(6)
    sound = tf.constant(rng.uniform(-1.2, 1.2, (2, 7, 2)).astype(np.float32))
    file = tf.audio.encode_wav(sound[0], 8000)
    fetches = {"written": tf.decode_raw(file, tf.uint8), "sound": tf.audio.decode_wav(file)[0]}
    for channels in (1, 3):
        for samples in (4, 9):
            part = tf.audio.decode_wav(file, channels, samples)
            fetches[f"part{channels}{samples}"], fetches[f"rate{channels}{samples}"] = part[0], part[1]
    fetches["summary"] = tf.summary.audio("a", sound, 8000.0)
    fetches["one"] = tf.summary.audio("b", sound[:, :, 0], 8000, max_outputs=1, family="f")
    with tf.Session() as session:
        found = session.run(fetches)
    for name in ("summary", "one"):
        for i, value in enumerate(tf.Summary.FromString(found.pop(name)).value):
            sound = value.audio
            found[f"{name}{i}"] = np.array([value.tag, sound.content_type], object)
            found[f"{name}{i}_bytes"] = np.frombuffer(sound.encoded_audio_string, np.uint8)
            found[f"{name}{i}_sizes"] = np.array([sound.length_frames, sound.num_channels, sound.sample_rate])
    return found
