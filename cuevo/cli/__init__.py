"""The `cuevo` command: try the kernels, read them, assemble them, look over the machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cuevo import __version__
from cuevo.cli import (
    assemble,
    check,
    demo,
    doctor,
    export,
    inspect,
    kernels,
    layout,
    plan,
    roofline,
    tune,
)
from cuevo.cli.arguments.usage import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, UsageError
from cuevo.errors import CuevoError

_EPILOG = """\
examples:
  cuevo demo                      compute an MSA-row attention and compare it with float64
  cuevo demo --device sim:sm_90   the same on the CPU executor, with Hopper's arithmetic
  cuevo kernels                   what there is, and each kernel's parameters
  cuevo render evoformer_forward_sm80 --set head_dim=32 | less
  cuevo assemble evoformer_forward_sm80 --set head_dim=32 --arch sm_80 --arch sm_90
  cuevo check gemm_sm80           run it on the CPU executor, on a small problem, under all checks
  cuevo check own.ptx --grid 4 --threads 128 --args 'f32[4,100]' 'f32[4,100]=0' 100
                                  the same of any PTX file, launched as one says
  cuevo plan gemm --problem 4096,4096,4096
                                  what a call launches, in which configuration
  cuevo assemble gemm --problem 4096,4096,4096
                                  the kernel that a call launches, as that call configures it
  cuevo inspect gemm --problem 512,512,512
                                  a page: source, PTX and machine code side by side
  cuevo tune gemm --problem 4000,4000,64
                                  the fastest configuration of a call, measured on a GPU
  cuevo roofline gemm --problem 4000,4000,64
                                  what bounds a call's kernels, and the time that follows from it
  cuevo export forward --head-dims 32 --architectures sm_80,sm_90a -o attention
                                  kernels and a planner in C, for a program without Python
  cuevo layout m16n8k16.a         which lane holds which element
  cuevo doctor                    what was found on this machine, and what is missing

exit codes:
  0    done (demo: and the result agrees with float64; check: and nothing is wrong)
  1    an error, said in a sentence on standard error; or the demo's result does not agree, or
       check has found something
  2    a command line that cannot be carried out as it stands
  130  interrupted

environment:
  CUEVO_CACHE_DIR    where rendered and assembled kernels are kept, and what cuevo tune has found
  CUEVO_GRAPHS=0     launch repeated calls kernel by kernel, not as CUDA graphs
  CUEVO_RECORD_PROBLEMS=FILE  write the calls that are made to a file, for cuevo tune
  CUEVO_TUNED=0      choose as if nothing were tuned
  CUEVO_TRACEBACK=1  show Python's traceback with an error
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="cuevo",
        description="Evoformer attention from handwritten PTX, on a CUDA device or on the CPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cuevo {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        demo,
        kernels,
        assemble,
        check,
        inspect,
        plan,
        tune,
        roofline,
        export,
        layout,
        doctor,
    ):
        command.add_commands(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own); returns the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone; without this the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (CuevoError, ValueError, OSError) as error:
        if os.environ.get("CUEVO_TRACEBACK"):
            raise
        print(f"cuevo: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    return code
