"""The entry that runs the decoding loop."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tandem.bls.triton.stream import StreamEntry as TritonPythonModel

__all__ = ["TritonPythonModel"]
