"""Files of examples, with what reads and decodes them."""

from __future__ import annotations

from typing import Any


class Dataset:
    """The files ``data_sources``, which ``reader``, a class, reads, and ``decoder`` makes items of. Any other
    facts are attributes.
    """

    def __init__(
        self,
        data_sources: Any,
        reader: Any,
        decoder: Any,
        num_samples: int | None,
        items_to_descriptions: Any,
        **kwargs: Any,
    ) -> None:
        self.data_sources, self.reader, self.decoder = data_sources, reader, decoder
        self.num_samples, self.items_to_descriptions = num_samples, items_to_descriptions
        vars(self).update(kwargs)
