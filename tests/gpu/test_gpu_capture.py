"""Captured graphs that are replayed at once. Skipped where there is no GPU."""

import pytest
import torch

from sween.cuda import capturing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

GRAPHS, PRODUCTS, REPLAYS = 4, 60, 100


def test_matrix_products_of_graphs_that_run_at_once_do_not_mix() -> None:
    """Long sums of few entries, which cuBLAS splits into parts that meet in its workspace."""
    torch.manual_seed(0)
    inputs, graphs, sums, streams = [], [], [], []
    for _ in range(GRAPHS):
        long = torch.randn(PRODUCTS, 48, 16_384, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        stream, own = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            _ = long[0] @ long[0].mT  # cuBLAS sets itself up
        torch.cuda.synchronize()
        with capturing(graph, stream):
            sums.append(torch.stack([one @ one.mT for one in long]))
        inputs.append(long)  # a graph reads it by its address
        graphs.append(graph)
        streams.append(own)
    for graph in graphs:
        graph.replay()
        torch.cuda.synchronize()
    alone = [one.clone() for one in sums]
    for replay in range(REPLAYS):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for one, expected in zip(sums, alone, strict=True):
            assert torch.equal(one, expected), f"replay {replay}"
