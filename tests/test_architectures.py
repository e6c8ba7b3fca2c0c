"""cuevo.architectures: limits of the compute capabilities."""

import pytest

from cuevo.architectures import Architecture, architecture

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "number", "block", "multiprocessor", "threads"),
    [
        ("sm_70", 70, 96, 96, 2048),
        ("sm_75", 75, 64, 64, 1024),
        ("sm_80", 80, 163, 164, 2048),
        ("sm_86", 86, 99, 100, 1536),
        ("sm_89", 89, 99, 100, 1536),
        ("sm_90", 90, 227, 228, 2048),
        ("sm_100", 100, 227, 228, 2048),
        ("sm_120", 120, 99, 100, 1536),
    ],
)
def test_limits(name: str, number: int, block: int, multiprocessor: int, threads: int) -> None:
    found = architecture(name)
    assert isinstance(found, Architecture)
    assert (found.name, found.number) == (name, number)
    assert found.shared_per_block == block * 1024
    assert found.shared_per_multiprocessor == multiprocessor * 1024
    assert found.threads_per_multiprocessor == threads
    assert found.multiprocessors > 0


@pytest.mark.parametrize("suffix", ["a", "f"])
def test_features_of_one_architecture_change_no_limit(suffix: str) -> None:
    plain, special = architecture("sm_90"), architecture(f"sm_90{suffix}")
    assert special.name == f"sm_90{suffix}"
    assert vars(special) | {"name": plain.name} == vars(plain)


@pytest.mark.parametrize(
    ("name", "known"), [("sm_88", "sm_87"), ("sm_95", "sm_90"), ("sm_999", "sm_120")]
)
def test_a_newer_one_has_at_least_the_limits_of_the_one_before(name: str, known: str) -> None:
    found, older = architecture(name), architecture(known)
    assert (found.name, found.number) == (name, int(name[3:]))
    assert found.shared_per_block == older.shared_per_block
    assert found.threads_per_multiprocessor == older.threads_per_multiprocessor


@pytest.mark.parametrize(
    "name", ["sm_60", "sm_69", "sm_7", "80", "sm_", "sm_80x", "compute_80", "ampere", ""]
)
def test_what_is_no_architecture(name: str) -> None:
    with pytest.raises(
        ValueError, match="must be sm_70 or later, such as 'sm_80' or 'sm_90a'; got"
    ):
        architecture(name)
