"""Random calls for the planner in C and for Python, of arrays at addresses that nothing is at."""

import math
import os

import numpy as np
from helpers.c_planner import DTYPES

from cuevo.arrays import ArrayView
from cuevo.ops.export.selection import Products, Selection

PROBLEMS = int(os.environ.get("CUEVO_PLANNER_PROBLEMS", "100"))
"""In either direction, and five times as many products: a thousand and more before a release,
which then have all head dims of real models."""
SELECTION = Selection(
    ("forward", "backward", "gemm"),
    (8, 32, 64) if PROBLEMS < 1000 else (8, 16, 24, 32, 48, 64),
    ("bf16", "f16"),
    ("sm_80", "sm_90a"),
    ("none", "own", "f32") if PROBLEMS < 1000 else ("none", "own", "f32", "bool"),
    ("none", "own") if PROBLEMS < 1000 else ("none", "own", "f32"),
    Products(
        orders=("nn", "nt", "tn", "tt"),
        results=("own", "f32"),
        addends=("none", "own") if PROBLEMS < 1000 else ("none", "own", "f32"),
        biases=("none", "own") if PROBLEMS < 1000 else ("none", "own", "result"),
        scatters=("none", "i32") if PROBLEMS < 1000 else ("none", "i32", "i64"),
        alignments=(16, 2),
    ),
)
LENGTHS = (1, 7, 16, 31, 63, 64, 65, 80, 127, 128, 129, 130, 200, 256, 300, 384, 513, 769, 1024)
EXTENTS = (1, 2, 5, 8, 30, 37, 64, 96, 128, 192, 200, 264, 512, 777, 1024, 2048, 4096, 16384)


