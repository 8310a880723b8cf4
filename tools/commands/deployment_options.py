"""Options that select a deployment to serve or a running server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.tools.commands.options import Options, add_profile, chosen_profile, nonempty
from tandem.tools.errors import TandemError, UsageError
from tandem.tools.models.fit import ROLES, Role, check_fit, fitting_kv_caches
from tandem.tools.models.named import find_model
from tandem.tools.models.weights import FoundModel, check_weights
from tandem.tools.profiles.deployment import Deployment, for_checkpoints, load


def add_deployment(group: Options) -> None:
    add_profile(group)
    group.add_argument(
        "--target",
        type=nonempty,
        metavar="MODEL",
        help="Target, instead of a profile: a folder, OWNER/NAME[@REVISION] on the Hugging "
        "Face Hub, or a GGUF file.",
    )
    group.add_argument(
        "--draft",
        type=nonempty,
        metavar="MODEL",
        help="Draft model (default: none; prompt lookup is used).",
    )


def chosen_deployment(options: argparse.Namespace, *, here: bool = True) -> Deployment:
    """Fetch the models that the options name, and return their deployment.

    here: the deployment will run on this machine, so it must fit into memory. Raises TandemError.
    """
    if options.target is None:
        if options.draft is not None:
            raise UsageError("--draft needs --target; set both")
        deployment = load(chosen_profile(options))
        if here:
            check_fit(deployment)
        return deployment
    if options.profile is not None:
        raise UsageError("set --profile or --target, not both")
    models: dict[Role, FoundModel] = {}
    for role in ROLES:
        if (name := getattr(options, role)) is not None:
            with name_option_in_errors(role):
                models[role] = find_model(name)
    # Check the small files before fetching the weights.
    folders = {role: model.folder for role, model in models.items()}
    name = models["target"].name
    deployment = for_checkpoints(
        folders["target"], folders.get("draft"), name=name, with_weights=False
    )
    kv_cache_tokens: dict[str, int] = {}
    if here:
        counts = {role: model.num_parameters for role, model in models.items()}
        kv_cache_tokens = fitting_kv_caches(deployment, counts)
    for role, model in models.items():
        with name_option_in_errors(role):
            folders[role] = model.checkpoint()
            if here:
                check_weights(folders[role])
    return for_checkpoints(
        folders["target"], folders.get("draft"), name=name, kv_cache_tokens=kv_cache_tokens
    )


@contextmanager
def name_option_in_errors(role: Role) -> Iterator[None]:
    """Prefix errors with the option that names the model."""
    try:
        yield
    except TandemError as error:
        raise TandemError(f"--{role}: {error}") from error


def deployment_to_serve(options: argparse.Namespace) -> Deployment | None:
    """Return the deployment to serve, or None if --url names a running server."""
    for name in ("profile", "target"):
        if options.url and getattr(options, name):
            raise UsageError(f"set --url or --{name}, not both")
    return None if options.url else chosen_deployment(options)
