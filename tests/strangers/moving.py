"""A classifier follows its model from device to device and back."""

import sys

import torch
from torch import nn

import sween

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
smoothed = sween.SmoothedClassifier(model, sigma=0.5, num_classes=3)
image = torch.rand(1, 8, 8)
devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else []), "cpu"]
answers = []
for device in devices:
    model.to(device)
    assert smoothed.device.type == device
    answers.append(smoothed.certify_one(image, n=200, seed=0, indices=0))
assert answers[0].estimation_counts == answers[-1].estimation_counts
run = sween.certify_dataset(smoothed, image[None], out=sys.argv[1], n=200, quiet=True)
assert run.certificates[0].label is None
logits = smoothed.smoothed_logits(samples=16, seed=1)
own = image[None].clone().requires_grad_()
logits(own)[0, 0].backward()
assert float(own.grad.abs().sum()) > 0
