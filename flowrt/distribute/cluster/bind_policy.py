"""Bind policy: a task may listen and dial outside this host only with TLS and authentication."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from flowrt.distribute.cluster.cluster_spec import parse_address
from flowrt.errors import PermissionDeniedError
from flowrt.rendezvous.channel.security import Security, load_security

LOGGER = logging.getLogger(__name__)

_HINT = (
    "Set FLOWRT_TLS_CA, FLOWRT_TLS_CERT and FLOWRT_TLS_KEY (`flowrt certs init` creates them), or listen "
    "at 127.0.0.1; --insecure-i-understand, in Python Server(insecure=True), opens it to everyone who can "
    "reach it"
)


def checked_security(
    security: Security | None, bind: str, addresses: Sequence[str], insecure: bool
) -> Security:
    """The security settings, from the environment if ``security`` is None. Raises as `load_security`,
    `check_bind` of ``bind`` and `check_dial` of ``addresses``.
    """
    security = load_security(os.environ, Path.home()) if security is None else security
    check_bind(bind, security, insecure)
    for address in addresses:
        check_dial(address, security, insecure)
    return security


def check_bind(address: str, security: Security, insecure: bool = False) -> None:
    """Check that a task may listen at ``address``, a ``host:port``; with ``insecure`` it always may, with a
    logged warning. Raises `PermissionDeniedError` if strangers could connect.
    """
    if security.protects or is_loopback(parse_address(address).host):
        return
    if not insecure:
        raise PermissionDeniedError(
            f"listen {address}: {_unknown_name(address)}expected certificates of one authority, or TLS and "
            f"a token, on a non-loopback address; got {_described(security)}. {_HINT}"
        )
    LOGGER.warning(
        "listening at %s with %s: anyone who can reach it can run programs here",
        address,
        _described(security),
    )


def check_dial(address: str, security: Security, insecure: bool = False) -> None:
    """Check that ``address`` may get the token. Raises `PermissionDeniedError` if others could read it."""
    if security.token is None or security.uses_tls or insecure or is_loopback(parse_address(address).host):
        return
    raise PermissionDeniedError(
        f"connection to {address}: {_unknown_name(address)}expected TLS, since a token is never sent in "
        f"clear text; got none. {_HINT}"
    )


def is_loopback(host: str) -> bool:
    """Whether all addresses of ``host`` are this host's own. An unknown name counts as another host's."""
    bare = host.strip("[]")
    try:
        return ipaddress.ip_address(bare.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = _look_up(bare)
    except OSError:
        return False
    return all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)


def _look_up(host: str) -> set[str]:
    """The addresses of a name. Raises `OSError` for an unknown one."""
    return {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def _unknown_name(address: str) -> str:
    """Start of an error about ``address`` if its name is unknown: a misspelt name looks like another host."""
    host = parse_address(address).host
    try:
        _look_up(host.strip("[]"))
    except OSError as error:
        return f"the name {host!r} was not found ({error.strerror}), so it is not an address of this host;  "
    return ""


def _described(security: Security) -> str:
    has = [
        name
        for name, is_there in (
            ("a CA", security.ca is not None),
            ("a certificate", security.cert is not None),
            ("a token", security.token is not None),
        )
        if is_there
    ]
    return " and ".join(has) if has else "neither"
