"""A live server with a real chat model, SmolLM2-135M-Instruct.

PyTorch serves it, because its greedy output equals transformers'. llama.cpp rounds activations.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import openai
import pytest
from live_triton import KilledServer

from tandem.gateway import server as gateway_server
from tandem.gateway.app import create_app
from tandem.gateway.server import listen
from tandem.gateway.settings import GatewaySettings
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

GGUF = Path(__file__).resolve().parents[2] / ".venv" / "chat" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """The folder of the model's checkpoint, dequantized."""
    if not GGUF.is_file():
        pytest.skip("SmolLM2 is not here (93 MB): make test-chat fetches it")
    folder = tmp_path_factory.mktemp("chat") / "SmolLM2-135M-Instruct"
    tokenizer, model = _dequantized()
    # With these settings, transformers would treat the weights as quantized and not save them.
    del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server(checkpoint: Path, tmp_path_factory) -> Iterator[TritonServer]:
    """A server of the model with prompt lookup."""
    planned = deployment.for_checkpoints(checkpoint, None)
    models = tmp_path_factory.mktemp("chat") / "repository"
    repository.render(planned, models, link=True)
    with KilledServer(models, thread_pool_size=planned.thread_pool_size) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: TritonServer, checkpoint: Path) -> Iterator[openai.OpenAI]:
    """OpenAI's client, connected to a gateway to the server."""
    app = create_app(GatewaySettings(server.grpc_url, checkpoint))
    with listen("127.0.0.1", 0) as bound, gateway_server.serving(app, bound):
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=300) as made:
            yield made


@pytest.fixture(scope="session")
def transformers_model(checkpoint: Path):
    """The tokenizer, and the model, loaded with transformers."""
    return _dequantized()


@cache
def _dequantized():
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf.GGUFReader = cache(gguf.GGUFReader)  # transformers reads the file four times
    where = {"pretrained_model_name_or_path": GGUF.parent, "gguf_file": GGUF.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    return AutoTokenizer.from_pretrained(**where), model
