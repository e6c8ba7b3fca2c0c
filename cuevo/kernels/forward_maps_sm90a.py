"""The tensor maps of ``ptx/evoformer_forward_sm90a.ptx``."""

from abc import abstractmethod
from dataclasses import replace

from cuevo.arrays import ArrayView
from cuevo.cuda.tensor_map import TensorMap
from cuevo.kernels.operand_rows_sm90a import OperandRows

__all__ = ["Maps"]


class Maps(OperandRows):
    """Of q, k, v, out, and of a pair bias that is converted. `evoformer_forward_sm90a.Config` says
    what the numbers are made of.
    """

    block_keys: int
    block_rows: int
    pair: str

    @property
    @abstractmethod
    def block_queries(self) -> int: ...

    @property
    @abstractmethod
    def stored_queries(self) -> int: ...

    def q_map(self, q: ArrayView, l2_promotion: int = 128) -> TensorMap:
        """The map of q [B, N, Lq, H, D]: (D, Lq, H, N, B)."""
        return self.operand_map(q, self.block_queries, self.block_rows, l2_promotion)

    def k_map(self, k: ArrayView, l2_promotion: int = 128) -> TensorMap:
        """The map of k or v [B, N, Lk, H, D], likewise."""
        return self.operand_map(k, self.block_keys, self.block_rows, l2_promotion)

    def out_map(self, out: ArrayView) -> TensorMap:
        """The map of out [B, N, Lq, H, D], likewise."""
        return self.operand_map(out, self.stored_queries)

    def pair_map(self, pair_bias: ArrayView) -> TensorMap:
        """The map of pair_bias [B, 1, H, Lq, Lk]: (Lk, Lq, H, 1, B), where batches that share it
        are one.
        """
        extents, strides = self.pair_axes(pair_bias)
        return TensorMap(
            self.pair,
            pair_bias.pointer,
            (pair_bias.shape[4], *extents),
            strides,
            (self.block_keys, self.block_queries, 1, 1, 1),
            swizzle=2 * self.block_keys,
            l2_promotion=128,
        )

    @staticmethod
    def pair_as_tiles(pair_bias: ArrayView) -> ArrayView:
        """A pair bias that is converted as `parameters` is told of it: its axes B and H."""
        batch, _, heads, *rest = pair_bias.shape
        of_batch, _, of_head, *others = pair_bias.strides
        return replace(
            pair_bias, shape=(batch, heads, 1, *rest), strides=(of_batch, of_head, 0, *others)
        )

    @classmethod
    def pair_axes(cls, pair_bias: ArrayView) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides of the axes of that map but for Lk."""
        of_batch, _, of_head, of_query, _ = pair_bias.strides
        batch, _, heads, queries, _ = pair_bias.shape
        batches = batch if of_batch else 1
        return cls.described((queries, of_query), (heads, of_head), (1, 0), (batches, of_batch))
