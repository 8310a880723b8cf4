"""Error responses in the formats of OpenAI and Anthropic."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal, TypeAlias

from starlette.responses import JSONResponse

from tandem.contract.errors import ErrorClass, ErrorCode

LOG = logging.getLogger("gateway")
CLIENT_CLOSED_REQUEST = 499  # nginx's code; it appears only in metrics, because the client has gone
RETRY_SECONDS = 1
GatewayCode: TypeAlias = Literal[
    "body_too_large",
    "chat_template",  # the template rejects the messages, or there is none
    "context_length_exceeded",
    "gateway_stopped",  # while the request was running
    "host_not_allowed",
    "invalid_api_key",
    "invalid_json",
    "invalid_text",  # valid in JSON but not in UTF-8
    "method_not_allowed",
    "model_not_found",
    "no_operator_key",  # the gateway was started without one
    "no_server",  # Triton doesn't respond or isn't ready
    "not_configured",  # Triton has no loop, or the gateway's tokenizer is for another model
    "not_found",
    "origin_not_allowed",
    "thread_unsupported_request",  # Anthropic's code, after which its client stops using threads
    "too_deep",
    "unknown_field",
    "unsupported_field",
]
# Codes that programs can act on: the class of an entry's error, or a code of the gateway's own.
ApiCode: TypeAlias = ErrorClass | GatewayCode
# HTTP statuses of the entries' errors, by error class, or by code if there is no class.
STATUS_OF_CLASS: dict[ErrorClass, HTTPStatus] = {
    "overloaded": HTTPStatus.TOO_MANY_REQUESTS,
    "model_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "model_timeout": HTTPStatus.GATEWAY_TIMEOUT,
    "deadline_exceeded": HTTPStatus.GATEWAY_TIMEOUT,
    "invalid_guide": HTTPStatus.BAD_REQUEST,
}
STATUS_OF_CODE: dict[ErrorCode, HTTPStatus] = {
    "INVALID_ARG": HTTPStatus.BAD_REQUEST,
    "UNSUPPORTED": HTTPStatus.BAD_REQUEST,
    "NOT_FOUND": HTTPStatus.SERVICE_UNAVAILABLE,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
}
HTTP_CODES: Mapping[int, ApiCode] = {
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
}
# The types of errors in OpenAI's and Anthropic's APIs, by HTTP status.
TYPES: Mapping[int, tuple[str, str]] = {
    HTTPStatus.UNAUTHORIZED: ("authentication_error", "authentication_error"),
    HTTPStatus.FORBIDDEN: ("permission_error", "permission_error"),
    HTTPStatus.NOT_FOUND: ("not_found_error", "not_found_error"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("invalid_request_error", "request_too_large"),
    HTTPStatus.TOO_MANY_REQUESTS: ("rate_limit_error", "rate_limit_error"),
    HTTPStatus.GATEWAY_TIMEOUT: ("server_error", "timeout_error"),
}
OTHER_CLIENT_ERROR = ("invalid_request_error", "invalid_request_error")
OTHER_SERVER_ERROR = ("server_error", "api_error")
MESSAGES_PATH = "/v1/messages"  # Anthropic's API


class ApiError(Exception):
    """An error response. message: one line that says what to fix.

    param: the invalid field. code: machine-readable name of the error. anthropic: the message for
    Anthropic's clients, if they look for certain words.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: ApiCode | None = None,
        anthropic: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.anthropic = anthropic

        is_server_error = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        other = OTHER_SERVER_ERROR if is_server_error else OTHER_CLIENT_ERROR
        self.type, self.anthropic_type = TYPES.get(status, other)

    @property
    def headers(self) -> dict[str, str]:
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return {"Retry-After": str(RETRY_SECONDS)}
        if self.status == HTTPStatus.UNAUTHORIZED:
            return {"WWW-Authenticate": "Bearer"}
        return {}

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def anthropic_body(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "type": self.anthropic_type,
            "message": self.anthropic or self.message,
        }
        if self.code:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error}

    def response(self, path: str) -> JSONResponse:
        """Return the response in the format of the API that serves `path`."""
        body = self.anthropic_body if path.startswith(MESSAGES_PATH) else self.body
        return JSONResponse(body, self.status, self.headers)


class ClientGone(Exception):
    """The client has closed the connection."""


def bad_request(message: str, *, param: str | None = None, code: ApiCode | None = None) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param, code=code)


def too_large(why: str) -> ApiError:
    message = f"the body is too large; {why}"
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, code="body_too_large")


def gateway_stopped() -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the gateway is shutting down; retry the request",
        code="gateway_stopped",
    )


def as_api_error(error: BaseException) -> ApiError:
    """Convert an exception to an error response. Details of unexpected errors are only logged."""
    if isinstance(error, ApiError):
        return error
    LOG.error("request failed", exc_info=error)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the gateway's log")
