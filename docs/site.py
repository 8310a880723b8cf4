"""Hooks for mkdocs: pages from outside docs/, links to files in the repository, and diagrams.

Pages contain relative links that work on a code host, such as `../CONTRIBUTING.md`. The site
includes the Markdown files in `OUTSIDE`. A link to any other file outside docs/ points to
`repo_url` if mkdocs.yml sets it, and otherwise becomes plain text. Pages with diagrams load Mermaid
from the site; the theme would load it from another host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parents[1]
# File in the repository -> page of the site
OUTSIDE = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "tandem/demo/README.md": "project/demo-models.md",
}
LINK = re.compile(
    r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)"
)
MERMAID = "vendor/mermaid.min.js"
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Add links for editing if the code host is known."""
    config.edit_uri = "edit/main/docs/" if config.repo_url else None
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs/."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Rewrite a page's links to files outside docs/."""
    at = page.file.src_uri
    source = next((path for path, uri in OUTSIDE.items() if uri == at), f"docs/{at}")

    def rewrite_link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            return found[0]  # mkdocs reports the broken link
        if path in OUTSIDE or path.startswith("docs/"):
            uri = OUTSIDE.get(path, path.removeprefix("docs/"))
            return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(at) or '.')}{anchor})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return text

    # Parts with odd indices are code, which stays unchanged.
    parts = CODE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(rewrite_link, part) for i, part in enumerate(parts))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Add Mermaid to a page with diagrams, and correct the edit link of a page from outside."""
    at = page.file.src_uri
    outside = next((path for path, uri in OUTSIDE.items() if uri == at), None)
    if outside and config.repo_url:
        page.edit_url = f"{config.repo_url.rstrip('/')}/edit/main/{outside}"
    if 'class="mermaid"' not in html:
        return html
    return f'<script src="{get_relative_url(MERMAID, page.url)}"></script>\n{html}'


def on_post_page(output: str, page: Any, config: Any) -> str:  # noqa: ARG001
    """Name the theme's search dialog for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)
