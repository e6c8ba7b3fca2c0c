"""Tensor maps: what TMA of sm_90 (cp.async.bulk.tensor) is told of an array in memory.

A map describes an array of up to five axes, the contiguous one first, and a box, the part of it
that one copy brings to shared memory. Elements of a box that the array does not have are zeros.
"""

import ctypes
import struct
import zlib
from dataclasses import dataclass
from itertools import chain
from math import prod
from types import MappingProxyType

from cuda.bindings import driver as cuda

from cuevo.cuda.context import PrimaryContext, check

__all__ = ["ALIGNMENT", "BYTES", "ELEMENT_BYTES", "TensorMap"]

BYTES = 128
"""Size of an encoded map."""
ALIGNMENT = 64
"""Alignment of an encoded map in memory."""

ELEMENT_BYTES = MappingProxyType(
    {
        "u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "bf16": 2, "f32": 4,
        "f64": 8,
    }
)  # fmt: skip
"""The types of elements, by the names that PTX has for them."""

_DRIVER_TYPES = MappingProxyType(
    {
        "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "s32": "INT32", "u64": "UINT64",
        "s64": "INT64", "f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64",
    }
)  # fmt: skip
_TYPES = tuple(ELEMENT_BYTES)
_SWIZZLES = (0, 32, 64, 128)
_PROMOTIONS = (0, 64, 128, 256)
_MOST_AXES = 5


