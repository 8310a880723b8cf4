"""Bodies of other APIs, which are converted to bodies of chats."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, PrivateAttr, ValidationError, model_validator

from tandem.gateway.errors import ApiError
from tandem.gateway.protocol.body import Body, invalid
from tandem.gateway.protocol.fields import REFUSED, Refused, wrong
from tandem.gateway.protocol.requests import ChatRequest

_CHATS = "only /v1/chat/completions returns it"
# Chat fields that other APIs name differently, or whose results their answers can't contain.
NOT_SHARED: Mapping[str, Refused] = {
    "add_generation_prompt": Refused("the template decides it", (True,)),
    "continue_final_message": Refused("send the start of the answer to /v1/chat/completions"),
    "echo": Refused(_CHATS, (False,)),
    "logprobs": Refused(_CHATS, (False,)),
    "n": Refused("there is one answer per request", (1,)),
    "prompt_logprobs": Refused(_CHATS),
    "return_token_details": Refused(_CHATS, (False,)),
    "return_token_ids": Refused(_CHATS, (False,)),
    "return_tokens_as_token_ids": Refused(_CHATS, (False,)),
    "top_logprobs": Refused(_CHATS, (0,)),
}


def refused_fields(own_names: Mapping[str, str], **more: Refused) -> dict[str, Refused]:
    """Return the fields that an API rejects. own_names: see `AdaptedRequest`."""
    renamed = {name: Refused(f"send {own}") for name, own in own_names.items() if "." not in name}
    return {**REFUSED, **NOT_SHARED, **renamed, **more}


class AdaptedRequest(Body):
    """A body of another API. Fields with the same meaning as in a chat have the same names.

    own_names: this API's names for fields that a chat names differently.
    """

    model_config = ConfigDict(extra="allow")  # the shared fields, which `ChatRequest` checks

    own_names: ClassVar[Mapping[str, str]]

    _chat: ChatRequest = PrivateAttr()

    @classmethod
    def shared_fields(cls) -> set[str]:
        return {*ChatRequest.model_fields} - {*cls.own_names, *cls.refused, *cls.model_fields}

    @classmethod
    def known_fields(cls) -> set[str]:
        return super().known_fields() | cls.shared_fields()

    @abstractmethod
    def translated(self) -> dict[str, Any]:
        """Return the chat fields that aren't shared. None: the field is missing."""

    @model_validator(mode="after")
    def _is_a_chat(self) -> AdaptedRequest:
        try:
            given = {**(self.model_extra or {}), **self.translated()}
            self._chat = ChatRequest.model_validate(given)
        except ValidationError as error:
            found = self.renamed(invalid(error))
            raise wrong(found.param or "", found.message, found.code) from None
        return self

    @property
    def chat(self) -> ChatRequest:
        return self._chat

    def renamed(self, error: ApiError) -> ApiError:
        """Return a chat's error with this API's names for the fields that it mentions."""
        names = "|".join(sorted(map(re.escape, self.own_names), reverse=True))  # longest first

        def own(text: str) -> str:
            pattern = rf"(^|; |field ')({names})\b"
            return re.sub(pattern, lambda found: found[1] + self.own_names[found[2]], text)

        param = error.param and own(error.param)
        message, words = own(error.message), error.anthropic
        return ApiError(error.status, message, param=param, code=error.code, anthropic=words)
