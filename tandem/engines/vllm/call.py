"""State of one running call, in vLLM's process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.constraints import Bans, TokenMasks, cut
from tandem.engines.engine import CallUsage, EngineRequest, EngineResponse, LikeliestTokens
from tandem.engines.vllm.settings import VllmSettings


class VllmCall:
    """A call's constraints, its tokens and the answers sent so far.

    The scheduler counts the tokens.

    Attributes:
        key, internal: the call's number and vLLM's request id.
        text: the text that the call continues; "": unknown. The loop's calls for a text have ids
            that agree up to the last period.
        cancelled: whether the call was stopped.
        computed_tokens: number of tokens that went through the model.
        draft_tokens, accepted_tokens: totals over all drafts that vLLM verified.
        cached_tokens: number of tokens whose keys and values came from the cache.

    """

    def __init__(
        self, key: int, internal: str, request: EngineRequest, settings: VllmSettings
    ) -> None:
        self.key = key
        self.internal = internal
        self.request = request
        self.text = request.request_id.rpartition(".")[0]
        self.cancelled = False
        self.bans = Bans(request, settings.vocab_size)
        self.masks = TokenMasks(request, settings.vocab_size)
        self.computed_tokens = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.cached_tokens = 0
        self.first_scheduled_time_ns = 0
        self._settings = settings
        self._tokens: list[int] = []
        self._log_probs: list[float] = []
        self._top: list[list[tuple[int, float]]] = []
        self._surplus = 0  # tokens after the one that ended the answer, and an end id
        self._answered = 0
        self._first_token_time_ns = 0
        self._last_token_time_ns = 0

    @property
    def verifies(self) -> bool:
        return len(self.request.draft_ids) > 0

    @property
    def constrained(self) -> bool:
        return bool(self.bans) or bool(self.masks)

    def token_masks(self, text: list[int], draft: list[int]) -> NDArray[np.int32]:
        """Return the tokens allowed after `text` and each prefix of the draft, as token masks."""
        whole = np.array(text + draft, np.int32)
        rows = np.empty((len(draft) + 1, -(-self._settings.vocab_size // 32)), "<i4")
        octets = rows.view(np.uint8)
        octets[:] = 0xFF
        for row, length in zip(octets, range(len(text), len(whole) + 1), strict=True):
            if self.masks:
                row[:] = self.masks.allowed_bits(length)
            if self.bans:
                banned = self.bans.after(whole[:length])
                np.bitwise_and.at(row, banned // 8, ~(1 << banned % 8).astype(np.uint8))
        return rows

    @property
    def unanswered(self) -> bool:
        return len(self._tokens) > self._answered

    def add_output(self, completion: Any) -> bool:
        """Add new tokens. Return whether the answer ends here."""
        self._last_token_time_ns = time.time_ns()
        self._first_token_time_ns = self._first_token_time_ns or self._last_token_time_ns
        new = list(completion.token_ids)
        kept, ended, surplus = cut(self.request, self._tokens, new)
        stop = self.request.draft_stop_probability
        wants_log_probs = self.request.return_log_probs or stop is not None
        for place, token in enumerate(kept if wants_log_probs else ()):
            row = completion.logprobs[place]
            self._log_probs.append(row[token].logprob)
            best = sorted(row.items(), key=lambda item: -item[1].logprob)
            count = self.request.num_top_log_probs
            self._top.append([(token, entry.logprob) for token, entry in best[:count]])
            if stop is not None and np.exp(sum(self._log_probs)) < stop:
                kept, ended, surplus = kept[: place + 1], True, len(new) - place - 1
                break
        self._tokens += kept
        self._surplus = surplus
        return ended

    def answer(self, *, final: bool) -> EngineResponse:
        request, start = self.request, self._answered
        self._answered = len(self._tokens)
        wants_log_probs = request.return_log_probs
        top = None
        if wants_log_probs and request.num_top_log_probs:
            rows = np.array(self._top[start:], np.float32).reshape(-1, request.num_top_log_probs, 2)
            top = LikeliestTokens(rows[..., 0].astype(np.int32), rows[..., 1])
        return EngineResponse(
            tokens=tuple(self._tokens[start:]),
            final=final,
            log_probs=np.array(self._log_probs[start:], np.float32) if wants_log_probs else None,
            top_log_probs=top,
            usage=self._usage(),
        )

    def _usage(self) -> CallUsage:
        block = self._settings.kv_block_tokens
        reused = self.cached_tokens // block
        whole = -(-(len(self.request.input_ids) + len(self._tokens)) // block)
        return CallUsage(
            reused_blocks=reused,
            new_blocks=whole - reused,
            computed_tokens=self.computed_tokens,
            draft_tokens=self.draft_tokens,
            accepted_tokens=max(0, self.accepted_tokens - self._surplus),
            first_scheduled_time_ns=self.first_scheduled_time_ns,
            first_token_time_ns=self._first_token_time_ns,
            last_token_time_ns=self._last_token_time_ns,
        )
