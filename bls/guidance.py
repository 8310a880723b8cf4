"""Applies a guide to the rounds of an answer: to drafts, target calls, and emitted tokens.

Every emitted token passes through this module, so a guide is enforced for every target. There are
three methods:

- ``masks``: an engine that takes masks (`Capabilities.masks_tokens`) and doesn't draft by itself
  gets one mask per position of a call, so it never samples a disallowed token. Without a draft it
  decodes one token per call.
- ``repair``: any other engine verifies and decodes without a guide. The first disallowed token and
  all tokens after it are dropped. The engine samples that token again, with all disallowed tokens
  masked or biased to minus infinity. An allowed token y then has the probability
  p(y) + P(disallowed) p'(y) = p'(y), where p' is p renormalized over the allowed tokens. An engine
  with keyed randomness (see `bls.seeds`) uses the same noise for both samples, so the output
  equals the output without drafts: the allowed token with the largest noisy score is the same in
  both.
- ``token_by_token``: under top-k or top-p that equation doesn't hold, because a mask changes which
  tokens are at the top. Without masks per position, the engine gets one masked or biased call per
  token, and no drafts.

If only one token is allowed, it is appended without an engine call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.bls.costs import UNBOUNDED
from tandem.bls.errors import EngineCallError, GuideFailed
from tandem.bls.ports import NO_DRAFT, NO_TOKENS, Draft, EngineCall, EngineResult, TopLogProbs
from tandem.bls.request import Request, TokenIds
from tandem.bls.seeds import repair_seed
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings
from tandem.bls.statistics import GuideStatistics
from tandem.guides.errors import GuideError, TokenForbidden
from tandem.guides.matcher import GuideMatcher, TokenMasks, Walk

Bias = NDArray[np.float32]
Target: TypeAlias = Callable[[EngineCall], EngineResult]
Method: TypeAlias = Literal["masks", "repair", "token_by_token"]

GRAMMAR: Final = "grammar"  # drafter name of forced tokens that must be verified
# Tokens per call to an engine that decodes without the guide. A disallowed token wastes the rest.
FIRST_UNGUIDED_TOKENS, MAX_UNGUIDED_TOKENS = 4, 32


class Guidance:
    """Guidance for an answer without a guide. It changes nothing.

    statistics: None without a guide. cuts_results: whether an engine result may be cut shorter than
    requested before the whole answer is complete. max_plain_tokens: maximum number of tokens per
    call without a draft. complete: whether only an end of sequence may follow. begins_forced:
    whether the answer begins with forced tokens.
    """

    statistics: GuideStatistics | None = None
    cuts_results = False
    max_plain_tokens = UNBOUNDED
    complete = False
    begins_forced = False

    def forced_draft(self, limit: int) -> Draft:  # noqa: ARG002
        """Return a draft of forced tokens that must be verified. It may be empty."""
        return NO_DRAFT

    def legal_prefix(self, draft: Draft) -> tuple[Draft, TokenMasks | None]:
        """Return the longest prefix of a draft that the guide allows, and its masks if known."""
        return draft, None

    def call_target(self, call: EngineCall, target: Target) -> EngineResult:
        """Call the target and return the tokens that the guide allows.

        The call may have the masks that `legal_prefix` returned.
        """
        return target(call)

    def follow(self, tokens: TokenIds, max_forced: int) -> tuple[int, TokenIds]:  # noqa: ARG002
        """Advance the guide over an answer's tokens.

        Returns the number of tokens to keep, and up to ``max_forced`` forced tokens after them.
        """
        return len(tokens), NO_TOKENS


class ByGuide(Guidance):
    """Guidance for an answer with a guide."""

    def __init__(self, matcher: GuideMatcher, sequence: Sequence, settings: LoopSettings) -> None:
        self._matcher = matcher
        self._sequence = sequence
        self._request = sequence.request
        self._settings = settings
        self._method = guide_method(self._request, settings)
        self._commits = _commits_forced(self._request)
        self._unguided_tokens = FIRST_UNGUIDED_TOKENS
        self._guided = GuideStatistics(method=self._method, warnings=matcher.warnings)
        self.statistics = self._guided
        self.cuts_results = self._method == "repair"

    @property
    def max_plain_tokens(self) -> int:  # type: ignore[override]
        """Maximum number of tokens per call without a draft: 1 unless the method is ``repair``."""
        return self._unguided_tokens if self._method == "repair" else 1

    @property
    def complete(self) -> bool:  # type: ignore[override]
        return self._matcher.complete

    @property
    def begins_forced(self) -> bool:  # type: ignore[override]
        return self._commits and bool(self._peek_forced(1))

    def forced_draft(self, limit: int) -> Draft:
        forced = [] if self._commits else self._peek_forced(limit)
        return Draft(np.array(forced, np.int32), drafter=GRAMMAR) if forced else NO_DRAFT

    def legal_prefix(self, draft: Draft) -> tuple[Draft, TokenMasks | None]:
        """Cut a draft before the first token that the guide disallows.

        A draft with logits isn't cut, because dropping a sampled token would bias the output. The
        target rejects the token.
        """
        if draft.logits is not None:
            return draft, None
        walk = self._walk(draft.tokens)
        tokens = draft.tokens[: walk.num_legal]
        self._guided.num_illegal_draft_tokens += len(draft) - len(tokens)
        return replace(draft, tokens=tokens), walk.masks[: len(tokens) + 1]

    def call_target(self, call: EngineCall, target: Target) -> EngineResult:
        if self._method == "repair":
            return self._repair(call, target)
        if call.token_masks is None:
            call = call._replace(token_masks=self._walk(call.draft.tokens).masks)
        return target(call)

    def follow(self, tokens: TokenIds, max_forced: int) -> tuple[int, TokenIds]:
        kept: int = self._call_matcher(lambda: self._matcher.advance(tokens.tolist()))
        if not self._commits:
            return kept, NO_TOKENS
        forced: list[int] = self._call_matcher(lambda: self._matcher.take_forced(max_forced))
        self._guided.num_forced_tokens += len(forced)
        return kept, np.array(forced, np.int32)

    def _repair(self, call: EngineCall, target: Target) -> EngineResult:
        """Perform a call without the guide, and sample its first disallowed token again.

        The call has no end id, because the engine would drop the end token, which may be
        disallowed.
        """
        ends = self._request.end_ids if call.end_id is not None else ()
        unguided = call._replace(end_id=None, stop_ids=ends or call.stop_ids, token_masks=None)
        result = target(unguided)
        walk = self._walk(result.tokens)
        if walk.num_legal == len(result.tokens):
            self._unguided_tokens = min(2 * self._unguided_tokens, MAX_UNGUIDED_TOKENS)
            return result
        self._unguided_tokens = max(1, self._unguided_tokens // 2)
        self._guided.num_repaired_tokens += 1
        legal = result.tokens[: walk.num_legal]
        context = np.concatenate((call.context, legal)) if len(legal) else call.context
        keyed = self._settings.target.capabilities.keyed_randomness
        repair = target(
            EngineCall(
                engine="target",
                context=context,
                max_new_tokens=1,
                seed=repair_seed(self._request.sampling.seed, len(context), keyed=keyed),
                ban_end_ids=call.ban_end_ids,
                wants_logits=call.wants_logits,
                token_masks=walk.masks[len(legal) : len(legal) + 1],
            )
        )
        return join_results(result, len(legal), repair)

    def _walk(self, tokens: TokenIds) -> Walk:
        may_end = self._sequence.min_tokens_left == 0
        walk: Walk = self._call_matcher(
            lambda: self._matcher.walk(tokens.tolist(), may_end=may_end)
        )
        return walk

    def _peek_forced(self, max_forced: int) -> list[int]:
        forced: list[int] = self._call_matcher(lambda: self._matcher.peek_forced(max_forced))
        return forced

    def _call_matcher(self, function: Callable[[], Any]) -> Any:
        """Return the result of ``function``. Convert the errors of the matcher."""
        try:
            return function()
        except TokenForbidden as error:
            model = self._settings.target.model
            raise EngineCallError(
                model, f"it returned a token that its mask forbids: {error}"
            ) from error
        except GuideError as error:
            raise GuideFailed(f"the guide can't be followed any further: {error}") from error


def guide_method(request: Request, settings: LoopSettings) -> Method:
    """Return how the guide is enforced on the target."""
    capabilities = settings.target.capabilities
    if capabilities.masks_tokens and not capabilities.drafts_itself:
        return "masks"
    return "token_by_token" if request.sampling.truncates else "repair"


def masked_bias(bias: Bias | None, mask: NDArray[np.int32], vocab_size: int) -> Bias:
    """Return a bias [vocab_size] that is minus infinity for each token that a mask disallows.

    mask: [words]; a token is bit (id % 32) of word (id // 32).
    """
    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size)
    base = np.zeros(vocab_size, np.float32) if bias is None else bias
    return np.where(allowed, base, np.float32(-np.inf)).astype(np.float32)


def join_results(first: EngineResult, count: int, then: EngineResult) -> EngineResult:
    """Return a result with the first ``count`` tokens of ``first`` and all tokens of ``then``."""

    def join(first: Any, then: Any) -> Any:
        if first is None or then is None:
            return None
        return np.concatenate((first[:count], then))

    top = None
    if first.top is not None and then.top is not None:
        top = TopLogProbs(*map(join, first.top, then.top))
    return first._replace(
        tokens=join(first.tokens, then.tokens),
        seconds=first.seconds + then.seconds,
        engine_seconds=first.engine_seconds + then.engine_seconds,
        log_probs=join(first.log_probs, then.log_probs),
        top=top,
        logits=join(first.logits, then.logits),
    )


def _commits_forced(request: Request) -> bool:
    """Return whether forced tokens may be appended without an engine call.

    They need a call if the request wants more than their ids, or if bad words or a bias may rule
    out the only allowed token.
    """
    sampling = request.sampling
    asks = (
        request.return_log_probs,
        request.return_prompt_log_probs,
        request.return_context_logits,
        request.return_generation_logits,
        sampling.bad_words is not None,
        sampling.embedding_bias is not None,
    )
    return not any(asks)
