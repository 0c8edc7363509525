"""Whether a hub answers, asked once: without a network its client tries for half a minute, and prints that it does."""

from __future__ import annotations

from pathlib import Path


def beyond_reach(name: str) -> bool:
    """Whether ``name`` is no folder here and the hub that would have it does not answer; then only its cache helps.

    The answer is what ``local_files_only`` of ``from_pretrained`` should be.
    """
    if Path(name).expanduser().exists():
        return False
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    from vlplatform.hub.errand import ClientError

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HfHubHTTPError:
        return False  # an answer, if not a good one; the client says more about it
    except (OSError, ClientError):
        return True
    except ValueError:
        return False  # no name of a repository: likewise
    return False
