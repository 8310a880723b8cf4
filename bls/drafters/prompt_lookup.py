"""Proposes the tokens that followed the same n-gram in earlier text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tandem.bls.drafters.drafter import Drafter, DrafterContext
from tandem.bls.drafters.registry import (
    LOOKUP_POOL,
    PREDICTION,
    PROMPT_LOOKUP,
    DrafterName,
)
from tandem.bls.errors import BadRequest
from tandem.bls.inputs import no_pools, quote
from tandem.bls.ports import Draft, Engines
from tandem.bls.request import Request
from tandem.bls.seeds import output_depends_on_lengths
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings
from tandem.contract.entry import MANAGE_POOLS
from tandem.lookup.ngrams import MAX_MATCH, Match, Prediction, look_up
from tandem.lookup.pools import POOLS, LookupPools, fill
from tandem.preprocessing.tokenizer import load_tokenizer

# After misses in a row, the target decodes 1, 2, 4 and then 8 tokens alone. In text that never
# repeats itself, single-token calls would pay the overhead of a call for every token.
MOST_PLAIN_TOKENS = 8


class PromptLookup(Drafter):
    """Copies from the prompt and the answer.

    The request's prediction and the answers in its pool are sources too. The longest match wins; on
    a tie, the prediction comes first and the pool last. The request's own answer is added to the
    pool.

    Source: Saxena, "Prompt Lookup Decoding", 2023. The hyperparameters are TensorRT-LLM's.
    """

    def __init__(
        self, request: Request, settings: LoopSettings, pools: LookupPools | None = None
    ) -> None:
        self._max_copied = request.prompt_lookup_num_tokens
        self._max_ngram_size = request.max_matching_ngram_size
        tokens = request.prediction
        self._prediction = None if tokens is None else Prediction(tokens)
        self._max_predicted = request.prediction_num_tokens
        self._pools = pools
        self._pool = request.lookup_pool
        # Copies from a pool must not affect the output: a seed would no longer reproduce it, or an
        # acceptance threshold could accept part of another user's answer.
        lossy = request.draft_acceptance_threshold is not None
        self._copies_from_pool = not lossy and not output_depends_on_lengths(request, settings)
        self._plain_tokens = 1  # to decode alone after the next miss

    @property
    def best_possible_draft(self) -> Draft:
        """A stand-in for the longest copy that this request can get, after the longest match."""
        return Draft(np.zeros(self._max_copied, np.int32), num_matching=MAX_MATCH)

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:  # noqa: ARG002
        """Return the tokens that followed the longest matching n-gram."""
        match, source = self._find_match(sequence, limit)
        if match is None:
            alone = self._plain_tokens
            self._plain_tokens = min(2 * alone, MOST_PLAIN_TOKENS)
            return Draft(plain_tokens=alone)
        self._plain_tokens = 1
        tokens = sequence.up_to_end(np.array(match.tokens, np.int32))
        return Draft(tokens, drafter=source, num_matching=match.ngram_size)

    def completed(self, sequence: Sequence) -> None:
        if self._pools is not None and self._pool is not None:
            self._pools.add(self._pool, sequence.output)

    def _find_match(self, sequence: Sequence, limit: int) -> tuple[Match | None, DrafterName]:
        """Return the longest match in the prediction, the request's own text and the pool.

        On a tie, the first of these sources wins. Also returns the source.
        """
        predicted = self._match_in_prediction(sequence, limit)
        limit = min(limit, self._max_copied)
        pooled = self._match_in_pool(sequence, limit)
        own = look_up(sequence.context, limit, max_ngram_size=self._max_ngram_size)
        matches = ((predicted, PREDICTION), (own, PROMPT_LOOKUP.name), (pooled, LOOKUP_POOL))
        return max(matches, key=lambda found: found[0].ngram_size if found[0] else 0)

    def _match_in_prediction(self, sequence: Sequence, limit: int) -> Match | None:
        """Return the prediction's next tokens, at most max(matching tokens, limit for copies)."""
        if self._prediction is None:
            return None
        match = self._prediction.lookup(sequence.output, min(limit, self._max_predicted))
        if match is None:
            return None
        return match._replace(tokens=match.tokens[: max(self._max_copied, match.ngram_size)])

    def _match_in_pool(self, sequence: Sequence, limit: int) -> Match | None:
        if self._pools is None or self._pool is None or not self._copies_from_pool:
            return None
        return self._pools.lookup(self._pool, sequence.context[-MAX_MATCH:].tolist(), limit)


def pools_of(settings: LoopSettings, folder: Path) -> LookupPools | None:
    """Return the pools, or None if the deployment has no pools.

    folder: of the loop's model. Its documents fill the pools.
    """
    if not settings.max_pool_tokens:
        return None
    pools = LookupPools(settings.max_pool_tokens)
    if (folder / POOLS).is_dir():
        tokenizer = load_tokenizer(folder / settings.tokenizer_dir)
        fill(
            pools, folder / POOLS, lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        )
    return pools


def manage_pools(pools: LookupPools | None, command: str) -> str:
    """Run a request's command. Return the pools that it lists or empties, as JSON."""
    if pools is None:
        raise no_pools(MANAGE_POOLS)
    verb, _, pool_id = command.partition(" ")
    if verb == "clear":
        found = pools.clear(pool_id or None)
    elif command == "list":
        found = pools.sizes()
    else:
        raise BadRequest(
            f"input '{MANAGE_POOLS}' must be list, clear, or clear ID; got {quote(command)}",
            MANAGE_POOLS,
        )
    return json.dumps([pool._asdict() for pool in found])


def make(request: Request, context: DrafterContext) -> PromptLookup:
    return PromptLookup(request, context.settings, context.pools)
