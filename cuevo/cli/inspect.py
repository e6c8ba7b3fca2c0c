"""`cuevo inspect`: a kernel as a page, its source, PTX and machine code side by side."""

from __future__ import annotations

import argparse
import io
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cuevo.cli.arguments.files import add_launch_options, is_file
from cuevo.cli.arguments.problem import is_problem
from cuevo.cli.arguments.settings import split_settings
from cuevo.cli.arguments.usage import EXIT_OK, Subparsers, UsageError, add_command, natural
from cuevo.cli.assemble import only_instance
from cuevo.cli.check import reports
from cuevo.cli.kernels import add_kernel_options, architecture_name
from cuevo.toolchain.paths import ptx_directory

if TYPE_CHECKING:
    from cuevo.check.page import Subject
    from cuevo.sim import Profile
    from cuevo.toolchain.template import RenderedKernel

_DETAILS = """\
examples:
  cuevo inspect evoformer_forward_sm80 --set head_dim=32 --arch sm_90
  cuevo inspect gemm --problem 512,512,512 --arch sm_80 --output gemm.html
  cuevo inspect attention_backward --problem 1,128,8,300,32 --pair f32 --launch 2
  cuevo inspect gemm_sm80 --set stages=3 --diff stages=4
  cuevo inspect gemm_sm80 --diff HEAD~3
  cuevo inspect my/softmax.ptx --grid 64 --args 'f32[64,1000]' 'f32[64,1000]=0' 1000

The page is one file, and needs no network. Its three panes are linked line by line: the template,
or the file that a compiler had, the PTX text, and the machine code, each with its instructions by
pipe and the registers that are live. With --problem, with --args for a file, or with --counts, the
CPU executor adds how often each line ran, its bank conflicts and its sectors: those of the launches
that `cuevo check` makes, which take seconds more. Needs nvdisasm: pip install "cuevo[workbench]".
"""


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "inspect",
        "Make a page of a kernel: source, PTX and machine code side by side.",
        _DETAILS,
        run,
    )
    add_kernel_options(parser)
    add_launch_options(parser)
    add = parser.add_argument
    add(
        "--arch",
        type=architecture_name,
        metavar="SM",
        help="sm_80, sm_90, ... (default: as of assemble)",
    )
    add("--counts", action="store_true", help="run a kernel by its name on small problems, too")
    add("--seed", type=natural, default=0, metavar="N", help="of the random numbers (0)")
    add(
        "--diff",
        nargs="+",
        metavar="OTHER",
        help="compare with the same kernel at other settings (NAME=VALUE ...), with the file as a "
        "commit has it, or with another PTX file: the other one is to the left",
    )
    add("-o", "--output", type=Path, metavar="FILE", help="the page (default: KERNEL.html)")


def run(arguments: argparse.Namespace) -> int:
    from cuevo.check.page import content, difference, page

    begun = time.perf_counter()
    subject = read_subject(arguments)
    shown = content(subject)
    if arguments.diff:
        with _other(arguments) as other:
            shown = difference(content(other), shown)
    text = page(shown)
    path = arguments.output or Path(f"{subject.kernel.name}.html")
    path.write_text(text, encoding="utf-8")
    seconds = time.perf_counter() - begun
    print(f"{subject.kernel.describe()} for {subject.cubin.arch}")
    print(f"counts: {subject.counted}")
    print(f"{path}: {len(text) / 2**20:.1f} MiB, in {seconds:.1f} s")
    return EXIT_OK


def read_subject(arguments: argparse.Namespace, folder: Path | None = None) -> Subject:
    """The one kernel that the command line names, assembled, and with counts if it asks for them;
    a kernel by its name as the templates of another `folder` have it, and without counts.

    Raises UsageError where it names several.
    """
    from cuevo.check.page import Subject
    from cuevo.toolchain.assembler import assemble
    from cuevo.toolchain.template import render

    instance = only_instance(arguments)
    kernel = instance.kernel
    if folder is not None:
        kernel = render(kernel.name, kernel.values, directory=folder)
    taken = kernel, assemble(kernel, instance.target), instance.threads, instance.shared_bytes
    if folder is not None:
        return Subject(*taken, None, "none: of the commit's kernel")
    if is_problem(arguments) or arguments.counts or (is_file(arguments) and arguments.args):
        return Subject(*taken, *_counts(arguments, instance.kernel))
    needed = "--args" if is_file(arguments) else "--problem or --counts"
    return Subject(*taken, None, f"none: give {needed}")


# -- What it is compared with ----------------------------------------------------------------------


@contextmanager
def _other(arguments: argparse.Namespace) -> Iterator[Subject]:
    """The kernel that --diff names, while its files are there."""
    first = arguments.diff[0]
    given = vars(arguments)
    if all("=" in word for word in arguments.diff):
        changed = split_settings(arguments.diff)
        kept = [x for x in arguments.settings if x.partition("=")[0].strip() not in changed]
        settings = [*kept, *(f"{name}={value}" for name, value in changed.items())]
        yield read_subject(argparse.Namespace(**{**given, "settings": settings}))
    elif len(arguments.diff) > 1:
        raise UsageError(f"--diff takes NAME=VALUE ..., or one file or commit; got {first} first.")
    elif first.endswith(".ptx"):
        yield read_subject(argparse.Namespace(**{**given, "kernel": first}))
    else:
        with tempfile.TemporaryDirectory(prefix="cuevo-") as directory:
            folder = Path(directory)
            if is_file(arguments):
                path = Path(arguments.kernel)
                _check_out(first, path.parent, folder)
                # What a template imports is looked for in the commit first, then where it is now.
                folders = [*(arguments.directory or ()), str(path.parent)]
                own = {"kernel": str(folder / path.name), "directory": folders}
                yield read_subject(argparse.Namespace(**{**given, **own}))
            else:
                _check_out(first, ptx_directory(), folder)
                yield read_subject(arguments, folder)


def _check_out(commit: str, source: Path, folder: Path) -> None:
    """Put the files of the directory `source` into `folder` as `commit` has them."""
    command = ["git", "archive", "--format=tar", commit, "."]
    run = subprocess.run(command, cwd=source, capture_output=True)
    if run.returncode:
        complaint = run.stderr.decode(errors="replace").strip()
        raise UsageError(f"--diff {commit}: no settings, no PTX file, and no commit: {complaint}")
    with tarfile.open(fileobj=io.BytesIO(run.stdout)) as archive:
        archive.extractall(folder, filter="data")


# -- What is counted -------------------------------------------------------------------------------


def _counts(arguments: argparse.Namespace, kernel: RenderedKernel) -> tuple[Profile | None, str]:
    """What the CPU executor counts, and what it is of; or why there is nothing."""
    from cuevo.check import BUDGET

    begun = time.perf_counter()
    (report,) = reports(arguments, BUDGET, None)
    seconds = time.perf_counter() - begun
    if report.profile is None:
        return None, f"none: {'; '.join(finding.message for finding in report.findings)}"
    if is_file(arguments):
        return report.profile, f"the launch on the CPU executor as {report.arch}, {seconds:.1f} s"
    lines = kernel.text.splitlines()
    if any(use.opcode not in lines[use.line - 1] for use in report.profile.instructions):
        return None, "none: no small problem is for this instance"
    return report.profile, f"small problems on the CPU executor as {report.arch}, {seconds:.1f} s"
