"""Fixtures that render the chart without a cluster and load the programs of its pods."""

import importlib.util
from pathlib import Path

import helm_python
import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tandem"


class Release:
    """The manifests of one release.

    manifests: server manifests, by kind. gateway: gateway manifests, by file name.
    """

    def __init__(self, values):
        with helm_python.Chart.load(CHART) as chart:
            self.values = chart.merge_values(values)
            files = chart.render(values, name="tandem", namespace="prod")
        paths = [Path(name) for name in files if name.endswith(".yaml")]
        made = {path: manifest for path in paths if (manifest := yaml.safe_load(files[str(path)]))}
        self.manifests = {m["kind"]: m for path, m in made.items() if path.parent.name != "gateway"}
        self.gateway = {path.stem: m for path, m in made.items() if path.parent.name == "gateway"}

    @property
    def template(self):
        """The template of the serving pod."""
        if "Deployment" in self.manifests:
            return self.manifests["Deployment"]["spec"]["template"]
        return self.group["leaderTemplate"]

    @property
    def group(self):
        return self.manifests["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]

    @property
    def pod(self):
        return self.template["spec"]

    @property
    def server(self):
        return self.pod["containers"][0]


def example(name):
    return yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text())


@pytest.fixture
def render():
    """render(values) or render("name of an example") returns a Release."""
    return lambda given: Release(example(given) if isinstance(given, str) else given)


@pytest.fixture(
    scope="session",
    params=["defaults", *sorted(path.stem for path in (CHART / "examples").iterdir())],
)
def release(request):
    return Release({} if request.param == "defaults" else example(request.param))


@pytest.fixture
def program():
    """program("health") imports a program of the chart and returns the module."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, CHART / "files" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
