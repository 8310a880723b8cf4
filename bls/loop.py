"""The decoding loop: propose, verify, accept, emit, until the answer is complete.

``Decoding.decode`` is a generator without I/O. It yields effects (`bls.effects`) and receives their
results. Tests run it with scripted results, ``bls.triton`` with real engines. The target determines
the output; the draft determines only how many tokens a target call emits.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
arXiv:2211.17192; Chen et al., arXiv:2302.01318.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tandem.bls.drafters.drafter import DrafterContext, DraftSteps
from tandem.bls.drafters.factory import drafter_of
from tandem.bls.effects import (
    NO_DRAFT,
    NO_TOKENS,
    Chunk,
    Draft,
    EngineCall,
    EngineResult,
    FinishReason,
    KvBlocks,
    PromptLogProbs,
    StartAhead,
    Steps,
    StepsAhead,
)
from tandem.bls.errors import EngineCallError
from tandem.bls.exactness.seeds import output_depends_on_lengths, verification_seed
from tandem.bls.guided.guidance import GRAMMAR, ByGuide, Guidance
from tandem.bls.metrics.request_statistics import Round, Statistics
from tandem.bls.plain_call_size import UNBOUNDED, PlainCallSize
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence
from tandem.bls.text.detokenizer import IncrementalDetokenizer
from tandem.bls.text.token_details import (
    TokenDetails,
    join_details,
    plain_details,
    round_details,
    unverified_details,
)
from tandem.guides.matcher import GuideMatcher


class Decoding:
    """The state of one prompt that is being decoded."""

    def __init__(
        self,
        request: Request,
        context: DrafterContext,
        matcher: GuideMatcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.sequence = Sequence(request)
        self.statistics = Statistics()
        self.finish_reason: FinishReason | None = None
        self.prompt_log_probs: PromptLogProbs | None = None  # from the first target call
        self.generation_logits: list[NDArray[np.float32]] = []  # [n, vocab_size] each
        self.context_logits: NDArray[np.float32] | None = None  # [num_input_tokens, vocab_size]
        self.prompt_kv_blocks: KvBlocks | None = None  # from the first target call
        self.kv_blocks: KvBlocks | None = None  # from the last target call
        self._settings = settings = context.settings
        self._drafter = drafter_of(request, context, self.statistics)
        self._guidance = (
            Guidance() if matcher is None else ByGuide(matcher, self.sequence, settings)
        )
        self.statistics.guide = self._guidance.statistics
        self._clock = clock  # seconds
        self._text = IncrementalDetokenizer(request, each_round=request.needs_text_each_round)
        self._plain_call_size = PlainCallSize(
            steady=request.stream or request.needs_text_each_round,
            in_engine=request.drafter_kind.in_engine,
            use_timings=not output_depends_on_lengths(request, settings),
        )
        self._plain_tokens_due = 0  # tokens to decode before the drafter is called again
        self._reusable_tokens = 0

    def decode(self) -> Steps:
        """Yield effects until the answer is complete."""
        if self._guidance.begins_forced:
            yield from self._emit(EngineResult(NO_TOKENS), plain_details(0, 0), None)
        while self.finish_reason is None:
            began = self._clock()
            draft = yield from self._propose()
            if len(draft):
                yield from self._round(draft, began)
            else:
                yield from self._plain_call()

    def _propose(self) -> DraftSteps:
        """Return the draft of the next round. If it is empty, the target decodes alone."""
        if self._plain_tokens_due or not self._drafter.can_draft(self.sequence):
            return NO_DRAFT
        draft = NO_DRAFT
        limit = self.sequence.draft_limit()
        if limit >= 1:
            draft = self._guidance.forced_draft(limit)
            try:
                if not len(draft):
                    draft = yield from self._drafter.propose(self.sequence, limit)
            except EngineCallError as error:
                self.statistics.num_drafter_failures += 1
                self._drafter.failed(error)
        if not len(draft):
            self._plain_tokens_due = draft.plain_tokens
        return draft

    def _round(self, proposed: Draft, began: float) -> Steps:
        """Verify a draft, count the accepted tokens, and emit the new tokens.

        We don't pass an end id here. An engine that stops on EOS leaves it out of its result, so we
        couldn't tell an accepted EOS from a rejected draft token.
        """
        draft = self._guidance.legal_prefix(proposed)
        ahead = self._drafter.draft_ahead(self.sequence, draft)
        if ahead is not None:
            yield StartAhead(self._counted(ahead))
        call = self._target_call(len(draft) + 1, end_ids=(), draft=draft)
        result = yield from self._guidance.call_target(call)
        eos_index = self.sequence.find_eos(result.tokens)
        self._check_verification(draft, result)
        accepted = self._count_round(draft, result, eos_index)
        rounds, count = self.statistics.num_rounds, len(result.tokens)
        details = round_details(rounds, count, accepted, len(proposed))
        yield from self._emit(result, details, eos_index)
        if proposed.drafter != GRAMMAR:
            self._drafter.verified(proposed, accepted, self._clock() - began)

    def _counted(self, ahead: StepsAhead) -> StepsAhead:
        """Run the steps and count them when they begin. They never begin if no thread is free."""
        self.statistics.ahead.num_calls += 1
        return (yield from ahead)

    def _check_verification(self, draft: Draft, result: EngineResult) -> None:
        count = len(result.tokens)
        if not 1 <= count <= len(draft) + 1:
            raise EngineCallError(
                self._settings.target.model,
                f"after {len(draft)} draft tokens it must return between 1 and {len(draft) + 1} "
                f"tokens; got {count}",
            )

    def _count_round(self, draft: Draft, result: EngineResult, eos_index: int | None) -> int:
        """Count a round; return the number of accepted tokens, which precede the result's last one.

        eos_index: index of the first end of sequence in the result, or None.
        """
        count = len(result.tokens)
        accepted = count - 1 if eos_index is None else min(count - 1, eos_index + 1)
        self.statistics.add(
            Round(
                num_draft_tokens=len(draft),
                num_accepted_tokens=accepted,
                drafter=draft.drafter,
                planned_tokens=draft.plan.num_tokens if draft.plan else 0,
                stop_probability=draft.plan.stop_probability if draft.plan else 0.0,
                draft_seconds=draft.result.engine_seconds if draft.result else 0.0,
                target_seconds=result.engine_seconds,
                num_branches=draft.num_branches,
                drafted_ahead=draft.drafted_ahead,
                seconds_saved=draft.seconds_saved,
            )
        )
        # The last token of a result is the target's own. If it equals the draft token at that
        # position, it isn't a correction, so the target stopped early and left the rest of the
        # draft unverified. The count is a lower bound: after an early stop, a token that differs
        # from the draft looks like a correction. With a threshold, nothing is counted, because a
        # correction may equal the rejected token.
        last = count - 1
        exact = self.request.draft_acceptance_threshold is None
        if exact and last < len(draft) and result.tokens[last] == draft.tokens[last]:
            self.statistics.num_unverified_draft_tokens += len(draft) - last
        return accepted

    def _plain_call(self) -> Steps:
        """Decode tokens with the target alone: as many as all bounds allow.

        A single streaming call for the whole answer would be cheaper. But Triton's Python backend
        deadlocks a model that receives two streams (see ``bls.triton.engine_calls.calls``).
        """
        bounds = (
            self.sequence.tokens_left,
            self._plain_call_size.tokens,  # so that chunks and stop strings aren't late
            self._guidance.max_plain_tokens,
            self._plain_tokens_due or UNBOUNDED,  # then the drafter tries again
            self.sequence.min_tokens_left or UNBOUNDED,  # then end ids are no longer banned
        )
        wanted = min(bounds)
        began = self._clock()
        call = self._target_call(wanted, end_ids=self.request.end_ids)
        result = yield from self._guidance.call_target(call)
        count = len(result.tokens)
        self._plain_tokens_due = max(0, self._plain_tokens_due - count)
        self._plain_call_size.adapt(count, result.seconds)
        eos_index = self.sequence.find_eos(result.tokens)
        stopped_early = count < wanted and not self._guidance.cuts_results
        eos_dropped = stopped_early and eos_index is None
        details = self._count_plain_tokens(result, eos_index, eos_dropped=eos_dropped)
        yield from self._emit(result, details, eos_index, eos_dropped=eos_dropped)
        self._drafter.observe_plain_call(count, self._clock() - began)

    def _count_plain_tokens(
        self, result: EngineResult, eos_index: int | None, *, eos_dropped: bool
    ) -> TokenDetails:
        """Count the tokens of a plain call, up to EOS.

        If the engine drafts internally, count its rounds instead.

        eos_dropped: whether the engine stopped on EOS and left it out of its result.
        """
        rounds, count = self.statistics.num_rounds, len(result.tokens)
        if result.num_draft_tokens:
            self.statistics.add_engine_drafts(
                count + eos_dropped, result.num_draft_tokens, result.num_accepted_tokens
            )
            self.statistics.target_seconds += result.engine_seconds
            return unverified_details(self.statistics.num_rounds, count, "unknown")
        kept = len(result.tokens[:eos_index])
        if kept:
            self.statistics.add(Round(num_plain_tokens=kept, target_seconds=result.engine_seconds))
        else:
            self.statistics.target_seconds += result.engine_seconds
        return plain_details(rounds, count)

    def _target_call(
        self, max_new_tokens: int, *, end_ids: tuple[int, ...], draft: Draft = NO_DRAFT
    ) -> EngineCall:
        """Return a target call that stops at any of ``end_ids``.

        An engine takes one end id, which its result excludes. The rest are sent as stop ids.
        """
        below_min = self.sequence.min_tokens_left > 0
        context = self.sequence.context
        return EngineCall(
            engine="target",
            context=context,
            max_new_tokens=max_new_tokens,
            seed=verification_seed(
                self.request.sampling.seed,
                len(context),
                keyed=self._settings.target.capabilities.keyed_randomness,
            ),
            draft=draft,
            end_id=end_ids[0] if end_ids else None,
            stop_ids=() if below_min else end_ids[1:],
            ban_end_ids=below_min,
            wants_logits=self.request.return_generation_logits,
            in_engine=self.request.drafter_kind.in_engine,
        )

    def _emit(
        self,
        result: EngineResult,
        details: TokenDetails,
        eos_index: int | None,
        *,
        eos_dropped: bool = False,
    ) -> Steps:
        """Append and emit a result's tokens.

        They are cut, in this order, at an end of sequence, at ``max_tokens``, and at a token that
        the guide doesn't allow. Forced tokens of the guide follow. A stop string cuts all of it.

        details: details of the result's tokens. eos_index: index of the first end of sequence in
        the result, or None. eos_dropped: whether the engine stopped on EOS and left it out of its
        result.
        """
        ended = eos_dropped or eos_index is not None
        tokens = result.tokens[:eos_index][: self.sequence.tokens_left]
        left = 0 if ended else self.sequence.tokens_left - len(tokens)
        count, forced = self._guidance.follow(tokens, left)
        tokens = tokens[:count]
        if len(forced):
            added = unverified_details(self.statistics.num_rounds, len(forced), "forced")
            tokens, details = (
                np.concatenate((tokens, forced)),
                join_details([details.first(count), added]),
            )
        text, cut, lengths = yield from self._text.extend(tokens)
        tokens = tokens[:cut]
        details = details.first(len(tokens))._replace(text_lengths=lengths)
        if self.request.return_log_probs:
            details = details.with_log_probs(result.log_probs, result.top)
        self._keep_extras(result, len(tokens))
        self.sequence.append(tokens)
        stopped = ended or self._text.stop_string or self._guidance.complete
        if stopped or self.sequence.tokens_left == 0:
            if not self.request.detokenizes_off_path:
                text += yield from self._text.finish(self.sequence.output)
            # The rest of the text may have completed a stop string.
            self.finish_reason = "stop" if stopped or self._text.stop_string else "length"
            self.statistics.stop_string = self._text.stop_string or None
            self._drafter.completed(self.sequence)
        yield Chunk(tokens, text, self.finish_reason, self.statistics.totals, details)

    def _keep_extras(self, result: EngineResult, count: int) -> None:
        """Store a result's logits, prompt details and KV block counts.

        count: number of tokens that are kept. Logits are copied, because a view would keep the
        whole result's memory alive.
        """
        if result.prompt_log_probs is not None:
            self.prompt_log_probs = result.prompt_log_probs
        if self.request.return_generation_logits and result.logits is not None:
            self.generation_logits.append(result.logits[:count].copy())
        if result.context_logits is not None:
            self.context_logits = result.context_logits.copy()
        if result.kv_blocks is None:
            return
        # The previous call left its tokens in KV blocks, except its last token. Any of those blocks
        # that this call didn't reuse had been evicted and were recomputed.
        block = self._settings.target.kv_block_tokens
        if self.prompt_kv_blocks is None:
            self.prompt_kv_blocks = result.kv_blocks
            cached = min(result.kv_blocks.reused * block, len(self.request.prompt_ids))
            self.statistics.num_cached_prompt_tokens = cached
        self.kv_blocks = result.kv_blocks
        missing = self._reusable_tokens // block - result.kv_blocks.reused
        self.statistics.num_recomputed_tokens += max(0, missing) * block
        self._reusable_tokens = len(self.sequence) - 1
