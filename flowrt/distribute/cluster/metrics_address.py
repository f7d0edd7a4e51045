"""The address at which a task serves its metrics: ``FLOWRT_METRICS``.

| value | |
|---|---|
| not set | a free port of the loopback, for a task that listens there; otherwise off |
| ``off`` | nowhere |
| ``PORT`` | at that port of the address at which the task listens |
| ``HOST:PORT`` | there |

The tasks of one host take consecutive ports, in the order of the cluster; with port 0 each takes a free one.
"""

from __future__ import annotations

import os
import re

from flowrt.distribute.cluster.bind_policy import check_bind, is_loopback
from flowrt.distribute.cluster.cluster_spec import ClusterSpec, parse_address
from flowrt.errors import InvalidArgumentError
from flowrt.rendezvous.channel.security import Security

VARIABLE = "FLOWRT_METRICS"
OFF = "off"
MAX_PORT = 65535


def is_asked_for() -> bool:
    """Whether the environment names a place, in place of the default."""
    return os.environ.get(VARIABLE, "") not in ("", OFF)


def checked_metrics_address(
    cluster: ClusterSpec, job: str, index: int, bind: str, security: Security, insecure: bool
) -> str | None:
    """`metrics_address` by the environment. Raises also as `check_bind`, if strangers could read there."""
    address = metrics_address(os.environ.get(VARIABLE, ""), cluster, job, index, bind)
    if address is not None:
        check_bind(address, security, insecure)
    return address


def metrics_address(setting: str, cluster: ClusterSpec, job: str, index: int, bind: str) -> str | None:
    """The ``host:port`` for the task of ``cluster`` that listens at ``bind``, None for off. ``setting`` is
    the variable's value. Raises `InvalidArgumentError`.
    """
    own_host = bind.rpartition(":")[0]
    if setting == OFF or (not setting and not is_loopback(own_host)):
        return None
    if re.fullmatch(r"\d{1,6}", setting or "0"):
        host, port = own_host, int(setting or "0")
    else:
        host, _, port_text = setting.rpartition(":")
        port = int(port_text) if host and re.fullmatch(r"\d{1,6}", port_text) else -1
    port += _place_on_host(cluster, job, index) if port > 0 else 0
    if not 0 <= port <= MAX_PORT:
        raise InvalidArgumentError(
            f"{VARIABLE}: expected off, a port or host:port, up to {MAX_PORT} for the last task of a host; "
            f"got {setting!r}"
        )
    return f"{host}:{port}"


def _place_on_host(cluster: ClusterSpec, job: str, index: int) -> int:
    """The number of tasks before this one on its host."""
    tasks = list(cluster.tasks())
    place = [task[:2] for task in tasks].index((job, index))
    hosts = [parse_address(address).host for _, _, address in tasks]
    return hosts[:place].count(hosts[place])
