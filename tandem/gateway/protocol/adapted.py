"""Bodies of other APIs, which are converted to bodies of chats."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, PrivateAttr, ValidationError, model_validator

from tandem.gateway.errors import ApiError
from tandem.gateway.protocol.body import Body, invalid
from tandem.gateway.protocol.fields import UNSUPPORTED, Unsupported, field_error
from tandem.gateway.protocol.requests import ChatRequest

_CHATS = "only /v1/chat/completions returns it"
# Chat fields that other APIs name differently, or whose results their answers can't contain.
NOT_SHARED: Mapping[str, Unsupported] = {
    "add_generation_prompt": Unsupported("the template decides it", (True,)),
    "continue_final_message": Unsupported("send the start of the answer to /v1/chat/completions"),
    "echo": Unsupported(_CHATS, (False,)),
    "logprobs": Unsupported(_CHATS, (False,)),
    "n": Unsupported("there is one answer per request", (1,)),
    "prompt_logprobs": Unsupported(_CHATS),
    "return_token_details": Unsupported(_CHATS, (False,)),
    "return_token_ids": Unsupported(_CHATS, (False,)),
    "return_tokens_as_token_ids": Unsupported(_CHATS, (False,)),
    "top_logprobs": Unsupported(_CHATS, (0,)),
}


def unsupported_fields(own_names: Mapping[str, str], **more: Unsupported) -> dict[str, Unsupported]:
    """Return the fields that an API rejects. own_names: see `AdaptedRequest`."""
    renamed = {
        name: Unsupported(f"send {own}") for name, own in own_names.items() if "." not in name
    }
    return {**UNSUPPORTED, **NOT_SHARED, **renamed, **more}


class AdaptedRequest(Body):
    """A body of another API. Fields with the same meaning as in a chat have the same names.

    own_names: this API's names for fields that a chat names differently.
    """

    model_config = ConfigDict(extra="allow")  # the shared fields, which `ChatRequest` checks

    own_names: ClassVar[Mapping[str, str]]

    _chat: ChatRequest = PrivateAttr()

    @classmethod
    def known_fields(cls) -> set[str]:
        shared = {*ChatRequest.model_fields} - {*cls.own_names, *cls.unsupported}
        return super().known_fields() | shared

    @abstractmethod
    def to_chat_fields(self) -> dict[str, Any]:
        """Return the chat fields that aren't shared. None: the field is missing."""

    @model_validator(mode="after")
    def _is_a_chat(self) -> AdaptedRequest:
        try:
            given = {**(self.model_extra or {}), **self.to_chat_fields()}
            self._chat = ChatRequest.model_validate(given)
        except ValidationError as error:
            found = self.rename_fields(invalid(error))
            raise field_error(found.param or "", found.message, found.code) from None
        return self

    @property
    def chat(self) -> ChatRequest:
        return self._chat

    def rename_fields(self, error: ApiError) -> ApiError:
        """Return a chat's error with this API's names for the fields that it mentions."""
        names = "|".join(sorted(map(re.escape, self.own_names), reverse=True))  # longest first

        def rename(text: str) -> str:
            pattern = rf"(^|; |field ')({names})\b"
            return re.sub(pattern, lambda found: found[1] + self.own_names[found[2]], text)

        param = error.param and rename(error.param)
        message, words = rename(error.message), error.anthropic
        return ApiError(error.status, message, param=param, code=error.code, anthropic=words)
