"""Calls to the engines through Triton, including timeouts, stops, and failures.

`SequenceCaller` makes the calls of a sequence, and other threads can stop or abandon them.
`RequestBuilder` builds each request, `Calls` sends it, and `read_result` reads the response.
"""
