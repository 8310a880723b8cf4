"""Errors of an engine; the text of each is one line made for whoever caused it.

EngineError
├── LoadError     the engine cannot start: the checkpoint or the settings are at fault
└── RequestError  one call asked for something impossible; the text names the input
"""


class EngineError(Exception):
    """Anything an engine reports on purpose."""


class LoadError(EngineError):
    """The engine cannot start."""


class RequestError(EngineError):
    """One call cannot be served; other calls are not concerned."""
