"""Single lines of shipped kernels changed: each is caught as the table says, the originals clean.

A mutation is caught by a fault of the executor, which names the line where the effect shows, or by
the comparison of the results with float64 and of the bytes around them with what they were. Those
that only compute something else from what is there (a stride, a stage, a swizzle of one side) can
be caught by their results alone.

What cannot be caught:

- orders in global memory: it is sequentially consistent here, and has no tags that say which
  threads wrote and read; fences, and barriers between global accesses, may be missing;
- barriers where another one orders the same accesses: nothing is wrong without them.

A test holds that these are not caught, so that they move when the executor learns.
"""

import re

import pytest
from sim.broken.mutations import MUTATIONS, Mutation
from sim.broken.originals import CASES, original

from cuevo.errors import SimulatorError
from cuevo.sim import Budget
from cuevo.sim.run import budget

pytestmark = pytest.mark.kernel


def those(*catches: str) -> pytest.MarkDecorator:
    chosen = [mutation for mutation in MUTATIONS if mutation.catch in catches]
    assert chosen
    return pytest.mark.parametrize("mutation", chosen, ids=[each.name for each in chosen])


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without end is to be noticed soon."""
    monkeypatch.setattr(budget, "DEFAULT", Budget(instructions=1_000_000))


def run(mutation: Mutation) -> None:
    """The original's launches with the mutated kernel, and the comparison."""
    whole = original(mutation.original)
    place = whole.find(mutation.kernel)
    whole.again(place, mutation.apply(whole.launches[place].kernel))
    whole.check()


@pytest.mark.parametrize("name", CASES)
def test_originals(name: str) -> None:
    whole = original(name)
    whole.check()
    whole.again(0)
    whole.check()


@those("fault")
def test_faults(mutation: Mutation) -> None:
    with pytest.raises(SimulatorError) as caught:
        run(mutation)
    first, _, kernel, *more = str(caught.value).splitlines()
    assert first.startswith(f"ptx/{mutation.at.file}:{mutation.at.line}: ")
    assert re.search(mutation.says, first)
    assert kernel.startswith(f"  in {mutation.kernel.partition(':')[0]}(")
    *called, thread = [line for line in more if not line.startswith("  earlier")]
    assert re.fullmatch(r"  (first: )?block \(.*\), thread \(.*\) \[warp \d+, lane \d+\]", thread)
    assert all(re.fullmatch(r"  called at ptx/[\w/.]+\.ptx:\d+", line) for line in called)
    assert called or not mutation.at.file.startswith("lib/")


@those("result")
def test_results(mutation: Mutation) -> None:
    with pytest.raises(AssertionError, match=r"wrong|were written|has changed"):
        run(mutation)


@those("harmless", "uncaught")
def test_what_is_not_caught(mutation: Mutation) -> None:
    assert mutation.says
    run(mutation)


def test_the_table() -> None:
    caught = [mutation for mutation in MUTATIONS if mutation.catch in ("fault", "result")]
    assert len(caught) >= 240 and len(MUTATIONS) >= 250
    assert {mutation.catch for mutation in MUTATIONS} == {"fault", "result", "harmless", "uncaught"}
    kernels = {mutation.kernel for mutation in caught}
    assert kernels == {
        "attention_delta_sm70",
        "evoformer_backward_sm80:keys",
        "evoformer_backward_sm80:queries",
        "evoformer_backward_sm90a",
        "evoformer_forward_sm80",
        "evoformer_forward_sm90a",
        "gemm_sm75",
        "gemm_sm80",
        "gemm_sm90a",
        "key_bias_sm70",
        "pack_sm70",
        "partial_sums_sm70",
    }
