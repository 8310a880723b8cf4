"""The options that say what to deploy, or which running server to ask."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tandem.tools.commands.options import Options, add_profile, chosen_profile
from tandem.tools.errors import TandemError
from tandem.tools.models.fit import JOBS, Job, fit_of
from tandem.tools.models.named import ModelSource, model_named
from tandem.tools.models.weights import Description
from tandem.tools.profiles import deployment
from tandem.tools.profiles.deployment import Deployment

DRAFT_ALONE = "--draft needs --target, the model that it drafts for"


def add_deployment(group: Options) -> None:
    add_profile(group)
    add_models(group)


def add_models(group: Options) -> None:
    group.add_argument(
        "--target",
        metavar="MODEL",
        help="The model to deploy instead of a profile: a folder, OWNER/NAME[@REVISION] on the "
        "Hugging Face Hub, or a GGUF file.",
    )
    group.add_argument(
        "--draft",
        metavar="MODEL",
        help="The smaller model that drafts for it (default: prompt lookup drafts).",
    )


def chosen_deployment(options: argparse.Namespace, *, here: bool = True) -> Deployment:
    """Return what the options say, its models fetched; raise TandemError.

    here: it is to be served on this machine, whose memory must hold it.
    """
    if options.target is None:
        if options.draft is not None:
            raise TandemError(DRAFT_ALONE)
        return deployment.load(chosen_profile(options))
    if options.profile is not None:
        raise TandemError("--profile and --target exclude each other")
    sources = chosen_models(options)
    described = {}
    for job, source in sources.items():
        with about(job):
            described[job] = source.describe()
    planned = planned_models(sources, described)
    kv_cache_tokens: dict[str, int] = {}
    if here:
        fit = fit_of(planned, {job: found.num_parameters for job, found in described.items()})
        fit.check()
        kv_cache_tokens = fit.kv_cache_tokens()
    folders = {}
    for job, source in sources.items():
        with about(job):
            folders[job] = source.checkpoint()
    return deployment.for_checkpoints(
        folders["target"],
        folders.get("draft"),
        name=sources["target"].name,
        kv_cache_tokens=kv_cache_tokens,
    )


def chosen_models(options: argparse.Namespace) -> dict[Job, ModelSource]:
    if options.target is None:
        raise TandemError(DRAFT_ALONE)
    sources: dict[Job, ModelSource] = {}
    for job in JOBS:
        if getattr(options, job) is not None:
            with about(job):
                sources[job] = model_named(getattr(options, job))
    return sources


def planned_models(
    sources: Mapping[Job, ModelSource], described: Mapping[Job, Description]
) -> Deployment:
    """Check whether models fit together, by their small files; raise TandemError."""
    draft = described.get("draft")
    return deployment.for_checkpoints(
        described["target"].folder,
        draft.folder if draft else None,
        name=sources["target"].name,
        with_weights=False,
    )


@contextmanager
def about(job: Job) -> Iterator[None]:
    """Put the option that names a model before the text of an error."""
    try:
        yield
    except TandemError as error:
        raise TandemError(f"--{job}: {error}") from error


def planned_of(options: argparse.Namespace) -> Deployment | None:
    """Return what is to be served; None where a server runs already."""
    for name in ("profile", "target"):
        if options.url and getattr(options, name):
            raise TandemError(f"--url and --{name} exclude each other")
    if getattr(options, "model", None) and not options.url:
        raise TandemError("--model needs --url: a profile says what its entries are called")
    return None if options.url else chosen_deployment(options)
