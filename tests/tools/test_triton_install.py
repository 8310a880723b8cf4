"""Tandem finds an installed Triton, or assembles Triton from the wheel once."""

import pytest

from tandem.tools.errors import TandemError
from tandem.tools.triton import install
from tandem.tools.triton.install import find_libpython, find_triton


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(install, "SYSTEM_TRITON", tmp_path / "no-system-triton")
    return tmp_path / "tandem"


def test_triton_is_assembled_from_the_wheel_only_once(cache):
    first = find_triton().binary.stat().st_mtime_ns
    assert find_triton().binary.stat().st_mtime_ns == first
    assert len(list(cache.iterdir())) == 1


def test_an_installed_triton_is_preferred(tmp_path, monkeypatch):
    system = tmp_path / "tritonserver"
    (system / "bin").mkdir(parents=True)
    (system / "bin" / "tritonserver").touch()
    (system / "TRITON_VERSION").write_text("2.60.0\n")
    monkeypatch.setattr(install, "SYSTEM_TRITON", system)
    found = find_triton()
    assert (found.wheel, found.version) == (None, "2.60.0")
    assert found.backends == system / "backends"


def test_the_error_without_triton_says_what_to_install(monkeypatch):
    monkeypatch.setattr(install, "find_spec", lambda _: None)
    with pytest.raises(TandemError, match=r"with the extra 'embedded'"):
        find_triton()


def test_the_error_for_an_unsupported_python_lists_supported_versions(monkeypatch):
    library = find_libpython()
    monkeypatch.setattr(install, "find_libpython", lambda: library)
    monkeypatch.setattr(install, "PYTHON", "3.99")
    with pytest.raises(
        TandemError, match=r"doesn't support Python 3\.99; use one of 3\.8, .*3\.13"
    ):
        find_triton()


def test_a_numpy_version_that_corrupts_tensors_is_rejected(monkeypatch):
    versions = {"numpy": "2.4.0", "nvidia-pytriton": "0.7.0"}
    monkeypatch.setattr(install.metadata, "version", versions.__getitem__)
    with pytest.raises(TandemError, match=r"numpy 2\.4\.0 corrupts .* pip install 'numpy<2'"):
        find_triton()


def test_the_error_for_an_unwritable_cache_says_how_to_fix_it(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(TandemError, match="set XDG_CACHE_HOME to a writable folder"):
        find_triton()
