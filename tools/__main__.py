"""The `tandem` command: one module a verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import bench, build, demo, doctor, generate, perf, render, run, summarize, tune, up
from .errors import TandemError
from .options import Parser, dashed

VERBS = (up, generate, run, summarize, demo, bench, tune, perf, build, render, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status."""
    parser = Parser(prog="tandem", description="Speculative decoding for Triton Inference Server.")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.register(verbs)
    try:
        options = parser.parse_args(dashed(sys.argv[1:] if arguments is None else arguments))
        status: int = options.run(options)
    except TandemError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
