"""NVIDIA's documented configuration strings are parsed, and invalid strings are reported."""

import pytest
from error_lines import error_line

from tandem.tools.commands.run_options import DraftTargetConfig, PromptLookupConfig, parse
from tandem.tools.errors import TandemError

EIGHT = [*range(8)]


@pytest.mark.parametrize(
    ("config", "text", "parts"),
    [
        (DraftTargetConfig, "[4,[0],[1],True]", [4, [0], [1], True]),
        (DraftTargetConfig, "[10,[0,1,2,3,4,5,6,7],[0], False]", [10, EIGHT, [0], False]),
        (DraftTargetConfig, " [ 4 , [4,5] , [2,3] , True ] ", [4, [4, 5], [2, 3], True]),
        (PromptLookupConfig, "[10,2,[0]]", [10, 2, [0]]),
        (PromptLookupConfig, "[4,2,[4,5,6,7]]", [4, 2, [4, 5, 6, 7]]),
    ],
)
def test_documented_config_strings_are_parsed(config, text, parts):
    assert [*parse(config, text)] == parts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "must have the form [draft_len, draft_devices, target_devices, use_logits]; got")
            for text in ("", "4", "(4,[0],[1],True)", "[4,[0],[1]]", "[4,[0],[1],print()]")
        ),
        (
            "[0,[0],[1],True]",
            "draft_len must be greater than 0; got 0",
        ),
        ("[4,[],[1],True]", "draft_devices must have at least 1 item"),
        (
            "[4,[0],['1'],True]",
            "target_devices must be a valid integer; got '1'; example: \"[4,[0],[1],True]\"",
        ),
        ("[4,[0],[1],1]", 'use_logits must be a valid boolean; got 1; example: "[4,[0],[1],True]"'),
    ],
)
def test_an_error_names_the_wrong_part_and_shows_an_example(text, message):
    line = error_line(TandemError, parse, DraftTargetConfig, text)
    assert message in line
    assert line.endswith('; example: "[4,[0],[1],True]"')
