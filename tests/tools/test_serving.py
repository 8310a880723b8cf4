"""What is shown while a server starts and stops."""

from tandem.tools.triton import serving
from tandem.tools.triton.server import Progress


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


def test_stopping_names_what_it_waits_for():
    assert serving._waiting(["Triton", "bls"], 2.4) == "waiting for Triton, bls (2 s)"
