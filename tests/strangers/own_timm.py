"""A timm network at 64 pixels."""

import sys

import timm
import torch

import sween

model = timm.create_model("resnet18", num_classes=5)
smoothed = sween.SmoothedClassifier(model, sigma=0.5, num_classes=5)
run = sween.certify_dataset(
    smoothed, (torch.rand(2, 3, 64, 64), [0, 1]), out=sys.argv[1], n=200, quiet=True
)
assert len(run) == 2
