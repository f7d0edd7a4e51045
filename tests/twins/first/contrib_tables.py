"""Lookup tables of `contrib`."""

import tempfile
from pathlib import Path

import numpy as np


def calls(tf):
    folder = Path(tempfile.mkdtemp())
    (folder / "words.txt").write_text("emerson\nlake\npalmer\n")
    words = str(folder / "words.txt")
    keys = np.array([[b"lake", b"none"], [b"palmer", b"lake"]])
    numbers = np.int64([2, 0, 9])
    lookup = tf.contrib.lookup

    def mutated(k):
        table = lookup.MutableHashTable(tf.string, tf.int64, -1)
        with tf.control_dependencies([table.insert(tf.constant(["lake"]), tf.constant([5], tf.int64))]):
            return table.lookup(k)

    return {
        "index_table": (
            lambda k: lookup.index_table_from_tensor(["lake", "palmer"], default_value=7).lookup(k),
            keys,
        ),
        "index_table_buckets": (
            lambda k: lookup.index_table_from_tensor(["lake", "palmer"], num_oov_buckets=9).lookup(k),
            keys,
        ),
        "index_table_numbers": (
            lambda k: lookup.index_table_from_tensor(np.int64([9, 2]), dtype=tf.int64).lookup(k),
            numbers,
        ),
        "index_table_file": (
            lambda k: lookup.index_table_from_file(words, num_oov_buckets=9).lookup(k),
            keys,
        ),
        "index_table_part": (
            lambda k: lookup.index_table_from_file(words, vocab_size=2, default_value=3).lookup(k),
            keys,
        ),
        "to_strings": (
            lambda k: lookup.index_to_string_table_from_tensor(["lake", "palmer"], "no").lookup(k),
            numbers,
        ),
        "to_strings_file": (
            lambda k: lookup.index_to_string_table_from_file(words, default_value="no").lookup(k),
            numbers,
        ),
        "buckets_only": (lambda k: lookup.IdTableWithHashBuckets(None, 9).lookup(k), keys),
        "hash_table": (
            lambda k: lookup.HashTable(
                lookup.KeyValueTensorInitializer(["lake"], [7], tf.string, tf.int64), -1
            ).lookup(k),
            keys,
        ),
        "text_file_ids": (
            lambda k: lookup.HashTable(lookup.TextFileIdTableInitializer(words), -1).lookup(k),
            keys,
        ),
        "text_file_strings": (
            lambda k: lookup.HashTable(lookup.TextFileStringTableInitializer(words), "no").lookup(k),
            numbers,
        ),
        "mutated": (mutated, keys),
    }
