"""What a stranger who reaches the ports may not do: use the shared memory of Triton's models."""

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import tritonclient.grpc
import tritonclient.http
from live_triton import leftovers, write_model
from tritonclient.utils import InferenceServerException

from tandem.tools.triton.launch import PREFIX
from tandem.tools.triton.server import TritonServer

TRITONS_OWN = "triton_python_backend_shm_region_"  # clients of newer Tritons may not register these
HANDLE = b"x" * 64
CALLS = {
    "register system memory": lambda c, region: c.register_system_shared_memory("r", region, 64),
    "register cuda memory": lambda c, _: c.register_cuda_shared_memory("r", HANDLE, 0, 64),
    "ask for system memory": lambda c, _: c.get_system_shared_memory_status(),
    "ask for cuda memory": lambda c, _: c.get_cuda_shared_memory_status(),
    "unregister system memory": lambda c, _: c.unregister_system_shared_memory(),
    "unregister cuda memory": lambda c, _: c.unregister_cuda_shared_memory(),
}


@pytest.fixture(params=["grpc", "http"])
def client(request, server):
    if request.param == "grpc":
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as connection:
            yield connection
    else:
        with tritonclient.http.InferenceServerClient(server.http_url) as connection:
            yield connection


@pytest.mark.parametrize("call", CALLS)
def test_client_cannot_use_shared_memory(server, client, call):
    region = f"/{leftovers(server.shm_prefix)[0]}"
    with pytest.raises(InferenceServerException, match="restricted, expecting header"):
        CALLS[call](client, region)


def test_all_else_is_open_to_clients(client):
    assert client.is_server_ready()
    assert client.get_server_metadata()
    assert client.get_model_metadata("bls")
    assert client.get_inference_statistics("bls")


def test_a_guessed_key_opens_nothing(server):
    url = f"http://{server.http_url}/v2/systemsharedmemory/region/r/register"
    body = json.dumps({"key": "/x", "offset": 0, "byte_size": 64}).encode()
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(url, body, headers={"tandem-key": "tandem"}))


def test_regions_are_named_as_tritons_own(server):
    assert PREFIX.startswith(TRITONS_OWN)
    assert server.shm_prefix.startswith(PREFIX)
    assert leftovers(server.shm_prefix)


def test_keys_of_two_servers_differ(server, tmp_path):
    write_model(tmp_path, "other")
    with TritonServer(tmp_path, thread_pool_size=4) as other:
        mine, theirs = ({w for w in s.command if "restricted" in w} for s in (server, other))
    assert len(mine) == len(theirs) == 2
    assert not mine & theirs
