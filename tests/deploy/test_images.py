"""The Dockerfiles and the compose file are valid. These tests build no images."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import promql_parser as promql
import pytest
import yaml
from http_server import http_server, send
from paths import ROOT

from tandem.bls.metrics import METRICS, WATCHER
from tandem.guides.errors import REQUIREMENT
from tandem.tools.cli import main
from tandem.tools.commands.command_line import make_parser
from tandem.tools.commands.gateway import add_options as add_gateway_options
from tandem.tools.profiles import deployment
from tandem.tools.profiles.profile import read_profile
from tandem.tools.triton.install import find_triton

PROBE = "deploy/helm/tandem/files/health.py"
IMAGES = ["Dockerfile", "Dockerfile.cpu"]


def read(name):
    """Return the stages of a Dockerfile, each a list of (instruction, arguments)."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line]
    instructions = [tuple(line.split(None, 1)) for line in lines]
    starts = [i for i, (name, _) in enumerate(instructions) if name == "FROM"]
    return [instructions[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]


def arguments_of(stage, instruction):
    return [arguments for name, arguments in stage if name == instruction]


def health_check(image):
    """Return the command of an image's health check."""
    return json.loads(arguments_of(image, "HEALTHCHECK")[0].partition("CMD")[2])


@contextmanager
def serving_health(status):
    """Yield the port of a server whose /health returns `status` (None: a closed port)."""

    def answer(request):
        send(request, status if request.path == "/health" else 404)

    with http_server(answer) as port:
        if status is not None:
            yield port
    if status is None:
        yield port


@pytest.fixture(scope="module")
def triton():
    """The installed server and the environment variables for running it."""
    install = find_triton()
    libraries = ":".join(map(str, install.library_path))
    return install, os.environ | {"LD_LIBRARY_PATH": libraries}


@pytest.fixture(scope="module")
def flags(triton):
    """Every command-line flag of Triton."""
    install, environment = triton
    said = subprocess.run(
        [install.binary, "--help"], env=environment, capture_output=True, text=True, check=False
    )
    found = set(re.findall(r"^\s*(--[a-z-]+)", said.stdout + said.stderr, re.MULTILINE))
    assert "--model-repository" in found
    return found


def is_known(word, triton, flags):
    """Return whether Triton or its backend supports this command-line option."""
    flag, _, value = word.partition("=")
    if flag == "--backend-config":
        backend, _, setting = value.partition(",")
        library = triton[0].backends / backend / f"libtriton_{backend}.so"
        return setting.partition("=")[0].encode() in library.read_bytes()
    return flag in flags


@pytest.mark.parametrize("name", IMAGES)
def test_hadolint_finds_no_problem_in_the_dockerfiles(name):
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, ROOT / name], capture_output=True, text=True, check=False)
    assert found.stdout == ""
    assert found.returncode == 0


@pytest.mark.parametrize("name", IMAGES)
def test_images_run_as_a_non_root_user_and_expose_their_ports(name):
    final = read(name)[-1]
    user, _, group = arguments_of(final, "USER")[-1].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    gateway = " 8080" if name == "Dockerfile.cpu" else ""
    assert arguments_of(final, "EXPOSE") == ["8000 8001 8002" + gateway]


def test_the_image_contains_only_the_repository_and_the_health_probe():
    _, render, _, final = read("Dockerfile")
    assert arguments_of(final, "COPY") == [
        "--from=render /repository /repository",
        f"{PROBE} /health.py",
    ]
    assert arguments_of(final, "ADD") == arguments_of(final, "RUN") == []
    assert arguments_of(final, "FROM") == ["${BASE}"]
    assert "AS render" in arguments_of(render, "FROM")[0]


