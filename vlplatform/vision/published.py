"""Published weights of timm's networks, as one safetensors file of the hub: out of the cache, or fetched."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from vlplatform.errors import UserError

FILE = "model.safetensors"


def published_file(repository: str, what: str, remedy: str) -> Path:
    """The cached or freshly fetched safetensors file of a repository of the hub.

    Args:
        repository: ``timm/resnet18.a1_in1k``.
        what: What the file is called in the message.
        remedy: What to do without it.

    Raises:
        UserError: It is not cached, and the hub cannot be reached or does not give it.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    from vlplatform.hub.address import endpoint_or_default, token_from_environment
    from vlplatform.hub.errand import ClientError

    token = token_from_environment() or False  # never one that lies stored on disk
    endpoint = endpoint_or_default(None)
    try:
        with suppress(LocalEntryNotFoundError):
            return Path(hf_hub_download(repository, FILE, token=token, local_files_only=True))
        # One plain request first: without a network the download would go on trying, and printing, for half a minute.
        url = hf_hub_url(repository, FILE, endpoint=endpoint)
        get_hf_file_metadata(url, token=token, timeout=constants.HF_HUB_ETAG_TIMEOUT, endpoint=endpoint)
        return Path(hf_hub_download(repository, FILE, token=token, endpoint=endpoint))
    except (OSError, LocalEntryNotFoundError, HfHubHTTPError, ClientError) as error:
        raise UserError(
            f"{what} are neither cached nor to be had from the hub ({type(error).__name__}): {remedy}."
        ) from error
