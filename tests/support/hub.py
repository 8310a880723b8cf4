"""A fake Hugging Face Hub that implements the calls needed to download a model.

Source: `HfApi.model_info`, `list_repo_tree` and `get_hf_file_metadata` in huggingface_hub.
"""

import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from http_server import http_server, send

API = re.compile(r"/api/models/(?P<id>[^/]+/[^/]+)(/(?P<what>revision|tree)/(?P<revision>[^/]+))?")
FILE = re.compile(r"/(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
MESSAGES = {"RepoNotFound": "Repository not found", "RevisionNotFound": "Invalid rev id"}


class Hub:
    """A fake Hub that serves models from folders, one folder per commit.

    Attributes:
        url: the URL of the server.
        gated: ids of the models whose files clients may not download.
        failing: HTTP status of all responses; None for normal responses.
        fetched: files that clients have requested, in order.

    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.gated: set[str] = set()
        self.failing: int | None = None
        self.fetched: list[str] = []
        self.revisions: dict[tuple[str, str], Path] = {}

    def add(self, name: str, folder: Path, revision: str = "main") -> str:
        """Publish a folder under a model name, and return its commit."""
        self.revisions[name, revision] = folder
        commit = commit_of(name, revision)
        self.revisions[name, commit] = folder
        return commit

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a HEAD or GET request."""
        path = unquote(urlsplit(request.path).path)
        if self.failing:
            send(request, self.failing)
        elif found := API.fullmatch(path):
            self._send_info(request, **found.groupdict())
        elif found := FILE.fullmatch(path):
            self._hand_out(request, **found.groupdict())
        else:
            send(request, 404)

    def _folder(self, request, id, revision) -> Path | None:  # noqa: A002
        known = {name for name, _ in self.revisions}
        if folder := self.revisions.get((id, revision)):
            return folder
        status, code = (404, "RevisionNotFound") if id in known else (401, "RepoNotFound")
        send(request, status, headers={"X-Error-Code": code, "X-Error-Message": MESSAGES[code]})
        return None

    def _send_info(self, request, id, what, revision):  # noqa: A002
        revision = revision or "main"
        folder = self._folder(request, id, revision)
        if folder is None:
            return
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if what == "tree":
            body = [
                {
                    "type": "file",
                    "path": str(path.relative_to(folder)),
                    "size": path.stat().st_size,
                    "oid": etag_of(path),
                }
                for path in files
            ]
        else:
            commit = revision if len(revision) == 40 else commit_of(id, revision)
            siblings = [
                {"rfilename": str(path.relative_to(folder)), "size": path.stat().st_size}
                for path in files
            ]
            body = {"id": id, "sha": commit, "siblings": siblings, "gated": id in self.gated}
        send(request, 200, json.dumps(body), {"Content-Type": "application/json"})

    def _hand_out(self, request, id, revision, file):  # noqa: A002
        folder = self._folder(request, id, revision)
        if folder is None:
            return
        if id in self.gated:
            headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
            send(request, 403, headers=headers)
        elif not (folder / file).is_file():
            send(request, 404, headers={"X-Error-Code": "EntryNotFound"})
        else:
            if request.command == "GET":
                self.fetched.append(file)
            headers = {"ETag": f'"{etag_of(folder / file)}"', "X-Repo-Commit": revision}
            send(request, 200, (folder / file).read_bytes(), headers)


def commit_of(name: str, revision: str) -> str:
    """Return the commit of a branch."""
    return hashlib.sha1(f"{name}@{revision}".encode()).hexdigest()


def etag_of(path: Path) -> str:
    """Return the hash that names a file in the client's cache."""
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def hub(root: Path):
    """Yield a running Hub on a free port."""
    served = Hub(root)
    with http_server(served.answer) as port:
        served.url = f"http://127.0.0.1:{port}"
        yield served
