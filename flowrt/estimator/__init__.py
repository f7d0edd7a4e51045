"""``flowrt.estimator``: models as functions that are trained, evaluated and asked by an `Estimator`.

modes                 `ModeKeys`, `EstimatorSpec`: what a model function is told and returns
run_config            `RunConfig`
export                inputs and outputs of a served model; export_folder: where it is written
eval_summaries        metrics of evaluations in files
exporters             when a model is written for serving
estimator             `Estimator`; added_metrics: more metrics for one
train_and_evaluate    training with evaluations in between
early_stopping        hooks that stop training, and evaluate; experimental: under TensorFlow's name
inputs                functions of arrays that give features and labels; parsing: of messages
heads                 classes and numbers: predictions, losses, metrics
parts                 linear and deep models over feature columns
canned                ready estimators of them
boosted_trees         ready estimators of boosted trees; boosted_model: their graph; boosted_features: columns
tpu                   estimators of programs that may use TPUs, without them
"""

from flowrt.estimator import experimental as experimental
from flowrt.estimator import export as export
from flowrt.estimator import inputs as inputs
from flowrt.estimator import tpu as tpu
from flowrt.estimator.added_metrics import add_metrics as add_metrics
from flowrt.estimator.boosted_trees import BoostedTreesClassifier as BoostedTreesClassifier
from flowrt.estimator.boosted_trees import BoostedTreesEstimator as BoostedTreesEstimator
from flowrt.estimator.boosted_trees import BoostedTreesRegressor as BoostedTreesRegressor
from flowrt.estimator.canned import BaselineClassifier as BaselineClassifier
from flowrt.estimator.canned import BaselineEstimator as BaselineEstimator
from flowrt.estimator.canned import BaselineRegressor as BaselineRegressor
from flowrt.estimator.canned import DNNClassifier as DNNClassifier
from flowrt.estimator.canned import DNNEstimator as DNNEstimator
from flowrt.estimator.canned import DNNLinearCombinedClassifier as DNNLinearCombinedClassifier
from flowrt.estimator.canned import DNNLinearCombinedEstimator as DNNLinearCombinedEstimator
from flowrt.estimator.canned import DNNLinearCombinedRegressor as DNNLinearCombinedRegressor
from flowrt.estimator.canned import DNNRegressor as DNNRegressor
from flowrt.estimator.canned import LinearClassifier as LinearClassifier
from flowrt.estimator.canned import LinearEstimator as LinearEstimator
from flowrt.estimator.canned import LinearRegressor as LinearRegressor
from flowrt.estimator.estimator import Estimator as Estimator
from flowrt.estimator.exporters import BestExporter as BestExporter
from flowrt.estimator.exporters import Exporter as Exporter
from flowrt.estimator.exporters import FinalExporter as FinalExporter
from flowrt.estimator.exporters import LatestExporter as LatestExporter
from flowrt.estimator.heads import BinaryClassHead as BinaryClassHead
from flowrt.estimator.heads import Head as Head
from flowrt.estimator.heads import MultiClassHead as MultiClassHead
from flowrt.estimator.heads import RegressionHead as RegressionHead
from flowrt.estimator.modes import EstimatorSpec as EstimatorSpec
from flowrt.estimator.modes import ModeKeys as ModeKeys
from flowrt.estimator.parsing import classifier_parse_example_spec as classifier_parse_example_spec
from flowrt.estimator.parsing import regressor_parse_example_spec as regressor_parse_example_spec
from flowrt.estimator.run_config import RunConfig as RunConfig
from flowrt.estimator.train_and_evaluate import EvalSpec as EvalSpec
from flowrt.estimator.train_and_evaluate import TrainSpec as TrainSpec
from flowrt.estimator.train_and_evaluate import train_and_evaluate as train_and_evaluate
from flowrt.tf1.missing_names import missing_from
from flowrt.train.checkpoints.warm_start_settings import WarmStartSettings as WarmStartSettings

__getattr__ = missing_from("estimator")
