"""Names that scripts take from ``data.experimental``."""

from flowrt.data.pipeline import AUTOTUNE

__all__ = ["AUTOTUNE"]
