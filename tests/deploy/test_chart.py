"""The chart renders, validates, and declares everything that a pod needs."""

import re
from pathlib import Path

import helm_python
import jsonschema
import kubernetes_validate
import promql_parser as promql
import pytest
import yaml

from tandem.bls import metrics as metric_names
from tandem.tools.profiles import deployment

KUBERNETES = ["1.28", "1.37"]  # the oldest version that Chart.yaml allows, and a recent version
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CUSTOM = yaml.safe_load((HERE / "custom_resources.yaml").read_text())


def kinds(release):
    return set(release.manifests)


def templates(manifest):
    """Yield every pod template of a custom resource as a PodTemplate, which has a schema."""
    group = manifest["spec"].get("leaderWorkerTemplate", {})
    for name in ("leaderTemplate", "workerTemplate"):
        if name in group:
            metadata = {"name": name.lower()}
            yield {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": metadata,
                "template": group[name],
            }


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_match_the_schemas_of_kubernetes(release, version):
    for manifest in (*release.manifests.values(), *release.gateway.values()):
        kind = f"{manifest['apiVersion']} {manifest['kind']}"
        if kind in CUSTOM:
            jsonschema.validate(manifest["spec"], CUSTOM[kind])
            for template in templates(manifest):
                kubernetes_validate.validate(template, version, strict=True)
        else:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_helm_lint_finds_no_errors():
    found = helm_python.lint(ROOT / "deploy" / "helm" / "tandem")
    assert found["errors"] == []


def test_each_example_renders_the_expected_kinds_of_objects(render):
    always = {"ConfigMap", "Service"}
    assert kinds(render({})) == always | {"Deployment"}
    assert kinds(render("llama-3.1-405b")) == always | {"Deployment", "PodMonitor"}
    scaled = always | {"HorizontalPodAutoscaler", "PodMonitor"}
    assert kinds(render("llmapi")) == scaled | {"Deployment"}
    assert kinds(render("multi-node")) == scaled | {"LeaderWorkerSet", "NetworkPolicy"}
    assert render({}).gateway == {}
    plain = {"deployment", "servers", "service"}
    assert set(render({"gateway": {"enabled": True}}).gateway) == plain
    assert set(render("gateway").gateway) == plain | {"ingress", "podmonitor"}


def test_replicas_are_spread_over_nodes_and_evicted_one_at_a_time(render):
    shown = render("vllm")
    labels = shown.manifests["Deployment"]["spec"]["selector"]["matchLabels"]
    [spread] = shown.pod["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": labels}
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    budget = shown.manifests["PodDisruptionBudget"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}


@pytest.mark.parametrize("name", ["draft-pool", "target-pool"])
def test_the_name_of_a_pool_stands_for_all_its_pods(render, name):
    service = render(name).manifests["Service"]["spec"]
    assert (service["type"], service["clusterIP"]) == ("ClusterIP", "None")
    assert "clusterIP" not in render("remote-loop").manifests["Service"]["spec"]


def test_the_keda_sample_scales_the_charts_deployment_by_existing_metrics(render):
    keda = yaml.safe_load((ROOT / "deploy" / "keda.yaml").read_text())
    jsonschema.validate(keda["spec"], CUSTOM["keda.sh/v1alpha1 ScaledObject"])
    deployed = render({}).manifests["Deployment"]["metadata"]["name"]
    assert keda["spec"]["scaleTargetRef"] == {"name": deployed}
    [trigger] = keda["spec"]["triggers"]
    promql.parse(trigger["metadata"]["query"])
    assert {*re.findall(r"tandem_\w+", trigger["metadata"]["query"])} == {
        "tandem_requests_running",
        "tandem_requests_waiting",
    }


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_kserve_sample_starts_the_images_repository(version, program):
    service = yaml.safe_load((ROOT / "deploy" / "kserve.yaml").read_text())
    kind = f"{service['apiVersion']} {service['kind']}"
    jsonschema.validate(service["spec"], CUSTOM[kind])
    predictor = service["spec"]["predictor"]
    pod = {"containers": predictor["containers"], "volumes": predictor["volumes"]}
    template = {"metadata": {"name": "predictor"}, "spec": pod}
    manifest = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "predictor"}}
    kubernetes_validate.validate(manifest | {"template": template}, version, strict=True)
    [container] = predictor["containers"]
    assert container["name"] == "kserve-container"
    *start, port = container["args"]
    assert f'CMD ["{start[0]}", "{start[1]}"]' in (ROOT / "Dockerfile").read_text()
    number = container["ports"][0]["containerPort"]
    assert port == f"--http-port={number}"
    python, path, *words = container["livenessProbe"]["exec"]["command"]
    assert (python, path) == ("python3", "/health.py")
    assert program("health").parser().parse_args(words).http_port == number
    assert {container[p]["httpGet"]["port"] for p in ("startupProbe", "readinessProbe")} == {number}


