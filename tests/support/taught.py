"""Rounds that a request and a deployment have learned from."""

from scripted import ids

from tandem.bls.arms import Arm
from tandem.bls.draft_length import AdaptiveLength
from tandem.bls.draft_statistics import DraftChoice, DraftStatistics
from tandem.bls.effects import Draft, EngineAnswer, StepSeconds


def drafted(*tokens, engine_seconds=0.0):
    return Draft(
        ids(*tokens),
        drafter="draft_model",
        answer=EngineAnswer(ids(*tokens), seconds=engine_seconds, engine_seconds=engine_seconds),
    )


def copied(*tokens, num_matching=2):
    return Draft(ids(*tokens), drafter="prompt_lookup", num_matching=num_matching)


def taught(rounds=4, *, max_draft_len=2, accepted=1):
    """A request whose rounds drafted 2 tokens in 20 ms, and were verified in 50 of 80 ms."""
    draft_statistics = DraftStatistics(max_draft_len, rated=False)
    length = AdaptiveLength(draft_statistics)
    for _ in range(rounds):
        length.verified(drafted(1, 1, engine_seconds=0.02), accepted, StepSeconds(0.08, 0.05))
    return length, draft_statistics


def no_trials(monkeypatch):
    """Have requests do what is best, and never try anything else."""
    for trial in ("pays_plain", "pays_draft"):
        monkeypatch.setattr(DraftStatistics, trial, lambda *_, **__: False)


def promising(monkeypatch, *, alone, length=2):
    """Have drafts of a length promise 100 tokens a second, and the target alone so many."""
    choice = DraftChoice(Arm(length, 0.0, 100.0), alone=alone)
    monkeypatch.setattr(DraftStatistics, "choice", lambda *_: choice)
