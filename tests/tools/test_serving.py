"""What is shown while a server starts and stops."""

from types import SimpleNamespace

from tandem.tools.profiles.profile import Profile
from tandem.tools.triton import serving
from tandem.tools.triton.server import ANY_PORTS, LOOPBACK, Progress


def test_progress_is_a_line_for_each_state_where_there_is_no_terminal(capsys):
    models = frozenset({"bls", "target"})
    with serving._progress_line("starting Triton") as tell:
        for loaded, seconds in ((set(), 0.1), (set(), 0.2), ({"bls"}, 0.3), (models, 0.4)):
            tell(*serving._describe(Progress(frozenset(loaded), models, seconds)))
    assert capsys.readouterr().err.splitlines() == [
        "starting Triton",
        "starting Triton: 0 of 2 models",
        "starting Triton: 1 of 2 models",
        "starting Triton: 2 of 2 models",
    ]


def test_models_may_load_for_as_long_as_the_profile_says(monkeypatch, tmp_path):
    given = {}

    class Server:
        def __init__(self, _, **options):
            given.update(options)

        def start(self):
            pass

    monkeypatch.setattr(serving, "TritonServer", Server)
    engines = {"target": {"checkpoint": "target"}}
    profile = Profile(name="slow", engines=engines, timeouts={"startup": 1800})
    planned = SimpleNamespace(profile=profile, thread_pool_size=4)
    serving.start(planned, tmp_path, ANY_PORTS, LOOPBACK)
    assert given["startup_timeout"] == 1800


def test_stopping_names_what_it_waits_for():
    assert serving._waiting(["Triton", "bls"], 2.4) == "waiting for Triton, bls (2 s)"
