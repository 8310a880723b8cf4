"""What tests of guides may use."""

import pytest

from tandem.guides import compiler


@pytest.fixture(scope="module")
def untried():
    """Guides that harm nobody are compiled without a trial: it copies this process for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "try_out", lambda _work, _cpu_seconds: None)
        yield