def test_the_gateway_image_includes_the_tokenizer_of_the_profile():
    _, render, gateway, _ = read("Dockerfile")
    assert "AS gateway" in arguments_of(gateway, "FROM")[0]
    assert arguments_of(gateway, "FROM")[0].split()[0] == arguments_of(render, "FROM")[0].split()[0]
    program, verb, *fixed = json.loads(arguments_of(gateway, "ENTRYPOINT")[0])
    assert program.endswith("/tandem")
    assert verb == "gateway"
    parser = argparse.ArgumentParser()
    add_gateway_options(parser)
    options = parser.parse_args(fixed + json.loads(arguments_of(gateway, "CMD")[0]))
    assert options.address == "0.0.0.0"
    assert f"--from=render {options.tokenizer} {options.tokenizer}" in arguments_of(gateway, "COPY")
    assert str(options.port) in arguments_of(gateway, "EXPOSE")
    assert int(arguments_of(gateway, "USER")[0].partition(":")[0]) > 0


@pytest.mark.parametrize("name", IMAGES)
def test_the_health_check_generates_a_token(program, name):
    image = read(name)[-1]
    python, script, *words = health_check(image)
    assert f"{PROBE} {script}" in arguments_of(image, "COPY")
    assert python == "python3"
    assert (ROOT / PROBE).samefile(program("health").__file__)
    asked = program("health").parser().parse_args(words)
    assert (asked.verb, asked.entry, asked.target) == ("alive", "bls", "target")
    assert asked.patience < 30  # Docker's own timeout


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
def test_the_gateway_image_checks_the_health_endpoint(monkeypatch, status, healthy):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    python, *words = health_check(read("Dockerfile")[2])
    with serving_health(status) as port:
        command = [python, *(word.replace("8080", str(port)) for word in words)]
        done = subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
    assert (done.returncode == 0) == healthy


@pytest.mark.parametrize("name", IMAGES)
def test_dockerignore_excludes_no_file_that_an_image_copies(name):
    copies = [
        copy for stage in read(name) for copy in arguments_of(stage, "COPY") if "--from" not in copy
    ]
    sources = [source for copy in copies for source in copy.split()[:-1] if source != "."]
    assert sources
    assert [source for source in sources if is_left_out(source)] == []
    assert is_left_out("deploy/grafana/tandem.json")


def is_left_out(source):
    """Return whether the last matching line of .dockerignore excludes a file."""
    parents = [source, *map(str, Path(source).parents)]
    left_out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if any(fnmatch(parent, pattern) for parent in parents):
            left_out = not line.startswith("!")
    return left_out


