"""The decoding loop: propose, verify, accept, emit, until the answer is complete.

``decode`` is a generator without I/O. It yields what it wants done (see ``bls.effects``) and is
sent the answers; tests drive it with scripts, ``bls.triton`` with real engines. The text is the
target's own: the draft decides only how many tokens a target step confirms.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
arXiv:2211.17192; Chen et al., arXiv:2302.01318.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bls.drafters.drafter import Drafter
from bls.effects import (
    NO_DRAFT,
    Chunk,
    Draft,
    Effect,
    EngineAnswer,
    EngineCall,
    FinishReason,
    KvBlocks,
)
from bls.errors import EngineError
from bls.pace import Pace
from bls.request import Request
from bls.seeds import verification_seed
from bls.sequence import Sequence
from bls.settings import LoopSettings
from bls.statistics import Round, Statistics
from bls.text import TextSoFar

Steps = Generator[Effect, Any, None]


class Decoding:
    """One request being decoded, and what is known about it at any moment."""

    def __init__(self, request: Request, settings: LoopSettings, drafter: Drafter) -> None:
        self.request = request
        self.sequence = Sequence(request)
        self.statistics = Statistics()
        self.finish_reason: FinishReason | None = None
        self.log_probs: list[NDArray[np.float32]] = []
        self.generation_logits: list[Any] = []
        self.context_logits: Any = None
        self.prompt_kv_blocks: KvBlocks | None = None  # of the first target call
        self.kv_blocks: KvBlocks | None = None  # of the last one
        self._settings = settings
        self._drafter = drafter
        self._text = TextSoFar(request.stop_strings, each_round=request.needs_text_each_round)
        self._pace = Pace(
            steady=request.streams_text or request.needs_text_each_round,
            whole=request.drafter == "engine",
        )
        self._reusable_tokens = 0

    def decode(self) -> Steps:
        """Yield effects until the answer is complete."""
        while self.finish_reason is None:
            if self._drafter.can_draft(self.sequence):
                yield from self._round()
            else:
                yield from self._target_alone()

    def _round(self) -> Steps:
        draft = yield from self._propose()
        if not len(draft):
            yield from self._target_alone(draft.plain_tokens)
            return
        answer = yield self._verification(draft)
        end = self.sequence.first_end(answer.tokens)
        self._accept(draft, answer, end)
        yield from self._emit(answer, end)

    def _propose(self) -> Generator[EngineCall, EngineAnswer, Draft]:
        limit = self.sequence.draft_limit
        if limit < 1:
            return Draft()
        try:
            return (yield from self._drafter.propose(self.sequence, limit))
        except EngineError as error:
            self.statistics.num_drafter_failures += 1
            self._drafter.failed(error)
            return Draft()

    def _verification(self, draft: Draft) -> EngineCall:
        """The target's call of a round.

        It gets no end id: an engine that stops there drops the token from its count, and an
        accepted end of sequence could not be told from a correction.
        """
        return self._target_call(len(draft) + 1, with_end_id=False, draft=draft)

    def _target_call(
        self, max_new_tokens: int, *, with_end_id: bool, draft: Draft = NO_DRAFT
    ) -> EngineCall:
        owed = self.sequence.tokens_owed > 0
        context = self.sequence.context
        return EngineCall(
            engine="target",
            context=context,
            max_new_tokens=max_new_tokens,
            seed=verification_seed(
                self.request.sampling.seed,
                len(context),
                keyed=self._settings.target_keyed_randomness,
            ),
            draft=draft,
            end_id=self.request.end_ids[0] if with_end_id and self.request.end_ids else None,
            ban_end_ids=owed,
            wants_logits=self.request.wants_generation_logits,
            whole=self.request.drafter == "engine",
        )

    def _accept(self, draft: Draft, answer: EngineAnswer, end: int | None) -> None:
        """Count a round. All of the answer but its last token are accepted draft tokens.

        end: where the first end of sequence is in it, if there is one.
        """
        count = len(answer.tokens)
        if not 1 <= count <= len(draft) + 1:
            raise EngineError(
                self._settings.target_model,
                f"it verified {len(draft)} draft tokens and answered {count} tokens, "
                f"where 1 to {len(draft) + 1} are possible",
            )
        accepted = count - 1 if end is None else min(count - 1, end + 1)
        self._drafter.verified(draft, accepted, answer.seconds)
        self.statistics.add(_round_of(draft, accepted, answer))
        self._count_blocks(answer)

    def _target_alone(self, most: int | None = None) -> Steps:
        """A call without drafts, for ``most`` tokens or as many as are due at this pace.

        One streaming call for the whole answer would be cheaper, but Triton's Python backend
        deadlocks a model into which two calls stream (see ``bls.triton.calls``).
        """
        wanted = min(self.sequence.tokens_left, most or self._pace.tokens)
        if self.sequence.tokens_owed:
            wanted = min(wanted, self.sequence.tokens_owed)
        answer = yield self._target_call(wanted, with_end_id=True)
        if most is None:
            self._pace.adapt(len(answer.tokens), answer.seconds)
        self._drafter.went_alone(len(answer.tokens), answer.seconds)
        self._count_blocks(answer)
        self._count_alone(answer)
        end = self.sequence.first_end(answer.tokens)
        yield from self._emit(answer, end, ended=len(answer.tokens) < wanted)

    def _count_alone(self, answer: EngineAnswer) -> None:
        count = len(answer.tokens)
        if count and not answer.num_draft_tokens:
            self.statistics.add(Round(num_plain_tokens=count, target_seconds=answer.engine_seconds))
            return
        self.statistics.target_seconds += answer.engine_seconds
        if answer.num_draft_tokens:
            self.statistics.add_own_drafts(
                count, answer.num_draft_tokens, answer.num_accepted_tokens
            )

    def _emit(self, answer: EngineAnswer, end: int | None, *, ended: bool = False) -> Steps:
        """Take over an answer's tokens up to an end of sequence or a stop string, hand them out.

        end: where the first end of sequence is in it, if there is one. ended: the engine met the
        end of sequence and kept it to itself.
        """
        tokens = answer.tokens[:end][: self.sequence.tokens_left]
        ended = ended or end is not None
        text, cut = yield from self._text.extend(self.sequence.output, tokens)
        tokens = tokens[:cut]
        self._keep_extras(answer, len(tokens))
        self.sequence.append(tokens)
        if ended or self._text.stopped:
            self.finish_reason = "stop"
        elif self.sequence.tokens_left == 0:
            self.finish_reason = "length"
        if self.finish_reason is not None and not self.request.tells_text_aside:
            text += yield from self._text.finish(self.sequence.output)
        yield Chunk(tokens, text, self.finish_reason, self.statistics.totals)

    def _keep_extras(self, answer: EngineAnswer, count: int) -> None:
        if self.request.wants_log_probs and answer.log_probs is not None:
            self.log_probs.append(answer.log_probs[:count])
        if self.request.wants_generation_logits and answer.logits is not None:
            self.generation_logits.append((answer.logits, count))
        if answer.context_logits is not None:
            self.context_logits = answer.context_logits

    def _count_blocks(self, answer: EngineAnswer) -> None:
        """Compare the KV blocks that this call reused with those that the last one left behind.

        Everything but the last token of the last round's answer has been computed before.
        """
        if answer.kv_blocks is not None:
            self.prompt_kv_blocks = self.prompt_kv_blocks or answer.kv_blocks
            self.kv_blocks = answer.kv_blocks
            block = self._settings.kv_block_tokens
            missing = self._reusable_tokens // block - answer.kv_blocks.reused
            self.statistics.num_recomputed_tokens += max(0, missing) * block
        self._reusable_tokens = len(self.sequence) - 1


def _round_of(draft: Draft, num_accepted: int, answer: EngineAnswer) -> Round:
    return Round(
        num_draft_tokens=len(draft),
        num_accepted_tokens=num_accepted,
        drafter=draft.drafter,
        planned_tokens=draft.plan.num_tokens if draft.plan else 0,
        stop_probability=draft.plan.stop_probability if draft.plan else 0.0,
        draft_seconds=draft.answer.engine_seconds if draft.answer else 0.0,
        target_seconds=answer.engine_seconds,
    )
