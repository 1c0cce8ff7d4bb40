"""Networks of as many multiply-adds as resnet20x2, spent elsewhere; imported to register them.

Noise of the record's level hides fine detail, so that fewer pixels with more channels could be
worth more.
"""

from torch import nn

from sween.models import register_architecture
from sween.models.cifar_resnet import CifarResNet, initialise

IMAGE_SHAPE = (3, 32, 32)


@register_architecture("resnet20x4-half", image_shape=IMAGE_SHAPE, normalize=True)
def half_resolution(num_classes: int) -> nn.Module:
    """Twice the channels of resnet20x2 on half of the pixels' sides: 16, 8 and 4."""
    network = CifarResNet(20, num_classes, width=4)
    network.conv1 = nn.Conv2d(3, 64, 4, stride=2, padding=1, bias=False)
    initialise(network.conv1)
    return network


@register_architecture("resnet20x2-late", image_shape=IMAGE_SHAPE, normalize=True)
def late_blocks(num_classes: int) -> nn.Module:
    """One block in the first stage and four in each of the others, in place of three in each."""
    network = CifarResNet(20, num_classes, width=2)
    network.stage1 = network._stage(32, 32, 1, stride=1)
    network.stage2 = network._stage(32, 64, 4, stride=2)
    network.stage3 = network._stage(64, 128, 4, stride=2)
    initialise(network)
    return network
