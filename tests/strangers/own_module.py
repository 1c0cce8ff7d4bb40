"""A network and a TensorDataset of one's own, to a verified report."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import sween

out = sys.argv[1]
torch.manual_seed(0)
images, labels = torch.rand(12, 3, 8, 8), torch.randint(0, 4, (12,))
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
)

smoothed = sween.SmoothedClassifier(model, sigma=0.25, num_classes=4, name="my-net")
run = sween.certify_dataset(smoothed, TensorDataset(images, labels), out=out, n=500, quiet=True)

assert 0 <= run.certified_accuracy([0.0, 0.25])[1] <= 1
assert run.certificates[0].model == "my-net"
assert sween.average_certified_radius(run.certificates) == run.average_certified_radius
