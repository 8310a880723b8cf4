"""Clients that can reach the ports can't use the shared memory of Triton's models."""

import json
import stat
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import tritonclient.grpc
import tritonclient.http
from live_triton import leftovers
from tritonclient.utils import InferenceServerException

from tandem.tools.triton.launch import PREFIX

TRITONS_OWN = "triton_python_backend_shm_region_"  # newer Tritons don't let clients register these
HANDLE = b"x" * 64
CALLS = (
    lambda client, region: client.register_system_shared_memory("r", region, 64),
    lambda client, _: client.register_cuda_shared_memory("r", HANDLE, 0, 64),
    lambda client, _: client.get_system_shared_memory_status(),
    lambda client, _: client.get_cuda_shared_memory_status(),
    lambda client, _: client.unregister_system_shared_memory(),
    lambda client, _: client.unregister_cuda_shared_memory(),
)


@pytest.mark.parametrize("protocol", [tritonclient.grpc, tritonclient.http])
def test_only_shared_memory_calls_are_denied_to_clients(server, protocol):
    region = f"/{leftovers(server.shm_prefix)[0]}"
    url = server.grpc_url if protocol is tritonclient.grpc else server.http_url
    with protocol.InferenceServerClient(url) as client:
        for call in CALLS:
            with pytest.raises(InferenceServerException, match="restricted, expecting header"):
                call(client, region)
        assert client.is_server_ready()
        assert client.get_server_metadata()
        assert client.get_model_metadata("bls")
        assert client.get_inference_statistics("bls")


def test_a_shared_memory_call_with_a_wrong_key_is_rejected(server):
    url = f"http://{server.http_url}/v2/systemsharedmemory/region/r/register"
    body = json.dumps({"key": "/x", "offset": 0, "byte_size": 64}).encode()
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(url, body, headers={"tandem-key": "tandem"}))


def test_shared_memory_names_have_the_prefix_that_triton_protects(server):
    assert PREFIX.startswith(TRITONS_OWN)
    assert server.shm_prefix.startswith(PREFIX)
    for name in leftovers(server.shm_prefix):  # other users of the machine can't read requests
        assert stat.S_IMODE(Path("/dev/shm", name).stat().st_mode) == 0o600
    assert leftovers(server.shm_prefix)


def test_two_servers_have_different_keys(server, emulated):
    mine, theirs = ({w for w in s.command if "restricted" in w} for s in (server, emulated))
    assert len(mine) == len(theirs) == 2
    assert not mine & theirs
