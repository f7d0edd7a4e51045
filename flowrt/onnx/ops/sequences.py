"""Sequences, which are lists while building, and optionals."""

from __future__ import annotations

import numpy as np

from flowrt.onnx.node import Node
from flowrt.onnx.registry import handles
from flowrt.onnx.surface import tf
from flowrt.onnx.values import Value, axis_of, rank_of, shape_of


@handles("SequenceConstruct")
def construct(node: Node, *inputs: Value) -> Value:
    return list(inputs)


@handles("SequenceEmpty")
def empty(node: Node) -> Value:
    return []


@handles("SequenceLength")
def length(node: Node, sequence: Value) -> Value:
    return np.array(len(sequence), np.int64)


@handles("SequenceAt")
def at(node: Node, sequence: Value, position: Value) -> Value:
    return sequence[node.integers(position, "a position")[0]]


@handles("SequenceInsert")
def insert(node: Node, sequence: Value, value: Value, position: Value = None) -> Value:
    found = list(sequence)
    at = len(found) if position is None else node.integers(position, "a position")[0]
    found.insert(at, value)
    return found


@handles("SequenceErase")
def erase(node: Node, sequence: Value, position: Value = None) -> Value:
    found = list(sequence)
    del found[-1 if position is None else node.integers(position, "a position")[0]]
    return found


@handles("ConcatFromSequence")
def concatenated(node: Node, sequence: Value) -> Value:
    axis = node.get("axis")
    if node.get("new_axis", 0):
        return tf.stack(sequence, axis_of(axis, rank_of(sequence[0]) + 1))
    return tf.concat(sequence, axis_of(axis, rank_of(sequence[0])))


@handles("SplitToSequence")
def split_to_sequence(node: Node, x: Value, sizes: Value = None) -> Value:
    axis = axis_of(node.get("axis", 0), rank_of(x))
    whole = shape_of(x)[axis]
    if sizes is None:
        parts = tf.split(x, whole, axis)
        return list(parts) if node.get("keepdims", 1) else [tf.squeeze(part, [axis]) for part in parts]
    found = node.integers(sizes, "sizes")
    if not rank_of(sizes):
        each = found[0]
        found = [min(each, whole - start) for start in range(0, whole, each)]
    return list(tf.split(x, found, axis))


@handles("Optional")
def optional(node: Node, value: Value = None) -> Value:
    return value


@handles("OptionalGetElement")
def get_element(node: Node, value: Value) -> Value:
    return node.reject("expected an optional with a value; it has none") if value is None else value


@handles("OptionalHasElement")
def has_element(node: Node, value: Value = None) -> Value:
    return np.array(value is not None)
