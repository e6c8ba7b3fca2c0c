"""cuevo.arrays.guards: which tensors are found again, and that others are not."""

from collections.abc import Callable
from math import gcd
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuevo.arrays import Addresses, Guarded, guards

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.unit


Known = tuple[str, Addresses]


def tensors() -> list[Any]:
    """Two tensors, and none between them."""
    return [torch.zeros(2, 4, 8), None, torch.zeros(8, dtype=torch.int32)]


def keep(kept: Guarded[Known], arrays: list[Any], key: Any = "key") -> None:
    kept.keep(key, arrays, lambda pick, addresses: ("known", addresses))


def find(kept: Guarded[Known], arrays: list[Any], key: str = "key") -> tuple[str, list[int]] | None:
    """What is known of such arrays, and a table of their addresses, where kernels can read them."""
    for pick, is_like, found in kept.get(key, ()):
        if is_like(*pick(arrays)):
            known, addresses = found
            table = [0, *addresses(pick(arrays))]
            return (known, table) if gcd(16, *table) == 16 else None
    return None


def test_tensors_like_earlier_ones_are_found_with_their_addresses() -> None:
    kept: Guarded[Known] = Guarded()
    assert find(kept, tensors()) is None
    keep(kept, tensors())
    for arrays in (tensors(), tensors()):
        x, _, y = arrays
        assert find(kept, arrays) == ("known", [0, x.data_ptr(), y.data_ptr()])
    assert find(kept, tensors(), "other key") is None


CHANGES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda x: torch.zeros(2, 4, 9),
    "axes": lambda x: x[0],
    "strides": lambda x: torch.zeros(2, 8, 4).mT,
    "dtype": lambda x: x.to(torch.float16),
    "device": lambda x: x.to("meta"),
    "type": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "gradients": lambda x: torch.zeros(2, 4, 8, requires_grad=True),
    "library": lambda x: np.zeros((2, 4, 8), np.float32),
    "negated": lambda x: torch.zeros(2, 4, 8, dtype=torch.complex64).conj().imag,
    "none": lambda x: None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_other_tensors_are_not_found(change: Callable[[Any], Any]) -> None:
    kept: Guarded[Known] = Guarded()
    keep(kept, tensors())
    x, _, y = tensors()
    assert find(kept, [change(x), None, y]) is None


def test_the_state_of_the_dispatcher_counts() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    kept: Guarded[Known] = Guarded()
    x, _, y = tensors()
    keep(kept, [x, y])
    found: list[Any] = []

    def look(z: Any) -> Any:
        found.append(find(kept, [x, y]))
        return z.sum()

    with torch.autocast("cpu"):
        look(y)
    with TorchDispatchMode():
        found.append(find(kept, [x, y]))
    with torch.inference_mode():
        look(y)
    torch.vmap(look)(x)
    torch.func.grad(look)(x)
    assert found == [None] * 5
    with torch.no_grad():
        assert find(kept, [x, y]) is not None


def test_what_cannot_be_known_again() -> None:
    kept: Guarded[Known] = Guarded()
    x, _, y = tensors()
    shifted = torch.zeros(65)[1:].view(2, 4, 8)
    for arrays in ([x, x], [shifted, y], [np.zeros(4), np.zeros(4)]):
        keep(kept, arrays)
        assert find(kept, arrays) is None
    keep(kept, [x, y], key={"no": "hash"})
    assert not kept
    kept.keep("nothing", [x, y], lambda pick, addresses: None)
    assert find(kept, [x, y], "nothing") is None
    # What a shifted one needs is not what others need.
    keep(kept, [x, y])
    assert find(kept, [torch.zeros(2, 4, 8), y]) is not None
    assert find(kept, [shifted, y]) is None


def test_little_is_kept() -> None:
    kept: Guarded[Known] = Guarded()
    asked: list[Any] = []
    for n in range(1, 12):
        kept.keep("key", [torch.zeros(n), torch.zeros(1)], lambda *given: asked.append(1))
    assert len(asked) == kept._KINDS
    for n in range(2 * kept._KEYS):
        kept[n] = ()
    keep(kept, tensors(), "other key")
    assert list(kept) == ["other key"]


class Wrong:
    """Guards that find every tensor like any other."""

    def __init__(self, *tensors: Any, **sizes: Any) -> None:
        pass

    def check(self, *tensors: Any) -> bool:
        return True


class Changed:
    """Guards that are made in another way."""

    def __init__(self, *tensors: Any) -> None:
        pass


NAMES = ("zeros", "nn", "autocast", "inference_mode", "utils", "vmap")


@pytest.mark.parametrize("offered", [Wrong, Changed, None])
def test_guards_that_are_not_as_expected_are_not_used(offered: Any) -> None:
    namespace = SimpleNamespace(TensorGuards=offered) if offered else SimpleNamespace()
    other = SimpleNamespace(
        _C=SimpleNamespace(_dynamo=SimpleNamespace(guards=namespace)),
        **{name: getattr(torch, name) for name in NAMES},
    )
    assert guards._tried(other) is None
    assert guards._tried(torch) is not None
