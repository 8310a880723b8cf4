"""Triton's processes are named by their command lines."""

import subprocess

from live_triton import eventually

from tandem.tools.triton import supervisor
from tandem.tools.triton.supervisor import hide_regions, process_name


def test_a_process_that_is_ending_has_no_name():
    with subprocess.Popen(["true"]) as ending:  # a zombie until the block ends
        assert eventually(lambda: process_name(ending.pid) is None)


def test_shared_memory_is_hidden_but_a_link_in_its_place_is_not_followed(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "SHARED_MEMORY", tmp_path)
    for name in ("ours-region", "file"):
        (tmp_path / name).touch(0o644)
    (tmp_path / "ours-link").symlink_to(tmp_path / "file")
    hide_regions("ours-")
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("ours-region", "file")]
    assert modes == [0o600, 0o644]
