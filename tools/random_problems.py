"""Attention of random problems, forward and backward, compared with float64.

    python tools/random_problems.py                               a hundred
    python tools/random_problems.py --seed 1 --count 10000        ten thousand others
    python tools/random_problems.py --seed 1 --first 9 --count 1  one of them again
    python tools/random_problems.py --device sim --count 20       on the CPU executor
    python tools/random_problems.py --count 10000 --seconds 540   as many of them as fit

A problem is all that a caller can choose: lengths (around whole tiles more often), types, head
dim, biases, extreme values, which gradients, the front end, and for each array how it lies in
memory: order of axes, gaps, steps, negative and zero strides, a start off alignment. Some problems
in a row have types, head dim and gradients in common, and so most of their kernels, which take much
longer to assemble than to run. Problem number i of a seed is the same on every machine, for the
same kind of device and the same front ends. Values and tolerances are those of the tests
(tests/helpers).

For each wrong one it prints what it is and the command that runs it again, at the end how many
there were. Exits 1 if any is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import attention_cases, backward_cases, backward_sweep
from helpers.attention_cases import store
from helpers.backward_cases import ARGUMENTS, GRADS, SCORE_ERROR, BackwardCase
from helpers.guarded import DTYPES, OnDevice, Strided, assert_same_bytes, lay_out

import cuevo
from cuevo.arrays import DeviceArray
from cuevo.cuda.device_info import devices
from cuevo.executors.driver import executor
from cuevo.ops import backward, forward

Arrays = Mapping[str, Strided]
Results = tuple[Any, Any, dict[str, Any]]
"""out, lse or None, and the gradients by their names."""


@dataclass(frozen=True)
class Sizes:
    """How large problems are."""

    longest: int
    scores: int
    """Most B N H Lq Lk: what keeps the comparison cheap."""
    outer: tuple[tuple[int, int, int], ...]
    """B, N, H."""


SIZES = {
    "sim": Sizes(90, 20_000, backward_sweep.OUTER),
    "cuda": Sizes(
        500, 600_000, (*backward_sweep.OUTER, (1, 9, 4), (2, 5, 3), (1, 64, 2), (3, 40, 1))
    ),
}
TILES = (8, 16, 32, 64)
SINGLE = {"broadcast B": "one B", "broadcast N": "one N", "broadcast all": "one B, N"}
"""Layouts of biases with strides of 0, and those with extents of 1 in their place."""
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}
"""Largest relative error of a probability that is rounded to the type. Such errors do not cancel
where every key is the same one, or every result.
"""
ORDINARY = ("normal", "dead by mask", "dead by pair")
"""Values whose elements are compared one by one, too: the norm of all errors does not see one
element among a hundred thousand.
"""
OF_ALL, OF_ROW = 0.25, 0.1
"""Largest error of an element: parts of the root mean square of all, and of the largest of its row.
"""
PLANS_KEPT = 32
FAMILY = 32
"""Problems in a row that kernels are shared by; a process takes them together."""
AHEAD = 2
"""Families that are handed out to each process, so that it never waits for one."""
NOTHING = 1e-3
"""Root mean square below which sums of ordinary terms are what remains where they cancel."""


@dataclass(frozen=True)
class Problem:
    """One problem: its number and seed make it again."""

    case: BackwardCase
    front_end: str
    inputs: Arrays
    memory: Mapping[str, Mapping[str, Any]]
    """What lies otherwise than the case says: arguments of `lay_out`."""

    def __str__(self) -> str:
        lines = [f"front end {self.front_end}", str(self.case)]
        return "\n".join(lines + [f"{name}: {how}" for name, how in self.memory.items()])


# -- Drawing ---------------------------------------------------------------------------------------


def draw(seed: int, index: int, device: str, front_ends: Sequence[str]) -> Problem:
    """Problem number `index` of a seed."""
    head = _case(np.random.default_rng((seed, index - index % FAMILY, 0)), device)
    rng = np.random.default_rng((seed, index, 1))
    front_end = str(rng.choice(front_ends))
    case = _case(rng, device)
    while (case.mask, case.pair) != (head.mask, head.pair):
        case = _case(rng, device)
    case = replace(
        case,
        dtype=head.dtype,
        head_dim=head.head_dim,
        grads=head.grads,
        bias_grad_dtype=None if front_end in ("torch", "jax") else head.bias_grad_dtype,
    )
    made = backward_cases.make(case)
    memory = {}
    for name in ("dout", *GRADS):
        if name in made and (how := _memory(name, made[name].array, front_end, rng)):
            memory[name] = how
            made[name] = _moved(made[name].array, how)
    return Problem(case, front_end, made, memory)


def _case(rng: np.random.Generator, device: str) -> BackwardCase:
    sizes = SIZES[device]
    # Some of what a case has goes by its place in the sweep.
    *_, case = backward_sweep.sweep(
        int(rng.integers(1, 7)),
        int(rng.integers(2**62)),
        lengths=[_length(rng, sizes.longest) for _ in range(int(rng.integers(1, 3)))],
        outer_extents=sizes.outer,
        most_scores=sizes.scores,
    )
    if rng.random() < 0.6:
        layouts = {name: getattr(case, name) for name in ("mask_layout", "pair_layout")}
        case = replace(case, **{name: SINGLE.get(x, x) for name, x in layouts.items()})
    return replace(case, shape=None, seed=int(rng.integers(2**31)))


def _length(rng: np.random.Generator, longest: int) -> int:
    if rng.random() < 0.4:
        return int(rng.integers(1, longest + 1))
    tile = int(rng.choice(TILES))
    near = tile * int(rng.integers(1, max(longest // tile, 1) + 1)) + int(rng.integers(-1, 2))
    return min(max(near, 1), longest)


def _memory(
    name: str, x: np.ndarray, front_end: str, rng: np.random.Generator
) -> dict[str, Any] | None:
    """Arguments of `lay_out` for an array that is to lie elsewhere; None: it stays."""
    no_negative = front_end == "torch"
    has_negative = any(stride < 0 for stride in x.strides)
    if front_end == "jax" or (rng.random() < 0.4 and not (has_negative and no_negative)):
        return None
    # Rows of q, k and v are read in place; torch's operator copies what cannot be.
    in_rows = name in "qkv" and (front_end != "torch" or rng.random() < 0.6)
    unit = 16 if in_rows else x.itemsize
    inner = [x.ndim - 1] if in_rows else []
    outer = [axis for axis in range(x.ndim) if axis not in inner]
    every: dict[str, Any] = {
        "order": (*rng.permutation(outer).tolist(), *inner),
        "unit": unit,
        "gaps": bool(rng.random() < 0.3),
        "stepped": tuple(axis for axis in outer if rng.random() < 0.15),
        "backwards": tuple(axis for axis in outer if rng.random() < 0.2 and not no_negative),
        "broadcast": tuple(axis for axis in range(x.ndim) if x.strides[axis] == 0),
        "shift": unit * int(rng.integers(0, 9)),
    }
    return every


def _moved(x: np.ndarray, how: Mapping[str, Any]) -> Strided:
    found = lay_out(x.shape, x.dtype, **how)
    store(found.array, x)
    return found


# -- Running ---------------------------------------------------------------------------------------


def _operands(inputs: Arrays, names: Sequence[str] = GRADS) -> dict[str, Strided]:
    return {name: inputs[name] for name in names if name in inputs}


def _calls(problem: Problem, arrays: Mapping[str, Any], device: str | None) -> Results:
    case = problem.case
    operands = {name: arrays[name] for name in GRADS if name in arrays}
    options = dict(scale=case.scale, device=device)
    out, lse = cuevo.attention(**operands, **options, return_lse=True)
    found = cuevo.attention_backward(
        arrays["dout"], **operands, out=out, lse=lse, **(case.options | options)
    )
    return out, lse, dict(zip(ARGUMENTS, found, strict=True))


def run_numpy(problem: Problem, device: str) -> Results:
    arrays = {name: x.array for name, x in problem.inputs.items()}
    return _calls(problem, arrays, "cuda" if device == "cuda" else f"sim:{problem.case.arch}")


def run_device(problem: Problem, device: str) -> Results:
    """Arrays that are on the device."""
    del device
    views = OnDevice(_operands(problem.inputs, ("dout", *GRADS)), executor(0)).views
    out, lse, gradients = _calls(problem, views, None)
    return out, lse, gradients


def run_torch(problem: Problem, device: str) -> Results:
    import torch

    from cuevo.torch import evoformer_attention

    types = {"float16": torch.float16, "float32": torch.float32, "bool": torch.bool}

    def tensor(x: Strided) -> Any:
        array, size = x.array, x.array.itemsize
        whole = torch.from_numpy(x.memory[: x.memory.size // size * size])
        whole = whole.to("cuda" if device == "cuda" else "cpu")
        typed = whole.view(types.get(array.dtype.name, torch.bfloat16))
        steps = [stride // size for stride in array.strides]
        return typed.as_strided(array.shape, steps, x.offset // size)

    def host(x: Any) -> np.ndarray:
        # As float32, which holds every value of the 16-bit types.
        return x.detach().float().cpu().numpy()

    case = problem.case
    operands = {name: tensor(x) for name, x in _operands(problem.inputs).items()}
    leaves = {name: operands[ARGUMENTS[name]].requires_grad_() for name in case.gradients}
    out = evoformer_attention(**operands, scale=case.scale)
    found = torch.autograd.grad(out, list(leaves.values()), tensor(problem.inputs["dout"]))
    gradients = {
        name: host(x).astype(case.dtype_of(name)) for name, x in zip(leaves, found, strict=True)
    }
    return host(out), None, gradients


def run_jax(problem: Problem, device: str) -> Results:
    import jax

    from cuevo.jax import evoformer_attention

    case = problem.case
    place = jax.devices("gpu" if device == "cuda" else "cpu")[0]
    arrays = {
        name: jax.device_put(np.ascontiguousarray(x.array), place)
        for name, x in _operands(problem.inputs, ("dout", *GRADS)).items()
    }
    dout = arrays.pop("dout")
    leaves = {ARGUMENTS[name]: arrays.pop(ARGUMENTS[name]) for name in case.gradients}

    def step(leaves: Any, rest: Any, dout: Any) -> Any:
        call = partial(evoformer_attention, scale=case.scale)
        out, pull = jax.vjp(lambda given: call(**rest, **given), leaves)
        return out, pull(dout)[0]

    out, found = (jax.jit(step) if case.seed % 2 else step)(leaves, arrays, dout)
    return np.asarray(out), None, {"d" + name: np.asarray(x) for name, x in found.items()}


FRONT_ENDS: dict[str, Callable[[Problem, str], Results]] = {
    "numpy": run_numpy,
    "device": run_device,
    "torch": run_torch,
    "jax": run_jax,
}


def available(device: str) -> list[str]:
    """The front ends that can be imported, and need no GPU if there is none."""
    absent = {name for name in ("torch", "jax") if find_spec(name) is None}
    if device == "sim":
        absent.add("device")
    return [name for name in FRONT_ENDS if name not in absent]


# -- Comparing -------------------------------------------------------------------------------------


def check(problem: Problem, results: Results) -> None:
    """Compare with float64; AssertionError says what is wrong."""
    out, lse, gradients = results
    case, operands = problem.case, _operands(problem.inputs)
    # Gradients are those of the result that there is: torch and JAX keep the log-sum-exps.
    found = {"out": out.astype(DTYPES[case.dtype]), "lse": lse}
    inputs = dict(problem.inputs)
    inputs |= {name: _moved(x, {}) for name, x in found.items() if x is not None}
    check_result(problem, out, lse)
    backward_cases.check(case, gradients, inputs)
    if case.values in ORDINARY and case.scale is None:
        exact, _ = attention_cases.expected(case, operands)
        check_elements("out", out, exact)
        for name, x in backward_cases.expected(case, inputs).items():
            check_elements(name, gradients[name], x)


def check_result(problem: Problem, out: np.ndarray, lse: np.ndarray | None) -> None:
    """The same of the forward pass."""
    case, operands = problem.case, _operands(problem.inputs)
    slack = 0.0
    if case.values not in attention_cases.VALUES:
        # Such values are for the backward pass: of scores so far from 0 fp32 leaves little.
        sums = np.abs(problem.inputs["lse"].array)
        slack = np.expm1(SCORE_ERROR * sums[np.isfinite(sums)].max(initial=0.0))
    if _is_the_same(problem.inputs["k"].array) or _is_the_same(out):
        slack += ROUNDING[case.dtype]
    plain = case if not case.values.startswith("nan d") else replace(case, values="normal")
    attention_cases.check(plain, out, lse, operands, slack)


def _is_the_same(x: np.ndarray) -> bool:
    """Whether an array [B, N, L, H, D] has the same at every one of several positions L."""
    return x.shape[2] > 1 and bool((x == x[:, :, :1]).all())


def check_same(problem: Problem, results: Results, again: Results) -> None:
    """A second call, which finds the first one's plan, gives the same bits."""
    every = [{"out": out, "lse": lse, **gradients} for out, lse, gradients in (results, again)]
    for name, x in every[0].items():
        if x is not None:
            assert_same_bytes(problem.case, name, every[1][name], x)


