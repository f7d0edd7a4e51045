"""Detection of processes on the same host, kernel and user, which is required for shared memory.

Equal boot ids are only a hint (a container may hide or copy them). The proof is the Unix socket itself: one
process can connect to the other's, and the kernel identifies the user at its other end.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


def boot_id() -> str | None:
    """Differs between kernels, and between two boots of one; None where the system has none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return None


def is_same_user(connected: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as this one's user."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
