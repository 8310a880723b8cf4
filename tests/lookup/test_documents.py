"""Files fill lookup pools."""

import os
import re
import subprocess
import sys

import pytest

from tandem.lookup.pools import DocumentError, LookupPools, fill, read_documents


@pytest.fixture
def folder(tmp_path):
    """One pool with a file per document, and one with a line per document."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.py").write_text("abcdef")
    (tmp_path / "files" / "b.txt").write_text("xyz")
    (tmp_path / "lines.jsonl").write_text('{"text": "ghijkl"}\n\n{"text": "mnopqr", "id": 1}\n')
    return tmp_path


def test_a_pool_is_a_folder_of_documents_or_a_file_with_one_per_line(folder):
    assert sorted(read_documents(folder)) == [
        ("files", "abcdef"),
        ("files", "xyz"),
        ("lines", "ghijkl"),
        ("lines", "mnopqr"),
    ]


def test_documents_are_utf_8_in_every_locale(folder):
    (folder / "files" / "a.py").write_bytes("é".encode())
    code = "from pathlib import Path; from tandem.lookup.pools import read_documents\n"
    code += f"print(ascii([*read_documents(Path({str(folder)!r}))][0]))"
    variables = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    shown = subprocess.check_output([sys.executable, "-c", code], env=variables)
    assert b"'\\xe9'" in shown


def test_documents_are_found_in_their_own_pool_only(folder):
    pools = LookupPools(max_tokens=1000)
    fill(pools, folder, lambda text: [ord(letter) for letter in text])
    tail = [ord(letter) for letter in "ghij"]
    assert pools.lookup("lines", tail, 2).tokens == [ord("k"), ord("l")]
    assert pools.lookup("files", tail, 2) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", b"text", "must be a folder of documents, or a .jsonl file"),
        ("lines.jsonl", b"[1]", 'must be an object with a text, {"text": "..."}'),
        ("lines.jsonl", b'{"text": 1}', 'must be an object with a text, {"text": "..."}'),
        ("lines.jsonl", b"\xff", "must be UTF-8"),
        ("lines.jsonl", rb'{"text": "\ud800"}', "must be an object with a text"),
    ],
)
def test_other_files_are_rejected_by_name(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises(DocumentError, match=re.escape(message)) as caught:
        list(read_documents(folder))
    assert str(folder / name) in str(caught.value)
