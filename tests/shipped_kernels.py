"""The kernel instances that a user can get, a sample that a test can afford, and their digests.

A digest that differs from the pinned one says that the instructions of a kernel have changed;
comments, line information and the places of macros do not count. After a change that is meant to
change them:

    python tests/shipped_kernels.py

writes tests/kernels/shipped.json anew. The tests assemble a sample; every configuration that a call
can get, in both dtypes, with every set of biases, is assembled for each of the architectures by

    python tests/shipped_kernels.py spills [ARCH ...]

which names those that spill and takes a quarter of an hour on two cores.
"""

import json
import sys
from collections.abc import Iterator
from itertools import product
from multiprocessing import Pool
from pathlib import Path

from cuevo.architectures import architecture
from cuevo.assemble import assemble
from cuevo.kernels import attention_scores_sm80 as scores
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.template import RenderedKernel, render

PINS = Path(__file__).parent / "kernels" / "shipped.json"
HEAD_DIMS = tuple(range(8, 129, 8))
SPILL_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

# Type of the mask, type of the pair bias, alignment of its rows; "own" is the dtype of q. The keys
# fill their tiles with the first one only.
BIASES = (
    ("none", "none", 16),
    *((mask, "none", 16) for mask in ("none", "bool", "own", "f32")),
    *(
        (mask, pair, alignment)
        for (mask, pair), alignment in zip(
            product(("none", "bool", "own", "f32"), ("own", "f32")),
            (16, 8, 4, 16, 2, 4, 8, 16),
            strict=True,
        )
    ),
    ("own", "own", 16),
    ("f32", "f32", 16),
)


def configurations(head_dim: int, dtype: str, biases: int) -> list[forward.Config]:
    """The candidates for `BIASES[biases]` that some architecture can run."""
    mask, pair, alignment = BIASES[biases]
    keys = 256 if biases == 0 else 257
    types = (dtype if mask == "own" else mask, dtype if pair == "own" else pair)
    problem = forward.Problem(1, 8, 2, 256, keys, head_dim, dtype, *types, alignment)
    roomy = architecture("sm_90")
    offered = (config for config, _ in forward.candidates(problem))
    return [config for config in offered if not forward.violations(config, roomy, problem)]


def instances(head_dim: int) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values; every tiling and every set of biases meets some of the other."""
    for biases in range(len(BIASES)):
        dtype = ("bf16", "f16")[(head_dim // 8 + biases) % 2]
        for index, config in enumerate(configurations(head_dim, dtype, biases)):
            # A fifth of all, another fifth for the next head dim.
            if (biases + 2 * index + head_dim // 8) % 5 == 0:
                tiling = (
                    f"{config.block_rows}x{config.block_queries}x{config.block_keys}"
                    f"-m{config.m_tiles}-stages{config.stages}-blocks{config.min_blocks}"
                )
                width = [] if config.pair == "none" else [str(config.pair_copy_bytes)]
                name = "-".join((f"D{head_dim}", dtype, tiling, config.mask, config.pair, *width))
                yield f"forward-{name}", forward.NAME, forward.values(config)
    dtype = ("bf16", "f16")[head_dim // 8 % 2]
    yield (
        f"scores-D{head_dim}-{dtype}",
        scores.NAME,
        scores.values(scores.Config(head_dim=head_dim, dtype=dtype)),
    )


def rendered(head_dim: int) -> Iterator[tuple[str, RenderedKernel]]:
    for name, kernel, values in instances(head_dim):
        yield name, render(kernel, values)


def digests(head_dim: int) -> dict[str, str]:
    """Name to the first half of the digest of its code."""
    return {name: kernel.code_digest[:32] for name, kernel in rendered(head_dim)}


def spilling(case: tuple[str, int, str, int]) -> tuple[int, int, list[str]]:
    """For one architecture, head dim, dtype and set of biases: how many configurations can be
    chosen, how many of them need what `forward.roomier` offers, and which spill even so.
    """
    arch, head_dim, dtype, biases = case
    runs = [
        config
        for config in configurations(head_dim, dtype, biases)
        if not forward.violations(config, architecture(arch))
    ]
    helped, spilt = 0, []
    for chosen in runs:
        for config in forward.roomier(chosen):
            cubin = assemble(render(forward.NAME, forward.values(config)), arch, cache=None)
            found = cubin.resources
            if (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0):
                helped += config != chosen
                break
        else:
            spilt.append(f"{arch}: {chosen}: {found}")
    return len(runs), helped, spilt


def report_spills(archs: list[str]) -> int:
    """1 where some configuration spills."""
    failed = 0
    for arch in archs:
        cases = list(product([arch], HEAD_DIMS, ("bf16", "f16"), range(len(BIASES))))
        runs, helped = 0, 0
        with Pool() as pool:
            for count, more, spilt in pool.imap_unordered(spilling, cases):
                runs, helped, failed = runs + count, helped + more, failed + len(spilt)
                print(*spilt, sep="\n", end="\n" if spilt else "", flush=True)
        print(f"{arch}: {runs} configurations, {helped} with fewer blocks or queries", flush=True)
    print(f"{failed} spill")
    return int(failed > 0)


def write_pins() -> None:
    found: dict[str, str] = {}
    for head_dim in HEAD_DIMS:
        found |= digests(head_dim)
    PINS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} digests in {PINS}")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["spills"]:
        return report_spills(arguments[1:] or list(SPILL_ARCHS))
    write_pins()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
