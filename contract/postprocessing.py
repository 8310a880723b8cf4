"""Tensors of `postprocessing`: token ids to text."""

from tandem.contract.tensor import Tensor

TOKENS_BATCH = Tensor("TOKENS_BATCH", "INT32", (-1, -1))
SEQUENCE_LENGTH = Tensor("SEQUENCE_LENGTH", "INT32", (-1,))
CONTEXT_LENGTH = Tensor("CONTEXT_LENGTH", "INT32", (1,), optional=True, scalar=True)

OUTPUT = Tensor("OUTPUT", "STRING", (-1,))
# Of each id behind the context, the characters that it completes; shorter rows end in zeros.
TEXT_LENGTHS = Tensor("TEXT_LENGTHS", "INT32", (-1,))

INPUTS = (
    TOKENS_BATCH,
    SEQUENCE_LENGTH,
    CONTEXT_LENGTH,
)

OUTPUTS = (
    OUTPUT,
    TEXT_LENGTHS,
)
