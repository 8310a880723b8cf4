"""The `tandem` command: one module a verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import demo, doctor, generate, render, up
from .errors import TandemError
from .options import Parser

VERBS = (up, generate, demo, render, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status."""
    parser = Parser(prog="tandem", description="Speculative decoding for Triton Inference Server.")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.register(verbs)
    try:
        options = parser.parse_args(arguments)
        status: int = options.run(options)
    except TandemError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
