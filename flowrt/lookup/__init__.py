"""``flowrt.lookup``: tables from keys to values, such as from words to numbers.

A table is initialized once in a session, by ``tables_initializer()`` or a `MonitoredSession`, from arrays or
from the lines of a file. The same names are in ``contrib.lookup`` and ``python.ops.lookup_ops``.

contents    tensors, or the lines of a file
tables      `HashTable` and the others
words       tables of vocabularies

    table = tf.contrib.lookup.index_table_from_tensor(["a", "b"], num_oov_buckets=1)
    ids = table.lookup(tf.constant(["b", "c"]))  # [1, 2]
"""

from flowrt.lookup.contents import (
    KeyValueTensorInitializer,
    TextFileIdTableInitializer,
    TextFileIndex,
    TextFileInitializer,
    TextFileStringTableInitializer,
)
from flowrt.lookup.tables import (
    FastHashSpec,
    HasherSpec,
    HashTable,
    IdTableWithHashBuckets,
    MutableHashTable,
    StaticHashTable,
    StaticVocabularyTable,
)
from flowrt.lookup.words import (
    index_table_from_file,
    index_table_from_tensor,
    index_to_string_table_from_file,
    index_to_string_table_from_tensor,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "FastHashSpec", "HashTable", "HasherSpec", "IdTableWithHashBuckets", "KeyValueTensorInitializer",
    "MutableHashTable", "StaticHashTable", "StaticVocabularyTable", "TextFileIdTableInitializer",
    "TextFileIndex", "TextFileInitializer", "TextFileStringTableInitializer", "index_table_from_file",
    "index_table_from_tensor", "index_to_string_table_from_file", "index_to_string_table_from_tensor",
]  # fmt: skip

__getattr__ = missing_from("lookup")
