"""Custom drafters are loaded from files, and their errors only end drafting."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from error_lines import error_line
from scripted import ENDLESS, Draft, Health, OverduePorts, Target, decoding_of, expected, ids, play

from tandem.bls.drafters.registry import (
    BASELINE,
    BUILT_IN,
    DRAFTERS,
    DrafterExists,
    DrafterKind,
    DrafterModuleError,
    read_kind,
    register,
    with_settings,
)
from tandem.bls.request import Request
from tandem.bls.settings import AUTO

EXAMPLE = Path(__file__).parents[3] / "examples" / "drafters" / "repeat.py"
HEAD = """
from tandem.bls.drafters.registry import DrafterKind
from tandem.bls.drafters.drafter import Drafter
from tandem.bls.ports import Draft, EngineCall
"""
ROW = "DRAFTER = DrafterKind(name='own', description='a test', module=__name__)\n"
MAKE = "def make(request, context):\n    return Own()\n"
REQUEST = Request(prompt_ids=ids(0, 1, 2), max_tokens=40, drafter="own", draft_len=3)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a module and returns its path."""

    def write(*parts, name="own.py"):
        path = tmp_path / name
        path.write_text("".join(parts))
        return path

    return write


@pytest.fixture
def joined(write, monkeypatch):
    """Return a function that registers a drafter with the given class body."""

    def add(body, row=ROW):
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        kind = read_kind(write(HEAD, row, "class Own(Drafter):\n", lines, MAKE))
        monkeypatch.setitem(DRAFTERS, kind.name, kind)

    return add


def played(health=None, **changes):
    decoding = decoding_of(replace(REQUEST, **changes), health=health)
    target = Target(ENDLESS)
    play(decoding, target)
    assert decoding.sequence.output.tolist() == expected(decoding.request, ENDLESS)[0]
    return decoding, target


def test_custom_drafts_are_cut_after_an_end_of_sequence(joined):
    joined("def propose(self, sequence, limit, engines):\n    return Draft([1, 7, 2])")
    _, target = played(end_ids=(7,))
    assert target.calls[0].draft.tokens.tolist() == [1, 7]


PROPOSE = "def propose(self, sequence, limit, engines):\n    {}"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (PROPOSE.format("[][1]"), "IndexError: list index out of range (own.py, line 8)"),
        (
            PROPOSE.format("return Draft([1] * 4)"),
            "its draft has 4 tokens; the limit is 3",
        ),
        (PROPOSE.format("return Draft([8])"), "its draft token ids must be between 0 and 7"),
        (PROPOSE.format("return Draft([[1]])"), "its draft token ids must be a 1-D array"),
        (
            PROPOSE.format("engines.call(EngineCall('draft', None, 1, 1))"),
            "it calls an engine; set",
        ),
        (PROPOSE.format("return []"), "it must return a Draft; got list"),
        (
            PROPOSE.format("return Draft([1], logits=[[0.0]])"),
            "its draft sets logits, plan",
        ),
        (
            PROPOSE.format("return Draft(plain_tokens=-4)"),
            "its draft's plain_tokens must be an int",
        ),
        (PROPOSE.format("raise SystemExit(3)"), "SystemExit: 3 (own.py"),
        (PROPOSE.format("raise BaseException('a panic')"), "BaseException: a panic (own.py"),
        (PROPOSE.format("sequence.context[0] = 7"), "ValueError: assignment destination is read"),
        ("def can_draft(self, sequence):\n    raise StopIteration", "StopIteration (own.py"),
        ("def __init__(self):\n    1 / 0", "ZeroDivisionError: division by zero (own.py"),
    ],
)
def test_a_custom_drafter_error_ends_drafting_with_one_log_line(joined, body, fault):
    joined(body)
    health = Health()
    decoding, target = played(health=health)
    assert decoding.statistics.num_drafter_failures == 1
    assert not any(len(call.draft) for call in target.calls)
    [line] = health.errors
    assert line.startswith(f"drafter 'own' failed: {fault}")
    assert "\n" not in line
    assert health.failures == 0