def test_images_use_the_tested_versions_of_triton_and_llguidance():
    text = (ROOT / "Dockerfile").read_text()
    assert "ARG BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3\n" in text
    [pinned] = re.findall(r'"(llguidance\S+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned == REQUIREMENT
    assert f"'{REQUIREMENT}'" in text


def test_the_image_starts_triton_with_serve_sh(capsys, tmp_path, embedded_profile, triton, flags):
    output = tmp_path / "repository"
    main(["render", "--profile", str(embedded_profile), "--output", str(output)])
    said = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert said == ["sh", str(output / "serve.sh")]
    image = read("Dockerfile")[-1]
    [rendered] = (
        copy.split()[-1] for copy in arguments_of(image, "COPY") if copy.endswith("/repository")
    )
    assert json.loads(arguments_of(image, "CMD")[-1]) == ["sh", f"{rendered}/serve.sh"]
    command = (output / "serve.sh").read_text().partition("\nexec ")[2]
    server, *words = shlex.split(command.replace("\\\n", ""))
    assert server == "tritonserver"
    words.remove("$@")
    assert [word for word in words if not is_known(word, triton, flags)] == []
    assert any("thread-pool-size=" in word for word in words)


def test_the_cpu_image_has_a_python_version_that_triton_supports():
    stages = read("Dockerfile.cpu")
    base, final = stages[0], stages[-1]
    assert json.loads(arguments_of(final, "CMD")[-1]) == ["tandem", "up", "--address", "0.0.0.0"]
    wheel = Path(find_spec("pytriton").origin).parent
    stubs = {path.name for path in (wheel / "tritonserver" / "python_backend_stubs").iterdir()}
    assert re.search(r"python:(3\.\d+)-", arguments_of(base, "FROM")[0])[1] in stubs


def test_the_chart_uses_only_options_that_triton_supports(release, triton, flags):
    options = [a for a in release.server["args"] if re.match(r"--[a-z-]+=|--disable", a)]
    assert options
    assert [option for option in options if not is_known(option, triton, flags)] == []


def test_compose_mounts_only_files_that_exist():
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert set(compose["services"]) == {"server", "prometheus", "grafana"}
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (ROOT / source).exists()
    for override in ("compose.yaml", "deploy/compose.gpu.yaml"):
        build = yaml.safe_load((ROOT / override).read_text())["services"]["server"]["build"]
        assert (ROOT / build["dockerfile"]).is_file()


def test_compose_publishes_the_gateways_port():
    server = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["server"]
    more = yaml.safe_load((ROOT / "deploy" / "compose.gpu.yaml").read_text())["services"]
    added = more["gateway"]
    assert "AS " + added["build"]["target"] in arguments_of(read("Dockerfile")[2], "FROM")[0]
    assert added["network_mode"] == "service:server"
    assert "127.0.0.1:8080:8080" in server["ports"]


@pytest.mark.parametrize("name", ["draft", "target", "loop"])
def test_the_remote_compose_file_starts_servers_of_its_profiles(name):
    folder = ROOT / "deploy" / "remote"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    program, *words = services[name]["command"]
    assert program == "tandem"
    profile = ROOT / make_parser("up").read(words[1:]).profile
    assert profile == folder / f"{name}.yaml"
    assert (folder / services[name]["build"]["context"] / "Dockerfile.cpu").is_file()
    if name != "loop":  # a loop can only be deployed if its engines run
        assert deployment.load(profile).profile.engines.draft is None
        return
    for role, engine in read_profile(profile).engines:
        assert engine.url == (f"{role}:8001",)
        assert services[name]["depends_on"][role] == {"condition": "service_healthy"}


def test_rendering_reads_checkpoints_from_a_build_context():
    models, render, *_ = read("Dockerfile")
    assert arguments_of(models, "FROM") == ["scratch AS models"]
    [step] = [words for words in arguments_of(render, "RUN") if "tandem render" in words]
    assert step.startswith("--mount=type=bind,from=models,target=/models ")
    services = yaml.safe_load((ROOT / "deploy" / "compose.vllm.yaml").read_text())["services"]
    for service in services.values():
        assert service["build"]["additional_contexts"][0].startswith("models=${CONFIGS:?")
    assert services["server"]["volumes"] == ["${MODELS:-/models}:/models:ro"]
    profile = yaml.safe_load((ROOT / "tandem" / "profiles" / "qwen2.5-7b-vllm.yaml").read_text())
    assert all(e["checkpoint"].startswith("/models/") for e in profile["engines"].values())


def test_every_alert_is_a_query_of_existing_metrics():
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    served = {"up", *METRICS, *WATCHER}
    for rule in rules["groups"][0]["rules"]:
        promql.parse(rule["expr"])
        assert {*re.findall(r"\b(?:tandem_\w+|up)\b", rule["expr"])} <= served, rule["alert"]


def test_prometheus_scrapes_server_and_gateway_and_grafana_reads_prometheus():
    deploy = ROOT / "deploy"
    scraped = yaml.safe_load((deploy / "prometheus" / "prometheus.yml").read_text())
    targets = [scrape["static_configs"] for scrape in scraped["scrape_configs"]]
    assert targets == [[{"targets": ["server:8002"]}], [{"targets": ["server:8080"]}]]
    provisioning = deploy / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    boards = yaml.safe_load((provisioning / "dashboards" / "tandem.yaml").read_text())
    folder = boards["providers"][0]["options"]["path"]
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert f"./deploy/grafana:{folder}:ro" in compose["services"]["grafana"]["volumes"]
