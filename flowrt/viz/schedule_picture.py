"""`schedule_svg`: a pipeline's schedule over time, drawn as an SVG: one row per device, a box per action."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from html import escape

from flowrt.errors import ResourceExhaustedError
from flowrt.graph.pipeline.actions import Action, Schedule
from flowrt.graph.pipeline.replay import Replay

MAX_ACTIONS = 20_000
"""More boxes than this no viewer scrolls smoothly."""

BOX_WIDTH, MAX_WIDTH = 17.0, 6000.0
"""Width of the shortest action, which fits two digits, and of all; in pixels, like all that follows."""

MARGIN, HEAD, LABELS, HELD, ROW, GAP = 20.0, 56.0, 76.0, 70.0, 26.0, 6.0
"""Border; height of the title and legend; widths of the columns of names and of activations; rows."""

DIGIT, TITLE_DIGIT = 6.5, 8.5
"""Widths of a digit, or a letter, in boxes and in the title."""

IDLE = "#e6e5e1"

_COLORS = {"F": (0x8F, 0xB3, 0xF5), "B": (0xF0, 0xB2, 0x7D), "I": (0xF0, 0xB2, 0x7D), "W": (0x8C, 0xCB, 0x95)}
_NAMES = {
    "F": "F: forward", "B": "B: backward", "I": "I: backward, inputs", "W": "W: backward, weights",
}  # fmt: skip

_STYLE = """<style>
  text { fill: #24292f; font-size: 12px }
  .title { font-size: 14px; font-weight: bold }
  .n { font-size: 11px; text-anchor: middle }
  .box { stroke: #57606a; stroke-width: 0.6 }
</style>"""


def schedule_svg(played: Replay) -> str:
    """The picture of ``played``, as the text of an SVG file.

    A box is as wide as its action is long and has the micro-batch's number; the later a device's chunk, the
    paler. Grey is idle time. At the right is the largest number of micro-batches of which a device holds
    activations. Tooltips give stage, micro-batch, start and end.

    Raises `ResourceExhaustedError` for more than `MAX_ACTIONS` actions.
    """
    schedule = played.schedule
    number = sum(map(len, schedule.actions))
    if number > MAX_ACTIONS:
        raise ResourceExhaustedError(
            f"schedule {schedule.name!r}: expected at most {MAX_ACTIONS} actions in a picture; got {number}"
        )
    title = _title(played)
    inner = _width(played)
    width = 2 * MARGIN + max(LABELS + inner + HELD, TITLE_DIGIT * len(title))
    height = HEAD + schedule.devices * (ROW + GAP) + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="Helvetica, Arial, sans-serif">'
    )
    background = f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
    rows = (row for device in range(schedule.devices) for row in _row(played, device, inner))
    return "\n".join([head, _STYLE, background, *_head(schedule, title), *rows, "</svg>", ""])


def _width(played: Replay) -> float:
    """Pixels of the makespan: the shortest action that takes time at all has `BOX_WIDTH`."""
    spans = (end - played.start[action] for action, end in played.end.items())
    shortest = min((span for span in spans if span), default=played.makespan)
    return min(float(BOX_WIDTH * played.makespan / shortest), MAX_WIDTH) if shortest else BOX_WIDTH


def _title(played: Replay) -> str:
    schedule = played.schedule
    share = 100 * played.bubble / played.makespan if played.makespan else 0
    return (
        f"{schedule.name}: {schedule.devices} devices, {schedule.micro_batches} micro-batches, "
        f"makespan {_number(played.makespan)}, bubble {_number(played.bubble)} ({float(share):.0f} %)"
    )


def _head(schedule: Schedule, title: str) -> Iterator[str]:
    yield f'<text class="title" x="{MARGIN:g}" y="{MARGIN + 6:g}">{escape(title)}</text>'
    x = MARGIN
    for name, fill in [*((_NAMES[kind], _color(kind, 0, 1)) for kind in schedule.kinds), ("idle", IDLE)]:
        yield f'<rect class="box" x="{x:g}" y="36" width="12" height="12" fill="{fill}"/>'
        yield f'<text x="{x + 18:g}" y="46">{name}</text>'
        x += 36 + DIGIT * len(name)


def _row(played: Replay, device: int, inner: float) -> Iterator[str]:
    schedule = played.schedule
    top = HEAD + device * (ROW + GAP)
    left, text_y = MARGIN + LABELS, top + ROW / 2 + 4
    yield f'<text x="{MARGIN:g}" y="{text_y:g}">device {device}</text>'
    yield f'<rect fill="{IDLE}" x="{left:g}" y="{top:g}" width="{inner:g}" height="{ROW:g}"/>'
    scale = inner / float(played.makespan) if played.makespan else 0.0
    for action in schedule.actions[device]:
        start, end = played.start[action], played.end[action]
        tip = f"{action}: {_number(start)} to {_number(end)}"
        yield _box(schedule, action, left + float(start) * scale, top, float(end - start) * scale, tip)
    held = _number(round(played.peaks[device], 2))  # more digits do not fit
    yield f'<text x="{left + inner + 10:g}" y="{text_y:g}">holds {held}</text>'


def _box(schedule: Schedule, action: Action, x: float, top: float, width: float, tip: str) -> str:
    number = str(action.micro_batch)
    color = _color(action.kind, action.stage // schedule.devices, schedule.chunks)
    text = f'<text class="n" x="{x + width / 2:.2f}" y="{top + ROW / 2 + 4:g}">{number}</text>'
    return (
        f"<g><title>{tip}</title>"
        f'<rect class="box" x="{x:.2f}" y="{top:g}" width="{width:.2f}" height="{ROW:g}" fill="{color}"/>'
        f"{text if width > DIGIT * len(number) else ''}</g>"
    )


def _color(kind: str, chunk: int, chunks: int) -> str:
    """The colour of ``kind``; for later chunks, mixed with up to 65 % white."""
    white = 0.65 * chunk / max(1, chunks - 1)
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in _COLORS[kind])


def _number(value: Fraction) -> str:
    return f"{float(value):.6g}"
