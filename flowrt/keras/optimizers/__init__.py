"""``flowrt.keras.optimizers``: Keras's update rules and defaults over `flowrt.train`'s optimizers.

optimizer     what they share: hyper-parameters, clipping, the number of updates
update_rules  SGD to Ftrl
schedules     learning rates as functions of the number of updates
"""

from __future__ import annotations

from typing import Any

from flowrt.graph.source import misuse
from flowrt.keras.identifiers import deserialize_object, lookup_in
from flowrt.keras.optimizers import schedules as schedules
from flowrt.keras.optimizers.optimizer import Optimizer as Optimizer
from flowrt.keras.optimizers.update_rules import SGD as SGD
from flowrt.keras.optimizers.update_rules import Adadelta as Adadelta
from flowrt.keras.optimizers.update_rules import Adagrad as Adagrad
from flowrt.keras.optimizers.update_rules import Adam as Adam
from flowrt.keras.optimizers.update_rules import Adamax as Adamax
from flowrt.keras.optimizers.update_rules import Ftrl as Ftrl
from flowrt.keras.optimizers.update_rules import Nadam as Nadam
from flowrt.keras.optimizers.update_rules import RMSprop as RMSprop
from flowrt.train.optimizers import optimizer as base

_find = lookup_in({
    name: optimizer
    for optimizer in (SGD, RMSprop, Adagrad, Adadelta, Adam, Adamax, Nadam, Ftrl)
    for name in (optimizer.__name__, optimizer.__name__.lower())
})  # fmt: skip


def get(identifier: Any) -> Any:
    """The optimizer of this name, or one of `flowrt.train`. Raises `InvalidArgumentError` for others."""
    found = deserialize_object(identifier, _find, "optimizer")
    if not isinstance(found, base.Optimizer):
        raise misuse(f"optimizer: expected a name or an optimizer; got {identifier!r}")
    return found


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    return deserialize_object(config, _find, "optimizer", custom_objects)


def serialize(optimizer: Any) -> Any:
    return {"class_name": type(optimizer).__name__, "config": optimizer.get_config()}
