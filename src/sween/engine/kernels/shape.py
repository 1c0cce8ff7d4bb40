"""How the kernels' blocks are cut."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the kernels of one GPU are compiled for; results do not depend on it.

    Attributes:
        rows: rows of an image that a warp of stage 1 takes at once, 2 or 4.
        images: of a block of stage 3, 2 or 4.
    """

    rows: int = 2
    images: int = 2

    def definitions(self, stage: int) -> list[str]:
        """For the compiler."""
        return [f"-DSTAGE={stage}", f"-DROWS={self.rows}", f"-DIMAGES={self.images}"]

    def threads(self, stage: int) -> int:
        """Of a block."""
        return {1: 256, 2: 128, 3: 64 * self.images}[stage]

    def images_a_block(self, stage: int) -> int:
        return self.images if stage == 3 else 1

    def shared_bytes(self, stage: int) -> int:
        """Of a block: the activations of its images, twice, with their borders."""
        channels, width = {1: (16, 34), 2: (32, 18), 3: (64, 10)}[stage]
        return self.images_a_block(stage) * 2 * channels * width * width * 2
