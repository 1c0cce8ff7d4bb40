"""A DataLoader over images that are read when asked, and an ensemble; interrupted and resumed."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import sween
from sween.sampling import CertifySettings
from sween.smoothing import iter_certificates


class Photos(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.full((3, 8, 8), 25 * index, dtype=torch.uint8), index % 3


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


out = sys.argv[1]
ensemble = sween.WeightedEnsemble([net(0), net(1)], [0.75, 0.25])
smoothed = sween.SmoothedClassifier(
    ensemble, sigma=0.5, num_classes=3, member_names=["first", "second"], exit="exact"
)
loader = DataLoader(Photos(), batch_size=4)
seen = []
settings = CertifySettings(n=500)
for certificate in iter_certificates(smoothed, loader, out=out, settings=settings, quiet=True):
    seen.append(certificate.index)
    if len(seen) == 4:
        break  # and resume:
run = sween.certify_dataset(smoothed, loader, out=out, settings=settings, quiet=True)
assert seen == [0, 1, 2, 3], seen
assert len(run) == 10
assert len(run.rows) == 30

try:
    sween.certify_dataset(smoothed, DataLoader(Photos(), shuffle=True), out=out + "-b")
    raise SystemExit("a loader that shuffles was taken")
except sween.SweenError:
    pass
