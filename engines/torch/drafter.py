"""Prompt lookup inside an engine, which drafts for itself during a call."""

from __future__ import annotations

import threading
from array import array

import numpy as np

from tandem.engines.request import EngineRequest, Ids
from tandem.engines.torch.settings import TorchSettings
from tandem.lookup.index import NgramIndex


class LookupDrafter:
    """Drafts for one call: the tokens that followed the same n-gram earlier in the call's text.

    It reads no other text, so one call's prompt never shows up in another call's drafts.
    """

    def __init__(self, settings: TorchSettings) -> None:
        self._longest = settings.prompt_lookup_num_tokens
        self._end_id: int | None = None
        self._row = array("i")
        self._index = NgramIndex(
            settings.max_matching_ngram_size,
            keep_all=settings.lookup_keeps_all,
            use_oldest=settings.lookup_uses_oldest,
        )

    def __len__(self) -> int:
        return len(self._row)

    def knows_beginning_of(self, context: Ids) -> bool:
        known, given = np.frombuffer(self._row, np.int32), context[: len(self._row)]
        # Most different texts differ at the end, so the end is compared first.
        return np.array_equal(known[-64:], given[-64:]) and np.array_equal(known, given)

    def begin(self, request: EngineRequest) -> None:
        self._end_id = request.end_id
        self.note(request.input_ids[len(self) :].tolist())

    def note(self, tokens: list[int]) -> None:
        self._row.extend(tokens)
        self._index.extend(tokens)

    def propose(self, max_tokens: int) -> list[int]:
        """Return up to `max_tokens` draft tokens, none of them after an end id."""
        limit = min(self._longest, max_tokens)
        match = self._index.lookup(limit) if limit > 0 else None
        tokens = match.tokens if match else []
        return tokens[: tokens.index(self._end_id) + 1] if self._end_id in tokens else tokens


class Drafters:
    """One drafter per call. A call that continues an ended call's text reuses its drafter.

    So only the new tokens of a loop's growing context are read. Drafters of ended calls are kept
    until their tokens exceed `kv_cache_tokens`; the least recently used one is dropped first.
    Thread-safe.
    """

    def __init__(self, settings: TorchSettings) -> None:
        self._settings = settings
        self._idle: list[LookupDrafter] = []  # least recently used first
        self._lock = threading.Lock()

    def drafter_for(self, request: EngineRequest) -> LookupDrafter:
        with self._lock:
            fitting = [idle for idle in self._idle if idle.knows_beginning_of(request.input_ids)]
            best = max(fitting, key=len, default=None)
            if best is not None:
                self._idle.remove(best)
        drafter = LookupDrafter(self._settings) if best is None else best
        drafter.begin(request)
        return drafter

    def keep(self, drafter: LookupDrafter) -> None:
        with self._lock:
            self._idle.append(drafter)
            while sum(map(len, self._idle)) > self._settings.kv_cache_tokens:
                self._idle.pop(0)
