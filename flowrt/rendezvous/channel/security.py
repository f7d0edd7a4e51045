"""`Security`: credentials that a task presents and requires, and their sources."""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flowrt.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError

TOKEN_FILE = Path(".flowrt", "token")
"""Below the home directory."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{32,512}")  # characters of a Bearer header; 32 of base64 are 192 bits


@dataclass(frozen=True)
class Security:
    """A token for all tasks of a cluster, and PEM texts for TLS; all None means neither.

    With ``ca``, both ends present certificates signed by it if they have one, and a listener requests one.
    """

    token: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)

    @property
    def uses_tls(self) -> bool:
        return self.ca is not None or self.cert is not None

    @property
    def is_mutual(self) -> bool:
        """Whether both ends show certificates of one authority."""
        return self.ca is not None and self.cert is not None

    @property
    def protects(self) -> bool:
        """Whether only members of the cluster can connect, and traffic cannot be read or modified."""
        return self.is_mutual or (self.cert is not None and self.token is not None)


def load_security(environ: Mapping[str, str], home: Path) -> Security:
    """Credentials from the environment, and otherwise a token from ``home/.flowrt/token`` if there is one.

    ``FLOWRT_TOKEN`` is the token, ``FLOWRT_TOKEN_PATH`` a file with it; ``FLOWRT_TLS_CA``,
    ``FLOWRT_TLS_CERT`` and ``FLOWRT_TLS_KEY`` are PEM files. Raises `NotFoundError` for a missing file,
    `PermissionDeniedError` for a secret readable by others than its owner, and `InvalidArgumentError` for an
    invalid token and a certificate without its key. No message contains a secret.
    """
    cert, key = _pem(environ, "FLOWRT_TLS_CERT"), _pem(environ, "FLOWRT_TLS_KEY", is_secret=True)
    if (cert is None) != (key is None):
        raise InvalidArgumentError("expected FLOWRT_TLS_CERT and FLOWRT_TLS_KEY together; got one of them")
    if cert is not None and key is not None:
        _check_pair(environ, cert, key)
    return Security(_load_token(environ, home), _pem(environ, "FLOWRT_TLS_CA"), cert, key)


def load_certificate(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """Load PEM texts. Raises `ssl.SSLError` if they are invalid, or the key is another certificate's."""
    # OpenSSL wants a file; one in memory keeps the key off the disk.
    descriptor = os.memfd_create("flowrt", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, cert + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _check_pair(environ: Mapping[str, str], cert: bytes, key: bytes) -> None:
    """Check the pair: with a mismatch, gRPC would dial repeatedly, and report only a failed connection."""
    try:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert, key)
    except ssl.SSLError as error:
        got = f"{environ['FLOWRT_TLS_CERT']} and {environ['FLOWRT_TLS_KEY']}"
        raise InvalidArgumentError(
            f"FLOWRT_TLS_CERT, FLOWRT_TLS_KEY: expected a certificate and its key; got {got} ({error})"
        ) from None


def _load_token(environ: Mapping[str, str], home: Path) -> str | None:
    if token := environ.get("FLOWRT_TOKEN"):
        return _checked_token(token, "FLOWRT_TOKEN")
    named = environ.get("FLOWRT_TOKEN_PATH")
    path = Path(named) if named else home / TOKEN_FILE
    if not named and not path.exists():
        return None
    text = _read(path, "FLOWRT_TOKEN_PATH" if named else "token", is_secret=True)
    return _checked_token(text.decode("ascii", "replace").strip(), str(path))


def _checked_token(token: str, where: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise InvalidArgumentError(
            f"{where}: expected a token of 32 to 512 base64 characters; got {len(token)} characters, or "
            "invalid ones. Create one with `flowrt token new`"
        )
    return token


def _pem(environ: Mapping[str, str], variable: str, is_secret: bool = False) -> bytes | None:
    named = environ.get(variable)
    if not named:
        return None
    text = _read(Path(named), variable, is_secret)
    if b"-----BEGIN " not in text:
        raise InvalidArgumentError(f"{variable}: expected a PEM file; got {named}, which has no -----BEGIN")
    return text


def _read(path: Path, what: str, is_secret: bool) -> bytes:
    """The content. Looked at when it is open, so that the file which is judged is the one that is read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if is_secret and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise PermissionDeniedError(
                    f"{what}: expected {path} to be readable by its owner only; got mode "
                    f"{stat.S_IMODE(mode):04o}. Run: chmod 600 {path}"
                )
            return file.read()
    except OSError as error:
        raise NotFoundError(f"{what}: expected to read {path}; {error.strerror}") from error
