"""cuevo.ops.plans: how many are kept, and what a launch is; tests of the operations do the rest."""

from collections.abc import Sequence
from struct import Struct
from typing import Any

import pytest

from cuevo.arrays import ArrayView
from cuevo.kernels.evoformer_forward_sm80 import Config
from cuevo.ops import plans
from cuevo.ops.plans import Launch, Plans

pytestmark = pytest.mark.unit

CONFIG = Config(head_dim=32)


class Kernel:
    """A loaded kernel that remembers its launches."""

    spills = False

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        params: bytes | bytearray,
        *,
        buffers: Sequence[ArrayView] = (),
        stream: object = None,
    ) -> None:
        self.launches.append((grid, block, shared_bytes, params, buffers, stream))


def test_plans_are_found_again_and_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_PLANS_KEPT", 3)
    kept: Plans[str] = Plans()
    for n in range(7):
        kept.keep((n,), f"plan {n}")
        assert kept[(n,)] == f"plan {n}"
        assert len(kept) <= 3
    assert kept.get((0,)) is None


def test_a_launch_puts_addresses_before_its_constants() -> None:
    kernel = Kernel()
    launch = Launch(kernel, CONFIG, (7, 1, 1), Struct("<2Q"))
    launch.constants = b"constant"
    launch((1, 2), launch.constants, 5)
    launch((3, 4), b"others", 6, ())
    shape = ((7, 1, 1), (CONFIG.threads, 1, 1), CONFIG.shared_bytes)
    one, two, three, four = (n.to_bytes(8, "little") for n in range(1, 5))
    assert kernel.launches == [
        (*shape, one + two + b"constant", (), 5),
        (*shape, three + four + b"others", (), 6),
    ]


def test_a_grid_that_no_device_takes() -> None:
    Launch(Kernel(), CONFIG, (2**31 - 1, 1, 1), Struct("<Q"))
    with pytest.raises(ValueError, match="too large: 2147483648 threadblocks; a launch has fewer"):
        Launch(Kernel(), CONFIG, (2**31, 1, 1), Struct("<Q"))
