"""cuevo.torch on torch's DTensors: shards of B, N and H stay where they are, and their results and
gradients are those of whole tensors. This process holds one of the shards, another the other.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from helpers import sharded_ranks  # noqa: E402
from helpers.sharded_ranks import RANKS  # noqa: E402


@pytest.mark.kernel
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_shards_stay_and_gradients_of_what_is_whole_are_summed(device: str, tmp_path: Path) -> None:
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs")
    arguments = (tmp_path / "store", device)
    # What counts is what it returns or raises, not how an interpreter with torch's threads ends.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        other = pool.submit(sharded_ranks.run, 1, *arguments)
        sharded_ranks.run(0, *arguments)
        other.result(timeout=120)
