"""Triton's processes are named by their command lines."""

import subprocess

from live_triton import eventually

from tandem.tools.triton.supervisor import process_name


def test_a_process_that_is_ending_has_no_name():
    with subprocess.Popen(["true"]) as ending:  # a zombie until the block ends
        assert eventually(lambda: process_name(ending.pid) is None)
