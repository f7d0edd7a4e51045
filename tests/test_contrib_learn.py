"""Documents as rows of numbers, as TensorFlow 1.15 documents it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowrt.contrib import learn
from flowrt.contrib.learn.preprocessing import CategoricalVocabulary, VocabularyProcessor
from flowrt.errors import DataLossError, InvalidArgumentError, NotFoundError

TEXTS = ["I like cats", "I like dogs, don't I", "TFLearn likes CATS and DogsToo"]


def test_documents_become_rows_and_words_again(tmp_path: Path) -> None:
    processor = VocabularyProcessor(4)
    rows = np.array(list(processor.fit_transform(TEXTS)))
    assert rows.tolist() == [[1, 2, 3, 0], [1, 2, 4, 5], [6, 7, 8, 9]]
    assert rows.dtype == np.int64
    assert len(processor.vocabulary_) == 13  # TF Learn and Dogs Too are two words each
    assert next(processor.transform(["I like birds"])).tolist() == [1, 2, 0, 0]
    assert list(processor.reverse(rows[:1])) == ["I like cats <UNK>"]
    processor.save(tmp_path / "vocab")
    restored = VocabularyProcessor.restore(tmp_path / "vocab")
    assert np.array(list(restored.transform(TEXTS))).tolist() == rows.tolist()
    with pytest.raises(NotFoundError):
        VocabularyProcessor.restore(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"\x80\x03.")
    with pytest.raises(DataLossError, match="expected a saved VocabularyProcessor"):
        VocabularyProcessor.restore(tmp_path / "bad")


def test_rare_words_are_unknown() -> None:
    processor = VocabularyProcessor(5, min_frequency=1).fit(TEXTS)
    assert processor.vocabulary_._mapping == {"<UNK>": 0, "I": 1, "like": 2}
    vocabulary = CategoricalVocabulary()
    for word in ["a", "b", "a", "c"]:
        vocabulary.add(word)
    vocabulary.trim(0, max_frequency=2)
    assert [vocabulary.reverse(i) for i in range(3)] == ["<UNK>", "b", "c"]
    with pytest.raises(InvalidArgumentError, match="expected a number below 3"):
        vocabulary.reverse(3)


def test_modes_have_their_former_name() -> None:
    assert learn.ModeKeys.INFER == learn.ModeKeys.PREDICT == "infer"
