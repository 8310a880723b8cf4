"""The loop returns logits and log-probabilities on request."""

import numpy as np
from scripted import (
    ENDLESS,
    Draft,
    Language,
    Reports,
    Says,
    Target,
    decoding_of,
    play,
    request_of,
)

from tandem.bls.ports import PromptLogProbs, TopLogProbs


def test_returned_logits_do_not_share_memory_with_the_engines_tensors():
    width, sent = 8, []

    class SendsLogits(Target):
        def answers(self, call):
            for answer in super().answers(call):
                logits = np.repeat(answer.tokens[:, np.newaxis].astype(np.float32), width, axis=1)
                context = np.ones((len(call.context), width), np.float32)
                sent.extend([logits, context])
                yield answer._replace(logits=logits, context_logits=context)

    decoding = decoding_of(request_of(return_generation_logits=True, max_tokens=30))
    play(decoding, SendsLogits(Says(at=17)), Draft(Says(at=17), (True, False)))
    kept = decoding.generation_logits
    assert np.concatenate(kept)[:, 0].tolist() == decoding.sequence.output.tolist()
    assert decoding.context_logits.shape[1] == width
    for array in (*kept, decoding.context_logits):
        assert array.base is None
        assert not any(np.shares_memory(array, other) for other in sent)


def test_log_probs_line_up_with_the_tokens():
    class Rated(Target):
        def answers(self, call):
            for answer in super().answers(call):
                rated = answer.tokens.astype(np.float32)
                top = TopLogProbs(answer.tokens[:, np.newaxis], -rated[:, np.newaxis])
                yield answer._replace(log_probs=-rated, top=top)

    language = Language(end_every=20)
    decoding = decoding_of(request_of(return_log_probs=True, max_tokens=60))
    chunks = play(decoding, Rated(language), Draft(language, (True, False, True)))
    for chunk in chunks:
        tokens, details = chunk.tokens.tolist(), chunk.details
        assert (-details.log_probs).astype(int).tolist() == tokens
        assert details.top_ids[:, 0].tolist() == tokens
        assert (-details.top_log_probs[:, 0]).astype(int).tolist() == tokens


def test_log_probs_of_the_prompt_are_those_of_the_first_call():
    rated = PromptLogProbs(np.array([0, -1, -2], np.float32))

    class RatesPrompt(Target):
        def answers(self, call):
            first = len(self.calls) == 0
            for answer in super().answers(call):
                yield answer._replace(prompt_log_probs=rated if first else None)

    decoding = decoding_of(request_of(return_prompt_log_probs=True))
    play(decoding, RatesPrompt(ENDLESS), Draft(ENDLESS))
    assert decoding.statistics.num_rounds > 1
    assert decoding.prompt_log_probs is rated


def test_logits_that_were_not_requested_are_not_kept():
    decoding = decoding_of(request_of())
    logits = np.zeros((5, 8), np.float32)
    play(decoding, Reports(Target(ENDLESS), logits=logits), Draft(ENDLESS))
    assert decoding.generation_logits == []
