"""Sound: WAV files of 16 bits a sample, decoded and encoded, and as summaries.

A sample is a float from -1 to 1, the integer in the file divided by 2**15.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import protos
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.text.strings import host_array, string_array
from flowrt.graph.ops.text.summaries import collected, tagged
from flowrt.graph.shapes import Shape, format_shape
from flowrt.graph.typing import NumericLike

__all__ = ["decode_wav", "encode_wav"]

_SCALE = np.float32(1 << 15)
_DEPTH = 2
"""Bytes of a sample."""


def _file_of(samples: np.ndarray[Any, Any], rate: int) -> bytes:
    """The file of samples [frames, channels]."""
    limited = np.clip(np.rint(samples * _SCALE), -(1 << 15), (1 << 15) - 1)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(samples.shape[1])
        out.setsampwidth(_DEPTH)
        out.setframerate(rate)
        out.writeframes(limited.astype("<i2").tobytes())
    return file.getvalue()


def _decode(
    xp: Any, contents: Any, desired_channels: int, desired_samples: int, out: Any = None
) -> list[Any]:
    try:
        with wave.open(io.BytesIO(host_array(contents).item()), "rb") as file:
            depth, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise InvalidArgumentError(f"contents: expected a WAV file; {error}") from error
    if depth != _DEPTH:
        raise InvalidArgumentError(f"contents: expected 16 bits a sample; got {8 * depth}")
    samples = np.frombuffer(frames, "<i2").reshape(-1, channels) / _SCALE
    if desired_channels > 0:
        samples = samples[:, np.minimum(np.arange(desired_channels), channels - 1)]
    if desired_samples > 0:
        missing = max(0, desired_samples - len(samples))
        samples = np.pad(samples[:desired_samples], ((0, missing), (0, 0)))
    into, rate_into = (None, None) if out is None else out
    return [delivered(np, samples, np.float32, into), delivered(np, np.array(rate), np.int32, rate_into)]


def _sound_shape(s: ShapeContext) -> Sequence[Shape]:
    _check_scalar("contents", s.shapes[0])
    count, channels = (
        None if wanted < 1 else wanted for wanted in (s.attrs["desired_samples"], s.attrs["desired_channels"])
    )
    return [(count, channels), ()]


def _check_scalar(name: str, found: Shape) -> None:
    if found:
        raise InvalidArgumentError(f"{name}: expected a scalar; got shape {format_shape(found)}")


_BEEP = _file_of(np.array([[0, 0.5], [-1, 0.25], [0.5, 1]], np.float32), 8000)

decode_wav: OpDef[list[Tensor]] = define_op(
    "DecodeWav",
    "contents: string -> audio: float32, sample_rate: int32",
    attrs="desired_channels: int = -1, desired_samples: int = -1",
    shape=_sound_shape,
    kernel=_decode,
    samples=lambda rng: [
        sample(string_array([_BEEP], ())),
        sample(string_array([_BEEP], ()), desired_channels=1, desired_samples=5),
    ],
    doc="""The samples of a WAV file, [samples, channels], and its rate in samples a second.

    ``desired_channels`` and ``desired_samples`` cut off what is more; what is missing is the last channel
    again, or zeros. Raises `InvalidArgumentError` for anything but a WAV file of 16 bits a sample.
    """,
)


def _encode(xp: Any, audio: Any, sample_rate: Any) -> Any:
    return string_array([_file_of(host_array(audio), int(sample_rate))], ())


def _encoded_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[0] is not None and len(s.shapes[0]) != 2:
        raise InvalidArgumentError(f"audio: expected [samples, channels]; got {format_shape(s.shapes[0])}")
    _check_scalar("sample_rate", s.shapes[1])
    return [()]


encode_wav: OpDef[Tensor] = define_op(
    "EncodeWav",
    "audio: float32, sample_rate: int32 -> contents: string",
    shape=_encoded_shape,
    kernel=_encode,
    samples=lambda rng: [
        sample(rng.uniform(-1, 1, (4, 2)).astype(np.float32), np.int32(8000), differentiable=False)
    ],
    doc="The WAV file of the samples ``audio``, [samples, channels]; what is beyond -1 and 1 is cut off.",
)


# --- summaries


def _summary(xp: Any, tag: Any, tensor: Any, sample_rate: Any, max_outputs: int) -> Any:
    sounds, rate = host_array(tensor), float(sample_rate)
    summary, name = protos.event_pb2.Summary(), host_array(tag).item().decode()
    for i, sound in enumerate(sounds[:max_outputs]):
        frames = sound if sound.ndim == 2 else sound[:, None]
        value = summary.value.add(tag=f"{name}/audio" if max_outputs == 1 else f"{name}/audio/{i}")
        value.audio.sample_rate, value.audio.content_type = rate, "audio/wav"
        value.audio.length_frames, value.audio.num_channels = frames.shape
        value.audio.encoded_audio_string = _file_of(frames, round(rate))
    return string_array([summary.SerializeToString()], ())


def _summary_shape(s: ShapeContext) -> Sequence[Shape]:
    found = s.shapes[1]
    if found is not None and len(found) not in (2, 3):
        expected = "[batch, frames] or [batch, frames, channels]"
        raise InvalidArgumentError(f"tensor: expected {expected}; got {format_shape(found)}")
    return [()]


audio_summary: OpDef[Tensor] = define_op(
    "AudioSummaryV2",
    "tag: string, tensor: float32, sample_rate: float32 -> summary: string",
    attrs="max_outputs: int = 3",
    shape=_summary_shape,
    kernel=_summary,
    samples=lambda rng: [
        sample(string_array([b"a"], ()), np.zeros((2, 3), np.float32), np.float32(8000), differentiable=False)
    ],
    doc="Sounds as WAV files.",
)


def audio(
    name: str,
    tensor: NumericLike,
    sample_rate: NumericLike,
    max_outputs: int = 3,
    collections: Sequence[str] | None = None,
    family: str | None = None,
) -> Tensor:
    """A summary of the first ``max_outputs`` of ``tensor``, [batch, frames, channels] or [batch, frames], as
    sounds of ``sample_rate`` samples a second; samples are from -1 to 1. Other arguments as for `scalar`.
    """
    with tagged(name, family) as (scope, tag):
        return collected(
            audio_summary(tag, tensor, sample_rate, max_outputs=max_outputs, name=scope), collections
        )
