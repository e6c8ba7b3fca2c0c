"""What is known of tensors like those of an earlier call, found by one question to torch.

torch's compiler guards its graphs by objects that tell whether tensors are like earlier ones. To
ask one about all operands of a call takes less time than to read the attributes of one of them. It
is no public interface of torch: it is tried before it is used, and where it fails nothing is kept.
"""

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, TypeVar, cast

__all__ = ["Addresses", "Guarded", "Pick"]

T = TypeVar("T")

_IsLike = Callable[..., bool]
Pick = Callable[[Sequence[Any]], Sequence[Any]]
"""Those of the arrays of a call that are not None."""
Addresses = Callable[[Sequence[Any]], Iterable[int]]
"""The addresses of torch's tensors."""


class Guarded(dict[Hashable, tuple[tuple[Pick, _IsLike, T], ...]]):
    """What calls have found out, for calls with tensors like theirs, by whatever else it depends
    on: ``for pick, is_like, known in guarded.get(key, ())``.

    ``pick(arrays)`` are those that are not None, and ``is_like(*pick(arrays))`` tells whether they
    are like those of an earlier call. Tensors are alike that have the same Python type, dtype,
    device, shape and strides, that require gradients or do not, in the same state of torch's
    dispatcher (modes, transforms, autocast; not whether gradients are enabled). Which of the arrays
    are None has to be part of the key. The more this tells apart, the less has to be asked; whether
    they start at multiples of 16 bytes, as those did, has to be.

    None of the functions is Python's: one of those would cost as much as what it does.
    """

    _KEYS, _KINDS = 1024, 8

    def keep(
        self, key: Hashable, arrays: Sequence[Any], find_out: Callable[[Pick, Addresses], T | None]
    ) -> None:
        """Keep what `find_out` finds out for arrays like these, if anything, of `pick` and of what
        gives the addresses of what that picks.

        Nothing is kept for other arrays than torch's, two at least, all aligned to 16 bytes, and it
        is tried a few times for a key.
        """
        try:
            kinds = self.get(key, ())
        except TypeError:  # something that has no hash
            return
        if len(kinds) == self._KINDS:
            return
        present = [i for i, x in enumerate(arrays) if x is not None]
        is_like = _guard([arrays[i] for i in present])
        if is_like is None:
            return
        pick = tuple if len(present) == len(arrays) else itemgetter(*present)
        known = find_out(pick, partial(map, sys.modules["torch"].Tensor.data_ptr))
        if len(self) >= self._KEYS:
            self.clear()
        if known is None:
            is_like, known = _is_like_nothing, cast(T, None)
        self[key] = (*kinds, (pick, is_like, known))


def _is_like_nothing(*arrays: Any) -> bool:
    return False


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
            torch._neg_view(first),
            torch._efficientzerotensor((2, 4, 4)),
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
