"""Dense, residual and VGG networks of the papers, with any normalization.

Every network takes its normalization as `norm`, a constructor called as `norm(num_features,
rngs=rngs)`. Images have their channels last, and outputs are the logits of `classes`. Kernels are
initialized from a truncated normal of variance 2 / fan-in (He et al., 2015), and biases are 0.
"""

from jaxnorm.models._mlp import MLP as MLP
from jaxnorm.models._norm import Norm as Norm
from jaxnorm.models._pre_act import PreActResNet as PreActResNet
from jaxnorm.models._resnet import CifarResNet as CifarResNet, ResNet as ResNet
from jaxnorm.models._vgg import VGG as VGG
