"""Address fields of parameter blocks that begin with tensor maps."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from struct import Struct

from cuevo.cuda.context import PrimaryContext
from cuevo.cuda.tensor_map import BYTES, TensorMap
from cuevo.toolchain.header import load_header

__all__ = ["MappedAddresses"]

_MAPS_KEPT = 256


class MappedAddresses:
    """Packer of a call's addresses, and of the tensor maps that the first of them make, for the
    front of a parameter block; maps of the same addresses are encoded once.
    """

    def __init__(
        self, kernel: str, maps: Sequence[TensorMap], *, context: PrimaryContext | None
    ) -> None:
        """For the kernel of that name, whose block begins with `maps`; those of the CPU executor
        where `context` is None.
        """
        self.size = load_header().kernels[kernel].addresses.size
        self.maps = tuple(maps)
        self._count = len(self.maps)
        self._pack = Struct(f"<{(self.size - BYTES * self._count) // 8}Q").pack
        self._context = context
        self._encoded: dict[tuple[int, ...], bytes] = {}

    def pack(self, *addresses: int) -> bytes:
        """Pack the addresses of the mapped arrays, and of those that follow in ``cuevo.h``."""
        mapped = addresses[: self._count]
        maps = self._encoded.get(mapped)
        if maps is None:
            if len(self._encoded) >= _MAPS_KEPT:
                self._encoded.clear()
            pairs = zip(self.maps, mapped, strict=True)
            maps = self._encoded[mapped] = b"".join(starmap(self._encode, pairs))
        return maps + self._pack(*addresses[self._count :])

    def _encode(self, tensor_map: TensorMap, address: int) -> bytes:
        described = replace(tensor_map, pointer=address)
        if self._context is None:
            return described.encode_for_executor()
        return described.encode_for_driver(self._context)
