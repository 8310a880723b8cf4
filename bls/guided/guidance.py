"""How a guide shapes the rounds of an answer: its drafts, the target's calls, and what it says.

A guide is known token by token, and every token of every engine passes here. So it holds whatever
the target can do:

- An engine that takes masks (`Capabilities.masks_tokens`) gets one for each place of a call, and
  draws no token that the guide forbids. It decodes one token a call where it verifies no draft.
- Another engine verifies, or decodes, without a guide. The first token that the guide forbids is
  dropped with all behind it, and the engine is asked for that one again, with all others biased to
  minus infinity. A legal token y then has the probability p(y) + P(illegal) p'(y) = p'(y), where p'
  is p among the legal ones. An engine with keyed randomness draws both with the same noise: the
  largest of the noisy scores among legal tokens is the same in both, so a text is that without
  drafts.
- Under top-k or top-p that sum does not hold, since a mask changes what the top is. Such an engine
  gets one biased call a token, and no drafts.

Tokens that are the only ones to fit are not drawn at all: no engine is called for them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tandem.bls.effects import NO_TOKENS, Draft, Effect, EngineAnswer, EngineCall
from tandem.bls.errors import EngineCallError, GuideFailed
from tandem.bls.exactness.seeds import repair_seed
from tandem.bls.metrics.request_statistics import Guided
from tandem.bls.request import Request, TokenIds
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings
from tandem.bls.text.token_details import TopLogProbs
from tandem.guides.errors import GuideError, TokenForbidden
from tandem.guides.matcher import GuideMatcher, TokenMasks, Walk

Asking: TypeAlias = Generator[Effect, Any, EngineAnswer]
Method: TypeAlias = Literal["masks", "repair", "token_by_token"]

GRAMMAR: Final = "grammar"  # the drafter of forced tokens that have to be verified
UNBOUND = 2**31 - 1
# Of an engine that decodes without the guide: what follows the first illegal token is lost.
FIRST_PIECE, LONGEST_PIECE = 4, 32


class Guidance:
    """What stands between the loop and the engines of one answer. Without a guide: nothing.

    statistics: None without a guide. cuts_answers: a call's answer may be shorter than was asked
    for though the text has not ended.
    """

    statistics: Guided | None = None
    cuts_answers = False

    @property
    def most_plain_tokens(self) -> int:
        """How many tokens a call without drafts may ask for."""
        return UNBOUND

    @property
    def complete(self) -> bool:
        """Whether nothing may follow but an end of sequence."""
        return False

    @property
    def begins_forced(self) -> bool:
        """Whether there are tokens to take over before the first call."""
        return False

    def forced_draft(self, limit: int) -> Draft | None:  # noqa: ARG002
        """Return the tokens that must come next as a draft, where they have to be verified."""
        return None

    def within(self, draft: Draft) -> Draft:
        """Return as much of a draft as may be right."""
        return draft

    def ask(self, call: EngineCall) -> Asking:
        """Have the target answer a call, and return what fits."""
        answer: EngineAnswer = yield call
        return answer

    def follow(self, tokens: TokenIds, most: int) -> tuple[int, TokenIds]:  # noqa: ARG002
        """Take over an answer's tokens; return how many, and up to ``most`` that must follow."""
        return len(tokens), NO_TOKENS


