"""Certify a network of your own: any torch module from [0,1] images to logits.

python examples/certify_own_module.py
"""

import torch
from torch import nn

import sween

SIGMA = 0.5


class Network(nn.Module):
    """No base class and no registration: images (N, 1, 8, 8) in [0, 1] go in, logits come out.

    Normalisation belongs inside the network: noise is added to [0,1] images, before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers((images - 0.3) / 0.38)
        return logits


def train(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Plain training, with the noise that will be certified: without it votes are random."""
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(200):
        picks = torch.randint(len(images), (128,))
        noisy = images[picks] + SIGMA * torch.randn_like(images[picks])
        loss = nn.functional.cross_entropy(network(noisy), labels[picks])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    digits = sween.load_dataset("digits")  # 8 x 8 digits that come with scikit-learn
    network = Network()
    train(network, digits.train.images(range(len(digits.train))), digits.train.labels)

    smoothed = sween.SmoothedClassifier(network, sigma=SIGMA, num_classes=10)
    images, labels = digits.test.images(range(8)), digits.test.labels[:8]
    certificates = smoothed.certify(images, labels=labels, n=2_000, alpha=0.001)

    # With probability 0.999, each line is true: no perturbation with an l2 norm below the radius
    # makes the smoothed network predict another class.
    for certificate in certificates:
        print(certificate)
    radius = sween.average_certified_radius(certificates)
    print(f"average certified radius of {len(certificates)} digits: {radius:.3f}")


if __name__ == "__main__":
    main()
