"""Models from and to a hub, through huggingface_hub: exactly three files, none of which can run code."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from huggingface_hub import (
    CommitInfo,
    CommitOperationAdd,
    HfApi,
    ModelInfo,
    constants,
    hf_hub_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import RepositoryNotFoundError

from vlplatform import __version__
from vlplatform.errors import UserError
from vlplatform.hub.address import endpoint_or_default, parse_hub_id, token_from_environment
from vlplatform.hub.errand import Errand
from vlplatform.hub.export import CARD, CONFIG, FILES, WEIGHTS, check_weights, find, read_config, sha256_of
from vlplatform.hub.safety import refuse_unsafe


def pull(
    hub_id: str,
    *,
    revision: str | None = None,
    cache: str | Path | None = None,
    endpoint: str | None = None,
    offline: bool | None = None,
) -> Path:
    """Fetch a published model into the cache and return its folder there.

    The repository's file list is read first: one that holds pickles or code is refused. Size and SHA-256 of the
    weights are compared with the hub's and with those in ``config.json``; a file that differs leaves the cache.

    Args:
        hub_id: ``org/name`` or ``org/name@revision``.
        revision: Branch, tag or commit; ``main`` by default.
        cache: The folder of the cache; by default that of huggingface_hub (HF_HUB_CACHE).
        endpoint: The hub's address; by default HF_ENDPOINT, else the public hub.
        offline: Use the cache alone; by default so if HF_HUB_OFFLINE is set.

    The token comes from HF_TOKEN and nowhere else.

    Raises:
        UserError: Whatever keeps the model from being here whole.
    """
    repo, revision = parse_hub_id(hub_id, revision)
    if _is_offline() if offline is None else offline:
        return _from_cache(repo, revision, cache)
    errand = Errand(endpoint_or_default(endpoint), repo, revision, token_from_environment())
    api = HfApi(errand.endpoint, errand.token or False, "vlplatform", __version__)
    info = errand.run(
        lambda: api.model_info(repo, revision=revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    )
    listed = {file.rfilename: file for file in info.siblings or ()}
    refuse_unsafe(repo, listed)
    for name in (CONFIG, WEIGHTS):
        if name not in listed:
            raise UserError(f"{repo}@{revision} is no vlplatform model, it has no {name}: choose another repository.")
    if not info.sha or not re.fullmatch(r"[0-9a-f]{40,64}", info.sha):
        raise UserError(f"{errand.endpoint} names no commit for {repo}@{revision}: check HF_ENDPOINT.")
    wanted = [name for name in FILES if name in listed]
    _need_space(repo, sum(listed[name].size or 0 for name in wanted), cache)
    commit, folder = info.sha, Path()
    for name in wanted:
        path = errand.run(
            lambda name=name: hf_hub_download(
                repo, name, revision=commit, cache_dir=cache, endpoint=errand.endpoint, token=errand.token or False,
                library_name="vlplatform", library_version=__version__,
            )
        )  # fmt: skip
        folder = Path(path).parent
        if name == CONFIG:
            read_config(folder / CONFIG)  # before the weights are fetched for nothing
    _verify(repo, folder, listed[WEIGHTS])
    _remember(folder, revision, commit)
    return folder


def push(
    folder: str | Path,
    hub_id: str,
    *,
    private: bool = False,
    message: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Publish an exported model and return its address; the repository is made where it is missing.

    Uploads ``config.json``, ``model.safetensors`` and ``README.md`` in one commit, and nothing else. Absolute paths
    among the settings of the run (its data's folder, say) and in the model's ``shape`` (where the weights that made its
    features lay) become null in the uploaded config.

    Args:
        folder: What ``model.save`` wrote, or a run's folder (its ``best/`` is meant).
        hub_id: ``org/name``.
        private: Make the repository private; one that is public already is refused.
        message: Of the commit.
        endpoint: The hub's address; by default HF_ENDPOINT, else the public hub.

    Raises:
        UserError: The folder is no whole export, HF_TOKEN is not set, or the hub does not take it.
    """
    source = find(Path(folder).expanduser())
    config = read_config(source / CONFIG)
    check_weights(source, config)
    model = {key: without_paths(value) if key == "shape" else value for key, value in config["model"].items()}
    public = {**config, "model": model, "sections": without_paths(config["sections"])}
    written = json.dumps(public, indent=2, ensure_ascii=False) + "\n"
    if not (source / CARD).is_file():
        raise UserError(f"{source} has no {CARD}, the model card: save the model again.")
    repo, _ = parse_hub_id(hub_id)
    if "@" in hub_id:
        raise UserError(f"'{hub_id}' names a revision, but push adds a commit to main: write {repo}.")
    token = token_from_environment()
    if token is None:
        raise UserError(f"pushing to {repo} needs a token that may write: set HF_TOKEN.")
    errand = Errand(endpoint_or_default(endpoint), repo, "main", token)
    api = HfApi(errand.endpoint, token, "vlplatform", __version__)

    def found_or_made() -> ModelInfo:
        try:
            return api.model_info(repo, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        except RepositoryNotFoundError:
            api.create_repo(repo, private=private or None, exist_ok=True)
            return api.model_info(repo, timeout=constants.HF_HUB_ETAG_TIMEOUT)

    if not errand.run(found_or_made).private and private:
        raise UserError(f"{repo} exists and is public, so nothing was pushed privately to it: name another.")

    def commit() -> CommitInfo:
        files = [CommitOperationAdd(name, str(source / name)) for name in FILES if name != CONFIG]
        files.append(CommitOperationAdd(CONFIG, written.encode()))
        return api.create_commit(repo, files, commit_message=message or f"vlplatform {__version__} model")

    errand.run(commit)
    return f"{errand.endpoint}/{repo}"


def without_paths(settings: Any) -> Any:
    """JSON-ready settings with null for every text that is an absolute path, of whichever system."""
    if isinstance(settings, dict):
        return {key: without_paths(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [without_paths(value) for value in settings]
    paths = (PurePosixPath, PureWindowsPath) if isinstance(settings, str) else ()
    return None if any(path(settings).is_absolute() for path in paths) else settings


def _is_offline() -> bool:
    return constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _from_cache(repo: str, revision: str, cache: str | Path | None) -> Path:
    """The cached snapshot, as whole as when it was fetched."""
    for name in (CONFIG, WEIGHTS):
        found = try_to_load_from_cache(repo, name, cache_dir=cache, revision=revision)
        if not isinstance(found, str):
            raise UserError(
                f"{repo}@{revision} is not in the cache {cache or constants.HF_HUB_CACHE} (no {name}): run "
                f"vlp pull {repo}@{revision} once with a network."
            )
        folder = Path(found).parent
    refuse_unsafe(repo, (path.relative_to(folder).as_posix() for path in folder.rglob("*")))
    _verify(repo, folder, None)
    return folder


def _need_space(repo: str, size: int, cache: str | Path | None) -> None:
    folder = Path(cache or constants.HF_HUB_CACHE).expanduser().absolute()
    free = shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free
    if free < size:
        raise UserError(
            f"no space left for {repo}: it needs {size / 2**20:.0f} MiB and {folder} has {free / 2**20:.0f}; "
            "free some, or name another cache (--cache, HF_HUB_CACHE)."
        )


def _verify(repo: str, folder: Path, listed: Any) -> None:
    """Compare the weights with the hub's listing and the config; a wrong file is taken out of the cache."""
    weights = folder / WEIGHTS
    expected = {read_config(folder / CONFIG)["sha256"]}
    lfs = getattr(listed, "lfs", None)
    if lfs:
        expected.add(lfs["sha256"])
    if {sha256_of(weights)} == expected and getattr(listed, "size", None) in (None, weights.stat().st_size):
        return
    for path in (weights, folder / CONFIG):
        path.resolve().unlink(missing_ok=True)  # the blob that the snapshot links to
        path.unlink(missing_ok=True)
    raise UserError(
        f"the {WEIGHTS} of {repo} did not have the promised size and sha256, and was taken out of the cache: "
        "pull again, and if it happens again tell the repository's owner."
    )


def _remember(folder: Path, revision: str, commit: str) -> None:
    """Note the revision's commit in the cache, last, so that offline use finds only what was verified."""
    if revision == commit:
        return
    reference = folder.parent.parent / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    aside = reference.with_name(f".{reference.name}.{os.getpid()}")
    aside.write_text(commit)
    aside.replace(reference)
