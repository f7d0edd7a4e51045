"""Functions of strings."""

import numpy as np


def calls(tf):
    strings = tf.strings
    words = np.array([[b" Abc d", b""], [b"x-1-y ", "Ärger".encode()]])
    numbers = np.array([b"1.5", b" -2 ", b"3e2", b"inf", b"-0"])
    floats = np.float64([1.5, -2, 1e10, 1e-7, np.pi, np.inf, np.nan, 0, 123456789.123])
    return {
        "as_string": (tf.as_string, floats),
        "as_string_float32": (tf.as_string, np.float32(floats)),
        "as_string_wide": (lambda t: tf.as_string(t, precision=3, width=9, fill="0"), floats[:5]),
        "as_string_scientific": (lambda t: tf.as_string(t, scientific=True, precision=2), floats),
        "as_string_shortest": (lambda t: tf.as_string(t, shortest=True), floats),
        "as_string_int": (lambda t: tf.as_string(t, width=5, fill=" "), np.int64([1, -20, 123456])),
        "as_string_bool": (tf.as_string, floats > 0),
        "as_string_complex": (tf.as_string, np.complex64([1 + 2j, -1.5])),
        "format": (lambda t, u: strings.format("a {} b {}", (t, u)), floats[:4], np.int32([[1, 2], [3, 4]])),
        "format_long": (lambda t: strings.format("{}", t, summarize=2), np.arange(10)),
        "join": (lambda t, u: tf.string_join([t, u, "!"], "+"), words, words[::-1].copy()),
        "length": (strings.length, words),
        "length_characters": (lambda t: strings.length(t, unit="UTF8_CHAR"), words),
        "lower": (strings.lower, words),
        "upper": (strings.upper, words),
        "reduce_join": (tf.reduce_join, words),
        "reduce_join_axes": (lambda t: tf.reduce_join(t, [1, 0], separator=","), words),
        "reduce_join_keep": (lambda t: tf.reduce_join(t, 0, keep_dims=True), words),
        "regex_replace": (lambda t: strings.regex_replace(t, r"([a-z])-?(\d)?", r"<\1\2>"), words),
        "regex_replace_first": (lambda t: tf.regex_replace(t, "[a-z]", "_", replace_global=False), words),
        "strip": (strings.strip, words),
        "substr": (lambda t: tf.substr(t, -2, 2), np.array([b"hello", b"ab"])),
        "substr_each": (tf.strings.substr, np.array([b"hello", b"abc"]), np.int32([1, 0]), np.int32([9, 2])),
        "to_hash_bucket_fast": (lambda t: tf.string_to_hash_bucket_fast(t, 1000), words),
        "to_number": (tf.string_to_number, numbers),
        "to_number_double": (lambda t: tf.string_to_number(t, tf.float64), numbers),
        "to_number_int": (lambda t: strings.to_number(t, tf.int64), np.array([b"12", b" -7 "])),
        "split": (lambda t: tf.string_split(t, "-").values, words[:, 0].copy()),
        "comparisons": (lambda t, u: (tf.equal(t, u), tf.not_equal(t, u)), words, words[::-1].copy()),
        "reshaped": (lambda t: (tf.reshape(t, [-1])[1:], tf.tile(t, [1, 2]), tf.concat([t, t], 0)), words),
    }
