"""An ensemble of different architectures, its weights, and what it gains.

    python examples/mixed_ensemble.py

Members may be any modules that take the same images and know the same classes. Here: a
perceptron, a convolutional network and, where timm is installed, one of its networks.
"""

import torch
from torch import nn

import sween

SIGMA = 0.5


class TimmNetwork(nn.Module):
    """A small network of timm. It is made for larger images, so it enlarges the digits first."""

    def __init__(self) -> None:
        import timm

        super().__init__()
        self.network = timm.create_model("test_resnet", num_classes=10, in_chans=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        larger = nn.functional.interpolate(images, scale_factor=2.0, mode="nearest")
        logits: torch.Tensor = self.network(larger)
        return logits


def candidates() -> dict[str, nn.Module]:
    found = {
        name: sween.create_model(
            name, num_classes=10, image_shape=(1, 8, 8), mean=[0.3], std=[0.38]
        )
        for name in ("digits-mlp", "digits-conv")
    }
    try:
        found["timm"] = TimmNetwork()
    except (ImportError, RuntimeError) as error:  # or with a torchvision for another torch
        print(f"without a network of timm: {error}")
    return found


def train(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    network.train()
    for _ in range(200):
        picks = torch.randint(len(images), (128,))
        noisy = images[picks] + SIGMA * torch.randn_like(images[picks])
        loss = nn.functional.cross_entropy(network(noisy), labels[picks])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()


def main() -> None:
    torch.manual_seed(0)
    digits = sween.load_dataset("digits")
    networks = candidates()
    for network in networks.values():
        train(network, digits.train.images(range(len(digits.train))), digits.train.labels)

    # Weights are solved on images that no member was trained on, and none that are certified.
    held_out = digits.weights
    ensemble = sween.WeightedEnsemble(networks.values())
    sween.solve_weights(
        ensemble, held_out.images(range(len(held_out))), held_out.labels, sigma=SIGMA
    )
    for name, weight in zip(networks, ensemble.weights.tolist(), strict=True):
        print(f"weight of {name}: {weight:.2f}")

    # `member_names` certifies each member in the same pass, on the same noise.
    smoothed = sween.SmoothedClassifier(
        ensemble, sigma=SIGMA, num_classes=10, name="ensemble", member_names=list(networks)
    )
    run = sween.certify_dataset(
        smoothed, digits, out="mixed-ensemble", indices=range(0, 360, 9), n=1_000, quiet=True
    )
    for name in (*networks, "ensemble"):
        rows = run.of(name)
        accuracy = sween.certified_accuracy(rows, [0.5])[0]
        radius = sween.average_certified_radius(rows)
        print(f"{name:12} certified at 0.5: {accuracy:5.1%}   average radius: {radius:.3f}")


if __name__ == "__main__":
    main()
