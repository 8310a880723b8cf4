"""What somebody means who names a model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tandem.tools import extras
from tandem.tools.errors import TandemError
from tandem.tools.models.gguf import GgufFile, is_gguf
from tandem.tools.models.hub import ID, HubModel
from tandem.tools.models.source import CheckpointFolder, ModelSource

GGUF = ".gguf"
HINT = "a model of the Hugging Face Hub is OWNER/NAME or OWNER/NAME@REVISION"


def model_named(text: str) -> ModelSource:
    """Return the folder, GGUF file or model of the Hub that a name stands for; raise TandemError.

    What is on this machine goes first.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        return CheckpointFolder(path)
    if path.is_file():
        if not is_gguf(path):
            raise TandemError(f"{path} is neither a checkpoint's folder nor a GGUF file")
        return GgufFile(path)
    if path.suffix == GGUF:
        raise TandemError(f"no file {path}")
    given = ID.fullmatch(text)
    if given is None:
        raise TandemError(f"no folder {path}; {HINT}")
    if find_spec("huggingface_hub") is None:
        raise TandemError(
            f"no folder {path}, and a model of the Hub needs the package huggingface_hub; "
            f"{extras.install('embedded')}"
        )
    return HubModel(given["id"], given["revision"])
