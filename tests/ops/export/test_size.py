"""How large the folder for structure models is (docs/embedding-c.md), told from the texts of its
kernels: machine code is as long as they are, and is compressed.
"""

import pytest

from cuevo.ops.export.folder import planner
from cuevo.ops.export.instances import Instances
from cuevo.ops.export.selection import Selection

PROMISED = Selection(
    ("forward", "backward"),
    (8, 16, 24, 32, 48, 64),
    ("bf16",),
    ("sm_80", "sm_90a", "sm_100", "sm_120"),
)
BYTES = 0.1
"""Of a fat binary, for each character of a kernel's text and each architecture; measured."""
SAMPLED = 3


@pytest.mark.unit
def test_the_folder_for_structure_models_is_no_larger_than_it_is_said_to_be() -> None:
    instances = Instances()
    sources = planner(PROMISED, instances)
    characters = 0
    for each in [*instances][::SAMPLED]:
        characters += SAMPLED * len(each.render().text) * len(each.architectures)
    size = BYTES * characters + sum(map(len, sources.values()))
    assert 27e6 < size < 33e6
