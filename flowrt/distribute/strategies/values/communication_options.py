"""`CommunicationOptions`: how the gradients of workers are summed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import final

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError

BYTES_PER_PACK = 25 << 20
"""Size of a bucket, as in PyTorch's DistributedDataParallel. A larger one overlaps less communication with
the backward pass, smaller ones pay more often for a round trip.
"""


class CommunicationImplementation(Enum):
    """Implementation of sums: ``AUTO`` uses shared memory on one host, else the network; ``RING`` a ring over
    the network, ``NCCL`` the GPUs' own library.
    """

    AUTO = "auto"
    RING = "grpc"
    NCCL = "nccl"


@final
@dataclass(frozen=True, slots=True)
class CommunicationOptions:
    """``bytes_per_pack`` caps a bucket of gradients, 0: `BYTES_PER_PACK`; ``timeout_seconds`` is the time
    that a worker waits for another one, missing or alive, None: ``FLOWRT_CONNECT_TIMEOUT`` (60).

    ``compression`` is the dtype in which floating gradients are sent and summed ("float16", "bfloat16"),
    None: their own. Raises `InvalidArgumentError`, `DTypeError` for another ``implementation``.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation = CommunicationImplementation.AUTO
    compression: str | None = None

    Implementation = CommunicationImplementation

    def __post_init__(self) -> None:
        if self.bytes_per_pack < 0:
            raise InvalidArgumentError(
                f"CommunicationOptions: expected bytes_per_pack >= 0; got {self.bytes_per_pack}"
            )
        if not isinstance(self.implementation, CommunicationImplementation):
            raise DTypeError(
                "CommunicationOptions: expected a CommunicationImplementation, one of "
                f"{', '.join(CommunicationImplementation.__members__)}; got {self.implementation!r}"
            )
        if self.compression not in (None, "float16", "bfloat16"):
            raise InvalidArgumentError(
                "CommunicationOptions: expected compression 'float16', 'bfloat16' or None; got "
                f"{self.compression!r}"
            )

    @property
    def bucket_bytes(self) -> int:
        return self.bytes_per_pack or BYTES_PER_PACK

    def wire_dtype(self, dtype: dtypes.DType) -> dtypes.DType:
        """Dtype in which values of ``dtype`` are sent."""
        is_smaller = self.compression is not None and dtype.is_floating and dtype.size > 2
        return dtypes.as_dtype(self.compression) if is_smaller else dtype
