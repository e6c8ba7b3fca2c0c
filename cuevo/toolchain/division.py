"""Division by a number that is known before a kernel runs, as lib/divide.ptx does it."""


def magic(divisor: int) -> tuple[int, int]:
    """Multiplier and shift with ``n // divisor == n * multiplier >> shift`` for 0 <= n < 2^31.

    The multiplier is 2^shift / divisor rounded up, of 32 bits: with shift = 31 + ceil(log2 divisor)
    its excess, below 1 / divisor of itself, cannot reach the next quotient. Source: Granlund and
    Montgomery, "Division by Invariant Integers using Multiplication", 1994.
    """
    if not 1 <= divisor < 2**31:
        raise ValueError(f"a divisor is from 1 to 2^31 - 1; got {divisor}")
    shift = 31 + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift


def magic_fields(**divisors: int) -> dict[str, int]:
    """`magic` of each divisor as fields of a parameter block, NAME_magic and NAME_shift.

    >>> magic_fields(heads=3)
    {'heads_magic': 2863311531, 'heads_shift': 33}
    """
    found = {}
    for name, divisor in divisors.items():
        found[f"{name}_magic"], found[f"{name}_shift"] = magic(divisor)
    return found
