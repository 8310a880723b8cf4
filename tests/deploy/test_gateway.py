"""The chart deploys gateway pods with network access and probes."""

import argparse

import pytest

from tandem.gateway.triton.backend import SECONDS_TO_ANSWER
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


def test_the_chart_passes_arguments_to_the_gateway(render):
    values = {
        "allowOrigins": ["https://a.example", "http://b.example:3000"],
        "maxBodyMb": 3,
        "openObjects": True,
    }
    release = render({"gateway": values | {"enabled": True}})
    options = options_of(container(release)["args"])
    assert options.port == container(release)["ports"][0]["containerPort"]
    assert options.allow_origin == values["allowOrigins"]
    assert options.max_body_mb == 3
    assert options.open_objects


def test_the_gateway_connects_to_every_server_pod(release):
    servers = release.gateway["servers"]
    assert f"--url={servers['metadata']['name']}:8001" in container(release)["args"]
    assert servers["spec"]["clusterIP"] == "None"
    labels = release.template["metadata"]["labels"]
    assert servers["spec"]["selector"].items() <= labels.items()


def test_gateway_pods_are_not_selected_as_servers(release):
    labels = release.gateway["deployment"]["spec"]["template"]["metadata"]["labels"]
    selector = release.manifests["Service"]["spec"]["selector"]
    assert selector["app.kubernetes.io/name"] != labels["app.kubernetes.io/name"]
    assert release.gateway["service"]["spec"]["selector"] == labels
    monitor = release.gateway["podmonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == labels
    assert monitor["podMetricsEndpoints"][0]["path"] == "/metrics"


def test_the_ingress_routes_to_the_gateway(release):
    ingress, service = release.gateway["ingress"]["spec"], release.gateway["service"]
    rule = ingress["rules"][0]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] == service["spec"]["ports"][0]["name"]
    assert ingress["tls"][0]["hosts"] == [rule["host"]]


def test_the_api_key_comes_from_a_secret(release, render):
    variables = {variable["name"]: variable for variable in container(release)["env"]}
    reference = variables["TANDEM_API_KEY"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "tandem-api-key", "key": "api-key"}
    assert not any("key" in word for word in container(release)["args"])
    open_to_all = render({"gateway": {"enabled": True}})
    assert [variable["name"] for variable in container(open_to_all)["env"]] == ["HOME"]


def test_the_tokenizer_comes_from_the_image_or_a_volume_claim(release, render):
    assert "--tokenizer=/tokenizer" in container(release)["args"]
    assert "tokenizer" not in {volume["name"] for volume in pod(release)["volumes"]}
    of_claim = {"claim": "models", "path": "a: b #1/tokenizer"}
    release = render({"gateway": {"enabled": True, "tokenizer": of_claim}})
    assert "--tokenizer=/tokenizer/a: b #1/tokenizer" in container(release)["args"]
    volumes = {volume["name"]: volume for volume in pod(release)["volumes"]}
    assert volumes["tokenizer"]["persistentVolumeClaim"]["claimName"] == "models"
    mounts = {mount["name"]: mount["mountPath"] for mount in container(release)["volumeMounts"]}
    assert mounts["tokenizer"] == "/tokenizer"


def test_the_gateway_runs_without_privileges(release):
    assert pod(release)["securityContext"]["runAsNonRoot"]
    assert pod(release)["automountServiceAccountToken"] is False
    assert container(release)["securityContext"]["readOnlyRootFilesystem"]
    assert container(release)["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_a_pod_terminates_only_after_the_longest_answer(release, program):
    stop = container(release)["lifecycle"]["preStop"]["exec"]["command"]
    options = program("health").parser().parse_args(stop[2:])
    assert options.verb == "drained"
    assert options.metrics_port == container(release)["ports"][0]["containerPort"]
    assert options.limit == options.notice + release.values["profile"]["requestTimeout"]
    assert pod(release)["terminationGracePeriodSeconds"] > options.limit


def test_the_readiness_probe_uses_the_gateways_health_endpoint(release):
    probe = container(release)["readinessProbe"]
    assert probe["httpGet"] == {"path": "/health", "port": "openai"}
    assert probe["timeoutSeconds"] > SECONDS_TO_ANSWER  # after this time, /health responds with 503
