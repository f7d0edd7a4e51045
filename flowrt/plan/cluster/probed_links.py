"""Links between processes of this host: measured by ``flowrt-worker --probe``, and kept for later plans.

They are kept in the folder of ``FLOWRT_CACHE_DIR``, as the value that ``FLOWRT_LINKS`` has. That variable
comes first, as sessions read it, too.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from flowrt.device.llvm.code_cache import cache_folder
from flowrt.distribute.launch.local_cluster import ReservedPorts, local_cluster, task_variables
from flowrt.errors import InvalidArgumentError, UnavailableError
from flowrt.graph.collectives.cost import LINKS_VARIABLE, parse_links
from flowrt.storage.durable_files import replace_file, typed_os_errors

_log = logging.getLogger("flowrt")

PROCESSES = 2
PROBE_S = 120.0


def probed_links() -> str:
    """The links between two processes of this host, as ``FLOWRT_LINKS`` has them, which are kept.

    Raises `UnavailableError` if the processes cannot measure them.
    """
    with ExitStack() as stack:
        master, *ports = stack.enter_context(ReservedPorts(PROCESSES + 1)).ports
        spec = local_cluster(ports)
        workers = [
            stack.enter_context(_worker(task_variables(os.environ, spec, master, 0, local, PROCESSES)))
            for local in range(PROCESSES)
        ]
        try:
            outputs = [worker.communicate(timeout=PROBE_S) for worker in workers]
        except subprocess.TimeoutExpired:
            outputs = []
        finally:
            for worker in workers:
                worker.kill()
    found = [line for out, _ in outputs for line in out.splitlines() if line.startswith(f"{LINKS_VARIABLE}=")]
    if not found:
        said = " ".join(err.strip().rpartition("\n")[2] for _, err in outputs)
        raise UnavailableError(f"probe: expected the links between {PROCESSES} processes; got none. {said}")
    text = found[0].partition("=")[2].strip("'")
    _keep(text)
    return text


def _worker(environ: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flowrt.cli.worker", "--probe"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **environ}, stdout=pipe, stderr=pipe, text=True)


def _keep(text: str) -> None:
    path = _path()
    if path is not None:
        with typed_os_errors(f"links {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(str(path), f"{text}\n".encode())


def with_kept_links(environ: Mapping[str, str]) -> Mapping[str, str]:
    """``environ``, with the links that are kept unless it has others."""
    path = _path()
    if LINKS_VARIABLE in environ or path is None or not path.exists():
        return environ
    try:
        text = path.read_text("utf-8").strip()
        parse_links(text)
    except (OSError, UnicodeDecodeError, InvalidArgumentError) as error:
        _log.warning("measured links are not used: %s: %s. --probe measures them again", path, error)
        return environ
    return {**environ, LINKS_VARIABLE: text}


def _path() -> Path | None:
    """The file of this host's links; None if nothing is kept."""
    try:
        folder = cache_folder()
    except RuntimeError:  # there is no home
        return None
    return None if folder is None else folder / "costs" / "links"
