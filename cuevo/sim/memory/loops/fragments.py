"""Elements of matrices out of the registers that hold several each."""

from typing import Any


def take_parts(registers: Any, places: Any, width: int, found: Any) -> None:
    """Each row of `found` gets `width` bits of a row of `registers`, (rows, warps) both: of which,
    and which of its parts, is in `places` as one number.
    """
    rows, warps = registers.shape
    for i in range(places.size):
        part, row = divmod(places[i], rows)
        shift = width * part
        for warp in range(warps):
            found[i, warp] = registers[row, warp] >> shift
