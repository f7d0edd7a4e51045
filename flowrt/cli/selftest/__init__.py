"""``flowrt selftest``: checks numerics on one device, and benchmarks it.

target                      a section is a function from a `Target` to a `Result`, and prints one line
ops, loops                  every op's samples; every op that compiled loops support
memory, streams, transfer   allocator and pool; streams and events; bandwidth
steps                       the cost of a step
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from flowrt.cli.selftest.loops import check_loops
from flowrt.cli.selftest.memory import check_memory
from flowrt.cli.selftest.ops import check_ops
from flowrt.cli.selftest.steps import check_steps
from flowrt.cli.selftest.streams import check_streams
from flowrt.cli.selftest.target import Result, Target, describe_error, open_target
from flowrt.cli.selftest.transfer import check_transfer
from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.errors import InvalidArgumentError, nearest
from flowrt.executor.verify.verify_program import checking

EXAMPLES = """
  flowrt selftest                                      all sections, on the CPU
  flowrt selftest --device /gpu:0 --only ops,memory    two sections, on a GPU
"""
SECTIONS: dict[str, Callable[[Target], Result]] = {
    "ops": check_ops,
    "loops": check_loops,
    "memory": check_memory,
    "streams": check_streams,
    "transfer": check_transfer,
    "steps": check_steps,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    devices = "the device to test, such as /gpu:1 (default: /cpu:0); virtual CPUs are added as needed"
    parser.add_argument("--device", type=_device, default="/cpu:0", help=devices)
    parser.add_argument(
        "--only",
        type=_sections,
        default=",".join(SECTIONS),
        help=f"comma-separated subset of {','.join(SECTIONS)} (default: all)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line per section. Returns 1 if any failed. Every program is verified when it is bound. Raises
    `NotFoundError` for a missing device.
    """
    with open_target(arguments.device) as target, checking():
        passed = [run_section(name, target) for name in arguments.only]
    return 0 if all(passed) else 1


def run_section(name: str, target: Target) -> bool:
    """Run one section, print its result, and return whether it passed."""
    start = time.perf_counter()
    try:
        summary, failures = SECTIONS[name](target)
    except Exception as error:  # noqa: BLE001 (the other sections are worth running)
        summary, failures = "aborted", (describe_error(error),)
    verdict = "FAILED" if failures else "ok"
    print(f"{name:8}  {verdict:6}  {time.perf_counter() - start:5.1f} s  {summary}", flush=True)
    for failure in failures:
        print(f"    {failure}", flush=True)
    return not failures


def _device(text: str) -> DeviceSpec:
    try:
        return parse_device(text)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _sections(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise argparse.ArgumentTypeError(
                f"expected sections of {known}; got {name!r}.{nearest(name, SECTIONS)}"
            )
    return list(dict.fromkeys(names))
