"""What a Triton model declares about one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Tensor(str):
    """A tensor's name that also knows its type and shape.

    It is a plain ``str`` wherever a name is wanted (a dictionary key, a request), so that no
    caller has to unwrap it.

    dtype: Triton's name without the ``TYPE_`` prefix, e.g. ``INT32``, ``STRING``.
    dims: the shape without the batch dimension; -1 is free.
    optional: whether a request may leave the input out.
    scalar: the model sees ``[batch]`` although the client sends ``[batch, 1]`` (Triton's reshape).
    ragged: requests of different lengths may be batched together.
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

    def of_type(self, dtype: str) -> Tensor:
        return Tensor(
            self,
            dtype,
            self.dims,
            optional=self.optional,
            scalar=self.scalar,
            ragged=self.ragged,
        )


class Flags(TypedDict, total=False):
    """What may hold for a tensor; see `Tensor`."""

    optional: bool
    scalar: bool
    ragged: bool


class Tensors(list[Tensor]):
    """The inputs of a model, or its outputs, in the order of its configuration."""

    def declare(
        self, name: str, dtype: str, dims: tuple[int, ...], **flags: Unpack[Flags]
    ) -> Tensor:
        tensor = Tensor(name, dtype, dims, **flags)
        self.append(tensor)
        return tensor
