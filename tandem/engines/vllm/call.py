"""State of one vLLM request and the call that waits for its tokens, in vLLM's process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.constraints import Bans, TokenMasks, cut
from tandem.engines.engine import CallUsage, EngineRequest, EngineResponse, Ids, LikeliestTokens
from tandem.engines.vllm.settings import VllmSettings

MAX_TOKENS_AHEAD = 32  # computed in vain if no call asks for them


def text_of(request: EngineRequest) -> str:
    """Return the name of the text that a call continues, or "" if it has none.

    The loop's calls for a text have ids that agree up to the last period.
    """
    return request.request_id.rpartition(".")[0]


class VllmCall:
    """A call's constraints, its tokens and the answers sent so far.

    The scheduler counts the tokens. After the call's final answer, its vLLM request may decode
    ahead, and a call that continues the text takes it over.

    Attributes:
        key: the number of the call that waits for tokens; None: no call does.
        name, internal: vLLM's names for the request.
        ended: whether the vLLM request has ended.
        cut_off: whether it ended before the answer, because it was too far ahead.
        text: the text that the call continues; "": unknown. The loop's calls for a text have ids
            that agree up to the last period.
        cancelled: whether the call was stopped.
        computed_tokens: number of tokens that went through the model.
        draft_tokens, accepted_tokens: totals over all drafts that vLLM verified.
        cached_tokens: number of tokens whose keys and values came from the cache.

    """

    def __init__(
        self, key: int, name: str, internal: str, request: EngineRequest, settings: VllmSettings
    ) -> None:
        self.key: int | None = key
        self.name = name
        self.internal = internal
        self.ended = self.cut_off = False
        self.request = request
        self.text = text_of(request)
        self.cancelled = False
        self.bans = Bans(request, settings.vocab_size)
        self.masks = TokenMasks(request, settings.vocab_size)
        self.computed_tokens = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.cached_tokens = 0
        self.first_scheduled_time_ns = 0
        self._settings = settings
        # For all calls that the vLLM request serves.
        self._whole = request._replace(
            max_new_tokens=request.max_new_tokens + request.decode_ahead_len
        )
        self._tokens: list[int] = []
        self._text = np.empty(settings.max_seq_len if settings.copy_len else 0, np.int32)
        self._text_len = 0
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

    def text_so_far(self, token_ids: Sequence[int]) -> Ids:
        """Return vLLM's list of all token ids as an array, and keep it to add only the new ones."""
        old, self._text_len = self._text_len, len(token_ids)
        self._text[old : self._text_len] = token_ids[old:]
        return self._text[: self._text_len]

    @property
    def unanswered(self) -> int:
        return len(self._tokens) - self._answered

    @property
    def complete(self) -> bool:
        """Whether the waiting call has all its tokens."""
        return self.ended or self.unanswered >= self.request.max_new_tokens

    def take_over(self, key: int, request: EngineRequest) -> bool:
        """Let another call wait for the next tokens, if it only continues exactly this text."""
        first = self._whole
        same = "lora_task_id", "cache_salt", "return_log_probs", "num_top_log_probs"
        if any(getattr(request, name) != getattr(first, name) for name in same):
            return False
        if len(request.draft_ids) or request.token_masks is not None:
            return False
        left = first.max_new_tokens - self._answered
        if request.max_new_tokens + request.decode_ahead_len > left:
            return False
        if self.cut_off and self.unanswered < request.max_new_tokens:
            return False
        text = np.append(first.input_ids, np.array(self._tokens[: self._answered], np.int32))
        if not np.array_equal(request.input_ids, text):
            return False
        self.key, self.request = key, request
        self.cached_tokens = len(text) - 1
        return True

    def add_output(self, completion: Any) -> bool:
        """Add new tokens. Return whether the answer ends here."""
        self._last_token_time_ns = time.time_ns()
        self._first_token_time_ns = self._first_token_time_ns or self._last_token_time_ns
        new = list(completion.token_ids)
        kept, ended, surplus = cut(self._whole, self._tokens, new)
        stop = self._whole.draft_stop_probability
        wants_log_probs = self._whole.return_log_probs or stop is not None
        for place, token in enumerate(kept if wants_log_probs else ()):
            row = completion.logprobs[place]
            self._log_probs.append(row[token].logprob)
            best = sorted(row.items(), key=lambda item: -item[1].logprob)
            count = self._whole.num_top_log_probs
            self._top.append([(token, entry.logprob) for token, entry in best[:count]])
            if stop is not None and np.exp(sum(self._log_probs)) < stop:
                kept, ended, surplus = kept[: place + 1], True, len(new) - place - 1
                break
        self._tokens += kept
        self._surplus = surplus
        return ended

    def answer(self, *, final: bool) -> EngineResponse:
        """Return the tokens since the last answer. final: whether the call ends."""
        request, start, usage = self._whole, self._answered, self._usage()
        self._answered = len(self._tokens)
        if final:  # the rest counts for the next call
            self.computed_tokens = self.draft_tokens = self.accepted_tokens = 0
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
            usage=usage,
        )

    def _usage(self) -> CallUsage:
        block = self._settings.kv_block_tokens
        reused = self.cached_tokens // block
        whole = -(-(len(self._whole.input_ids) + len(self._tokens)) // block)
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
