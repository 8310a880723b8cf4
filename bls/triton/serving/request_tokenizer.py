"""Tokenizes a request's prompts."""

from __future__ import annotations

from typing import Any

from tandem.bls.effects import TextCall
from tandem.bls.errors import EngineCallError
from tandem.bls.parsing.prompt import Prompt, Tokens
from tandem.bls.request import Options, TokenIds
from tandem.bls.settings import LoopSettings
from tandem.bls.triton.engine_calls.calls import Calls
from tandem.bls.triton.serving.request_state import RequestState
from tandem.bls.triton.tokenizer_calls import (
    refusal,
    text_of,
    text_request,
    tokens_of,
    tokens_request,
)


class RequestTokenizer:
    """Tokenizes the prompts of requests.

    Methods block. They raise Abandoned if the request abandons the call.
    """

    def __init__(self, settings: LoopSettings, calls: Calls) -> None:
        self._settings = settings
        self._calls = calls

    def tokens(self, state: RequestState, prompts: list[Prompt]) -> list[Tokens]:
        """Return the token ids of each prompt and of its words. Makes at most one call."""
        words = [prompt.words for prompt in prompts]
        given = [Tokens(p.input_ids) for p in prompts if p.input_ids is not None]
        if len(given) == len(prompts) and not any(map(any, words)):
            return given  # nothing to tokenize
        model = self._settings.preprocessing_model
        try:
            response = self._await(state, model, tokens_request(model, words))
        except EngineCallError as error:
            raise refusal(error) from error
        return [
            tokens if prompt.input_ids is None else tokens._replace(prompt_ids=prompt.input_ids)
            for prompt, tokens in zip(prompts, tokens_of(response, words), strict=True)
        ]

    def prefixes(self, state: RequestState, prompts: list[Prompt]) -> list[str]:
        """Return the text to show before each answer: its prompt, or "" if prompts are excluded.

        An unfinished character at the end of a prompt belongs to the answer's text.
        """
        if state.options.exclude_input_in_output:
            return [""] * len(prompts)
        return [
            prompt.words.text if prompt.input_ids is None else self._text(state, prompt.input_ids)
            for prompt in prompts
        ]

    def _text(self, state: RequestState, ids: TokenIds) -> str:
        model = self._settings.postprocessing_model
        response = self._await(state, model, text_request(model, TextCall(ids, 0)))
        return text_of(model, response).text

    def _await(self, state: RequestState, model: str, request: Any) -> Any:
        """Make a call that ``state`` may abandon."""
        with state.call_slot.pending(model, "", self._settings.target.timeout):
            return self._calls.infer(model, request)


def needs_tokenizer(prompt: Prompt, options: Options) -> bool:
    """Return whether a prompt has text to tokenize, or ids to show as text."""
    shows_ids = prompt.input_ids is not None and not options.exclude_input_in_output
    return any(prompt.words) or shows_ids
