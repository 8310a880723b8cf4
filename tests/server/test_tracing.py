"""The spans of a request to a live server have the loop's times."""

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from paths import TOKENIZER

from tandem.gateway import server as gateway_server
from tandem.gateway.app import create_app
from tandem.gateway.server import listen
from tandem.gateway.settings import GatewaySettings

from .conftest import openai_client


def test_the_phases_of_a_request_follow_each_other(emulated):
    exporter = InMemorySpanExporter()
    settings = GatewaySettings(emulated.grpc_url, TOKENIZER)
    app = create_app(settings, spans=SimpleSpanProcessor(exporter))
    with listen("127.0.0.1", 0) as bound, gateway_server.serving(app, bound):
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with openai_client(url) as client:
            client.completions.create(model="bls", prompt="def f(", max_tokens=40)
    queue, prompt, decoding, root = exporter.get_finished_spans()
    assert [span.name for span in (queue, prompt, decoding)] == ["queue", "prompt", "decoding"]
    assert root.start_time <= queue.start_time <= queue.end_time == prompt.start_time
    assert prompt.end_time == decoding.start_time <= decoding.end_time <= root.end_time
    assert root.attributes["gen_ai.usage.output_tokens"] == 40
    assert decoding.attributes["tandem.tokens_per_round"] >= 1