CALLER = ROW.replace("a test'", "a test', samples_from_draft_model=True")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (PROPOSE.format("engines.call(7)"), "it may only make calls to the draft model; got int"),
        (
            PROPOSE.format("engines.call(EngineCall('target', None, 1, 1))"),
            "it may only call the draft engine; got target",
        ),
        (
            PROPOSE.format("engines.call(EngineCall('draft', None, 1, 1))"),
            "its call's context must be a 1-D",
        ),
        (
            PROPOSE.format("engines.call(EngineCall('draft', sequence.context, 1, -1))"),
            "its call's seed must be between 0 and 2^64-1",
        ),
        (
            PROPOSE.format("engines.call(EngineCall('draft', sequence.context, 2**64, 1))"),
            "its call's max_new_tokens must be between",
        ),
        (
            PROPOSE.format("engines.call(EngineCall('draft', sequence.context, 0, 1))"),
            "its call's max_new_tokens must be between",
        ),
        (
            PROPOSE.format("engines.call(EngineCall('draft', sequence.context, 1.5, 1))"),
            "its call's context must be a 1-D",
        ),
        (
            PROPOSE.format(
                "engines.call(EngineCall('draft', sequence.context.astype('int64') + 2**40, 1, 1))"
            ),
            "the context ids of its engine call must be",
        ),
    ],
)
def test_invalid_engine_calls_of_a_custom_drafter_are_rejected(joined, body, fault):
    joined(body, CALLER)
    health = Health()
    _, target = played(health=health)
    assert not any(len(call.draft) for call in target.calls)
    [line] = health.errors
    assert line.startswith(f"drafter 'own' failed: {fault}")


def test_engine_calls_of_a_custom_drafter_get_the_right_types(joined):
    """Triton rejects 64-bit ids, and the error would pause drafting for all requests."""
    joined(
        "def propose(self, sequence, limit, engines):\n"
        "    context = sequence.context.astype('int64')\n"
        "    answer = engines.call(EngineCall('draft', context, limit, 1, stop_ids=[2]))\n"
        "    return Draft(answer.tokens)",
        CALLER,
    )
    decoding = decoding_of(REQUEST, health=Health())
    draft = Draft(ENDLESS)
    play(decoding, Target(ENDLESS), draft)
    assert {call.context.dtype for call in draft.calls} == {np.dtype(np.int32)}
    assert {call.stop_ids for call in draft.calls} == {(2,)}


CALLS_DRAFT = (
    "def propose(self, sequence, limit, engines):\n"
    "    answer = engines.call(EngineCall('draft', sequence.context, limit, 1))\n"
    "    return Draft(answer.tokens)"
)


def test_a_failed_call_of_a_custom_drafter_pauses_the_draft_engine(joined):
    joined(CALLS_DRAFT, CALLER)
    draft, health = Draft(ENDLESS, (None,)), Health(patience=1)
    decoding = decoding_of(REQUEST, health=health)
    play(decoding, Target(ENDLESS), draft)
    assert len(draft.calls) == decoding.statistics.num_drafter_failures == 1
    assert health.errors == ["model 'draft' failed: scripted failure"]
    assert decoding.sequence.output.tolist() == expected(decoding.request, ENDLESS)[0]


def test_a_rejected_call_of_a_custom_drafter_does_not_pause_the_draft_engine(joined):
    joined(CALLS_DRAFT, CALLER)
    health = Health()
    decoding = decoding_of(REQUEST, health=health)
    play(decoding, Target(ENDLESS), Draft(ENDLESS, rejects=True))
    assert health.failures == 0
    assert set(health.errors) == {"model 'draft' failed: scripted rejection"}


def test_drafts_with_unknown_names_are_counted_under_the_drafter_name(joined):
    joined(
        "def propose(self, sequence, limit, engines):\n"
        "    return Draft([1], drafter=f'own-{len(sequence)}')"
    )
    decoding, _ = played()
    assert decoding.statistics.by_drafter.keys() == {"own"}


def test_an_error_after_verification_ends_only_later_custom_drafts(joined):
    joined(
        "def propose(self, sequence, limit, engines):\n"
        "    return Draft([1])\n"
        "def verified(self, draft, num_accepted, seconds):\n"
        "    raise KeyError(num_accepted)"
    )
    health = Health()
    decoding, target = played(health=health)
    assert sum(len(call.draft) > 0 for call in target.calls) == 1
    assert decoding.statistics.num_drafter_failures == health.rejections == 1


