"""The chart's gateway: its pods, who reaches them, and the probe that asks it for a token."""

import argparse
import threading
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tandem.tools.commands import gateway


@pytest.fixture
def release(render):
    return render("gateway")


def pod(release):
    return release.gateway["deployment"]["spec"]["template"]["spec"]


def container(release):
    return pod(release)["containers"][0]


def options_of(words):
    parser = argparse.ArgumentParser()
    gateway.add_options(parser)
    return parser.parse_args(words)


def test_its_arguments_are_what_the_gateway_takes(render):
    values = {"allowOrigins": ["https://a.example", "https://b.example"], "maxBodyMb": 3}
    release = render({"gateway": values | {"enabled": True}})
    options = options_of(container(release)["args"])
    assert options.port == container(release)["ports"][0]["containerPort"]
    assert options.allow_origin == values["allowOrigins"]
    assert options.max_body_mb == 3


def test_it_reaches_every_server_by_itself(release):
    servers = release.gateway["servers"]
    assert f"--url={servers['metadata']['name']}:8001" in container(release)["args"]
    assert servers["spec"]["clusterIP"] == "None"
    labels = release.template["metadata"]["labels"]
    assert servers["spec"]["selector"].items() <= labels.items()


def test_nobody_takes_its_pods_for_servers(release):
    labels = release.gateway["deployment"]["spec"]["template"]["metadata"]["labels"]
    selector = release.manifests["Service"]["spec"]["selector"]
    assert selector["app.kubernetes.io/name"] != labels["app.kubernetes.io/name"]
    assert release.gateway["service"]["spec"]["selector"] == labels
    monitor = release.gateway["podmonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == labels
    assert monitor["podMetricsEndpoints"][0]["path"] == "/metrics"


def test_the_ingress_leads_to_it(release):
    ingress, service = release.gateway["ingress"]["spec"], release.gateway["service"]
    rule = ingress["rules"][0]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] == service["spec"]["ports"][0]["name"]
    assert ingress["tls"][0]["hosts"] == [rule["host"]]


def test_its_key_is_a_secret(release, render):
    variables = {variable["name"]: variable for variable in container(release)["env"]}
    reference = variables["TANDEM_API_KEY"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "tandem-api-key", "key": "api-key"}
    assert not any("key" in word for word in container(release)["args"])
    open_to_all = render({"gateway": {"enabled": True}})
    assert [variable["name"] for variable in container(open_to_all)["env"]] == ["HOME"]


def test_its_tokenizer_is_its_images_or_in_a_claim(release, render):
    assert "--tokenizer=/tokenizer" in container(release)["args"]
    assert "tokenizer" not in {volume["name"] for volume in pod(release)["volumes"]}
    of_claim = {"claim": "models", "path": "llama/tokenizer"}
    release = render({"gateway": {"enabled": True, "tokenizer": of_claim}})
    assert "--tokenizer=/tokenizer/llama/tokenizer" in container(release)["args"]
    volumes = {volume["name"]: volume for volume in pod(release)["volumes"]}
    assert volumes["tokenizer"]["persistentVolumeClaim"]["claimName"] == "models"
    mounts = {mount["name"]: mount["mountPath"] for mount in container(release)["volumeMounts"]}
    assert mounts["tokenizer"] == "/tokenizer"


def test_it_runs_without_rights(release):
    assert pod(release)["securityContext"]["runAsNonRoot"]
    assert pod(release)["automountServiceAccountToken"] is False
    assert container(release)["securityContext"]["readOnlyRootFilesystem"]
    assert container(release)["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_an_end_waits_for_the_longest_answer(release, program):
    stop = container(release)["lifecycle"]["preStop"]["exec"]["command"]
    options = program("health").parser().parse_args(stop[2:])
    assert options.verb == "drained"
    assert options.metrics_port == container(release)["ports"][0]["containerPort"]
    assert options.limit == options.notice + release.values["profile"]["requestTimeout"]
    assert pod(release)["terminationGracePeriodSeconds"] > options.limit


def test_readiness_is_an_answer_and_ends_in_time(release, program):
    probe = container(release)["readinessProbe"]
    options = program("health").parser().parse_args(probe["exec"]["command"][2:])
    assert options.verb == "answers"
    assert options.gateway_port == container(release)["ports"][0]["containerPort"]
    assert options.patience < probe["timeoutSeconds"]


@contextmanager
def answering(status, text=b"{}"):
    """A gateway that gives one answer; yields its URL and the headers that it was asked with."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(dict(self.headers))
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/completions", asked
        server.shutdown()


def test_a_gateway_that_answers_is_ready_and_so_is_one_that_is_overloaded(program):
    for status in (200, HTTPStatus.TOO_MANY_REQUESTS):
        with answering(status) as (url, _):
            assert program("health").silence(url, 5.0) is None


def test_a_gateway_whose_server_is_gone_is_not_ready(program):
    with answering(503, b'{"error": {"message": "no server"}}') as (url, _):
        assert program("health").silence(url, 5.0).startswith('503: {"error"')
    assert "refused" in program("health").silence("http://127.0.0.1:9/", 5.0)


def test_the_probe_brings_the_key(program, monkeypatch):
    monkeypatch.setenv("TANDEM_API_KEY", "secret")
    with answering(200) as (url, asked):
        assert program("health").silence(url, 5.0) is None
    assert asked[0]["Authorization"] == "Bearer secret"
