"""``flowrt.keras.preprocessing.text``: words of texts as integers."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from flowrt.graph.source import misuse

Array = np.ndarray[Any, Any]
FILTERS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'


def text_to_word_sequence(
    text: str, filters: str = FILTERS, lower: bool = True, split: str = " "
) -> list[str]:
    """The words of ``text``, without the characters in ``filters``."""
    text = text.lower() if lower else text
    cleaned = "".join(split if letter in filters else letter for letter in text)
    return [word for word in cleaned.split(split) if word]


def hashing_trick(
    text: str, n: int, hash_function: Any = None, filters: str = FILTERS, lower: bool = True, split: str = " "
) -> list[int]:
    """The words as numbers from 1 to ``n - 1``, by a hash: ``hash``, "md5", or a function."""
    function: Callable[[str], int] = hash if hash_function is None else hash_function
    if hash_function == "md5":
        function = _md5
    return [function(word) % (n - 1) + 1 for word in text_to_word_sequence(text, filters, lower, split)]


def one_hot(text: str, n: int, filters: str = FILTERS, lower: bool = True, split: str = " ") -> list[int]:
    """See `hashing_trick`: with Python's own hash, which differs from process to process."""
    return hashing_trick(text, n, None, filters, lower, split)


def _md5(word: str) -> int:
    return int(hashlib.md5(word.encode(), usedforsecurity=False).hexdigest(), 16)


class Tokenizer:
    """Words as integers, the most frequent one as 1; 0 is none.

    Only the ``num_words - 1`` most frequent words are kept; ``oov_token`` stands for the others.
    """

    def __init__(
        self, num_words: int | None = None, filters: str = FILTERS, lower: bool = True, split: str = " ",
        char_level: bool = False, oov_token: str | None = None, document_count: int = 0, **_: Any,
    ) -> None:  # fmt: skip
        self.num_words, self.filters, self.lower, self.split = num_words, filters, lower, split
        self.char_level, self.oov_token, self.document_count = char_level, oov_token, document_count
        self.word_counts: OrderedDict[str, int] = OrderedDict()
        self.word_docs: Counter[str] = Counter()
        self.word_index: dict[str, int] = {}
        self.index_word: dict[int, str] = {}

    def _words(self, text: Any) -> list[str]:
        if not isinstance(text, str):
            return [word.lower() for word in text] if self.lower else list(text)
        if self.char_level:
            return list(text.lower() if self.lower else text)
        return text_to_word_sequence(text, self.filters, self.lower, self.split)

    def fit_on_texts(self, texts: Iterable[Any]) -> None:
        """Count the words of ``texts``, strings or lists of words, and number them."""
        for text in texts:
            words = self._words(text)
            self.document_count += 1
            for word in words:
                self.word_counts[word] = self.word_counts.get(word, 0) + 1
            self.word_docs.update(set(words))
        ranked = sorted(self.word_counts, key=lambda word: -self.word_counts[word])
        if self.oov_token is not None:
            ranked = [self.oov_token, *ranked]
        self.word_index = {word: i for i, word in enumerate(ranked, 1)}
        self.index_word = {i: word for word, i in self.word_index.items()}

    def texts_to_sequences(self, texts: Iterable[Any]) -> list[list[int]]:
        return list(self.texts_to_sequences_generator(texts))

    def texts_to_sequences_generator(self, texts: Iterable[Any]) -> Iterator[list[int]]:
        oov = None if self.oov_token is None else self.word_index.get(self.oov_token)
        for text in texts:
            found = (self.word_index.get(word) for word in self._words(text))
            kept = (oov if i is None or (self.num_words and i >= self.num_words) else i for i in found)
            yield [i for i in kept if i is not None]

    def sequences_to_texts(self, sequences: Iterable[Sequence[int]]) -> list[str]:
        return [" ".join(self.index_word[i] for i in each if i in self.index_word) for each in sequences]

    def texts_to_matrix(self, texts: Iterable[Any], mode: str = "binary") -> Array:
        """A row for each text: 1 at its words, or how often they are in it; see `sequences_to_matrix`."""
        return self.sequences_to_matrix(self.texts_to_sequences(texts), mode)

    def sequences_to_matrix(self, sequences: Sequence[Sequence[int]], mode: str = "binary") -> Array:
        """A row for each sequence: ``mode`` is "binary", "count", "freq" (shares of the words) or "tfidf"."""
        width = self.num_words or len(self.word_index) + 1
        found = np.zeros((len(sequences), width))
        for row, each in zip(found, sequences, strict=True):
            for i, count in Counter(i for i in each if i < width).items():
                row[i] = self._entry(mode, i, count, len(each))
        return found

    def _entry(self, mode: str, index: int, count: int, length: int) -> float:
        if mode == "binary":
            return 1.0
        if mode == "count":
            return float(count)
        if mode == "freq":
            return count / length
        if mode == "tfidf":
            documents = self.word_docs[self.index_word.get(index, "")]
            return float((1 + np.log(count)) * np.log(1 + self.document_count / (1 + documents)))
        raise misuse(f"mode: expected binary, count, freq or tfidf; got {mode!r}")
