"""Finds a model by its name: a folder, a GGUF file or a model on the Hugging Face Hub.

Models on the Hub are downloaded into the cache of its library. The small files are downloaded
first, so that an unusable model is rejected before the weights, which can take gigabytes, are
downloaded.
"""

from __future__ import annotations

import errno
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tandem.tools.errors import TandemError
from tandem.tools.models.fit import count_parameters, gigabytes, item_bytes
from tandem.tools.models.gguf import convert_gguf, is_gguf
from tandem.tools.profiles.checkpoint import WEIGHTS, read_checkpoint_config

ID = re.compile(r"(?P<id>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>\S+))?")
SMALL = ("*.json", "*.jinja")
SAFETENSORS = WEIGHTS[0]
LOG_IN = "hf auth login, or HF_TOKEN=..."


@dataclass(frozen=True)
class FoundModel:
    """A model whose weights may still have to be downloaded.

    folder: contains the configuration and the tokenizer. num_parameters: the approximate number of
    weights. download: downloads the weights and returns their folder; None if ``folder`` has them.
    """

    name: str
    folder: Path
    num_parameters: int
    download: Callable[[], Path] | None = None

    def checkpoint(self) -> Path:
        """Return the folder of the complete checkpoint. Raises TandemError."""
        return self.download() if self.download else self.folder


@dataclass(frozen=True)
class HubModel:
    """A model on the Hub. id: OWNER/NAME. revision: a branch, tag or commit."""

    id: str
    revision: str | None = None

    @property
    def name(self) -> str:
        return f"{self.id}@{self.revision}" if self.revision else self.id

    def find(self) -> FoundModel:
        """Download the small files, and ask the Hub for the sizes of the weights."""
        from huggingface_hub import errors, snapshot_download  # noqa: PLC0415  takes a second

        folder = self._fetch(SMALL, self.revision)
        try:
            with self._one_line():
                files = snapshot_download(
                    self.id, revision=self.revision, allow_patterns=[SAFETENSORS], dry_run=True
                )
        except TandemError as error:
            if not isinstance(error.__cause__, errors.DryRunError):
                raise
            # The Hub can't be reached, so everything must be in the cache.
            self._fetch((*SMALL, SAFETENSORS), self.revision)
            return FoundModel(self.name, folder, count_parameters(folder))
        if not files:
            raise TandemError(
                f"{self.name} has no {SAFETENSORS}; choose a model with safetensors weights, not a "
                "LoRA adapter, pickled weights or GGUF (for GGUF, name the file)"
            )
        size = sum(file.file_size or 0 for file in files)
        missing = sum(file.file_size or 0 for file in files if file.will_download)
        return FoundModel(
            self.name,
            folder,
            size // item_bytes(read_checkpoint_config(folder)),
            partial(self._download, folder, missing) if missing else None,
        )

    def _download(self, folder: Path, missing: int) -> Path:
        """Download the weights. folder: of the small files. missing: bytes to download."""
        cache = folder.parents[2]
        free = shutil.disk_usage(cache).free
        if free < missing:
            raise TandemError(
                f"{self.name} needs {gigabytes(missing)} in {cache}, which has {gigabytes(free)} "
                "free; free some space, or set HF_HOME to another folder"
            )
        print(f"downloading {self.name} ({gigabytes(missing)}) to {cache}", file=sys.stderr)
        # Use the commit whose small files were checked.
        return self._fetch((*SMALL, SAFETENSORS), folder.name, shown=True)

    def _fetch(self, patterns: Sequence[str], revision: str | None, *, shown: bool = False) -> Path:
        """Download files that aren't in the cache, and return the folder.

        shown: show a progress bar on a terminal.
        """
        from huggingface_hub import snapshot_download  # noqa: PLC0415  takes a second
        from huggingface_hub.utils.tqdm import (  # noqa: PLC0415
            disable_progress_bars,
            enable_progress_bars,
        )

        (enable_progress_bars if shown and sys.stderr.isatty() else disable_progress_bars)()
        with self._one_line():
            folder = snapshot_download(self.id, revision=revision, allow_patterns=list(patterns))
        return Path(folder)

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Turn errors of the Hub's library into a TandemError that says what to do."""
        from huggingface_hub import constants, errors  # noqa: PLC0415  takes a second

        page = f"{constants.ENDPOINT}/{self.id}"
        try:
            yield
        except errors.GatedRepoError as error:
            raise TandemError(
                f"{self.id} is gated; accept its terms at {page}, then log in ({LOG_IN})"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise TandemError(
                f"{self.id} is neither a local folder nor a model at {constants.ENDPOINT}; check "
                f"the name, or log in if it is private ({LOG_IN})"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise TandemError(
                f"{self.id} has no revision '{self.revision}'; {page}/commits/main lists its "
                f"commits; or remove @{self.revision}"
            ) from error
        except errors.HFValidationError as error:
            raise TandemError(
                f"{self.id} is neither a local folder nor a valid model name"
            ) from error
        except Exception as error:  # the types depend on the library's HTTP client
            if getattr(error, "errno", None) in (
                *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS),
            ):
                raise TandemError(f"{error}; set HF_HOME to another folder") from error
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise TandemError(
                f"there is no local folder {self.name}, and it can't be downloaded from "
                f"{constants.ENDPOINT}: {reason}; {constants.HF_HUB_CACHE} doesn't have all of "
                "it; check the name of the folder, or the network, HF_TOKEN and HF_ENDPOINT"
            ) from error


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
