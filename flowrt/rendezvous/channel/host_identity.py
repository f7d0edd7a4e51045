"""Whether two processes share a host, a kernel and a user: what they have to, to share memory.

That two boot ids are equal is only a hint (a container may hide or copy them). The proof is the Unix socket
itself: one process can reach the other's, and the kernel names the user at its other end.
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
