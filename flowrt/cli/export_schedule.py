"""``flowrt export --schedule``: a pipeline's schedule as a picture over time, or as text to edit."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from flowrt.cli.options import positive
from flowrt.errors import InvalidArgumentError, NotFoundError, nearest
from flowrt.graph.pipeline.actions import Schedule
from flowrt.graph.pipeline.replay import replay
from flowrt.graph.pipeline.schedule_file import format_schedule, parse_schedule
from flowrt.graph.pipeline.schedules import TABLE, order
from flowrt.graph.pipeline.search import AUTO, best_schedule
from flowrt.graph.pipeline.times import EQUAL, Times
from flowrt.profiler.always_on import kept_steps, recent_step_stats
from flowrt.viz.laid_out import laid_out
from flowrt.viz.measured_schedule import measured, predicted
from flowrt.viz.schedule_picture import schedule_svg, schedules_svg
from flowrt.viz.script import main_request, requests_of_script
from flowrt.viz.target import check_target, write_target

NAMES = (*TABLE, AUTO)
PICTURE, TEXT, SCRIPT = ".svg", ".txt", ".py"
SIZES = ("devices", "micro_batches", "chunks")
OF_GRAPHS = ("source", "format", "view", "fetch", "depth", "focus", "radius", "against")


def add_schedule_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("schedules of pipelines").add_argument
    add(
        "--schedule",
        metavar="NAME",
        help=f"instead of a graph: {', '.join(NAMES)}; a file with a line of actions per device; or a script"
        f" with a pipeline, which is run: its fastest step is drawn above a replay with its mean times."
        f" FILE is a picture ({PICTURE}) or text ({TEXT})",
    )
    add("--devices", type=positive, metavar="N", help="devices of a schedule that is named")
    add("--micro-batches", type=positive, metavar="N", help="micro-batches of a schedule that is named")
    add("--chunks", type=positive, metavar="N", help="stages per device (default: the schedule's)")
    add(
        "--times",
        type=_times,
        metavar="F,I,W",
        help="times of a micro-batch on a device: forward, input and weight gradients (default: 1,1,1)",
    )


def reject_schedule_arguments(arguments: argparse.Namespace) -> None:
    """Raises `InvalidArgumentError` for options that only schedules have, next to a graph."""
    for name in (*SIZES, "times"):
        if getattr(arguments, name) is not None:
            raise InvalidArgumentError(f"{_option(name)}: expected it only with --schedule")


def export_schedule(arguments: argparse.Namespace) -> str:
    """Write the schedule of ``arguments`` to their file; returns its path."""
    for name in OF_GRAPHS:
        if getattr(arguments, name):
            raise InvalidArgumentError(f"{_option(name)}: expected none with --schedule")
    name, path, times = arguments.schedule, arguments.out, arguments.times or EQUAL
    suffix = Path(path).suffix
    if suffix not in (PICTURE, TEXT):
        raise NotFoundError(f"{path}: expected a name that ends in {PICTURE} or {TEXT}")
    check_target(path, source=name)
    if name.endswith(SCRIPT):
        return write_target(path, _of_script(arguments).encode())
    schedule = _named(arguments, times) if name in NAMES else _read(arguments)
    text = schedule_svg(replay(schedule, times)) if suffix == PICTURE else format_schedule(schedule)
    return write_target(path, text.encode())


def _named(arguments: argparse.Namespace, times: Times) -> Schedule:
    devices, micro_batches, chunks = (getattr(arguments, name) for name in SIZES)
    if devices is None or micro_batches is None:
        raise InvalidArgumentError(f"schedule {arguments.schedule!r}: expected --devices and --micro-batches")
    if arguments.schedule == AUTO:
        return best_schedule(devices, micro_batches, times, chunks)
    return order(arguments.schedule, devices, micro_batches, chunks)


def _of_script(arguments: argparse.Namespace) -> str:
    """The picture, or the text, of the schedule of a step that a script runs."""
    _reject(arguments, (*SIZES, "times"))
    with kept_steps():
        asked = requests_of_script(arguments.schedule, arguments.script_arguments)
        step_stats = recent_step_stats()
    played = measured(laid_out(main_request(asked)), step_stats)
    if Path(arguments.out).suffix == TEXT:
        return format_schedule(played.schedule)
    return schedules_svg({"measured, in ms: ": played, "replayed with mean times: ": predicted(played)})


def _read(arguments: argparse.Namespace) -> Schedule:
    path = arguments.schedule
    if not os.path.isfile(path):
        hint = nearest(path, NAMES)
        raise NotFoundError(f"schedule: expected one of {', '.join(NAMES)}, or a file; got {path!r}.{hint}")
    _reject(arguments, SIZES)
    try:
        text = Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: expected text in UTF-8; got other bytes") from error
    return parse_schedule(text, path)


def _reject(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            raise InvalidArgumentError(f"{_option(name)}: expected none with a file, which has its own")


def _times(text: str) -> Times:
    """Three numbers, such as ``1,1.5,2/3``, exact, for argparse."""
    try:
        f, i, w = map(Fraction, text.split(","))
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected three numbers F,I,W; got {text}") from None
    if min(f, i, w) < 0:
        raise argparse.ArgumentTypeError(f"expected numbers >= 0; got {text}")
    return Times(f, i, w)


def _option(name: str) -> str:
    return name if name == "source" else "--" + name.replace("_", "-")
