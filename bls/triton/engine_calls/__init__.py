"""Calls to the engines through Triton, including timeouts, stops, and failures.

`SequenceCaller` makes the calls of a sequence. `RequestBuilder` builds each request, `EngineClient`
sends it through `Calls`, and `read_answer` reads the response. `CallSlot` holds the current call,
so that another thread can stop or abandon it.
"""
