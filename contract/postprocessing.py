"""Tensors of `postprocessing`: token ids to text."""

from tandem.contract.tensor import Tensors

INPUTS = Tensors()
TOKENS_BATCH = INPUTS.declare("TOKENS_BATCH", "INT32", (-1, -1))
SEQUENCE_LENGTH = INPUTS.declare("SEQUENCE_LENGTH", "INT32", (-1,))
CONTEXT_LENGTH = INPUTS.scalar("CONTEXT_LENGTH", "INT32")

OUTPUTS = Tensors()
OUTPUT = OUTPUTS.declare("OUTPUT", "STRING", (-1,))
# The characters that each id after the context completes; shorter rows end in zeros.
TEXT_LENGTHS = OUTPUTS.declare("TEXT_LENGTHS", "INT32", (-1,))
