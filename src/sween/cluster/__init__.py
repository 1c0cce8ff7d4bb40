"""Runs on many machines: workers of Ray, jobs of SLURM."""

from sween.cluster.ray_pool import RayPool

__all__ = ["RayPool"]
