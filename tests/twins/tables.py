"""Lookup tables, from tensors and files."""

import tempfile
from pathlib import Path

import numpy as np


def calls(tf):
    folder = Path(tempfile.mkdtemp())
    (folder / "words.txt").write_text("emerson\nlake\npalmer\n")
    (folder / "pairs.txt").write_text("b\t2\na\t5\n")
    words, pairs = str(folder / "words.txt"), str(folder / "pairs.txt")
    keys = np.array([[b"lake", b"none"], [b"palmer", b"lake"]])
    numbers = np.int64([2, 0, 9])
    lookup = tf.lookup
    return {
        "of_pairs": (
            lambda k: lookup.StaticHashTable(
                lookup.KeyValueTensorInitializer(["lake", "palmer"], [7, 8], tf.string, tf.int64), -1
            ).lookup(k),
            keys,
        ),
        "size": (
            lambda k: lookup.StaticHashTable(
                lookup.KeyValueTensorInitializer(["lake", "palmer"], [7, 8], tf.string, tf.int64), -1
            ).size(),
            keys,
        ),
        "of_file": (
            lambda k: lookup.StaticHashTable(
                lookup.TextFileInitializer(
                    words,
                    tf.string,
                    lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64,
                    lookup.TextFileIndex.LINE_NUMBER,
                ),
                -1,
            ).lookup(k),
            keys,
        ),
        "of_columns": (
            lambda k: lookup.StaticHashTable(
                lookup.TextFileInitializer(pairs, tf.string, 0, tf.int64, 1, delimiter="\t"), -1
            ).lookup(k),
            np.array([b"a", b"b", b"c"]),
        ),
        "of_numbers": (
            lambda k: lookup.StaticHashTable(
                lookup.TextFileInitializer(
                    words,
                    tf.int64,
                    lookup.TextFileIndex.LINE_NUMBER,
                    tf.string,
                    lookup.TextFileIndex.WHOLE_LINE,
                ),
                "no",
            ).lookup(k),
            numbers,
        ),
        "vocabulary_buckets": (
            lambda k: lookup.StaticVocabularyTable(
                lookup.KeyValueTensorInitializer(["lake", "palmer"], np.int64([0, 1]), tf.string, tf.int64), 5
            ).lookup(k),
            keys,
        ),
    }
