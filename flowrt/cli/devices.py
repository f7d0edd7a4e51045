"""``flowrt devices``: the devices of this machine, and the libraries that flowrt uses on them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from flowrt.cli import machine
from flowrt.device.cuda.cuda import why_no_gpu
from flowrt.device.onednn import onednn
from flowrt.profiler.text_table import aligned, gib

EXAMPLES = """
  flowrt devices           the devices that a session sees
  flowrt devices --json    for a program; sizes in bytes
"""
SHOWN = ("numpy", "cupy", "llvmlite", "onednn-cpu-gomp", "diastatic-malt")
"""The compute libraries, and the one that converts source."""

HEADINGS = ("device", "free", "total", "compute", "description")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON object, sizes in bytes")


def run(arguments: argparse.Namespace) -> int:
    facts = gather()
    print(json.dumps(facts, indent=2) if arguments.json else "\n".join(lines(facts)))
    return 0


def gather() -> dict[str, Any]:
    """Everything that the command shows, in the form of its JSON."""
    found = machine.local_devices()
    there, usable = machine.cores()
    versions = machine.library_versions()
    return {
        "devices": [asdict(device) for device in found],
        "why_no_gpu": why_no_gpu(),
        "why_no_onednn": onednn.why_unavailable(),
        "cores": there,
        "usable_cores": usable,
        "blas": [blas._asdict() for blas in machine.blas_libraries()],
        "libraries": {name: versions[name] for name in SHOWN} | machine.cuda_versions(),
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """``facts`` as two tables."""
    found = [machine.DeviceFacts(**device) for device in facts["devices"]]
    first = aligned([HEADINGS, *map(device_row, found)])
    rows = [("cores", f"{facts['cores']}, {facts['usable_cores']} usable by this process")]
    rows += [("BLAS", f"{b['name']} {b['version']}, {b['threads']} threads") for b in facts["blas"]]
    rows += list(facts["libraries"].items())
    why = facts["why_no_onednn"]
    if why and why not in facts["libraries"].get(onednn.PACKAGE, ""):
        rows.append(("no oneDNN", why))
    if facts["why_no_gpu"]:
        rows.append(("no GPU", facts["why_no_gpu"]))
    return [*first, "", *aligned(rows)]


def device_row(device: machine.DeviceFacts) -> tuple[str, ...]:
    """A device under `HEADINGS`."""
    capability = ".".join(map(str, device.compute_capability or ())) or "-"
    return (device.name, gib(device.free_bytes), gib(device.total_bytes), capability, device.description)
