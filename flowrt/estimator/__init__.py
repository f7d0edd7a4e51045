"""``flowrt.estimator``: models as functions that are trained, evaluated and asked by an `Estimator`.

modes         `ModeKeys`, `EstimatorSpec`: what a model function is told and returns
run_config    `RunConfig`
export        inputs and outputs of a served model
exporters     when a model is written for serving
estimator     `Estimator`, `train_and_evaluate`
inputs        functions of arrays that give features and labels
heads         classes and numbers: predictions, losses, metrics
parts         linear and deep models over feature columns
canned        ready estimators of them
tpu           estimators of programs that may use TPUs, without them
"""

from flowrt.estimator import export as export
from flowrt.estimator import inputs as inputs
from flowrt.estimator import tpu as tpu
from flowrt.estimator.canned import DNNClassifier as DNNClassifier
from flowrt.estimator.canned import DNNLinearCombinedClassifier as DNNLinearCombinedClassifier
from flowrt.estimator.canned import DNNLinearCombinedRegressor as DNNLinearCombinedRegressor
from flowrt.estimator.canned import DNNRegressor as DNNRegressor
from flowrt.estimator.canned import LinearClassifier as LinearClassifier
from flowrt.estimator.canned import LinearRegressor as LinearRegressor
from flowrt.estimator.estimator import Estimator as Estimator
from flowrt.estimator.estimator import EvalSpec as EvalSpec
from flowrt.estimator.estimator import TrainSpec as TrainSpec
from flowrt.estimator.estimator import train_and_evaluate as train_and_evaluate
from flowrt.estimator.exporters import Exporter as Exporter
from flowrt.estimator.exporters import FinalExporter as FinalExporter
from flowrt.estimator.exporters import LatestExporter as LatestExporter
from flowrt.estimator.modes import EstimatorSpec as EstimatorSpec
from flowrt.estimator.modes import ModeKeys as ModeKeys
from flowrt.estimator.run_config import RunConfig as RunConfig
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("estimator")
