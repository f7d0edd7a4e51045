"""Names that scripts take from ``data.experimental``."""

from flowrt.data.pipeline import AUTOTUNE as AUTOTUNE