@pytest.mark.parametrize("draft_len", [3, AUTO])
def test_a_custom_drafter_learns_the_outcomes_of_its_drafts_and_of_plain_calls(joined, draft_len):
    joined(
        "def propose(self, sequence, limit, engines):\n"
        "    limits.append(limit)\n"
        "    return Draft([1] * (len(sequence) % 2))\n"
        "def verified(self, draft, num_accepted, seconds):\n"
        "    outcomes.append((len(draft), num_accepted))\n"
        "def observe_plain_call(self, num_tokens, seconds):\n"
        "    plain.append(num_tokens)",
        row=f"{ROW}limits, outcomes, plain = [], [], []\n",
    )
    decoding, target = played(draft_len=draft_len, max_draft_len=3)
    own = sys.modules[DRAFTERS["own"].module]
    verified = [len(call.draft) for call in target.calls if len(call.draft)]
    assert [drafted for drafted, _ in own.outcomes] == verified != []
    assert sum(n for _, n in own.outcomes) == decoding.statistics.num_accepted_draft_tokens
    assert len(own.plain) == len(target.calls) - len(verified) > 0
    assert min(own.limits) >= 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_custom_drafter_is_called_again_after_the_plain_tokens_that_it_requests(joined, stream):
    joined(
        "def propose(self, sequence, limit, engines):\n"
        "    called_at.append(len(sequence))\n"
        "    return Draft(plain_tokens=5)",
        row=f"{ROW}called_at = []\n",
    )
    played(stream=stream)
    assert sys.modules[DRAFTERS["own"].module].called_at == [*range(3, 43, 5)]


@pytest.mark.parametrize("method", ["completed(self, sequence)", "observe_plain_call(self, *_)"])
def test_a_failure_outside_of_propose_is_counted(joined, method):
    joined(f"{PROPOSE.format('return Draft()')}\ndef {method}:\n    1 / 0")
    decoding, _ = played()
    assert decoding.statistics.num_drafter_failures == 1


def test_the_example_drafter_is_read_with_its_settings():
    kind = read_kind(EXAMPLE)
    assert (kind.name, kind.settings.period) == ("repeat", 4)
    assert with_settings(kind, {"period": 2}).settings.period == 2


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (["import nowhere_to_be_found"], "own.py: ModuleNotFoundError: No module named"),
        (["x ="], "own.py: SyntaxError: invalid syntax (own.py, line 1)"),
        (["import sys; sys.exit(3)"], "own.py: SystemExit: 3"),
        ([""], "own.py has no DRAFTER; define DRAFTER = DrafterKind(...)"),
        (["DRAFTER = 'own'"], "own.py has no DRAFTER; define DRAFTER = DrafterKind(...)"),
        ([HEAD, ROW], "own.py has no function make; define make(request, context)"),
        ([HEAD, ROW.replace("__name__", "'own'"), MAKE], "DRAFTER.module must be __name__"),
        (
            [HEAD, ROW.replace("a test'", "a test', in_engine=True"), MAKE],
            "in_engine is for built-in engines only",
        ),
        (
            [HEAD, ROW.replace("'own'", "'my own'"), MAKE],
            "a drafter's name must be a Python identifier",
        ),
    ],
)
def test_an_invalid_drafter_file_is_rejected_with_one_line(write, parts, reason):
    assert reason in error_line(DrafterModuleError, read_kind, write(*parts))


def test_missing_and_non_python_files_are_rejected(write, tmp_path):
    with pytest.raises(DrafterModuleError, match=r"nowhere\.py isn't a file"):
        read_kind(tmp_path / "nowhere.py")
    with pytest.raises(DrafterModuleError, match=r"own\.txt must be a Python file"):
        read_kind(write(HEAD, name="own.txt"))


def test_a_drafter_without_settings_rejects_any_settings():
    with pytest.raises(DrafterModuleError, match="setting 'period' isn't known; 'none' has none"):
        with_settings(BASELINE, {"period": 2})


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_drafter_name_that_already_exists_is_rejected(name):
    before = dict(DRAFTERS)
    with pytest.raises(
        DrafterExists, match=f"drafter '{name}' already exists; choose a name other than"
    ):
        register(DrafterKind(name=name, description="again", module="nowhere"))
    assert before == DRAFTERS


@pytest.mark.parametrize("overdue", [1, 3])
def test_an_overdue_call_of_a_custom_drafter_changes_only_its_round(joined, overdue):
    joined(CALLS_DRAFT, CALLER)
    decoding = decoding_of(REQUEST)
    ports = OverduePorts(Target(ENDLESS), Draft(ENDLESS), overdue)
    ports.run(decoding)
    assert decoding.sequence.output.tolist() == expected(REQUEST, ENDLESS)[0]
    assert decoding.statistics.num_drafter_failures == 1
    assert ports.num_drafts > overdue
