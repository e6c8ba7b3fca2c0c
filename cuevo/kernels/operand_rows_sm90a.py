"""Rows of q, k, v, out and dout as TMA brings them to shared memory for wgmma, and takes them from
there.
"""

from math import ceil

from cuevo.arrays import ArrayView
from cuevo.cuda.tensor_map import TensorMap

__all__ = ["OperandRows"]


class OperandRows:
    """What configurations of attention kernels on wgmma say of their operands."""

    head_dim: int
    dtype: str

    @property
    def row_elements(self) -> int:
        """Elements of a row in shared memory: D, and behind them such as TMA leaves alone."""
        return next((x for x in (16, 32) if x >= self.head_dim), 64)

    @property
    def row_bytes(self) -> int:
        """Bytes of such a row, and of its swizzle."""
        return 2 * self.row_elements

    @property
    def box_row_bytes(self) -> int:
        """Bytes of a row that TMA brings, or takes."""
        return 2 * self.head_dim

    @property
    def k_steps(self) -> int:
        """Products of 16 k that make a score."""
        return ceil(self.head_dim / 16)

    @property
    def pads_k(self) -> bool:
        """Whether these read 8 elements of a row behind D."""
        return self.head_dim % 16 > 0

    @staticmethod
    def described(*axes: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents of axes, and their strides as a map may have them: one element may have any; a
        legal one stands for it.
        """
        strides = tuple(stride if extent > 1 else 16 for extent, stride in axes)
        return tuple(extent for extent, _ in axes), strides

    @classmethod
    def map_axes(cls, x: ArrayView) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides of the axes of a map but for D."""
        return cls.described(*((x.shape[i], x.strides[i]) for i in (2, 3, 1, 0)))

    def operand_map(
        self, x: ArrayView, positions: int, rows: int = 1, l2_promotion: int = 128
    ) -> TensorMap:
        """The map of x [B, N, L, H, D]: (D, L, H, N, B), with boxes of so many positions and rows
        N.
        """
        extents, strides = self.map_axes(x)
        return TensorMap(
            self.dtype,
            x.pointer,
            (self.head_dim, *extents),
            strides,
            (self.head_dim, positions, 1, rows, 1),
            swizzle=self.row_bytes,
            l2_promotion=l2_promotion,
        )
