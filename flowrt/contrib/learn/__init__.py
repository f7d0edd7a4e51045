"""``flowrt.contrib.learn``: the estimators of before ``estimator``, and documents as rows of numbers.

model_fn         `ModelFnOps`, `MetricSpec`
run_config       `RunConfig`
arrays           arrays in batches
older_estimator  `Estimator`, `SKCompat`
canned           ready linear and deep models
monitors         `ValidationMonitor`
experiment       `Experiment`, and its schedules
inputs           ``learn.io``: input functions
data_files       ``learn.datasets``: tables in files
preprocessing    `VocabularyProcessor`
"""

from flowrt.contrib.learn import data_files, monitors, preprocessing
from flowrt.contrib.learn import experiment as learn_runner
from flowrt.contrib.learn import inputs as io
from flowrt.contrib.learn.canned import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
    MetricKey,
    PredictionKey,
)
from flowrt.contrib.learn.experiment import Experiment, ExportStrategy, make_export_strategy
from flowrt.contrib.learn.inputs import (
    InputFnOps,
    infer_real_valued_columns_from_input,
    infer_real_valued_columns_from_input_fn,
)
from flowrt.contrib.learn.model_fn import MetricSpec, ModeKeys, ModelFnOps
from flowrt.contrib.learn.older_estimator import Estimator, SKCompat
from flowrt.contrib.learn.run_config import RunConfig
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "DNNClassifier", "DNNLinearCombinedClassifier", "DNNLinearCombinedRegressor", "DNNRegressor", "Estimator",
    "Experiment", "ExportStrategy", "InputFnOps", "LinearClassifier", "LinearRegressor", "MetricKey",
    "MetricSpec", "ModeKeys", "ModelFnOps", "PredictionKey", "RunConfig", "SKCompat", "data_files",
    "infer_real_valued_columns_from_input", "infer_real_valued_columns_from_input_fn", "io", "learn_runner",
    "make_export_strategy", "monitors", "preprocessing",
]  # fmt: skip

__getattr__ = missing_from("contrib.learn")