def test_containers_and_services_use_the_same_named_ports(release):
    named = {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert {port["name"]: port["containerPort"] for port in release.server["ports"]} == named
    service = release.manifests["Service"]["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == named
    assert service["selector"].items() <= release.template["metadata"]["labels"].items()


def test_the_startup_probe_allows_enough_time_for_loading(release):
    probe = release.server["startupProbe"]
    assert probe["httpGet"] == {"path": "/v2/health/ready", "port": "http"}
    assert probe["periodSeconds"] * probe["failureThreshold"] >= release.values["startupTimeout"]


def test_the_liveness_probe_requests_a_token_and_restarts_without_draining(release):
    probe = release.server["livenessProbe"]
    verb, entry, target, patience = probe["exec"]["command"][2:]
    assert verb == "alive"
    assert entry == "--entry=bls"
    assert target == "--target=target"
    assert int(patience.removeprefix("--patience=")) < probe["timeoutSeconds"]
    assert probe["terminationGracePeriodSeconds"] < release.values["profile"]["requestTimeout"]


def test_a_pod_terminates_only_after_the_longest_answer(release):
    values, stop = release.values, release.server["lifecycle"]["preStop"]["exec"]["command"]
    drain = values["drainNotice"] + values["profile"]["requestTimeout"]
    assert stop[2:] == ["drained", f"--notice={values['drainNotice']}", f"--limit={drain}"]
    assert f"--exit-timeout-secs={values['exitTimeout']}" in release.server["args"]
    assert release.pod["terminationGracePeriodSeconds"] > drain + values["exitTimeout"]


def test_dev_shm_is_a_memory_volume_of_the_configured_size(release):
    volumes = {volume["name"]: volume for volume in release.pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in release.server["volumeMounts"]}
    shared = volumes[mounts["/dev/shm"]]
    assert shared["emptyDir"]["medium"] == "Memory"
    assert shared["emptyDir"]["sizeLimit"] == release.values["sharedMemory"]


def test_the_working_directory_is_empty_and_read_only(release):
    volumes = {volume["name"]: volume for volume in release.pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in release.server["volumeMounts"]}
    mount = mounts[release.server["workingDir"]]
    assert mount["readOnly"]
    assert volumes[mount["name"]]["emptyDir"] == {}


def test_nothing_runs_as_root(release):
    assert release.pod["securityContext"]["runAsNonRoot"]
    assert release.pod["securityContext"]["runAsUser"] > 0
    assert release.pod["automountServiceAccountToken"] is False
    context = release.server["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"]
    assert context["capabilities"]["drop"] == ["ALL"]


def test_the_config_map_contains_every_program_that_a_pod_runs(release):
    mounts = {mount["mountPath"]: mount["name"] for mount in release.server["volumeMounts"]}
    assert mounts["/etc/tandem"] == "files"
    for name, text in release.manifests["ConfigMap"]["data"].items():
        compile(text, name, "exec")
    spoken = yaml.safe_dump(release.manifests)
    for path in re.findall(r"/etc/tandem/([\w.]+)", spoken):
        assert path in release.manifests["ConfigMap"]["data"]


def test_chart_defaults_match_the_embedded_profile(render, embedded_profile):
    planned, release = deployment.load(embedded_profile), render({})
    admission, values = planned.profile.admission, release.values["profile"]
    assert values["maxRequests"] == admission.max_requests
    assert values["maxQueue"] == admission.max_queue
    assert values["requestTimeout"] == planned.profile.timeouts.request
    assert values["entry"] in {e.name for e in planned.profile.entries if e.kind == "forward"}
    assert values["target"] == planned.profile.models.target
    threads = f"--backend-config=python,thread-pool-size={planned.thread_pool_size}"
    assert threads in release.server["args"]


@pytest.mark.parametrize("name", ["llmapi", "multi-node"])
def test_autoscaling_uses_a_gauge_that_the_loop_exports(render, name):
    release = render(name)
    scaler = release.manifests["HorizontalPodAutoscaler"]["spec"]
    metric = scaler["metrics"][0]["pods"]
    gauges = {declared for declared in metric_names.METRICS if declared.kind == "gauge"}
    assert metric["metric"]["name"] in gauges
    assert int(metric["target"]["averageValue"]) < release.values["profile"]["maxRequests"]
    kind = "LeaderWorkerSet" if name == "multi-node" else "Deployment"
    workload = release.manifests[kind]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": workload["metadata"]["name"],
    }
    assert "replicas" not in workload["spec"]


def test_the_pod_monitor_scrapes_only_serving_pods(render):
    release = render("multi-node")
    monitor = release.manifests["PodMonitor"]["spec"]
    selected = monitor["selector"]["matchLabels"].items()
    assert selected <= release.group["leaderTemplate"]["metadata"]["labels"].items()
    assert not selected <= release.group["workerTemplate"]["metadata"]["labels"].items()
    assert monitor["podMetricsEndpoints"][0]["port"] == "metrics"


def test_gpus_are_requested_and_limited(render):
    resources = render("llama-3.1-405b").server["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == 4
    assert "nvidia.com/gpu" not in render({}).server["resources"]["limits"]


def test_a_repository_can_come_from_image_volume_claim_or_object_store(render):
    image, claim, url = render({}), render("llama-3.1-405b"), render("llmapi")
    assert "--model-repository=/repository" in image.server["args"]
    assert "/repository" not in {mount["mountPath"] for mount in image.server["volumeMounts"]}
    assert "--model-repository=/repository" in claim.server["args"]
    mounts = {mount["mountPath"]: mount for mount in claim.server["volumeMounts"]}
    assert mounts["/repository"]["readOnly"]
    assert "--model-repository=s3://models/llama-3.1-8b-llmapi" in url.server["args"]
    assert url.server["envFrom"] == [{"secretRef": {"name": "object-store"}}]


def test_an_orchestrator_spawns_its_workers(render):
    release = render("llama-3.1-405b")
    variables = {v["name"]: v.get("value") for v in release.server["env"]}
    assert variables["TRTLLM_ORCHESTRATOR"] == "1"
    assert variables["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "1"
    assert release.server["args"].count("tritonserver") == 1


def test_only_the_leader_of_a_group_serves_requests(render):
    release = render("multi-node")
    assert release.group["size"] == 2
    args = release.server["args"]
    assert args[4:8] == ["python3", "/etc/tandem/ranks.py", "lead", "mpirun"]
    assert args[args.index("--host") + 1] == "$(POD_NAME):8,$(POD_NAME)-1:8"
    leader, *ranks = " ".join(args).split(" : ")
    assert len(ranks) == 15
    assert "--load-model" not in leader
    assert "thread-pool-size" in leader
    for number, rank in enumerate(ranks, start=1):
        assert "--model-control-mode=explicit --load-model=target --allow" in rank
        assert "--allow-http=false --allow-grpc=false --allow-metrics=false" in rank
        assert f"shm-region-prefix-name=triton_python_backend_shm_region_tandem-{number}-" in rank


def test_a_worker_pod_stops_after_its_leader_has_drained(render):
    worker = render("multi-node").group["workerTemplate"]["spec"]
    container = worker["containers"][0]
    assert container["args"] == ["python3", "/etc/tandem/ranks.py", "follow"]
    stop = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert '--host "$LWS_LEADER_ADDRESS" drained' in stop
    limit = int(re.search(r"--limit=(\d+)", stop)[1])
    assert worker["terminationGracePeriodSeconds"] > limit


def test_mpi_ports_are_open_only_within_the_release(render):
    rules = render("multi-node").manifests["NetworkPolicy"]["spec"]["ingress"]
    assert rules[0]["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "tandem"
    assert [port["port"] for port in rules[1]["ports"]] == ["http", "grpc", "metrics"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"repositry": {}}, "additional properties 'repositry' not allowed"),
        ({"launch": {"rank": 2}}, "at '/launch': additional properties 'rank' not allowed"),
        ({"launch": {"nodes": 2}}, "at '/launch/mode': value must be 'leader'"),
        ({"launch": {"ranks": 2}}, "at '/launch/ranks': value must be 1"),
        (
            {"launch": {"mode": "orchestrator", "ranks": 6}},
            "at '/launch/ranks': value must be 1",
        ),
        ({"repository": {"from": "claim"}}, "at '/repository/claim': minLength"),
        ({"repository": {"claim": "models"}}, "at '/repository/claim': maxLength"),
        ({"repository": {"from": "url", "url": "http://models"}}, "does not match pattern"),
        ({"replicas": "3"}, "at '/replicas': got string, want integer"),
        ({"gateway": {"tokenizer": {"path": "a"}}}, "at '/gateway/tokenizer/path': maxLength"),
        (
            {"gateway": {"tokenizer": {"claim": "models", "path": "/a"}}},
            "at '/gateway/tokenizer/path': '/a' does not match pattern",
        ),
        (
            {"gateway": {"enabled": True, "ingress": {"enabled": True}}},
            "gateway.ingress.host: missing",
        ),
        (
            {"gateway": {"ingress": {"enabled": True, "host": "llm.example.com"}}},
            "gateway.ingress.enabled: there is no gateway to reach; set gateway.enabled",
        ),
        (
            {"service": {"headless": True, "type": "NodePort"}},
            "service.headless: a service of type NodePort needs an address; use ClusterIP",
        ),
        (
            {"launch": {"mode": "leader", "ranks": 3, "nodes": 2}, "gpus": 8},
            "launch.ranks: 3 ranks do not divide among 2 nodes",
        ),
        (
            {"launch": {"mode": "leader", "ranks": 4, "engines": ["target"]}, "gpus": 2},
            "launch.ranks: 4 ranks need a GPU each, and 1 pods with gpus: 2 have 2",
        ),
        (
            {
                "launch": {"mode": "leader", "ranks": 4, "engines": ["draft", "target"]},
                "gpus": 4,
            },
            "launch.engines: draft, target given, but ranks of a leader stay in the first engine",
        ),
        (
            {"autoscaling": {"enabled": True, "requestsPerReplica": 64}},
            "autoscaling.requestsPerReplica: 64 would never be exceeded",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_values_are_rejected(render, values, message):
    with pytest.raises(helm_python.HelmError, match=re.escape(message)):
        render(values)