class Drawing:
    """Random problems at addresses that nothing is at."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._next = 1 << 40

    def choice(self, *of: object) -> object:
        return of[self.rng.integers(len(of))]

    def array(self, shape: tuple[int, ...], kind: str, order: tuple[int, ...]) -> ArrayView:
        """An array whose axes lie in that order, the last fastest, perhaps with gaps."""
        step = DTYPES[kind].itemsize
        strides = [0] * len(shape)
        for axis in reversed(order):
            strides[axis] = step
            step *= shape[axis]
            if axis == order[-1] and self.rng.random() < 0.3:
                step = -(-step // 16) * 16
        self._next += 1 << 36
        return ArrayView(self._next, shape, tuple(strides), DTYPES[kind], "cpu", False, None)

    def bias(self, shape: tuple[int, ...], kind: str, single: int) -> ArrayView:
        order = tuple(int(x) for x in self.rng.permutation(5))
        if self.rng.random() < 0.5:
            order = (0, 1, 3, 4, 2) if self.rng.random() < 0.5 else (0, 1, 2, 3, 4)
        own = tuple(1 if i < single and self.rng.random() < 0.3 else n for i, n in enumerate(shape))
        found = self.array(own, kind, order)
        if self.rng.random() < 0.2:
            found.pointer += int(self.rng.integers(1, 16))
        if self.rng.random() < 0.1:
            found.strides = (0, *found.strides[1:])
        return found

    def attention(self) -> tuple[dict[str, ArrayView], float]:
        rng = self.rng
        batch, rows = int(rng.choice((1, 1, 2, 3))), int(rng.choice((1, 2, 5, 64, 129, 512)))
        heads = int(rng.choice((1, 3, 4, 8, 16)))
        queries, keys = (int(rng.choice(LENGTHS)) for _ in range(2))
        head_dim, kind = int(rng.choice(SELECTION.head_dims)), str(rng.choice(SELECTION.dtypes))
        orders = ((0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (1, 0, 3, 2, 4))
        views = {}
        for name, length in (("q", queries), ("k", keys), ("v", keys)):
            shape = (batch, rows, length, heads, head_dim)
            views[name] = self.array(shape, kind, orders[rng.integers(3)])
        mask, pair = str(rng.choice(SELECTION.masks)), str(rng.choice(SELECTION.pairs))
        own = {"own": kind}
        if mask != "none":
            shape = (batch, rows, 1, 1, keys)
            views["mask_bias"] = self.bias(shape, own.get(mask, mask), 2)
        if pair != "none":
            shape = (batch, 1, heads, queries, keys)
            views["pair_bias"] = self.bias(shape, own.get(pair, pair), 1)
        out = self.array((batch, rows, queries, heads, head_dim), kind, orders[0])
        if rng.random() < 0.1:  # backwards
            axis = int(rng.integers(1, 4))
            out.strides = tuple(-x if i == axis else x for i, x in enumerate(out.strides))
        views["out"] = out
        if rng.random() < 0.5:
            lse = self.array((batch, rows, heads, queries), "f32", (0, 1, 2, 3))
            lse.strides = tuple(4 * math.prod(lse.shape[i + 1 :]) for i in range(4))
            views["lse"] = lse
        scale = float(self.choice(head_dim**-0.5, -0.3, 1e-20, 0.0, 2.5))
        return views, scale

    def matrix(
        self, batch: int, rows: int, columns: int, kind: str, *, order: str = "n"
    ) -> ArrayView:
        """[batch, rows, columns], or [rows, columns] where batch is 0, of contiguous rows, or
        columns where the order is "t"; perhaps apart, backwards, broadcast or hardly aligned.
        """
        rng, size = self.rng, DTYPES[kind].itemsize
        length, lines = (rows, columns) if order == "t" else (columns, rows)
        step = length * size + (size * int(rng.integers(9)) if rng.random() < 0.2 else 0)
        step = -(-step // 16) * 16 if rng.random() < 0.6 else step
        outer = step * lines
        step, outer = (int(rng.choice((1, 1, 1, 1, 1, -1))) * x for x in (step, outer))
        self._next += 1 << 40
        pointer = self._next + (size * int(rng.integers(1, 9)) if rng.random() < 0.1 else 0)
        strides = (outer, size, step) if order == "t" else (outer, step, size)
        first = 0 if batch else 1
        shape = (batch, rows, columns)
        return ArrayView(pointer, shape[first:], strides[first:], DTYPES[kind], "cpu", False, None)

    def vector(self, length: int, kind: str) -> ArrayView:
        self._next += 1 << 40
        size = DTYPES[kind].itemsize
        return ArrayView(self._next, (length,), (size,), DTYPES[kind], "cpu", False, None)

    def product(self) -> tuple[dict[str, ArrayView], float, float]:
        """Operands and result of a matrix product, and its factors."""
        rng, served = self.rng, SELECTION.products
        batch = int(rng.choice((0, 0, 0, 1, 2, 7)))
        m, n, k = (int(rng.choice(EXTENTS)) for _ in range(3))
        k = 0 if rng.random() < 0.03 else k
        kind = str(rng.choice(SELECTION.dtypes))
        order, result, addend, bias, scatter = (
            str(rng.choice(x))
            for x in (
                *(served.orders, served.results, served.addends, served.biases, served.scatters),
            )
        )
        alone = int(rng.choice((0, 0, 1, 2))) if batch else 0
        own = {"own": kind}
        out = own.get(result, result)
        views = {
            "a": self.matrix(0 if alone == 1 else batch, m, k, kind, order=order[0]),
            "b": self.matrix(0 if alone == 2 else batch, k, n, kind, order=order[1]),
        }
        rows = m if scatter == "none" else int(rng.choice((1, m, 3 * m)))
        if addend != "none":
            views["c"] = self.matrix(
                batch if rng.random() < 0.7 else 0, rows, n, own.get(addend, addend)
            )
        if bias != "none":
            views["bias"] = self.vector(n, out if bias == "result" else kind)
        if scatter != "none":
            views["scatter"] = self.vector(m, scatter)
        views["out"] = self.matrix(batch, rows, n, out)
        beta = 1.0 if rng.random() < 0.8 else 0.0
        return views, float(rng.choice((1.0, -0.25, 1e-3, -0.0))), beta
