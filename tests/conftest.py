"""What every test may use."""

import shutil
import signal
from pathlib import Path

import pytest
from checkpoints import write_pair

ROOT = Path(__file__).resolve().parent.parent

# A test run that was started in the background ignores SIGINT, and so would every command that it
# starts: a test that presses Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def embedded_profile(tmp_path_factory):
    """The embedded profile; on checkpoints of random weights where the demo's are not there."""
    profile = ROOT / "profiles" / "embedded.yaml"
    if (ROOT / "demo" / "target" / "config.json").is_file():
        return profile
    folder = tmp_path_factory.mktemp("deployment")
    (folder / "profiles").mkdir()
    write_pair(folder / "demo")
    return Path(shutil.copy(profile, folder / "profiles"))
