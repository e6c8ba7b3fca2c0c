"""Dispatch: which kernel of an operation runs, and in which configuration.

The variants of an operation are kernels for one architecture and later each. The highest that can
serve the problem on the device wins, without a question to the lower ones, unless it estimates that
a lower one is faster. A configuration of a variant's own Config class names that variant. The
environment variable ``CUEVO_VARIANT``, such as ``CUEVO_VARIANT=sm_75``, names the highest that may
be taken, which then is taken wherever it serves; a configuration counts for more. A mapping of
fields is for variants that have all of them. A call that was made before keeps its plan, and with
it the variant that was right then.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from cuevo.architectures import Architecture
from cuevo.executors import Executor, LoadedKernel, architecture_of
from cuevo.ops.plan import KernelConfig
from cuevo.toolchain.template import render

__all__ = [
    "ENVIRONMENT",
    "KernelVariant",
    "choose",
    "configure",
    "dispatch",
    "expect",
    "load",
    "passed_over",
    "rejections",
]

ENVIRONMENT = "CUEVO_VARIANT"

P = TypeVar("P", contravariant=True)
C = TypeVar("C", bound=KernelConfig)


class KernelVariant(Protocol[P, C]):
    """A module of `cuevo.kernels`: the host half of a kernel for problems P, with configurations
    C, that is one variant of an operation.

    One with a function ``prefers_lower_variant(problem, arch)`` is passed over where that is true
    and a lower one serves.
    """

    @property
    def NAME(self) -> str: ...  # noqa: N802
    @property
    def MINIMUM_ARCH(self) -> int: ...  # noqa: N802
    @property
    def Config(self) -> type[C]: ...  # noqa: N802

    def candidates(self, problem: P) -> Iterator[tuple[C, float]]: ...
    def choose(self, problem: P, arch: Architecture) -> C: ...
    def adapt(self, config: C, problem: P) -> C: ...
    def violations(
        self, config: C, arch: Architecture, problem: P | None = None
    ) -> tuple[str, ...]: ...
    def spill_fallbacks(self, config: C) -> Iterator[C]: ...
    def values(self, config: C) -> dict[str, object]: ...


V = TypeVar("V", bound=KernelVariant[Any, Any])


def choose(
    variants: Sequence[V],
    problem: Any,
    place: Executor,
    config: object = None,
    tuned: object = None,
) -> tuple[V, Any]:
    """The variant for `problem` on `place`, and its configuration; see `dispatch` and `configure`
    for the errors.
    """
    named = tuned if config is None else config
    variant = dispatch(variants, problem, architecture_of(place), named)
    return variant, configure(variant, problem, place, config, tuned)


def dispatch(
    variants: Sequence[V], problem: object, arch: Architecture, config: object = None
) -> V:
    """The variant for `problem` on `arch`.

    variants : of one operation, the highest first.
    config : what the caller configures with, if anything: an instance of a Config, or a mapping.

    Raises ValueError where no variant serves the problem, with the violations of every variant, and
    for an environment variable that names no variant.

    >>> from cuevo.architectures import architecture
    >>> from cuevo.ops.forward import VARIANTS
    >>> from cuevo.kernels.forward import Problem
    >>> problem = Problem(1, 1, 1, 64, 64, head_dim=32, dtype="f16")
    >>> [dispatch(VARIANTS, problem, architecture(f"sm_{number}")).NAME for number in (75, 86)]
    ['evoformer_forward_sm75', 'evoformer_forward_sm80']
    """
    named = [each for each in variants if isinstance(config, each.Config)]
    if named:
        # Variants may share a Config class: then it is the one that can run this.
        able = (x for x in named if not x.violations(x.adapt(config, problem), arch, problem))
        return next(able, named[0])
    forced = os.environ.get(ENVIRONMENT)
    if forced:
        allowed = _from(variants, forced)
        return next((each for each in allowed if _serves(each, problem, arch)), allowed[0])
    if isinstance(config, Mapping):
        variants = [each for each in variants if config.keys() <= _names(each.Config)] or variants
    passed_over = None
    for each in variants:
        if not _serves(each, problem, arch):
            continue
        prefers_lower = getattr(each, "prefers_lower_variant", None)
        if prefers_lower is None or not prefers_lower(problem, arch):
            return each
        passed_over = each
    if passed_over is not None:
        return passed_over
    lines = [f"  {each.NAME}: {'; '.join(_violations(each, problem, arch))}" for each in variants]
    raise ValueError("\n".join([f"no kernel serves {problem} on {arch.name}:", *lines]))


def passed_over(
    variants: Sequence[KernelVariant[Any, Any]], problem: object, arch: Architecture
) -> dict[str, list[str]]:
    """The variants above the one for `problem` on `arch`, and why each of them is not the one.

    Raises ValueError as `dispatch` does.
    """
    found = dispatch(variants, problem, arch)
    above = variants[: [*variants].index(found)]
    return {
        each.NAME: [f"needs sm_{each.MINIMUM_ARCH}"]
        if arch.number < each.MINIMUM_ARCH
        else ["a lower variant is estimated to be faster"]
        if _serves(each, problem, arch)
        else _violations(each, problem, arch)
        for each in above
    }


def _from(variants: Sequence[V], name: str) -> Sequence[V]:
    """The variants for the architecture `name` and for those below it, not one at least."""
    number = name.removeprefix("sm_")
    found = [each for each in variants if number.isdecimal() and int(number) >= each.MINIMUM_ARCH]
    if not name.startswith("sm_") or not found:
        names = ", ".join(f"sm_{each.MINIMUM_ARCH}" for each in variants)
        raise ValueError(
            f"{ENVIRONMENT}: expected one of {names}, the variants of "
            f"{variants[0].NAME.rpartition('_')[0]}, or an architecture above; got {name!r}"
        )
    return found


def _names(config: Any) -> set[str]:
    return {field.name for field in fields(config)}


def _serves(each: KernelVariant[Any, Any], problem: object, arch: Architecture) -> bool:
    """Whether a candidate of a variant can serve the problem."""
    if arch.number < each.MINIMUM_ARCH:
        return False
    return any(not each.violations(config, arch, problem) for config, _ in each.candidates(problem))


def _violations(each: KernelVariant[Any, Any], problem: object, arch: Architecture) -> list[str]:
    """Why no candidate of a variant serves the problem, each reason once."""
    return list(rejections(each, problem, arch)[1])


def rejections(
    variant: KernelVariant[P, C], problem: P, arch: Architecture
) -> tuple[list[C], dict[str, list[C]]]:
    """The candidates of a variant that can run, and by reason those that cannot: each of these at
    all of its reasons.
    """
    able: list[C] = []
    rejected: dict[str, list[C]] = {}
    for config in dict.fromkeys(config for config, _ in variant.candidates(problem)):
        reasons = variant.violations(config, arch, problem)
        if not reasons:
            able.append(config)
        for reason in reasons:
            rejected.setdefault(reason, []).append(config)
    return able, rejected


def configure(
    variant: KernelVariant[P, C],
    problem: P,
    place: Executor,
    config: C | Mapping[str, object] | None,
    tuned: object = None,
) -> C:
    """The configuration for `problem` on `place`: the one chosen, that one with some fields
    changed, or the caller's. `tuned`, one of a table (`cuevo.ops.tuning`), comes before the one
    chosen if it can run.

    Raises TypeError for what is none, ValueError for one that cannot run, and for changes of fields
    that are not there or that follow from the problem.
    """
    arch = architecture_of(place)
    if config is None and isinstance(tuned, variant.Config):
        wanted = variant.adapt(tuned, problem)
        if not variant.violations(wanted, arch, problem):
            return wanted
    if config is None:
        return variant.choose(problem, arch)
    if isinstance(config, Mapping):
        return _changed(variant, problem, arch, config)
    if not isinstance(config, variant.Config):
        raise TypeError(
            f"config: expected {variant.NAME}.Config or a mapping of its fields; got "
            f"{type(config).__name__}"
        )
    return _able(variant, problem, arch, variant.adapt(config, problem))


def _changed(
    variant: KernelVariant[P, C], problem: P, arch: Architecture, changes: Mapping[str, Any]
) -> C:
    """The configuration chosen with some fields changed; errors as of `configure`."""
    known = _names(variant.Config)
    for name in changes.keys() - known:
        listed = ", ".join(sorted(known))
        raise ValueError(f"config: {variant.NAME} has no field {name!r}; it has {listed}")
    chosen: Any = variant.choose(problem, arch)
    try:
        config = replace(chosen, **changes)
    except TypeError as error:
        raise TypeError(f"config: {error}") from None
    wanted = variant.adapt(config, problem)
    for name, given in changes.items():
        own = getattr(wanted, name)
        if own != given:
            raise ValueError(f"config: {name} is the problem's, {own}; got {given}")
    return _able(variant, problem, arch, wanted)


def _able(variant: KernelVariant[P, C], problem: P, arch: Architecture, config: C) -> C:
    found = variant.violations(config, arch, problem)
    if found:
        raise ValueError(f"config: {config} cannot run: {'; '.join(found)}")
    return config


def expect(kernel: Any, config: object, place: Executor) -> None:
    """`load` will be asked for this kernel, a module of `cuevo.kernels`, in this configuration:
    kernels that are expected before are assembled beside each other.
    """
    place.expect(render(kernel.NAME, kernel.values(config)))


def load(
    variant: KernelVariant[P, C], chosen: C, place: Executor, *, fixed: bool
) -> tuple[LoadedKernel, C]:
    """The loaded kernel and its configuration; unless the caller has fixed that, with more
    registers for a thread where it would spill: assemblers differ in how far registers go.
    """
    for config in variant.spill_fallbacks(chosen):
        loaded = place.load(render(variant.NAME, variant.values(config)))
        if fixed or not loaded.spills:
            break
    return loaded, config
