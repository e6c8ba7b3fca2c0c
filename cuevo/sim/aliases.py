"""Names for the types that pass between the parts of the executor."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
AnyDType = np.dtype[Any]
Mask = NDArray[np.bool_] | None
"""Lanes that take part, shape (32, warps); None stands for all of them."""
Write = Callable[[AnyArray, Mask], None]
"""Writes a result for lanes, such as to a register."""
Step = Callable[[Mask], None]
"""An instruction bound to the registers of a machine."""
