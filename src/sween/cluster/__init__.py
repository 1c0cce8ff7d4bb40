"""Workers on this machine and on others that count votes for one run."""

from sween.cluster.ray_pool import RayPool

__all__ = ["RayPool"]
