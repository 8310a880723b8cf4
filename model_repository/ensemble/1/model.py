"""The baseline entry, which uses the target alone. It is named after NVIDIA's ensemble."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tandem.bls.triton.forward import ForwardEntry as TritonPythonModel

__all__ = ["TritonPythonModel"]
