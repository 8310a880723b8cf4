"""Writes a deployment as a Triton model repository, which works without Tandem installed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

import tandem
from tandem.bls.drafters.registry import BASELINE
from tandem.bls.drafters.registry import FOLDER as DRAFTERS_FOLDER
from tandem.contract import engine, entry, postprocessing, preprocessing
from tandem.contract.model_parameters import FACTS, encode, encode_values
from tandem.contract.tensor import Tensor
from tandem.lookup.pools import POOLS, find_files
from tandem.tools.errors import TandemError
from tandem.tools.folders import atomic_folder, copy_failure
from tandem.tools.profiles.deployment import DRAFT_TOKENIZER, TOKENIZER, Deployment
from tandem.tools.profiles.engines.base import EngineFacts, EnginePlan
from tandem.tools.triton.launch import SCRIPT, readme, serve_script

PACKAGE = Path(tandem.__file__).parent  # some of its packages are links in a checkout
MARKER = ".rendered-by-tandem"
README = "README.md"
ESCAPED_JSON = re.compile(
    r"""(?<=string_value: )"([\[{](?:[^\\"']|\\")*\\"(?:[^\\"']|\\")*)"$""", re.MULTILINE
)
HEADER = "# Rendered by `tandem render`: change the profile, not this file.\n"
PACKAGES = (  # subpackages of `tandem` that the models import
    "contract",
    "sampling",
    "lookup",
    "guides",
    "preprocessing",
    "postprocessing",
    "bls",
    "engines",
)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",  # for a gateway that reads this folder
    "special_tokens_map.json",
)
MORE_TEMPLATES = "additional_chat_templates"  # templates for special uses, such as tools


@dataclass(frozen=True)
class Model:
    """A model of the repository, which has its own folder.

    source: the folder in model_repository/ with its model.py; None if the backend needs no Python.
    files: subfolder of the version folder -> the files to copy into it.
    """

    name: str
    source: str | None
    parameters: Mapping[str, str]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    max_batch_size: int
    decoupled: bool = False
    backend: str = "python"
    files: Mapping[str, list[Path]] = field(default_factory=dict)

    def config(self) -> str:
        config = model_config_pb2.ModelConfig(
            name=self.name,
            backend=self.backend,
            max_batch_size=self.max_batch_size,
            input=[_input(tensor) for tensor in self.inputs],
            output=[
                {"name": tensor, "data_type": f"TYPE_{tensor.dtype}", "dims": tensor.dims}
                for tensor in self.outputs
            ],
            instance_group=[{"count": 1, "kind": "KIND_CPU"}],
        )
        if self.decoupled:
            config.model_transaction_policy.decoupled = True
        for name, value in self.parameters.items():
            config.parameters[name].string_value = value
        # JSON is easier to read and edit in single quotes, which need no escapes.
        return HEADER + ESCAPED_JSON.sub(
            lambda found: "'" + found[1].replace('\\"', '"') + "'",
            text_format.MessageToString(config),
        )


def models(deployment: Deployment) -> Iterator[Model]:
    names, size = deployment.profile.models, deployment.profile.max_batch_size
    tokenizer = {TOKENIZER: _matching(deployment.tokenizer.folder, TOKENIZER_FILES)}
    if templates := _matching(deployment.tokenizer.folder / MORE_TEMPLATES, ("*.jinja",)):
        tokenizer[f"{TOKENIZER}/{MORE_TEMPLATES}"] = templates
    for source, settings, tensors in (
        ("preprocessing", deployment.tokenizer_settings(), preprocessing),
        ("postprocessing", deployment.detokenizer_settings(), postprocessing),
    ):
        yield Model(
            name=getattr(names, source),
            source=source,
            parameters=encode(settings),
            inputs=tensors.INPUTS,
            outputs=tensors.OUTPUTS,
            max_batch_size=size,
            files=tokenizer,
        )
    yield from _engine_models(deployment)
    yield from _entry_models(deployment, tokenizer)


def render(deployment: Deployment, output: Path, *, link: bool = False) -> None:
    """Write the model repository, and replace an earlier one in the same folder.

    link: create symbolic links to packages, checkpoints and tokenizers instead of copies. Raises
    TandemError.
    """
    output = Path(os.path.realpath(output))  # don't replace a link to the folder
    try:
        replaceable = not output.exists() or (
            output.is_dir() and ((output / MARKER).is_file() or not any(output.iterdir()))
        )
        if not replaceable:
            raise TandemError(
                f"{output} exists and isn't from tandem render; choose a new or empty folder"
            )
        with atomic_folder(output) as fresh:
            for model in models(deployment):
                _write(model, fresh / model.name, link=link)
            (fresh / MARKER).write_text(f"{deployment.profile.name}\n")
            (fresh / README).write_text(readme(deployment))
            (fresh / SCRIPT).write_text(serve_script(deployment))
    except OSError as error:
        path, reason = copy_failure(error)
        raise TandemError(
            f"can't write {path or output}: {reason}; choose a writable folder"
        ) from error


def _engine_models(deployment: Deployment) -> Iterator[Model]:
    names = deployment.profile.models
    for source, name, plan in (
        ("target", names.target, deployment.target),
        ("draft", names.draft, deployment.draft),
    ):
        if plan:
            ours = plan.backend == "python"
            yield Model(
                name=name,
                source=source if ours else None,
                parameters={**plan.parameters, **({FACTS: _facts(plan)} if ours else {})},
                inputs=_set_logits_type(engine.INPUTS if ours else engine.NVIDIA_INPUTS, plan),
                outputs=_set_logits_type(engine.OUTPUTS if ours else engine.NVIDIA_OUTPUTS, plan),
                max_batch_size=1,
                decoupled=plan.decoupled,
                backend=plan.backend,
                files=plan.files,
            )


def _facts(plan: EnginePlan) -> str:
    """Return the facts that another deployment needs to call the engine as its own, as JSON."""
    facts = EngineFacts(**{f.name: getattr(plan, f.name) for f in fields(EngineFacts)})
    return json.dumps(encode_values(facts), sort_keys=True)


def _set_logits_type(tensors: Sequence[Tensor], plan: EnginePlan) -> tuple[Tensor, ...]:
    """Return the tensors with the planned type for logits."""
    return tuple(
        tensor.with_dtype(plan.logits_dtype) if tensor in engine.LOGITS else tensor
        for tensor in tensors
    )


def _entry_models(deployment: Deployment, tokenizer: dict[str, list[Path]]) -> Iterator[Model]:
    own = [drafter.module for drafter in deployment.profile.drafters]
    files = tokenizer | ({DRAFTERS_FOLDER: own} if own else {})
    files |= deployment.target.loop_files
    if (pools := deployment.profile.decoding.prompt_lookup.pools) is not None:
        files |= {f"{POOLS}/{name}": paths for name, paths in find_files(pools).items()}
    if deployment.draft_tokenizer:
        files[DRAFT_TOKENIZER] = _matching(deployment.draft_tokenizer.folder, TOKENIZER_FILES)
    for listed in deployment.profile.entries:
        streams = listed.kind == "stream"
        baseline = listed.drafter == BASELINE.name
        settings = deployment.forwarder_settings(listed)
        yield Model(
            name=listed.name,
            source="bls_stream" if streams else "ensemble" if baseline else "bls",
            parameters=encode(deployment.loop_settings() if streams else settings),
            inputs=entry.INPUTS,
            outputs=entry.OUTPUTS,
            max_batch_size=deployment.profile.max_batch_size,
            decoupled=streams,
            files=files if streams else {},
        )


def _input(tensor: Tensor) -> model_config_pb2.ModelInput:
    declared = model_config_pb2.ModelInput(
        name=tensor,
        data_type=f"TYPE_{tensor.dtype}",
        dims=tensor.dims,
        optional=tensor.optional,
        allow_ragged_batch=tensor.ragged,
    )
    if tensor.scalar:
        declared.reshape.SetInParent()  # an empty reshape makes it a scalar
    return declared


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _write(model: Model, folder: Path, *, link: bool) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(model.config())
    if model.source:
        shutil.copyfile(
            PACKAGE / "model_repository" / model.source / "1" / "model.py", version / "model.py"
        )
        (version / PACKAGE.name).mkdir()
        shutil.copyfile(PACKAGE / "__init__.py", version / PACKAGE.name / "__init__.py")
        for package in PACKAGES:
            source, output = PACKAGE / package, version / PACKAGE.name / package
            if link:  # so that models find compiled modules
                output.symlink_to(source.resolve())
            else:
                shutil.copytree(source, output, ignore=shutil.ignore_patterns("__pycache__"))
    for subfolder, files in model.files.items():
        (version / subfolder).mkdir(parents=True, exist_ok=True)
        for path in files:
            if not (path.is_file() and os.access(path, os.R_OK)):
                raise TandemError(f"can't read {path}: it is missing, a folder or not readable")
            place = os.symlink if link else shutil.copyfile
            place(path.resolve(), version / subfolder / path.name)
