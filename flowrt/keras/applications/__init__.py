"""``flowrt.keras.applications``: networks for images, as Keras-Applications 1.0.8 builds them.

Layers have Keras's names, shapes and order, so its files of weights fit. Nothing is downloaded: ``weights``
is None, a file, or "imagenet" for Keras's file in ``~/.keras/models``.

imagenet        parts that the networks share: images in, classes out, weights
vgg, resnet, resnet_v2, densenet, inception_v3, inception_resnet_v2, xception, mobilenet, mobilenet_v2
"""

from flowrt.keras.applications import densenet as densenet
from flowrt.keras.applications import imagenet as imagenet
from flowrt.keras.applications import inception_resnet_v2 as inception_resnet_v2
from flowrt.keras.applications import inception_v3 as inception_v3
from flowrt.keras.applications import mobilenet as mobilenet
from flowrt.keras.applications import mobilenet_v2 as mobilenet_v2
from flowrt.keras.applications import resnet as resnet
from flowrt.keras.applications import resnet_v2 as resnet_v2
from flowrt.keras.applications import vgg as vgg
from flowrt.keras.applications import xception as xception
from flowrt.keras.applications.densenet import DenseNet121 as DenseNet121
from flowrt.keras.applications.densenet import DenseNet169 as DenseNet169
from flowrt.keras.applications.densenet import DenseNet201 as DenseNet201
from flowrt.keras.applications.inception_resnet_v2 import InceptionResNetV2 as InceptionResNetV2
from flowrt.keras.applications.inception_v3 import InceptionV3 as InceptionV3
from flowrt.keras.applications.mobilenet import MobileNet as MobileNet
from flowrt.keras.applications.mobilenet_v2 import MobileNetV2 as MobileNetV2
from flowrt.keras.applications.resnet import ResNet50 as ResNet50
from flowrt.keras.applications.resnet import ResNet101 as ResNet101
from flowrt.keras.applications.resnet import ResNet152 as ResNet152
from flowrt.keras.applications.resnet_v2 import ResNet50V2 as ResNet50V2
from flowrt.keras.applications.resnet_v2 import ResNet101V2 as ResNet101V2
from flowrt.keras.applications.resnet_v2 import ResNet152V2 as ResNet152V2
from flowrt.keras.applications.vgg import VGG16 as VGG16
from flowrt.keras.applications.vgg import VGG19 as VGG19
from flowrt.keras.applications.xception import Xception as Xception
from flowrt.tf1.inner_paths import make_paths
from flowrt.tf1.missing_names import missing_from

_OTHER_NAMES = {"vgg16": "vgg", "vgg19": "vgg", "resnet50": "resnet", "imagenet_utils": "imagenet"}

make_paths(
    "keras", {f"applications.{name}": f"keras.applications.{own}" for name, own in _OTHER_NAMES.items()}, {}
)
__getattr__ = missing_from("keras.applications")
