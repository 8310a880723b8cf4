"""Finds a model by its name: a folder, a GGUF file or a model on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from tandem.tools.errors import TandemError
from tandem.tools.models.gguf import convert_gguf, is_gguf
from tandem.tools.models.hub import ID, HubModel
from tandem.tools.models.weights import FoundModel, count_parameters


def find_model(text: str) -> FoundModel:
    """Return the model with this name, without its weights if they have to be downloaded.

    A file or folder on this machine takes precedence over the Hub. Raises TandemError.
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise TandemError(f"no folder {text}: {error}") from error
    if path.is_dir():
        return FoundModel(path.absolute().name, path, count_parameters(path))
    if path.is_file():
        if not is_gguf(path):
            raise TandemError(f"{path} is neither a checkpoint's folder nor a GGUF file")
        folder = convert_gguf(path)
        return FoundModel(path.stem, folder, count_parameters(folder))
    if path.suffix == ".gguf":
        raise TandemError(f"no file {path}")
    given = ID.fullmatch(text)
    if given is None:
        raise TandemError(
            f"no folder {path}; Hugging Face Hub models are named OWNER/NAME or OWNER/NAME@REVISION"
        )
    return HubModel(given["id"], given["revision"]).find()
