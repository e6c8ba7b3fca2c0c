"""The tool that draws problems: it draws the same ones again, right results pass, and one element
that is wrong is found and named.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import attention_cases
from helpers.attention_cases import store
from helpers.backward_cases import GRADS
from helpers.guarded import lay_out

import cuevo
import random_problems

FEW = ["--device", "sim", "--processes", "1", "--seed", "3"]


@pytest.mark.unit
def test_a_number_and_a_seed_make_a_problem() -> None:
    made, again, other = (random_problems.draw(seed, 8, "sim", ["numpy"]) for seed in (3, 3, 4))
    assert str(made) == str(again) != str(other)
    for name, x in made.inputs.items():
        assert x.array.strides == again.inputs[name].array.strides
        assert x.array.tobytes() == again.inputs[name].array.tobytes()


@pytest.mark.unit
def test_problems_have_all_that_there_is() -> None:
    drawn = [random_problems.draw(5, index, "sim", ["numpy", "torch"]) for index in range(60)]
    operands = [
        (problem.front_end, name, problem.inputs[name])
        for problem in drawn
        for name in ("q", "dout", "pair_bias")
        if name in problem.inputs
    ]

    def some(fits: Any) -> bool:
        return any(fits(x.array) for _, _, x in operands)

    assert some(lambda x: any(stride < 0 for stride in x.strides))
    assert some(lambda x: 0 in x.strides)
    assert some(lambda x: x.strides[-1] != x.itemsize)
    assert some(lambda x: x.ctypes.data % 16)
    for front_end, name, x in operands:
        assert front_end != "torch" or min(x.array.strides) >= 0
        if front_end == "numpy" and name == "q":
            steps = [x.array.ctypes.data, *x.array.strides[:4]]
            assert x.array.strides[4] == x.array.itemsize and not any(step % 16 for step in steps)
    lengths = [problem.case.queries for problem in drawn]
    assert min(lengths) < 8 and max(lengths) > 64
    assert sum(length % 8 in (0, 1, 7) for length in lengths) > len(lengths) // 2


@pytest.mark.kernel
@pytest.mark.parametrize("front_end", random_problems.available("sim"))
def test_right_results_pass(front_end: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not random_problems.main([*FEW, "--count", "3", "--front-ends", front_end])
    assert capsys.readouterr().out.startswith("3 problems, 0 wrong\n")


@pytest.mark.unit
@pytest.mark.parametrize("same", ["k", "q", None])
def test_one_rounding_of_all_probabilities_passes(same: str | None) -> None:
    """Where all keys are the same one, or all results, the rounding of P is that of out; else it
    cancels out.
    """
    drawn = (random_problems.draw(3, index, "sim", ["numpy"]) for index in range(400))
    problem = next(
        x for x in drawn if x.case.values == "normal" and x.case.keys > 1 and x.case.queries > 1
    )
    inputs = {name: x for name, x in problem.inputs.items() if name != "pair_bias"}
    rng = np.random.default_rng(4)
    for name in "qk":
        x = inputs[name].array
        inputs[name] = lay_out(x.shape, x.dtype, broadcast=(2,) if name == same else ())
        values = rng.standard_normal(x.shape)
        store(inputs[name].array, values[:, :, :1] if name == same else values)
    problem = replace(problem, case=replace(problem.case, pair="none"), inputs=inputs)
    operands = {name: inputs[name] for name in GRADS if name in inputs}
    out, lse = attention_cases.expected(problem.case, operands)
    off = random_problems.ROUNDING[problem.case.dtype]
    if same:
        random_problems.check_result(problem, out * (1.0 + 1.5 * off), lse)
    with pytest.raises(AssertionError, match="relative error"):
        random_problems.check_result(problem, out * (1.0 + (3.0 if same else 1.5) * off), lse)


@pytest.mark.kernel
@pytest.mark.parametrize(("result", "name"), [("attention", "out"), ("attention_backward", "dq")])
def test_one_wrong_element_is_reported(
    result: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = getattr(cuevo, result)

    def wrong(*args: Any, **options: Any) -> Any:
        found = [None if x is None else np.array(x) for x in right(*args, **options)]
        x = next(x for x in found if x is not None)
        x.flat[-1] = x.flat[-1] + x.dtype.type(np.abs(x.astype(np.float64)).max() + 1.0)
        return tuple(found)

    monkeypatch.setattr(cuevo, result, wrong)
    words = [*FEW, "--first", "2", "--count", "1", "--front-ends", "numpy"]
    assert random_problems.main(words) == 1
    said = capsys.readouterr().out
    assert f"\n{name}: " in said
    again = "--seed 3 --first 2 --count 1 --device sim --front-ends numpy"
    assert f"again: python tools/random_problems.py {again}\n" in said
    assert "\n1 problems, 1 wrong\n" in said


@pytest.mark.unit
def test_an_element_is_seen_where_the_norm_is_not() -> None:
    exact = np.random.default_rng(0).standard_normal((500, 500))
    found = exact.copy()
    random_problems.check_elements("out", found, exact)
    found[7, 9] += 2.0
    assert np.linalg.norm(found - exact) < 4.1e-3 * np.linalg.norm(exact)
    with pytest.raises(AssertionError, match=r"out: 1 elements far off; the first is \(7, 9\)"):
        random_problems.check_elements("out", found, exact)


@pytest.mark.unit
def test_other_bits_of_a_second_call_are_seen() -> None:
    problem = random_problems.draw(3, 2, "sim", ["numpy"])
    first = (np.zeros(3, np.float16), None, {"dq": np.ones(2, np.float32), "dk": None})
    random_problems.check_same(problem, first, first)
    other = (first[0], None, {"dq": np.float32([1.0, -1.0]), "dk": None})
    with pytest.raises(AssertionError, match="dq: not the same bits"):
        random_problems.check_same(problem, first, other)
