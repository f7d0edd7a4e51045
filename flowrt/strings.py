"""``flowrt.strings``: TensorFlow's names of this namespace."""

from flowrt.graph.ops.text.formatting import as_string
from flowrt.graph.ops.text.formatting import string_format as format
from flowrt.graph.ops.text.hashing import string_to_hash_bucket_fast as to_hash_bucket_fast
from flowrt.graph.ops.text.strings import reduce_join, regex_replace, substr
from flowrt.graph.ops.text.strings import string_join as join
from flowrt.graph.ops.text.strings import string_length as length
from flowrt.graph.ops.text.strings import string_lower as lower
from flowrt.graph.ops.text.strings import string_strip as strip
from flowrt.graph.ops.text.strings import string_to_number as to_number
from flowrt.graph.ops.text.strings import string_upper as upper
from flowrt.ragged.parts_of_strings import string_bytes_split as bytes_split
from flowrt.ragged.parts_of_strings import string_split as split
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("strings")
