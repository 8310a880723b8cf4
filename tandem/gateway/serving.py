"""The endpoints: convert bodies to Triton's inputs, and Triton's chunks to responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tandem.gateway.answers.adapted_writers import AdaptedWriter, AnthropicWriter, ResponseWriter
from tandem.gateway.answers.answer import EncodedPrompt, ParsedAnswer
from tandem.gateway.answers.generation import generate, read_answers, write_response
from tandem.gateway.answers.guide import answer_guide
from tandem.gateway.answers.writer import ChatWriter, CompletionWriter, Writer
from tandem.gateway.chat_template import ChatTemplateError
from tandem.gateway.errors import ApiError, bad_request
from tandem.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from tandem.gateway.middleware import CLIENT
from tandem.gateway.models import ServedModels
from tandem.gateway.protocol.adapted import AdaptedRequest
from tandem.gateway.protocol.anthropic_requests import AnthropicRequest, CountRequest
from tandem.gateway.protocol.body import read_body
from tandem.gateway.protocol.fields import MAX_CHOICES, quote
from tandem.gateway.protocol.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
)
from tandem.gateway.protocol.response_requests import ResponseRequest
from tandem.gateway.protocol.structured_outputs import RequestedGuide
from tandem.gateway.tasks import offload, while_connected
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.tool_calls import FORMATS
from tandem.gateway.triton.backend import Triton
from tandem.gateway.triton.inputs import extras_for, inputs_for, inputs_of_answer


class Serving:
    """The endpoints.

    open_objects: whether objects in JSON schemas are open by default. target: name of the target.
    """

    def __init__(
        self, triton: Triton, tokenizer: ChatTokenizer, *, open_objects: bool, target: str
    ) -> None:
        self.triton = triton
        self.metrics = GatewayMetrics()
        self._tokenizer = tokenizer
        self._open_objects = open_objects
        self._target = target

    async def chat_completions(self, http: Request) -> Response:
        return await self._chat(await read_body(ChatRequest, http), http, ChatWriter)

    async def responses(self, http: Request) -> Response:
        return await self._adapt(ResponseRequest, ResponseWriter, http)

    async def messages(self, http: Request) -> Response:
        return await self._adapt(AnthropicRequest, AnthropicWriter, http)

    async def _adapt(
        self, kind: type[AdaptedRequest], writer: type[AdaptedWriter[Any]], http: Request
    ) -> Response:
        """Run another API's request as a chat completion.

        Errors and responses are translated back to that API.
        """
        body = await read_body(kind, http)
        try:
            return await self._chat(body.chat, http, partial(writer, body))
        except ApiError as error:
            raise body.rename_fields(error) from error

    async def _chat(
        self, body: ChatRequest, http: Request, writer: Callable[..., Writer]
    ) -> Response:
        models = await self._served_models()
        if body.tools and self._tokenizer.template and self._tokenizer.tool_calls is None:
            known = ", ".join(known.name for known in FORMATS)
            raise bad_request(
                "tools isn't supported: the model's chat template has none of the known formats "
                f"of tool calls: {known}",
                param="tools",
                code="unsupported_field",
            )
        ids = await self._chat_ids(body, models, http)
        guide = await offload(
            len(await http.body()),
            partial(
                answer_guide,
                body,
                self._tokenizer,
                ids,
                skips_special_tokens=models.skip_special_tokens,
                open_objects=self._open_objects,
            ),
        )
        prompt = EncodedPrompt(ids, body.echoed)
        return await self._answer(writer, body, [prompt], models, http, guide=guide)

    async def completions(self, http: Request) -> Response:
        body = await read_body(CompletionRequest, http)
        models = await self._served_models()
        if len(body.prompts) * body.n > MAX_CHOICES:
            raise bad_request(
                f"prompt has {len(body.prompts)} items and n is {body.n}; their "
                f"product must be at most {MAX_CHOICES}",
                param="prompt",
            )
        for prompt in body.prompts:
            if isinstance(prompt, str):
                models.check_text(prompt, "prompt")
        length = sum(map(len, body.prompts))
        encode = partial(self._tokenizer.encode, add_special_tokens=models.add_special_tokens)
        every = await offload(
            length, lambda: [encode(p) if isinstance(p, str) else p for p in body.prompts]
        )
        for ids in every:
            if not ids:
                raise bad_request("prompt has no tokens; send at least one", param="prompt")
            models.max_tokens(body, len(ids))
        largest = max(map(max, every))
        vocab_size = models.loop.target.vocab_size
        if largest >= vocab_size:
            raise bad_request(
                f"prompt must have token ids between 0 and {vocab_size - 1}; got {largest}",
                param="prompt",
            )
        prompts = [EncodedPrompt(ids) for ids in every]
        if body.echo:
            skips = models.skip_special_tokens
            prompts = await offload(length, lambda: self._add_echo(body, every, skips))
        guide = body.guide
        if guide is not None and self._open_objects:
            guide = await offload(len(guide.text), guide.with_open_objects)
        return await self._answer(CompletionWriter, body, prompts, models, http, guide=guide)

    def _add_echo(
        self, body: CompletionRequest, every: Sequence[list[int]], skips: bool
    ) -> list[EncodedPrompt]:
        """Return the prompts, whose text the answers repeat.

        An incomplete character at the end of a prompt belongs to the answer, if there is one.
        """
        text_of = self._tokenizer.decode if body.limit == 0 else self._tokenizer.complete
        return [
            EncodedPrompt(
                ids,
                given if isinstance(given, str) else text_of(ids),
                len(self._tokenizer.complete(ids, skip_special_tokens=skips)),
            )
            for given, ids in zip(body.prompts, every, strict=True)
        ]

    async def count_tokens(self, http: Request) -> Response:
        body = await read_body(CountRequest, http)
        models = await self._served_models()
        models.find(body.chat.model)
        ids = await self._chat_ids(body.chat, models, http)
        return JSONResponse({"input_tokens": len(ids)})

    async def tokenize(self, http: Request) -> Response:
        body = await read_body(TokenizeRequest, http)
        models = await self._served_models()
        models.find(body.model)
        if body.prompt is not None:
            models.check_text(body.prompt, "prompt")
            special = body.add_special_tokens
            encode = partial(self._tokenizer.encode, body.prompt, add_special_tokens=special)
            ids = await offload(len(body.prompt), encode)
        else:
            ids = await self._chat_ids(body, models, http)
        tokenized = {"count": len(ids), "max_model_len": models.max_model_len, "tokens": ids}
        if body.return_token_strs:
            tokenized["token_strs"] = await offload(
                len(ids), lambda: [self._tokenizer.token(token) for token in ids]
            )
        return JSONResponse(tokenized)

    async def detokenize(self, http: Request) -> Response:
        body = await read_body(DetokenizeRequest, http)
        (await self._served_models()).find(body.model)
        ids = body.tokens

        def decode() -> str:
            unknown = self._tokenizer.first_unknown(ids)
            if unknown is not None:
                message = f"tokens must have ids of the vocabulary; got {unknown}"
                raise bad_request(message, param="tokens")
            return self._tokenizer.decode(ids)

        return JSONResponse({"prompt": await offload(len(ids), decode)})

    async def lookup_pools(self, http: Request) -> Response:
        """List all lookup pools, or empty them."""
        command = "clear" if http.method == "DELETE" else "list"
        pools = await self.triton.manage_pools(command)
        return JSONResponse({"object": "list", "data": pools})

    async def clear_lookup_pool(self, http: Request) -> Response:
        pools = await self.triton.manage_pools(f"clear {http.path_params['id']}")
        if not pools:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"there is no lookup pool with the id '{quote(http.path_params['id'])}'",
                code="not_found",
            )
        return JSONResponse({"object": "list", "data": pools})

    async def tokenizer_info(self, _: Request) -> Response:
        return JSONResponse(self._tokenizer.info)

    async def models(self, _: Request) -> Response:
        served = await self._served_models()
        data = [served.describe(model, self._target) for model in served.models]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, http: Request) -> Response:
        served = await self._served_models()
        model = served.find(http.path_params["name"])
        return JSONResponse(served.describe(model, self._target))

    async def health(self, _: Request) -> Response:
        if await self.triton.ready():
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready"}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def ping(self, http: Request) -> Response:
        return Response(status_code=(await self.health(http)).status_code)

    async def prometheus_metrics(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _served_models(self) -> ServedModels:
        """Return the served models. Raises ApiError if the tokenizer doesn't match them."""
        models = await self.triton.models()
        if self._tokenizer.size > models.loop.target.vocab_size:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the gateway's tokenizer has {self._tokenizer.size} tokens, but the model has "
                f"{models.loop.target.vocab_size}; set --tokenizer to the model's tokenizer",
                code="not_configured",
            )
        return models

    async def _chat_ids(
        self, body: ChatRequest | TokenizeRequest, models: ServedModels, http: Request
    ) -> list[int]:
        """Return the prompt ids of a chat. Raises ApiError if the template can't render it."""

        def encode() -> list[int]:
            return self._tokenizer.encode_chat(
                [message.for_template for message in body.messages or ()],
                body.template_variables,
                continue_final_message=body.continue_final_message,
                check=partial(models.check_text, field="messages"),
            )

        try:
            return await offload(len(await http.body()), encode)
        except ChatTemplateError as error:
            raise bad_request(str(error), param="messages", code="chat_template") from error

    async def _answer(
        self,
        writer: Callable[..., Writer],
        body: GenerationRequest,
        prompts: Sequence[EncodedPrompt],
        models: ServedModels,
        http: Request,
        *,
        guide: RequestedGuide | None,
    ) -> Response:
        """Return `body.n` answers to each prompt."""
        model = models.find(body.model)
        models.check_draft_length(body.num_draft_tokens)
        client, salts = http.scope.get(CLIENT), models.loop.target.capabilities.cache_salt
        answers = [
            ParsedAnswer(body, p, self._tokenizer, counts_cached=salts or client is None)
            for p in prompts
            for _ in range(body.n)
        ]
        shared = inputs_for(body, model, guide, client=client, salts=salts)
        requests = []
        for number, answer in enumerate(answers):
            ids = answer.prompt.ids
            max_tokens = models.max_tokens(body, len(ids))
            requests.append({**shared, **inputs_of_answer(body, ids, max_tokens, number)})
        made = writer(
            body, answers, self._tokenizer, model=model.name, fingerprint=models.fingerprint
        )
        http.scope["writer"] = made  # for `TracingMiddleware`
        chunks = generate(
            self.triton,
            models.stream_model,
            requests,
            extras_for(body),
            max_concurrency=models.loop.max_requests,
        )
        answering = write_response(read_answers(chunks, made, self.metrics, guide), made)
        return await while_connected(http.receive, answering)
