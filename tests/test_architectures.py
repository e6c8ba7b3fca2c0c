"""cuevo.architectures: limits of the compute capabilities."""

import pytest

from cuevo.architectures import Architecture, architecture, check_exists

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


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "expected"),
    [
        ("sm_80", 128, 234, 49152, (2, 8, 64, "registers")),
        ("sm_80", 128, 32, 0, (16, 64, 64, "threads and registers")),
        ("sm_80", 128, 33, 0, (12, 48, 64, "registers")),
        ("sm_80", 32, 16, 0, (32, 32, 64, "blocks")),
        ("sm_80", 33, 16, 0, (32, 64, 64, "threads and blocks")),
        ("sm_80", 256, 32, 80 * 1024, (2, 16, 64, "shared memory")),
        ("sm_86", 256, 40, 0, (6, 48, 48, "threads and registers")),
        ("sm_75", 1024, 64, 0, (1, 32, 32, "threads and registers")),
        ("sm_90a", 384, 168, 100 * 1024, (1, 12, 64, "registers")),
    ],
)
def test_occupancy(
    name: str, threads: int, registers: int, shared: int, expected: tuple[int, int, int, str]
) -> None:
    found = architecture(name).occupancy(threads, registers, shared)
    assert (found.blocks, found.warps, found.most_warps, found.limit) == expected


@pytest.mark.parametrize("name", ["sm_85", "sm_91", "sm_80a", "sm_75a", "sm_130"])
def test_what_does_not_exist_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"there is no architecture {name}.*Known: sm_70, sm_72"):
        check_exists(name)


def test_what_exists_is_not_refused() -> None:
    for name in ("sm_70", "sm_75", "sm_89", "sm_90", "sm_90a", "sm_100f", "sm_103a", "sm_121"):
        check_exists(name)
