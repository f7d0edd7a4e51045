"""``estimator.experimental``: hooks that evaluate while training goes on, or stop it."""

from flowrt.estimator.early_stopping import (
    InMemoryEvaluatorHook,
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "InMemoryEvaluatorHook", "make_early_stopping_hook", "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook", "stop_if_lower_hook", "stop_if_no_decrease_hook", "stop_if_no_increase_hook",
]  # fmt: skip

__getattr__ = missing_from("estimator.experimental")
