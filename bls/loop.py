"""The decoding loop: draft, verify, accept, cut, emit, plan, until the answer is complete.

`Decoding.run` blocks its thread. It reaches the engines, the tokenizer and the client only through
`LoopPorts`: with Triton in ``bls.triton``, scripted in tests. The target determines the output; the
draft determines only how many tokens a target call emits.

Until a round has its draft, only the drafter has changed. So if a draft call doesn't return, a new
thread calls `draft_failed` and `run`, which begins the round again.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
arXiv:2211.17192; Chen et al., arXiv:2302.01318.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tandem.bls.costs import UNBOUNDED, PlainCallSize
from tandem.bls.drafters.drafter import DrafterContext
from tandem.bls.drafters.guarded import drafter_of
from tandem.bls.errors import EngineCallError
from tandem.bls.guidance import GRAMMAR, ByGuide, Guidance
from tandem.bls.ports import (
    NO_DRAFT,
    NO_TOKENS,
    Chunk,
    Draft,
    EngineCall,
    EngineResult,
    FinishReason,
    KvBlocks,
    LoopPorts,
    PromptLogProbs,
    TokenDetails,
    join_details,
    plain_details,
    round_details,
    unverified_details,
)
from tandem.bls.request import Request
from tandem.bls.seeds import output_depends_on_lengths, verification_seed
from tandem.bls.sequence import Sequence
from tandem.bls.statistics import Round, Statistics
from tandem.bls.text import IncrementalDetokenizer
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
        self.measured_by_auto = partial(context.draft_planner.table, request.drafter)
        self._clock = clock  # seconds
        self._text = IncrementalDetokenizer(request)
        steady = request.stream or bool(request.stop_strings)
        use_timings = not output_depends_on_lengths(request, settings)
        self._plain_call_size = PlainCallSize(
            steady=steady, in_engine=request.drafter_kind.in_engine, use_timings=use_timings
        )
        # A guide discards tokens, and a seed needs calls that don't depend on time.
        self._can_decode_ahead = (
            settings.target.capabilities.decodes_ahead
            and matcher is None
            and steady
            and use_timings
        )
        self._load = context.load
        self._ahead_since: float | None = None  # when the target began to decode ahead
        self._plain_tokens_due = 0  # tokens to decode before the drafter is called again
        self._reusable_tokens = 0

    def run(self, ports: LoopPorts) -> bool:
        """Decode until the answer is complete. Return whether it must wait for KV blocks first."""
        while self.finish_reason is None:
            if not ports.reserve(self.sequence.num_output_tokens):
                return True
            self.round(ports)
        return False

    def draft_failed(self, error: EngineCallError) -> None:
        """Count the failure of a draft call. The next round decodes without that draft."""
        self.statistics.num_drafter_failures += 1
        self._drafter.failed(error)

    def round(self, ports: LoopPorts) -> None:  # noqa: C901, PLR0912, PLR0915  read it as a whole
        """Draft, verify, accept, cut, emit, and plan the next round."""
        request, sequence, statistics = self.request, self.sequence, self.statistics
        guidance, drafter = self._guidance, self._drafter
        begins_forced = not sequence.num_output_tokens and guidance.begins_forced
        began = self._clock()

        # Draft: forced tokens of the guide, a branch that was drafted ahead, or new tokens. Forced
        # tokens at the beginning of an answer need no engine.
        draft = NO_DRAFT
        if not (begins_forced or self._plain_tokens_due) and drafter.can_draft(sequence):
            limit = sequence.draft_limit()
            if limit >= 1:
                draft = guidance.forced_draft(limit)
                try:
                    draft = draft or drafter.propose(sequence, limit, ports)
                except EngineCallError as error:
                    self.draft_failed(error)
            self._plain_tokens_due = 0 if draft else draft.plain_tokens

        # Verify, while the draft engine drafts ahead. Without a draft, the target decodes alone. A
        # call with a draft has no end id: an engine that stops at an end id leaves it out of its
        # result, so an accepted EOS would look like a rejected draft token.
        if begins_forced:
            wanted, result = 0, EngineResult(NO_TOKENS)
        elif draft:
            legal, masks = guidance.legal_prefix(draft)
            statistics.ahead.num_calls += drafter.draft_ahead(sequence, legal, ports)
            wanted, self._ahead_since = len(legal) + 1, None
            call = self._target_call(wanted, draft=legal)._replace(token_masks=masks)
            result = guidance.call_target(call, ports.call)
        else:
            began, wanted = self._ahead_since or self._clock(), self._plain_tokens()
            call = self._target_call(wanted, end_ids=request.end_ids)
            call = call._replace(decode_ahead=self._decode_ahead_len(wanted))
            result = guidance.call_target(call, ports.call)
            self._ahead_since = self._clock() if call.decode_ahead else None

        # Accept. An engine that stops early without a draft has found an EOS and dropped it.
        tokens, count = result.tokens, len(result.tokens)
        eos = sequence.find_eos(tokens)
        eos_dropped, num_accepted = False, 0
        if draft:
            num_accepted = self._accept(legal, result, eos)
            details = round_details(statistics.num_rounds, tokens, num_accepted, draft.tokens)
        else:
            eos_dropped = count < wanted and eos is None and not guidance.cuts_results
            details = self._accept_plain(result, eos, eos_dropped=eos_dropped)

        # Cut at an EOS, at max_tokens, and at a token that the guide doesn't allow. Forced tokens
        # of the guide follow. A stop string ends all of it.
        ended = eos_dropped or eos is not None
        tokens = tokens[:eos][: sequence.tokens_left]
        kept, forced = guidance.follow(tokens, sequence.tokens_left - len(tokens))
        tokens = tokens[:kept]
        if len(forced):
            tokens = np.concatenate((tokens, forced))
            added = unverified_details(statistics.num_rounds, len(forced), "forced")
            details = join_details([details.first(kept), added])
        text, kept, lengths = self._text.extend(tokens, ports.decode)
        tokens = tokens[:kept]

        # Emit.
        details = details.first(kept)._replace(text_lengths=lengths)
        if request.return_log_probs:
            details = details.with_log_probs(result.log_probs, result.top)
        self._keep_extras(result, kept)
        sequence.append(tokens)
        stopped = ended or self._text.stop_string or guidance.complete
        if stopped or not sequence.tokens_left:
            text += self._text.finish(sequence.output, ports.decode)
            # The rest of the text may have completed a stop string.
            self.finish_reason = "stop" if stopped or self._text.stop_string else "length"
            statistics.stop_string = self._text.stop_string or None
            drafter.completed(sequence)
        ports.send(Chunk(tokens, text, self.finish_reason, statistics.totals, details))

        # Plan the next round from what this one took.
        seconds = (self._ahead_since or self._clock()) - began
        if draft and draft.drafter != GRAMMAR:
            drafter.verified(draft, num_accepted, seconds)
        elif wanted and not draft:
            self._plain_call_size.adapt(count, seconds)
            drafter.observe_plain_call(count, seconds)

    def _plain_tokens(self) -> int:
        """Return the number of tokens to decode with the target alone: as many as bounds allow.

        A single streaming call for the whole answer would be cheaper. But Triton's Python backend
        deadlocks a model that receives two streams (see ``bls.triton.calls``). So some engines
        continue between calls (``decode_ahead``), and then a call may return more tokens.
        """
        return min(
            self.sequence.tokens_left,
            self._plain_call_size.tokens,  # so that chunks and stop strings aren't late
            self._guidance.max_plain_tokens,
            self._plain_tokens_due or UNBOUNDED,  # then the drafter tries again
            self.sequence.min_tokens_left or UNBOUNDED,  # then end ids are no longer banned
        )

    def _decode_ahead_len(self, wanted: int) -> int:
        """Return how many tokens the target may decode after a call for ``wanted`` tokens.

        It decodes them while the loop is busy with the tokens of this call. A draft discards them,
        and waits for the step that decodes them. With one sequence, nothing else needs that step.
        """
        discards = self.request.drafter_kind.drafts_in_loop and self._load() < 2
        if not self._can_decode_ahead or discards or self.sequence.min_tokens_left:
            return 0
        return self.sequence.tokens_left - wanted

    def _target_call(
        self, max_new_tokens: int, *, end_ids: tuple[int, ...] = (), draft: Draft = NO_DRAFT
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

    def _accept(self, draft: Draft, result: EngineResult, eos: int | None) -> int:
        """Count a round; return the number of accepted tokens, which precede the result's last one.

        eos: index of the first end of sequence in the result, or None.
        """
        count = len(result.tokens)
        if not 1 <= count <= len(draft) + 1:
            raise EngineCallError(
                self._settings.target.model,
                f"after {len(draft)} draft tokens it must return between 1 and {len(draft) + 1} "
                f"tokens; got {count}",
            )
        accepted = count - 1 if eos is None else min(count - 1, eos + 1)
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

    def _accept_plain(
        self, result: EngineResult, eos: int | None, *, eos_dropped: bool
    ) -> TokenDetails:
        """Count the tokens of a plain call, up to EOS, and return their details.

        If the engine drafts internally, count its rounds instead. eos_dropped: whether the engine
        stopped on EOS and left it out of its result.
        """
        rounds, count = self.statistics.num_rounds, len(result.tokens)
        self._plain_tokens_due = max(0, self._plain_tokens_due - count)
        if result.num_draft_tokens:
            self.statistics.add_engine_drafts(
                count + eos_dropped, result.num_draft_tokens, result.num_accepted_tokens
            )
            self.statistics.target_seconds += result.engine_seconds
            return unverified_details(self.statistics.num_rounds, count, "unknown")
        kept = len(result.tokens[:eos])
        if kept:
            self.statistics.add(Round(num_plain_tokens=kept, target_seconds=result.engine_seconds))
        else:
            self.statistics.target_seconds += result.engine_seconds
        return plain_details(rounds, count)

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
