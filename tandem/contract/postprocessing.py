"""Tensors of `postprocessing`, which detokenizes ids."""

from tandem.contract.tensor import Tensors

INPUTS = Tensors()
TOKENS_BATCH = INPUTS.declare("TOKENS_BATCH", "INT32", (-1, -1))
SEQUENCE_LENGTH = INPUTS.declare("SEQUENCE_LENGTH", "INT32", (-1,))
CONTEXT_LENGTH = INPUTS.scalar("CONTEXT_LENGTH", "INT32")

OUTPUTS = Tensors()
OUTPUT = OUTPUTS.declare("OUTPUT", "STRING", (-1,))
# Number of characters that each id after the context completes, [b, n]. Shorter rows are padded
# with zeros.
TEXT_LENGTHS = OUTPUTS.declare("TEXT_LENGTHS", "INT32", (-1,))
