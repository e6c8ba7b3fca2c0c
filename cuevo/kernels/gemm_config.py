"""Base of all GEMM configurations: tile, types, orders of the operands, epilogue."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuevo.kernels import choice
from cuevo.layouts.tiles import OutputTile

SIZES = {"f16": 2, "bf16": 2, "f32": 4}


@dataclass(frozen=True)
class ProductConfig:
    """Fields that every GEMM kernel has, and what they make of its epilogue (lib/gemm.ptx).

    The epilogue brings accumulators to rows of d slab by slab, through shared memory of each warp's
    own: a slab is `slab_rows` rows of `slab_columns` columns.
    """

    block_m: int = 128
    """Rows of d of a threadblock's tile."""
    block_n: int = 128
    """Columns of d of a threadblock's tile."""
    stages: int = 3
    """Shared-memory stages of a and b."""
    dtype: str = "bf16"
    """Type of a and b: f16 or bf16."""
    out_dtype: str = "bf16"
    """Type of d, and of bias unless that is of the inputs: f16, bf16 or f32."""
    a_columns: bool = False
    """The columns of a are contiguous, not its rows."""
    b_columns: bool = False
    """The columns of b are contiguous, not its rows."""
    c: str = "none"
    """Type of c: none, f16, bf16 or f32."""
    bias: bool = False
    """A row vector is added to every row of d."""
    bias_of_inputs: bool = False
    """The row vector has the type of a and b, beside a d of f32."""
    scatter: bool = False
    """Rows of c and d go through an index vector."""
    index_bytes: int = 8
    """Bytes of an index: 8 or 4."""
    c_access: int = 16
    """Bytes of a load of c."""
    d_access: int = 16
    """Bytes of a store of d."""
    exact: bool = False
    """Rows of c and d end with a whole access: no element needs a predicate of its own."""
    raster: int = 8
    """Tile rows that are walked together, for operands to stay in L2."""

    def __post_init__(self) -> None:
        choice.check_types(self)

    if TYPE_CHECKING:

        @property
        def instruction(self) -> str: ...
        @property
        def accumulate(self) -> str: ...
        @property
        def threads(self) -> int: ...
        @property
        def min_blocks(self) -> int: ...
        @property
        def slab_rows(self) -> int: ...
        @property
        def slab_columns(self) -> int: ...

    @property
    def registers(self) -> int:
        """Registers that the launch bounds leave a thread."""
        return choice.registers(self)

    # -- The epilogue ------------------------------------------------------------------------------

    @property
    def bias_dtype(self) -> str:
        """Type of the bias, where there is one."""
        return self.dtype if self.bias_of_inputs else self.out_dtype

    @property
    def staged_bytes(self) -> int:
        """Bytes of an element of d while it is staged in shared memory: 4 as long as something is
        to be added to it.
        """
        return 4 if self.c != "none" or self.bias else SIZES[self.out_dtype]

    @property
    def slab_pitch(self) -> int:
        """Bytes from a staged row to the next: neighbouring rows begin in different banks."""
        if self.instruction == "m8n8k4":
            padding = 32 if (self.staged_bytes, self.accumulate) == (2, "f32") else 16
        else:
            padding = 32 if self.staged_bytes == 4 else 16
        return self.slab_columns * self.staged_bytes + padding

    @property
    def slab_gap(self) -> int:
        """Bytes left free after every 8 staged rows: rows of m8n8k4's lanes are 8 apart."""
        return 64 if self.instruction == "m8n8k4" else 0

    @property
    def slab_bytes(self) -> int:
        """Shared memory of a warp's slab."""
        return self.slab_offset(self.slab_rows)

    def slab_offset(self, row: int) -> int:
        """Bytes from the beginning of a slab to a staged row."""
        return row * self.slab_pitch + row // 8 * self.slab_gap

    @property
    def staged_run(self) -> int:
        """Neighbouring columns of a lane that one store stages."""
        packed = self.instruction == "m8n8k4" and self.accumulate == "f16"
        return 16 // self.staged_bytes if packed else 2

    def _output(self, name: str, dtype: str, access: int) -> OutputTile:
        return OutputTile(
            name,
            threads=32,
            columns=self.slab_columns,
            rows=self.slab_rows,
            element_bytes=SIZES[dtype],
            width=16 // SIZES[self.out_dtype],
            access=access,
            exact=self.exact,
            scatter=self.scatter,
            index_bytes=self.index_bytes,
        )

    @property
    def d_tile(self) -> OutputTile:
        """A slab of d in global memory."""
        return self._output("d", self.out_dtype, self.d_access)

    @property
    def c_tile(self) -> OutputTile:
        """A slab of c in global memory."""
        return self._output("c", self.c, self.c_access)

    @property
    def whole_access(self) -> int:
        """Elements that every access of c and d is a divisor of."""
        d = self.d_access // SIZES[self.out_dtype]
        return max(d, 1 if self.c == "none" else self.c_access // SIZES[self.c])


def type_violations(config: ProductConfig) -> Iterator[str]:
    """Why no kernel has instances of these types."""
    c = config
    if c.dtype not in ("f16", "bf16") or c.out_dtype not in SIZES or c.c not in ("none", *SIZES):
        yield f"types are f16, bf16 or f32 (f32: c and d only); got {c.dtype}, {c.out_dtype}, {c.c}"


def output_violations(config: ProductConfig) -> Iterator[str]:
    """Why its epilogue cannot access c and d so; types are legal."""
    c = config
    if c.bias_of_inputs and not (c.bias and c.out_dtype == "f32"):
        yield "bias_of_inputs is for a bias beside a d of f32"
    if c.index_bytes not in (8, 4) or (c.index_bytes != 8 and not c.scatter):
        yield f"index_bytes must be 8, or 4 with scatter; got {c.index_bytes}"
    for name, access, dtype in (("c", c.c_access, c.c), ("d", c.d_access, c.out_dtype)):
        if dtype != "none" and (access not in (2, 4, 8, 16) or access < SIZES[dtype]):
            yield f"{name}_access must be 16, 8, 4 or 2, and at least an element; got {access}"
            return
    yield from c.d_tile.violations()