def _on_host(results: Results) -> Results:
    def host(x: Any) -> Any:
        return x.to_numpy() if isinstance(x, DeviceArray) else x

    out, lse, gradients = results
    return host(out), host(lse), {name: host(x) for name, x in gradients.items()}


def check_elements(name: str, found: np.ndarray, exact: np.ndarray) -> None:
    """No single element is far off."""
    typical = float(np.sqrt(np.mean(exact**2))) if exact.size else 0.0
    if typical < NOTHING:
        return
    allowed = OF_ALL * typical + OF_ROW * np.abs(exact).max(axis=-1, keepdims=True)
    error = np.abs(found.astype(np.float64) - exact)
    if not (error <= allowed).all():
        first = tuple(np.argwhere(~(error <= allowed))[0].tolist())
        raise AssertionError(
            f"{name}: {np.count_nonzero(~(error <= allowed))} elements far off; the first is "
            f"{first}: {found[first]!r} instead of {exact[first]!r}"
        )


def attempt_all(
    seed: int, device: str, front_ends: Sequence[str], indices: Sequence[int]
) -> list[str]:
    return [attempt(seed, device, front_ends, index) for index in indices]


def attempt(seed: int, device: str, front_ends: Sequence[str], index: int) -> str:
    """What is wrong with problem `index`; "" if nothing is."""
    problem = draw(seed, index, device, front_ends)
    run = FRONT_ENDS[problem.front_end]
    try:
        with np.errstate(all="ignore"):
            results = _on_host(run(problem, device))
            check(problem, results)
            if device == "cuda":
                check_same(problem, results, _on_host(run(problem, device)))
    except AssertionError as error:
        said = str(error)
    except Exception:
        said = traceback.format_exc(limit=-3)
    else:
        return ""
    finally:
        _forget_plans()
    again = f"--seed {seed} --first {index} --count 1 --device {device}"
    again += f" --front-ends {' '.join(front_ends)}"
    return f"{problem}\n{said}\nagain: python tools/random_problems.py {again}"


