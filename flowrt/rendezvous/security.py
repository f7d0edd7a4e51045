"""`Security`: what a task shows to others and asks of them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Security:
    """A token for all tasks of a cluster, and PEM texts for TLS; all None means neither.

    With ``ca``, both ends show certificates signed by it where they have one, and a listener asks for one.
    """

    token: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)

    @property
    def uses_tls(self) -> bool:
        return self.ca is not None or self.cert is not None
