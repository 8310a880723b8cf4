"""The declaration of a Triton model's tensor."""

from __future__ import annotations


class Tensor(str):
    """A tensor's name with its type and shape. Being a ``str``, it can be used as the name.

    dtype: Triton's type without the ``TYPE_`` prefix, such as ``INT32`` or ``STRING``.
    dims: shape without the batch dimension; -1: any size.
    optional: whether a request may omit the input.
    scalar: whether Triton reshapes ``[batch, 1]`` from the client to ``[batch]`` for the model.
    ragged: whether requests of different lengths may be batched together.
    """

    dtype: str
    dims: tuple[int, ...]
    optional: bool
    scalar: bool
    ragged: bool

    def __new__(
        cls,
        name: str,
        dtype: str,
        dims: tuple[int, ...],
        *,
        optional: bool = False,
        scalar: bool = False,
        ragged: bool = False,
    ) -> Tensor:
        tensor = super().__new__(cls, name)
        tensor.dtype = dtype
        tensor.dims = dims
        tensor.optional = optional
        tensor.scalar = scalar
        tensor.ragged = ragged
        return tensor

    def with_dtype(self, dtype: str) -> Tensor:
        return Tensor(
            self,
            dtype,
            self.dims,
            optional=self.optional,
            scalar=self.scalar,
            ragged=self.ragged,
        )


class Tensors(list[Tensor]):
    """The inputs of a model, or its outputs, in the order of its configuration."""

    def declare(
        self, name: str, dtype: str, dims: tuple[int, ...], *, optional: bool = False
    ) -> Tensor:
        return self._add(Tensor(name, dtype, dims, optional=optional))

    def scalar(self, name: str, dtype: str, *, optional: bool = True) -> Tensor:
        """Declare an input with one value per row, which the model receives as ``[batch]``."""
        return self._add(Tensor(name, dtype, (1,), optional=optional, scalar=True))

    def ragged(self, name: str, dtype: str, dims: tuple[int, ...]) -> Tensor:
        """Declare an optional input whose length may differ between the requests of a batch."""
        return self._add(Tensor(name, dtype, dims, optional=True, ragged=True))

    def _add(self, tensor: Tensor) -> Tensor:
        self.append(tensor)
        return tensor
