"""What is known of tensors like those of an earlier call, found by one question to torch.

torch's compiler guards its graphs by objects that tell whether tensors are like earlier ones. To
ask one about all operands of a call takes less time than to read the attributes of one of them. It
is no public interface of torch: it is tried before it is used, and where it fails nothing is kept.
"""

import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import cache, reduce
from operator import itemgetter, or_
from typing import Any, Generic, TypeVar

__all__ = ["Guarded", "aligned_addresses"]

T = TypeVar("T")

_IsLike = Callable[..., bool]
_Kind = tuple[_IsLike, Callable[[Sequence[Any]], tuple[Any, ...]], T | None]
"""Whether tensors are like those of a kind, which of a call's arrays are tensors, and what is known
of the kind.
"""


class Guarded(Generic[T]):
    """What calls have found out, for calls with tensors like theirs.

    Tensors are alike that have the same Python type, dtype, device, shape and strides, that require
    gradients or do not, in the same state of torch's dispatcher (modes, transforms, autocast; not
    whether gradients are enabled).
    """

    _KEYS, _KINDS = 1024, 8

    def __init__(self) -> None:
        self._kinds: dict[Hashable, tuple[_Kind[T], ...]] = {}

    def find(self, key: Hashable, arrays: Sequence[Any]) -> T | None:
        """What has been kept for arrays like these, if anything. It holds where they start at
        multiples of 16 bytes (`aligned_addresses`).

        key : whatever else it depends on, with the places where `arrays` has None. The more it
            tells apart, the less has to be asked.
        """
        try:
            kinds = self._kinds.get(key, ())
        except TypeError:  # something that has no hash
            return None
        for is_like, pick, known in kinds:
            if is_like(*pick(arrays)):
                return known
        return None

    def keep(self, key: Hashable, arrays: Sequence[Any], find_out: Callable[[], T | None]) -> None:
        """Keep what `find_out` finds out for arrays like these, if anything; see `find`.

        Nothing is kept for other arrays than torch's, and it is tried a few times for a key.
        """
        try:
            kinds = self._kinds.get(key, ())
        except TypeError:
            return
        if len(kinds) == self._KINDS:
            return
        present = [i for i, x in enumerate(arrays) if x is not None]
        tensors = [arrays[i] for i in present]
        is_like = _guard(tensors)
        if is_like is None:
            return
        if len(self._kinds) >= self._KEYS:
            self._kinds.clear()
        self._kinds[key] = (*kinds, (is_like, itemgetter(*present), find_out()))


def aligned_addresses(arrays: Sequence[Any]) -> list[int] | None:
    """The addresses of torch's tensors, 0 for None, if all are multiples of 16."""
    table = [0 if x is None else x.data_ptr() for x in arrays]
    return None if reduce(or_, table) & 15 else table


def _guard(tensors: Sequence[Any]) -> _IsLike | None:
    """Tells whether the tensors that it is called with are like these, of which there are two at
    least; None where there is no such function.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in tensors):
        return None
    if len({id(x) for x in tensors}) < len(tensors):  # torch's guards want different ones
        return None
    try:
        if any(x.data_ptr() & 15 for x in tensors):
            return None
    except RuntimeError:  # no memory of its own, as what a transform has left
        return None
    make = _guards(torch)
    return None if make is None else make(tensors)


def _tried(torch: Any) -> Callable[[Sequence[Any]], _IsLike] | None:
    """Maker of guards by torch, if there is one that tells apart what it has to."""

    def make(tensors: Sequence[Any]) -> _IsLike:
        guards = torch._C._dynamo.guards.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(x.shape) for x in tensors],
            dynamic_dims_strides=[list(x.stride()) for x in tensors],
        )
        check: _IsLike = guards.check
        return check

    passed = []

    def attempt() -> None:
        first, second, like = (torch.zeros(2, 4, 4) for _ in range(3))
        is_like = make((first, second))
        others = [
            first[:1],
            first.mT,
            first.half(),
            first.to("meta"),
            torch.zeros(2, 4, 4, requires_grad=True),
            torch.nn.Parameter(first, requires_grad=False),
        ]
        mistaken = [is_like(x, second) or is_like(second, x) for x in others]

        def look(x: Any = None) -> Any:
            mistaken.append(is_like(first, second))
            return x

        dispatch_mode = torch.utils._python_dispatch.TorchDispatchMode()
        for state in (torch.autocast("cpu"), torch.inference_mode(), dispatch_mode):
            with state:
                look()
        torch.vmap(look)(first)
        passed.append(not any(mistaken) and is_like(first, second) and is_like(like, second))

    def quietly() -> None:
        try:
            attempt()
        except (AttributeError, RuntimeError, SystemError, TypeError, ValueError):
            passed.clear()

    # In a thread of its own, where no mode of the caller's is on.
    thread = threading.Thread(target=quietly)
    thread.start()
    thread.join()
    return make if passed == [True] else None


_guards = cache(_tried)
