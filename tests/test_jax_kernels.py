"""Programs of cuevo.jax for CUDA devices: the launches that XLA makes give the bits of the calls
that come back to Python, and are stored with the program.
"""

from collections.abc import Callable
from typing import Any

import pytest

jax: Any = pytest.importorskip("jax")

from helpers.jax_calls import check, make, plain, split  # noqa: E402
from helpers.jax_programs import Program, export  # noqa: E402

from cuevo.jax.primitives import backward_p, forward_p  # noqa: E402

jnp: Any = jax.numpy


def forward(names: tuple[str, ...]) -> Callable[..., Any]:
    return lambda *x: forward_p.bind(*x, names=names, scale=0.3)


def backward(names: tuple[str, ...], wanted: tuple[str, ...]) -> Callable[..., Any]:
    return lambda *x: backward_p.bind(*x, names=names, wanted=wanted, scale=0.3)


@pytest.mark.kernel
@pytest.mark.parametrize(
    "mask, pair, sizes",
    [
        ("float32", "bfloat16", (2, 3, 24, 40, 2, 16)),
        ("bool", "float32", (1, 2, 19, 37, 3, 24)),
        ("", "", (1, 1, 9, 8, 1, 8)),
    ],
    ids=["both", "ragged", "none"],
)
def test_launches_give_the_bits_of_calls(mask: str, pair: str, sizes: tuple[int, ...]) -> None:
    arguments = make("cpu", mask=mask, pair=pair, sizes=sizes)
    names = tuple(arguments)
    wanted = tuple(split(arguments)[0])
    given = [*arguments.values()]
    program = Program(export(forward(names), *given))
    found = program(*given)
    expected = jax.jit(forward(names))(*given)
    assert all((x == y).all() for x, y in zip(found, expected, strict=True))
    check("out", found[0], plain(**arguments, scale=0.3), "bfloat16")
    out = expected[0]
    dout = jnp.cos(jnp.arange(out.size)).reshape(out.shape).astype(out.dtype)
    given += [*expected, dout]
    program = Program(export(backward(names, wanted), *given))
    found = program(*given)
    expected = jax.jit(backward(names, wanted))(*given)
    for name, x, y in zip(wanted, found, expected, strict=True):
        assert (x == y).all(), name
