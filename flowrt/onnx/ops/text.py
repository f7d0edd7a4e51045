"""Strings."""

from __future__ import annotations

import re
from typing import Any

from flowrt.graph.ops.text.strings import static_regex_full_match
from flowrt.graph.ops.text.words import count_ngrams, drop_words, split_strings
from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value

MAX_PATTERN = 1000
"""Characters of a regular expression."""
UNLIKE_RE2 = r"\(\?(=|!|<=|<!|P=|\()|\\[1-9]"
"""Parts that Python's expressions have and RE2's have not: looking around, and groups that come again."""


@handles("StringConcat")
def concatenated(node: Node, a: Value, b: Value) -> Value:
    return tf.strings.join([a, b])


@handles("StringSplit")
def split(node: Node, x: Value) -> Any:
    found = split_strings(x, delimiter=node.get("delimiter") or "", maxsplit=node.get("maxsplit", -1))
    return tuple(found)


@handles("RegexFullMatch")
def matches(node: Node, x: Value) -> Value:
    pattern = node.get("pattern", "")
    if len(pattern) > MAX_PATTERN or re.search(UNLIKE_RE2, pattern):
        node.refuse(
            f"expected an expression of RE2's of at most {MAX_PATTERN} characters; got {pattern!r:.80}"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        node.reject(f"expected a regular expression; got {pattern!r:.80}: {error}")
    return static_regex_full_match(x, pattern=pattern)


@handles("StringNormalizer")
def normalized(node: Node, x: Value) -> Value:
    return drop_words(
        x,
        case=node.get("case_change_action", "NONE"),
        is_case_sensitive=bool(node.get("is_case_sensitive", 0)),
        dropped=tuple(node.get("stopwords") or ()),
    )


@handles("TfIdfVectorizer")
def vectorized(node: Node, x: Value) -> Value:
    lists = ("ngram_counts", "ngram_indexes", "pool_int64s", "pool_strings", "weights")
    numbers = ("min_gram_length", "max_gram_length", "max_skip_count")
    attrs: dict[str, Any] = {name: node.get(name) for name in numbers}
    attrs |= {name: tuple(node.get(name) or ()) for name in lists}
    return count_ngrams(x, mode=node.get("mode"), **attrs)
