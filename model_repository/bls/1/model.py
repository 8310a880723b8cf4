"""An entry that returns a single response. The loop runs in `bls_stream`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tandem.bls.triton.forward import ForwardEntry as TritonPythonModel

__all__ = ["TritonPythonModel"]
