"""``flowrt.keras.initializers``: those of `flowrt.initializers`, under Keras's names and by name."""

from __future__ import annotations

from typing import Any

from flowrt import initializers as ours
from flowrt.graph.source import misuse
from flowrt.initializers import (
    Constant,
    Identity,
    Initializer,
    Ones,
    Orthogonal,
    VarianceScaling,
    Zeros,
    he_normal,
    he_uniform,
    lecun_normal,
    lecun_uniform,
)
from flowrt.keras.identifiers import deserialize_object, lookup_in, serialize_object


class RandomUniform(ours.RandomUniform):
    """Numbers from a range: Keras's default is a narrow one."""

    def __init__(self, minval: Any = -0.05, maxval: Any = 0.05, seed: int | None = None, **options: Any):
        super().__init__(minval, maxval, seed, **options)


class RandomNormal(ours.RandomNormal):
    """Numbers of a normal distribution: Keras's default is a narrow one."""

    def __init__(self, mean: Any = 0.0, stddev: Any = 0.05, seed: int | None = None, **options: Any):
        super().__init__(mean, stddev, seed, **options)


class TruncatedNormal(ours.TruncatedNormal):
    """Numbers of a normal distribution within two deviations: Keras's default is a narrow one."""

    def __init__(self, mean: Any = 0.0, stddev: Any = 0.05, seed: int | None = None, **options: Any):
        super().__init__(mean, stddev, seed, **options)


glorot_uniform, glorot_normal = ours.GlorotUniform, ours.GlorotNormal
zeros, zero, ones, one, constant = Zeros, Zeros, Ones, Ones, Constant
uniform = random_uniform = RandomUniform
normal = random_normal = RandomNormal
truncated_normal, orthogonal, identity = TruncatedNormal, Orthogonal, Identity

_find = lookup_in({
    **{name: value for name, value in globals().items() if name.islower()},
    "Constant": Constant, "GlorotNormal": glorot_normal, "GlorotUniform": glorot_uniform,
    "Identity": Identity,
    "Ones": Ones, "Orthogonal": Orthogonal, "RandomNormal": RandomNormal, "RandomUniform": RandomUniform,
    "TruncatedNormal": TruncatedNormal, "VarianceScaling": VarianceScaling, "Zeros": Zeros,
})  # fmt: skip


def get(identifier: Any) -> Any:
    """The initializer of this name, or a function of shape and dtype.

    Raises `InvalidArgumentError` for an unknown name.
    """
    found = deserialize_object(identifier, _find, "initializer")
    if isinstance(identifier, str) and not isinstance(found, Initializer):
        found = found()  # a function that makes one
    if found is not None and not callable(found):
        raise misuse(f"initializer: expected a name or a function; got {found!r}")
    return found


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    return deserialize_object(config, _find, "initializer", custom_objects)


def serialize(initializer: Any) -> Any:
    return serialize_object(initializer)