@dataclass(frozen=True)
class TensorMap:
    """An array in global memory, and the box of it that is copied at a time.

    The limits are those of cuTensorMapEncodeTiled in the CUDA driver API; ValueError for what is
    beyond them.

    >>> rows = TensorMap("bf16", 0x1000, (200, 100), (400,), (64, 128), swizzle=128)
    >>> rows.box_bytes
    16384
    >>> TensorMap.decode(rows.encode_for_executor()) == rows
    True
    """

    dtype: str
    """Type of elements, a name of `ELEMENT_BYTES`."""
    pointer: int
    """Address of element (0, 0, ...), a multiple of 16."""
    extents: tuple[int, ...]
    """Elements along each axis, the contiguous axis first: 1 to 2^32."""
    strides: tuple[int, ...]
    """Bytes from element to element along every axis but the first: multiples of 16 below 2^40."""
    box: tuple[int, ...]
    """Elements of a box along each axis: 1 to 256; along the first one a multiple of 16 bytes."""
    swizzle: int = 0
    """Span in bytes within which 16-byte pieces of a box are exchanged in shared memory, so that
    columns of it are free of bank conflicts: 128, 64, 32, or 0 for none. A box's first axis is no
    longer than that; where it is shorter, each row of the box still takes all of the span, and a
    copy leaves what is behind it as it was.
    """
    l2_promotion: int = 0
    """Bytes that a miss in L2 fetches: 256, 128, 64, or 0 for what is asked for."""
    element_strides: tuple[int, ...] = ()
    """Every which element of an axis a box has, 1 to 8; by default all of them."""
    nan_fill: bool = False
    """Whether floats that the array does not have are NaN, not zero."""

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.extents))
        for reason in self._violations():
            raise ValueError(f"a tensor map's {reason}")

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.extents)

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def box_shape(self) -> tuple[int, ...]:
        """Elements along each axis that a copy brings, after `element_strides`."""
        pairs = zip(self.box, self.element_strides, strict=True)
        return tuple(-(-extent // step) for extent, step in pairs)

    @property
    def box_bytes(self) -> int:
        """Transaction bytes of one copy for its mbarrier: whole boxes, at the edges too."""
        return self.element_bytes * prod(self.box_shape)

    @property
    def row_bytes(self) -> int:
        """Bytes in shared memory from a row of a box, along its first axis, to the next."""
        return self.swizzle or self.element_bytes * self.box_shape[0]

    @property
    def shared_bytes(self) -> int:
        """Bytes in shared memory from a box's begin to its end."""
        return self.row_bytes * prod(self.box_shape[1:])

    def _violations(self) -> list[str]:
        """Limits of the driver that the map exceeds."""
        if self.dtype not in ELEMENT_BYTES:
            return [f"dtype is one of {', '.join(_TYPES)}; got {self.dtype!r}"]
        rank = len(self.extents)
        if not 1 <= rank <= _MOST_AXES:
            return [f"axes are 1 to {_MOST_AXES}; got {rank} extents"]
        lengths = (len(self.strides) + 1, len(self.box), len(self.element_strides))
        if lengths != (rank,) * 3:
            reason = (
                f"{rank} axes take {rank - 1} strides, {rank} extents of a box and {rank} element "
                f"strides; got {lengths[0] - 1}, {lengths[1]} and {lengths[2]}"
            )
            return [reason]
        found = []
        if self.pointer < 0 or self.pointer >= 2**64 or self.pointer % 16:
            found.append(f"pointer is a multiple of 16; got {self.pointer:#x}")
        for axis, extent in enumerate(self.extents):
            if not 1 <= extent <= 2**32:
                found.append(f"extents are 1 to 2^32; along axis {axis} it is {extent}")
        for axis, stride in enumerate(self.strides, 1):
            if not 0 <= stride < 2**40 or stride % 16:
                found.append(
                    f"strides are multiples of 16, not negative and below 2^40; along axis {axis} "
                    f"it is {stride}"
                )
        for axis, extent in enumerate(self.box):
            if not 1 <= extent <= 256:
                found.append(f"box has 1 to 256 elements along an axis; along {axis}, {extent}")
        for axis, step in enumerate(self.element_strides):
            if not 1 <= step <= 8:
                found.append(f"element strides are 1 to 8; along axis {axis} it is {step}")
        if self.swizzle not in _SWIZZLES:
            found.append(f"swizzle is one of {_SWIZZLES}; got {self.swizzle}")
        if self.l2_promotion not in _PROMOTIONS:
            found.append(f"l2_promotion is one of {_PROMOTIONS}; got {self.l2_promotion}")
        if found:
            return found
        inner = self.box[0] * self.element_bytes
        if inner % 16:
            found.append(f"box is a multiple of 16 bytes along axis 0; got {inner}")
        if self.swizzle and inner > self.swizzle:
            found.append(f"box is {inner} bytes along axis 0, more than the swizzle {self.swizzle}")
        if self.nan_fill and self.dtype not in ("f16", "bf16", "f32", "f64"):
            found.append(f"NaN fills floats; the elements are {self.dtype}")
        return found

    def encode_for_driver(self, context: PrimaryContext) -> bytes:
        """The 128 bytes that a GPU reads, made by the driver, which wants a context to be current.

        Raises DriverError.
        """
        u32, u64 = cuda.cuuint32_t, cuda.cuuint64_t

        def choice(kind: type, prefix: str, size: int) -> object:
            return getattr(kind, f"{prefix}_{f'{size}B' if size else 'NONE'}")

        promotion = f"L2_{self.l2_promotion}B" if self.l2_promotion else "NONE"
        fill = "NAN_REQUEST_ZERO_FMA" if self.nan_fill else "NONE"
        with context.current():
            made = check(
                cuda.cuTensorMapEncodeTiled(
                    getattr(
                        cuda.CUtensorMapDataType,
                        f"CU_TENSOR_MAP_DATA_TYPE_{_DRIVER_TYPES[self.dtype]}",
                    ),
                    u32(self.rank),
                    self.pointer,
                    [u64(x) for x in self.extents],
                    [u64(x) for x in self.strides],
                    [u32(x) for x in self.box],
                    [u32(x) for x in self.element_strides],
                    cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                    choice(cuda.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE", self.swizzle),
                    getattr(cuda.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"),
                    getattr(cuda.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
                ),
                f"encoding {self}",
            )
        return ctypes.string_at(made.getPtr(), BYTES)

    # -- The format of the CPU executor ------------------------------------------------------------

    # NVIDIA does not say what the driver's bits are. These are, little endian:
    #
    #   0  magic b"cuevoTM1"        8  pointer, u64
    #  16  extents, 5 x u64, 1 for axes that there are not
    #  56  strides, 4 x u64, 0 for those
    #  88  box, 5 x u16            98  element strides, 5 x u8
    # 103  rank, type (place in ELEMENT_BYTES), swizzle, L2 promotion / 2, NaN fill, u8 each
    # 108  zeros                  124  CRC-32 of the 124 bytes before
    _MAGIC = b"cuevoTM1"
    _FORMAT = struct.Struct("<8sQ5Q4Q5H5B5B16x")

    def encode_for_executor(self) -> bytes:
        """128 bytes for `cuevo.sim`, from which `decode` makes the map again."""
        free = _MOST_AXES - self.rank
        ones = (1,) * free
        body = self._FORMAT.pack(
            self._MAGIC,
            self.pointer,
            *chain(self.extents, ones, self.strides, (0,) * free, self.box, ones),
            *chain(self.element_strides, ones),
            self.rank,
            _TYPES.index(self.dtype),
            self.swizzle,
            self.l2_promotion // 2,
            self.nan_fill,
        )
        return body + struct.pack("<I", zlib.crc32(body))

    # The fields that tensormap.replace of PTX changes: where those of all axes begin in the format,
    # and how many axes have one.
    _FIELDS = MappingProxyType(
        {
            "global_address": (1, 1), "global_dim": (2, 5), "global_stride": (7, 4),
            "box_dim": (11, 5), "element_stride": (16, 5), "rank": (21, 1), "elemtype": (22, 1),
            "swizzle_mode": (23, 1), "fill_mode": (25, 1), "interleave_layout": (0, 1),
        }
    )  # fmt: skip
    _TYPES_IN_PTX = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "", "f64", "bf16")

    @classmethod
    def replaced(cls, encoded: bytes, field: str, value: int, axis: int = 0) -> bytes:
        """`encoded` for the executor with another value in a field, called and numbered as
        tensormap.replace of PTX has it. Zeros become a map field by field, which `decode` checks;
        ValueError for a value that no map has.
        """
        place, axes = cls._FIELDS[field]
        if not 0 <= axis < axes:
            raise ValueError(f"{field} has axes up to {axes - 1}; got {axis}")
        kinds: dict[str, tuple[object, ...]] = {
            "elemtype": tuple(_TYPES.index(each) if each else None for each in cls._TYPES_IN_PTX),
            "rank": tuple(range(1, _MOST_AXES + 1)),
            "swizzle_mode": _SWIZZLES,
            "fill_mode": (0, 1),
            "interleave_layout": (cls._MAGIC,),
        }
        new: object = value
        if field in kinds:
            new = kinds[field][value] if 0 <= value < len(kinds[field]) else None
        numbers = list(cls._FORMAT.unpack(encoded[:-4]))
        numbers[0], numbers[place + axis] = cls._MAGIC, new
        try:
            body = cls._FORMAT.pack(*numbers)
        except struct.error:
            raise ValueError(f"no {field} is {value}") from None
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def decode(cls, encoded: bytes) -> "TensorMap":
        """The map that `encode_for_executor` made these bytes of; ValueError for others."""
        if len(encoded) != BYTES:
            raise ValueError(f"a tensor map has {BYTES} bytes; got {len(encoded)}")
        body = bytes(encoded[:-4])
        if body[: len(cls._MAGIC)] != cls._MAGIC:
            raise ValueError("these 128 bytes are no tensor map of the CPU executor")
        if encoded[-4:] != struct.pack("<I", zlib.crc32(body)):
            raise ValueError("a tensor map that was changed after it was made")
        _, pointer, *numbers = cls._FORMAT.unpack(body)
        extents, strides, box, steps = numbers[:5], numbers[5:9], numbers[9:14], numbers[14:19]
        rank, dtype, swizzle, promotion, nan_fill = numbers[19:]
        return cls(
            _TYPES[dtype],
            pointer,
            tuple(extents[:rank]),
            tuple(strides[: rank - 1]),
            tuple(box[:rank]),
            swizzle,
            2 * promotion,
            tuple(steps[:rank]),
            bool(nan_fill),
        )
