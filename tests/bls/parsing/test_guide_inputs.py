"""Requests may contain a guide, and incomplete guides are rejected."""

from dataclasses import replace

import pytest
from client_inputs import SETTINGS, rejection, request_of
from scripted import with_engines

from tandem.contract.guide import KINDS, Guide

TYPE, TEXT = "guided_decoding_guide_type", "guided_decoding_guide"


def test_a_guide_is_read_from_its_type_and_text():
    assert request_of().guide is None
    assert request_of(**{TYPE: "regex", TEXT: "a+"}).guide == Guide("regex", "a+")
    assert request_of(**{TYPE: "json"}).guide == Guide("json")
    assert request_of(**{TYPE: "", TEXT: ""}).guide is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {TEXT: "a+"},
            f"input '{TYPE}' is missing; send one of {', '.join(KINDS)}",
        ),
        (
            {TYPE: "xml", TEXT: "a"},
            f"input '{TYPE}' must be one of {', '.join(KINDS)}; got 'xml'",
        ),
        (
            {TYPE: "regex"},
            f"input '{TEXT}' is missing; '{TYPE}' regex requires it",
        ),
        (
            {TYPE: "regex", TEXT: ["a", "b"]},
            f"input '{TEXT}' must have one value per prompt; got 2",
        ),
    ],
)
def test_incomplete_guides_are_rejected(values, reason):
    assert rejection(**values) == reason


def test_the_size_of_a_guide_is_limited():
    short = replace(SETTINGS, max_guide_bytes=10)
    assert request_of(settings=short, **{TYPE: "regex", TEXT: "a" * 10}).guide
    assert rejection(settings=short, **{TYPE: "regex", TEXT: "é" * 6}) == (
        f"input '{TEXT}' has 12 bytes; the limit is 10; send a shorter guide"
    )


def test_a_deployment_can_reject_all_guides():
    none = replace(SETTINGS, max_guide_bytes=0)
    assert request_of(settings=none, **{TYPE: "", TEXT: ""}).guide is None
    assert rejection(settings=none, **{TYPE: "json"}) == (
        f"input '{TYPE}' isn't supported by this deployment: its profile sets "
        "limits.max_guide_bytes to 0"
    )


def test_draft_ahead_true_is_rejected_with_a_guide():
    able = with_engines(SETTINGS, draft={"branches": True})
    guide = {TYPE: "json"}
    assert request_of(settings=replace(able, draft_ahead=True), **guide).draft_ahead is True
    assert rejection(settings=able, draft_ahead="true", **guide) == (
        "input 'draft_ahead' can't be true in a guided request; send auto or false"
    )