def _forget_plans() -> None:
    """A plan keeps its kernels, which are megabytes each on the CPU executor."""
    for operation in (forward.OPERATION, backward.OPERATION):
        if len(operation.plans) > PLANS_KEPT:
            operation.plans.clear()


def _at_once(run: Callable[[range], list[str]], indices: range) -> Future[list[str]]:
    done: Future[list[str]] = Future()
    done.set_result(run(indices))
    return done


def _families(first: int, count: int) -> Iterator[range]:
    """Numbers of `count` problems from `first` on, by families."""
    end = first + count
    while first < end:
        after = min(first - first % FAMILY + FAMILY, end)
        yield range(first, after)
        first = after


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--seconds", type=float, default=inf, help="begin none after this time")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--device", choices=SIZES, default="cuda" if devices() else "sim", help="GPU, CPU executor"
    )
    parser.add_argument("--front-ends", nargs="+", choices=FRONT_ENDS)
    options = parser.parse_args(words)
    front_ends = options.front_ends or available(options.device)
    started, wrong, done = time.monotonic(), 0, 0
    run = partial(attempt_all, options.seed, options.device, front_ends)
    # Read by JAX when it starts, which would take most of the device's memory for itself, and by
    # the library of NumPy's products, of which each process would have threads for all cores.
    for name, value in (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("OMP_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)
    families = _families(options.first, options.count)
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        submit = _at_once if options.processes == 1 else pool.submit
        pending = {submit(run, indices) for indices in islice(families, AHEAD * options.processes)}
        while pending:
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for said in chain.from_iterable(future.result() for future in finished):
                done += 1
                if said:
                    wrong += 1
                    print(f"{said}\n", flush=True)
            if time.monotonic() - started < options.seconds:
                pending |= {submit(run, indices) for indices in islice(families, len(finished))}
    print(f"{done} problems, {wrong} wrong")
    print(f"seed {options.seed}, {', '.join(front_ends)}, {time.monotonic() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
