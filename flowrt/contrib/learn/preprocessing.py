"""``flowrt.contrib.learn.preprocessing``: documents as rows of the numbers of their words."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowrt.errors import DataLossError, FailedPreconditionError
from flowrt.graph.source import misuse
from flowrt.storage.durable_files import typed_os_errors
from flowrt.tf1.missing_names import missing_from

__all__ = ["CategoricalVocabulary", "VocabularyProcessor", "tokenizer"]

_WORD = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z][a-z]+(?=[A-Z])|[\'\w\-]+")

Tokenizer = Callable[[Iterable[str]], Iterable[Iterable[str]]]


def tokenizer(iterator: Iterable[str]) -> Iterator[list[str]]:
    """The words of each document, a word of capitals and those of a CamelCase one apart."""
    for document in iterator:
        yield _WORD.findall(document)


class CategoricalVocabulary:
    """Numbers of words, from 1 on in the order in which they come; 0 is ``unknown_token``."""

    def __init__(self, unknown_token: str = "<UNK>", support_reverse: bool = True) -> None:
        self._unknown, self._frozen = unknown_token, False
        self._numbers = {unknown_token: 0}
        self._counts = Counter[str]()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def _mapping(self) -> dict[str, int]:
        """The numbers by words, under the name that programs take."""
        return self._numbers

    def freeze(self, freeze: bool = True) -> None:
        """Give no more numbers: other words are unknown."""
        self._frozen = freeze

    def get(self, category: str) -> int:
        """The number of a word, a new one for a new word unless it is frozen."""
        if category not in self._numbers:
            if self._frozen:
                return 0
            self._numbers[category] = len(self._numbers)
        return self._numbers[category]

    def add(self, category: str, count: int = 1) -> None:
        """Count a word. It counts unknown words too, but they have no number if it is frozen."""
        if self.get(category) > 0:
            self._counts[category] += count

    def trim(self, min_frequency: int, max_frequency: float = -1) -> None:
        """Drop words that came at most ``min_frequency`` times, or at least ``max_frequency`` times unless
        that is below 0; the others get new numbers, the most frequent first.
        """
        ranked = sorted(sorted(self._counts.items(), key=_name), key=_count, reverse=True)
        self._numbers = {self._unknown: 0}
        self._counts = Counter({
            word: count
            for word, count in ranked
            if count > min_frequency and (max_frequency < 0 or count < max_frequency)
        })  # fmt: skip
        for word in self._counts:
            self._numbers[word] = len(self._numbers)

    def reverse(self, class_id: int) -> str:
        """The word of a number. Raises `InvalidArgumentError` for one that no word has."""
        words = list(self._numbers)
        if not 0 <= class_id < len(words):
            raise misuse(f"CategoricalVocabulary: expected a number below {len(words)}; got {class_id}")
        return words[class_id]


def _name(item: tuple[str, int]) -> str:
    return item[0]


def _count(item: tuple[str, int]) -> int:
    return item[1]


class VocabularyProcessor:
    """Documents as int64 rows of ``max_document_length`` numbers of words, cut or filled with 0.

    `fit` numbers the words that come more than ``min_frequency`` times. ``tokenizer_fn`` maps documents to
    lists of words, by default `tokenizer`.

        processor = VocabularyProcessor(4)
        x = np.array(list(processor.fit_transform(["a cat", "a dog and a cat"])))  # [[1 2 0 0], [1 3 4 1]]
    """

    def __init__(
        self,
        max_document_length: int,
        min_frequency: int = 0,
        vocabulary: CategoricalVocabulary | None = None,
        tokenizer_fn: Tokenizer | None = None,
    ) -> None:
        self.max_document_length, self.min_frequency = max_document_length, min_frequency
        self.vocabulary_ = vocabulary or CategoricalVocabulary()
        self._tokenizer = tokenizer_fn or tokenizer

    def fit(self, raw_documents: Iterable[str], unused_y: Any = None) -> VocabularyProcessor:
        """Number the words of the documents; returns the processor."""
        for words in self._tokenizer(raw_documents):
            for word in words:
                self.vocabulary_.add(word)
        if self.min_frequency > 0:
            self.vocabulary_.trim(self.min_frequency)
        self.vocabulary_.freeze()
        return self

    def fit_transform(self, raw_documents: Any, unused_y: Any = None) -> Iterator[Any]:
        """`fit`, then `transform`: the documents are read twice."""
        self.fit(raw_documents)
        return self.transform(raw_documents)

    def transform(self, raw_documents: Iterable[str]) -> Iterator[Any]:
        """Yield the row of each document."""
        for words in self._tokenizer(raw_documents):
            row = np.zeros(self.max_document_length, np.int64)
            for place, word in zip(range(self.max_document_length), words, strict=False):
                row[place] = self.vocabulary_.get(word)
            yield row

    def reverse(self, documents: Iterable[Iterable[int]]) -> Iterator[str]:
        """Yield the words of each row, with blanks between."""
        for row in documents:
            yield " ".join(self.vocabulary_.reverse(int(number)) for number in row)

    def save(self, filename: Any) -> None:
        """Write it as JSON; a ``tokenizer_fn`` is not in it.

        Raises `FailedPreconditionError` with a vocabulary of another kind.
        """
        words = self.vocabulary_
        if not isinstance(words, CategoricalVocabulary):
            raise misuse(
                "VocabularyProcessor: only a CategoricalVocabulary is saved", FailedPreconditionError
            )
        facts = {
            "max_document_length": self.max_document_length,
            "min_frequency": self.min_frequency,
            "words": list(words._numbers),
            "counts": words._counts,
        }
        with typed_os_errors(str(filename)):
            Path(filename).write_text(json.dumps(facts), "utf-8")

    @classmethod
    def restore(cls, filename: Any) -> VocabularyProcessor:
        """The processor that was saved in a file, frozen.

        Raises `NotFoundError` without the file, `DataLossError` for one that `save` did not write, such as a
        pickle of TensorFlow's.
        """
        with typed_os_errors(str(filename)):
            data = Path(filename).read_bytes()
        try:
            facts = json.loads(data)
            words = CategoricalVocabulary(facts["words"][0])
            for word in facts["words"]:
                words.get(word)
            words._counts = Counter(facts["counts"])
            words.freeze()
            return cls(facts["max_document_length"], facts["min_frequency"], words)
        except (UnicodeDecodeError, ValueError, KeyError, IndexError, TypeError) as error:
            raise DataLossError(f"{filename}: expected a saved VocabularyProcessor: {error}") from None


__getattr__ = missing_from("contrib.learn.preprocessing")
