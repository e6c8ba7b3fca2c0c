"""Address fields of parameter blocks that begin with tensor maps."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from struct import Struct

from cuevo.cuda.context import PrimaryContext
from cuevo.cuda.tensor_map import BYTES, TensorMap
from cuevo.toolchain.header import load_header

__all__ = ["MappedAddresses"]

_MAPS_KEPT = 256


class MappedAddresses:
    """Packer of a call's addresses, and of the tensor maps that the first of them make, for the
    front of a parameter block; the map of an address is encoded once.
    """

    def __init__(
        self, kernel: str, maps: Sequence[TensorMap | None], *, context: PrimaryContext | None
    ) -> None:
        """For the kernel of that name, whose block begins with `maps`, zeros for None; those of the
        CPU executor where `context` is None.
        """
        self.size = load_header().kernels[kernel].addresses.size
        self.maps = tuple(maps)
        self._count = len(self.maps)
        self._pack = Struct(f"<{(self.size - BYTES * self._count) // 8}Q").pack
        encoders = [lru_cache(_MAPS_KEPT)(partial(_encode, each, context)) for each in maps]

        def encode(*addresses: int) -> bytes:
            pairs = zip(encoders, addresses, strict=True)
            return b"".join(encoder(address) for encoder, address in pairs)

        self._encoded = lru_cache(_MAPS_KEPT)(encode)

    def pack(self, *addresses: int) -> bytes:
        """Pack the addresses of the mapped arrays, and of those that follow in ``cuevo.h``."""
        mapped, others = addresses[: self._count], addresses[self._count :]
        return self._encoded(*mapped) + self._pack(*others)


def _encode(tensor_map: TensorMap | None, context: PrimaryContext | None, address: int) -> bytes:
    if tensor_map is None:
        return bytes(BYTES)
    described = replace(tensor_map, pointer=address)
    if context is None:
        return described.encode_for_executor()
    return described.encode_for_driver(context)
