"""Address fields of parameter blocks that begin with tensor maps."""

from collections.abc import Sequence
from dataclasses import replace

from cuevo.cuda.context import PrimaryContext
from cuevo.cuda.tensor_map import TensorMap
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
        struct = load_header().kernels[kernel].addresses
        self.size = struct.size
        self._pack = struct.pack
        self.maps = tuple(maps)
        self._context = context
        self._encoded: dict[tuple[int, ...], tuple[bytes, ...]] = {}

    def pack(self, *addresses: int) -> bytes:
        """Pack the addresses of the mapped arrays, and of those that follow in ``cuevo.h``."""
        mapped = addresses[: len(self.maps)]
        maps = self._encoded.get(mapped)
        if maps is None:
            if len(self._encoded) >= _MAPS_KEPT:
                self._encoded.clear()
            pairs = zip(self.maps, mapped, strict=True)
            maps = self._encoded[mapped] = tuple(self._encode(*pair) for pair in pairs)
        return self._pack(*maps, *addresses[len(self.maps) :])

    def _encode(self, tensor_map: TensorMap, address: int) -> bytes:
        described = replace(tensor_map, pointer=address)
        if self._context is None:
            return described.encode_for_executor()
        return described.encode_for_driver(self._context)
