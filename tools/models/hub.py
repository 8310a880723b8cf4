"""A model of the Hugging Face Hub, fetched into the Hub's own cache.

The small files come first. So what cannot be served is refused before gigabytes are fetched.
"""

from __future__ import annotations

import errno
import glob
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.tools.errors import TandemError
from tandem.tools.models.weights import (
    INDEX,
    SAFETENSORS,
    Description,
    gigabytes,
    indexed,
    item_bytes,
)
from tandem.tools.profiles.checkpoint import read_config

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

ID = re.compile(r"(?P<id>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>\S+))?")
SMALL = ("*.json", "*.jinja", "merges.txt")
MORE_TEMPLATES = "additional_chat_templates/*.jinja"  # all that is read of a folder's folders
PICKLE = "pytorch_model"
LOG_IN = "hf auth login, or HF_TOKEN=..."


@dataclass(frozen=True)
class HubModel:
    """A model of the Hub.

    id: OWNER/NAME. revision: a branch, tag or commit.
    """

    id: str
    revision: str | None = None

    @property
    def name(self) -> str:
        return f"{self.id}@{self.revision}" if self.revision else self.id

    def describe(self) -> Description:
        """Fetch the small files; ask the Hub how large the others are."""
        return self._described

    def checkpoint(self) -> Path:
        folder, missing = self._described.folder, self._described.missing_bytes
        if not missing or self._sizes is None:
            return folder
        cache = _cache()
        there = next(folder for folder in (cache, *cache.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if free < missing:
            raise TandemError(
                f"{self.name} needs {gigabytes(missing)} in {cache}, where {gigabytes(free)} are "
                "free; make room, or choose another folder by HF_HOME"
            )
        print(f"fetching {self.name} ({gigabytes(missing)}) into {cache}", file=sys.stderr)
        wanted = [*filter(_is_small, self._sizes), *self._weights(folder, list(self._sizes))]
        # Of the commit whose small files were checked.
        return self._fetch(wanted, folder.name, shown=True)

    @cached_property
    def _described(self) -> Description:
        if self._sizes is None:
            return self._cached_description()
        folder = self._fetch([*filter(_is_small, self._sizes)], self.revision)
        weights = self._weights(folder, list(self._sizes))
        size = sum(self._sizes[name] for name in weights)
        missing = sum(self._sizes[name] for name in weights if not (folder / name).exists())
        return Description(folder, size // item_bytes(read_config(folder)), missing)

    @cached_property
    def _sizes(self) -> dict[str, int] | None:
        """Size of every file that may be read; None where the Hub is out of reach."""
        from huggingface_hub import HfApi, errors  # noqa: PLC0415  takes its time

        with self._one_line():
            try:
                info = HfApi().model_info(self.id, revision=self.revision, files_metadata=True)
            except errors.HfHubHTTPError as error:
                if error.response.status_code < 500:
                    raise
                return None
            except (errors.OfflineModeIsEnabled, _transport_error()):
                return None
        files = info.siblings or []
        return {
            f.rfilename: f.size or 0
            for f in files
            if "/" not in f.rfilename or fnmatchcase(f.rfilename, MORE_TEMPLATES)
        }

    def _fetch(self, names: Sequence[str], revision: str | None, *, shown: bool = False) -> Path:
        """Fetch files; shown: with the library's own progress, on a terminal."""
        from huggingface_hub import snapshot_download  # noqa: PLC0415  takes its time
        from huggingface_hub.utils.tqdm import tqdm  # noqa: PLC0415

        silent = not (shown and sys.stderr.isatty())

        class Bar(tqdm):
            def __init__(self, *given: Any, **named: Any) -> None:
                super().__init__(*given, **named | {"disable": silent})  # type: ignore[no-untyped-call]

        with self._one_line():
            folder = snapshot_download(
                self.id,
                revision=revision,
                allow_patterns=[glob.escape(name) for name in names],
                tqdm_class=Bar,
            )
        return Path(folder)

    def _weights(self, folder: Path, names: Sequence[str]) -> list[str]:
        """Choose the files of weights among those of the Hub; raise TandemError for none."""
        weights = self._chosen(folder, names)
        if not weights:
            raise TandemError(f"{self.name} {_what_instead(names)}")
        absent = [name for name in weights if name not in names]
        if absent:
            raise TandemError(f"{self.name} lacks {absent[0]}, which its index of weights names")
        return weights

    def _chosen(self, folder: Path, names: Sequence[str]) -> list[str]:
        if SAFETENSORS in names:
            return [SAFETENSORS]
        index = folder / f"{SAFETENSORS}{INDEX}"
        try:
            return indexed(index) if index.is_file() else []
        except ValueError as error:
            raise TandemError(f"{index} is no index of weights: {error}") from error

    def _cached_description(self) -> Description:
        from huggingface_hub import constants, try_to_load_from_cache  # noqa: PLC0415

        config = try_to_load_from_cache(self.id, "config.json", revision=self.revision)
        folder = Path(config).parent if isinstance(config, str) else None
        present = [path.name for path in folder.iterdir()] if folder else []
        weights = self._chosen(folder, present) if folder else []
        if folder is None or not weights or not set(weights) <= set(present):
            why, mend = f"{constants.ENDPOINT} does not answer", "connect this machine"
            if constants.is_offline_mode():
                why, mend = "HF_HUB_OFFLINE is set", "unset it"
            raise TandemError(
                f"{why}, and {_cache()} does not hold all of {self.name}; {mend}, or name a folder"
            )
        size = sum((folder / name).stat().st_size for name in weights)
        return Description(folder, size // item_bytes(read_config(folder)))

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Turn what the Hub's library raises into one line that says what to do."""
        from huggingface_hub import constants, errors  # noqa: PLC0415  takes its time

        page = f"{constants.ENDPOINT}/{self.id}"
        try:
            yield
        except errors.GatedRepoError as error:
            raise TandemError(
                f"{self.id} is gated: accept its terms at {page}, then say who you are ({LOG_IN})"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise TandemError(
                f"no folder {self.id} here, and no model {self.id} at {constants.ENDPOINT}; "
                f"check the name, or say who you are if it is private ({LOG_IN})"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise TandemError(
                f"{self.id} has no revision '{self.revision}'; say a branch, tag or commit that "
                f"{page}/commits/main shows, or leave out @{self.revision}"
            ) from error
        except errors.HfHubHTTPError as error:
            raise TandemError(f"{self.name}: {_refusal(error)}") from error
        except (errors.LocalEntryNotFoundError, _transport_error()) as error:
            raise TandemError(
                f"the connection to {constants.ENDPOINT} broke while {self.name} was fetched; "
                "try again, what has arrived is kept"
            ) from error
        except errors.HFValidationError as error:
            raise TandemError(
                f"no folder {self.id} here, and no model can have this name"
            ) from error
        except (ValueError, errors.FileMetadataError) as error:
            raise TandemError(
                f"{constants.ENDPOINT} does not answer as a Hub does; mend HF_ENDPOINT, or unset it"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            raise TandemError(
                f"cannot write {error.filename or _cache()}: {error.strerror}; choose another "
                "folder by HF_HOME"
            ) from error


def _is_small(name: str) -> bool:
    return any(Path(name).match(pattern) for pattern in SMALL)


def _cache() -> Path:
    from huggingface_hub import constants  # noqa: PLC0415  takes its time

    return Path(constants.HF_HUB_CACHE)


def _transport_error() -> type[Exception]:
    """What the library's HTTP client, one of several by its version, raises for a connection."""
    from huggingface_hub import errors  # noqa: PLC0415  takes its time

    return errors.HfHubHTTPError.__bases__[0]


def _what_instead(names: Sequence[str]) -> str:
    if any(name.startswith(PICKLE) for name in names):
        return (
            "has no safetensors, only pickled weights, which can run code; convert them, or name a "
            "revision that has safetensors"
        )
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        return f"holds GGUF files; fetch one, such as {gguf[0]}, and name the file"
    if "adapter_config.json" in names:
        return "is a LoRA adapter, not a model; merge it into its base model, and name that folder"
    return f"holds no {SAFETENSORS}; choose a model with weights for transformers"


def _refusal(error: HfHubHTTPError) -> str:
    """Say what an error of the Hub means that is not about this model."""
    status = error.response.status_code
    if status in (401, 403):
        return f"the Hub refuses your token; renew it ({LOG_IN}), or unset HF_TOKEN"
    if status == 429:
        return f"the Hub says that you ask too often; wait, or say who you are ({LOG_IN})"
    return f"the Hub answers {status}; try again later"
