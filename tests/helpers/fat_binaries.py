"""What tests of exported folders need beside the package."""

import pytest

from cuevo.errors import CuevoError
from cuevo.ops.export.instances import require_extra


def need_fat_binaries() -> None:
    """Skips the test where none can be made."""
    try:
        require_extra()
    except CuevoError as error:
        pytest.skip(str(error))
