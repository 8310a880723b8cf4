"""Every configuration string of the source documents, and what is wrong with others."""

import pytest

from tandem.tools.profiles.config_strings import (
    ConfigStringError,
    DraftTargetConfig,
    PromptLookupConfig,
    fitted,
)

EIGHT = tuple(range(8))


@pytest.mark.parametrize(
    ("text", "config", "spelt"),
    [
        ("[4,[0],[1],True]", DraftTargetConfig(4, (0,), (1,), True), "[4,[0],[1],True]"),
        ("[4,[0],[1],False]", DraftTargetConfig(4, (0,), (1,), False), "[4,[0],[1],False]"),
        (
            "[10,[0,1,2,3,4,5,6,7],[0,1,2,3,4,5,6,7], False]",
            DraftTargetConfig(10, EIGHT, EIGHT, False),
            "[10,[0,1,2,3,4,5,6,7],[0,1,2,3,4,5,6,7],False]",
        ),
        (
            " [ 4 , [4,5,6,7] , [2,3] , True ] ",
            DraftTargetConfig(4, (4, 5, 6, 7), (2, 3), True),
            "[4,[4,5,6,7],[2,3],True]",
        ),
    ],
)
def test_draft_target_string_is_read_and_spelt(text, config, spelt):
    assert DraftTargetConfig.parse(text) == config
    assert str(config) == spelt


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("[10,2,[0]]", PromptLookupConfig(10, 2, (0,))),
        ("[4,2,[4,5,6,7]]", PromptLookupConfig(4, 2, (4, 5, 6, 7))),
    ],
)
def test_prompt_lookup_string_is_read_and_spelt(text, config):
    assert PromptLookupConfig.parse(text) == config
    assert str(config) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a list in brackets"),
        ("4", "'4' is not a list in brackets"),
        ("[4,[0],[1],True", "'[4,[0],[1],True' is not a list in brackets"),
        ("(4,[0],[1],True)", "is not a list in brackets"),
        ("[4,[0],[1]]", "3 parts in '[4,[0],[1]]', must be 4: draft_len, draft devices, target "),
        ("[x,[0],[1],True]", "part 1, draft_len, must be a whole number of at least 1, not x"),
        ("[0,[0],[1],True]", "part 1, draft_len, must be a whole number of at least 1, not 0"),
        ("[True,[0],[1],True]", "part 1, draft_len, must be a whole number of at least 1, not T"),
        ("[4,0,[1],True]", "part 2, draft devices, must be a list of devices in brackets, not 0"),
        ("[4,[],[1],True]", "part 2, draft devices, must be a list of devices in brackets, not []"),
        ("[4,[-1],[1],True]", "part 2, draft devices, must list whole numbers of at least 0"),
        ("[4,[0],['1'],True]", "part 3, target devices, must list whole numbers of at least 0"),
        ("[4,[0],[1,1],True]", "part 3, target devices, must name each device once, not [1, 1]"),
        ("[4,[0],[1],true]", "part 4, use_logits, must be True or False, not true, as in"),
        ("[4,[0],[1],1]", "part 4, use_logits, must be True or False, not 1"),
        ("[4,[0],[1],print()]", "part 4, use_logits, must be True or False, not print()"),
    ],
)
def test_part_that_is_wrong_is_named_with_an_example(text, message):
    with pytest.raises(ConfigStringError) as refused:
        DraftTargetConfig.parse(text)
    assert message in str(refused.value)
    assert str(refused.value).endswith('as in "[4,[0],[1],True]"')


def test_strings_are_not_mistaken_for_each_other():
    with pytest.raises(ConfigStringError, match=r"4 parts in .*, must be 3: prompt_lookup_num_t"):
        PromptLookupConfig.parse("[4,[0],[1],True]")


@pytest.mark.parametrize(
    ("devices", "tp_size", "expected"),
    [(EIGHT, 4, (0, 1, 2, 3)), (EIGHT, 1, (0,)), ((1,), 2, (1, 0)), ((2, 3), 4, (2, 3, 0, 1))],
)
def test_device_list_is_fitted_to_a_tp_size(devices, tp_size, expected):
    assert fitted(devices, tp_size) == expected