class ByGuide(Guidance):
    """One answer that follows a guide."""

    def __init__(self, matcher: GuideMatcher, sequence: Sequence, settings: LoopSettings) -> None:
        self._matcher = matcher
        self._sequence = sequence
        self._request = sequence.request
        self._settings = settings
        self._method = method_of(self._request, settings)
        self._commits = commits_forced(self._request)
        self._piece = FIRST_PIECE
        self._masks_of: tuple[TokenIds, TokenMasks] | None = None  # of the draft that was cut last
        self._guided = Guided(method=self._method, warnings=matcher.warnings)
        self.statistics = self._guided
        self.cuts_answers = self._method == "repair"

    @property
    def most_plain_tokens(self) -> int:
        """An engine without masks may be right for a while; one with a mask has only one."""
        return self._piece if self._method == "repair" else 1

    @property
    def complete(self) -> bool:
        """Whether nothing may follow but an end of sequence."""
        return self._matcher.complete

    @property
    def begins_forced(self) -> bool:
        """Whether the guide says how the answer begins."""
        return self._commits and bool(self._forced(1))

    def forced_draft(self, limit: int) -> Draft | None:
        """Return the tokens that must come next, where they are not taken over as they are."""
        if self._commits:
            return None
        forced = self._forced(limit)
        return Draft(np.array(forced, np.int32), drafter=GRAMMAR) if forced else None

    def within(self, draft: Draft) -> Draft:
        """Cut a draft where the guide forbids a token of it.

        Not one with logits: to drop what was drawn would bias the text. The target rejects it.
        """
        if draft.logits is not None:
            return draft
        walk = self._walk(draft.tokens)
        tokens = draft.tokens[: walk.num_legal]
        self._masks_of = (tokens, walk.masks[: len(tokens) + 1])
        self._guided.num_illegal_draft_tokens += len(draft) - len(tokens)
        return replace(draft, tokens=tokens)

    def ask(self, call: EngineCall) -> Asking:
        """Have the target answer by the guide."""
        if self._method != "repair":
            masks = self._masks(call.draft.tokens)
            answer: EngineAnswer = yield call._replace(token_masks=masks)
            return answer
        return (yield from self._repaired(call))

    def follow(self, tokens: TokenIds, most: int) -> tuple[int, TokenIds]:
        """Take over tokens up to where the guide is complete, and those that must follow them."""
        taken: int = self._try(lambda: self._matcher.advance(tokens.tolist()))
        if not self._commits:
            return taken, NO_TOKENS
        forced: list[int] = self._try(lambda: self._matcher.take_forced(most))
        self._guided.num_forced_tokens += len(forced)
        return taken, np.array(forced, np.int32)

    def _repaired(self, call: EngineCall) -> Asking:
        """Have a call answered without the guide, and its first illegal token replaced.

        It gets no end id: the engine would drop the end, which may be the illegal token.
        """
        ends = self._request.end_ids if call.end_id is not None else ()
        answer: EngineAnswer = yield call._replace(end_id=None, stop_ids=ends or call.stop_ids)
        count = len(answer.tokens)
        walk = self._walk(answer.tokens)
        if walk.num_legal == count:
            self._piece = min(2 * self._piece, LONGEST_PIECE)
            return answer
        self._piece = max(1, self._piece // 2)
        self._guided.num_repaired_tokens += 1
        repair: EngineAnswer = yield self._repair(call, answer.tokens[: walk.num_legal], walk.masks)
        return joined_answers(answer, walk.num_legal, repair)

    def _repair(self, call: EngineCall, legal: TokenIds, masks: TokenMasks) -> EngineCall:
        """Return the call for the one token behind the legal ones."""
        context = np.concatenate((call.context, legal)) if len(legal) else call.context
        keyed = self._settings.target.capabilities.keyed_randomness
        return EngineCall(
            engine="target",
            context=context,
            max_new_tokens=1,
            seed=repair_seed(self._request.sampling.seed, len(context), keyed=keyed),
            ban_end_ids=call.ban_end_ids,
            wants_logits=call.wants_logits,
            token_masks=masks[len(legal) : len(legal) + 1],
        )

    def _masks(self, tokens: TokenIds) -> TokenMasks:
        """Return the masks of a call that verifies these; known already of a draft that was cut."""
        if self._masks_of is not None and self._masks_of[0] is tokens:
            return self._masks_of[1]
        return self._walk(tokens).masks

    def _walk(self, tokens: TokenIds) -> Walk:
        may_end = self._sequence.min_tokens_left == 0
        walk: Walk = self._try(lambda: self._matcher.walk(tokens.tolist(), may_end=may_end))
        return walk

    def _forced(self, most: int) -> list[int]:
        forced: list[int] = self._try(lambda: self._matcher.forced(most))
        return forced

    def _try(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except TokenForbidden as error:
            model = self._settings.target.model
            raise EngineCallError(model, f"it answered what its mask forbids: {error}") from error
        except GuideError as error:
            raise GuideFailed(f"the guide cannot be followed any further: {error}") from error


def guidance_of(
    matcher: GuideMatcher | None, sequence: Sequence, settings: LoopSettings
) -> Guidance:
    """Return what shapes the rounds of an answer."""
    return Guidance() if matcher is None else ByGuide(matcher, sequence, settings)


def method_of(request: Request, settings: LoopSettings) -> Method:
    """Return how the target is held to a guide."""
    if settings.target.capabilities.masks_tokens:
        return "masks"
    return "token_by_token" if request.sampling.truncates else "repair"


def commits_forced(request: Request) -> bool:
    """Whether forced tokens are taken over without a call: nothing is asked of them but their ids.

    Where bad words or a bias may forbid the only token that fits, the engine has to say so.
    """
    sampling = request.sampling
    asks = (
        request.wants_log_probs,
        request.wants_prompt_log_probs,
        request.wants_context_logits,
        request.wants_generation_logits,
        sampling.bad_words is not None,
        sampling.embedding_bias is not None,
    )
    return not any(asks)


def joined_answers(first: EngineAnswer, count: int, then: EngineAnswer) -> EngineAnswer:
    """Return the first ``count`` tokens of an answer and those of the next, as one answer."""
    return first._replace(
        tokens=np.concatenate((first.tokens[:count], then.tokens)),
        seconds=first.seconds + then.seconds,
        engine_seconds=first.engine_seconds + then.engine_seconds,
        log_probs=_joined(first.log_probs, count, then.log_probs),
        top=_joined_top(first.top, count, then.top),
        logits=_joined(first.logits, count, then.logits),
    )


def _joined(first: Any, count: int, then: Any) -> Any:
    if first is None or then is None:
        return None
    return np.concatenate((first[:count], then))


def _joined_top(
    first: TopLogProbs | None, count: int, then: TopLogProbs | None
) -> TopLogProbs | None:
    if first is None or then is None:
        return None
    return TopLogProbs(
        np.concatenate((first.ids[:count], then.ids)),
        np.concatenate((first.values[:count], then.values)),
    )
