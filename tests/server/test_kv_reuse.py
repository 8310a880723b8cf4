"""What was computed once is not computed again: counted by the engines themselves."""

import pytest
from entries import ask_one, stream
from metrics import Change, computed, settle

PROMPT = "class Reader:\n    def read(self, path):\n" * 4
BLOCK = 32


@pytest.mark.parametrize("draft_len", [1, 4, 8])
def test_a_round_computes_its_draft_and_one_token(server, draft_len):
    prompt = f"# {draft_len}\n{PROMPT}"
    settle(server)
    before = computed(server, "target")
    names = ("text_output", "output_ids", "sequence_length", "num_rounds", "total_draft_tokens")
    answer = ask_one(
        server,
        "bls",
        prompt,
        max_tokens=48,
        num_draft_tokens=draft_len,
        return_num_input_tokens=True,
        outputs=(*names, "num_input_tokens"),
    )
    spent = computed(server, "target", before + 1) - before
    rounds, drafts = answer.number("num_rounds"), answer.number("total_draft_tokens")
    assert rounds > 1
    # The prompt once, and of every round its draft and the token that corrected the last one.
    assert spent <= answer.number("num_input_tokens") + drafts + rounds


def test_the_draft_computes_no_context_twice_either(server):
    settle(server)
    before = computed(server, "draft")
    answer = ask_one(server, "bls", f"# draft\n{PROMPT}", max_tokens=48, num_draft_tokens=4)
    spent = computed(server, "draft", before + 1) - before
    rounds = answer.number("num_rounds")
    # A draft of n tokens runs n steps; after a round that was accepted whole, one more is missing.
    assert spent <= len(PROMPT) + 4 * rounds + rounds


def test_a_prompt_that_was_seen_before_is_reused(server):
    values = {"max_tokens": 8, "return_perf_metrics": True}
    names = ("text_output", "kv_cache_reused_blocks")
    stream(server, f"# again\n{PROMPT}", max_tokens=8)
    again = ask_one(server, "bls", f"# again\n{PROMPT}", outputs=names, **values)
    assert again.number("kv_cache_reused_blocks") >= 1


def test_nothing_is_recomputed_while_there_is_room(server):
    change = Change(server)
    ask_one(server, "bls", f"# room\n{PROMPT}", max_tokens=64)
    change.until_ended(1)
    assert change.of("tandem_recomputed_tokens_total") == 0
