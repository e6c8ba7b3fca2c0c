"""Programs of JAX for CUDA devices, run without one: exported where there is none, and each launch
that XLA would make made on the CPU executor, from what the program says of it.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

import cuevo
from cuevo.jax import DISABLED_CHECKS
from cuevo.jax.kernels import TARGET


@dataclass(frozen=True)
class Launch:
    """A launch as XLA reads it: the text of a dictionary of MLIR."""

    name: str
    text: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, config: str) -> "Launch":
        found = ir.Attribute.parse(config)
        assert found["kernel_type"].value == "ptx"
        return cls(
            found["name"].value,
            found["kernel_data"].value,
            *(tuple(found[f"{x}_{axis}"].value for axis in "xyz") for x in ("grid", "block")),
            found["shared_mem_bytes"].value,
            tuple(x.value for x in found["output_indices"]),
        )

    def run(self, operands: Sequence[Any], results: Sequence[Any]) -> None:
        """Fill `results` on the CPU executor."""
        buffers = [*operands]
        for place, x in zip(self.outputs, results, strict=True):
            buffers.insert(place, x)
        kernel = cuevo.load(self.text, self.name)
        kernel[self.grid, self.block](*buffers, shared=self.shared)


def export(call: Callable[..., Any], *arguments: Any) -> Any:
    """The program of a call for CUDA devices."""
    return jax.export.export(jax.jit(call), platforms=["cuda"], disabled_checks=DISABLED_CHECKS)(
        *arguments
    )


class Program:
    """An exported program all of whose operations are launches."""

    def __init__(self, exported: Any) -> None:
        self._text = exported.mlir_module()
        self._exported = exported
        self.launches: list[Launch] = []
        """Those that have run."""

    def __call__(self, *arguments: Any) -> Any:
        """The results, as NumPy arrays in the tree that the exported function has."""
        with mlir.make_ir_context():
            module = ir.Module.parse(self._text)
            self._functions = {
                op.name.value: op for op in module.body if isinstance(op, func.FuncOp)
            }
            given = [np.array(x) for x in jax.tree.leaves(arguments)]
            found = self._run(self._functions["main"], given)
        return jax.tree.unflatten(self._exported.out_tree, found)

    def _run(self, function: Any, given: Sequence[Any]) -> list[Any]:
        block = function.body.blocks[0]
        values = dict(zip(block.arguments, given, strict=True))
        for op in block:
            operands = [values[x] for x in op.operands]
            if isinstance(op, func.ReturnOp):
                return operands
            if isinstance(op, func.CallOp):
                callee = op.attributes["callee"].value
                found = self._run(self._functions[callee], operands)
            else:
                assert op.attributes["call_target_name"].value == TARGET, op
                found = [_empty(x.type) for x in op.results]
                for operand, result in _updated(op):
                    found[result][...] = operands[operand]
                launch = Launch.of(op.attributes["backend_config"].value)
                launch.run(operands, found)
                self.launches.append(launch)
            values.update(zip(op.results, found, strict=True))
        raise AssertionError("a function returns")


def _updated(op: Any) -> list[tuple[int, int]]:
    """Places of the operands that an operation changes, and of the results that they become."""
    if "output_operand_aliases" not in op.attributes:
        return []
    pattern = r"output_operand_alias<(?:output_tuple_indices = \[(\d+)\], )?operand_index = (\d+)"
    aliases = re.findall(pattern, str(op.attributes["output_operand_aliases"]))
    return [(int(operand), int(result or 0)) for result, operand in aliases]


def _empty(kind: Any) -> Any:
    """An array in which nobody has written: NaN, or another number that is no result; at a
    multiple of 128 bytes, as XLA's.
    """
    kind = ir.RankedTensorType(kind)
    names = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "ui8": "uint8"}
    dtype = jax.numpy.dtype(names[str(kind.element_type)])
    nbytes = dtype.itemsize * math.prod(kind.shape)
    memory = np.full(nbytes + 128, 0xFF, np.uint8)
    return memory[-memory.ctypes.data % 128 :][:nbytes].view(dtype).reshape(kind.shape)
