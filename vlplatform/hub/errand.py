"""A request to a hub: tried again politely where that can help, and its failure put into one sentence."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)

from vlplatform.errors import UserError

T = TypeVar("T")

ATTEMPTS = 4
FIRST_WAIT = 1.0
"""Seconds before the second attempt; doubled before each further one."""
LONGEST_WAIT = 60.0
"""Seconds: a hub that asks for a longer pause is not waited for, its wish is reported."""

# The base of the HTTP client's own errors, whichever client this huggingface_hub is built on.
ClientError: type[Exception] = [c for c in HfHubHTTPError.__mro__ if c.__module__ != "builtins"][-1]


@dataclass(frozen=True)
class Errand:
    """What is asked of which hub.

    Attributes:
        endpoint: The hub's address.
        repo: org/name.
        revision: Branch, tag or commit.
        token: Sent with the request, and blotted out of every message.
    """

    endpoint: str
    repo: str
    revision: str
    token: str | None = None

    def run(self, request: Callable[[], T]) -> T:
        """The request's result, after up to ``ATTEMPTS`` attempts.

        Raises:
            UserError: The request failed for good; one sentence says how and what to do.
        """
        wait = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return request()
            except (ClientError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
                pause = max(wait, _retry_after(error) or 0.0)
                if attempt == ATTEMPTS or pause > LONGEST_WAIT or not _worth_another_try(error):
                    raise UserError(self._blot(self._explain(_root(error)))) from error
            time.sleep(pause)
            wait *= 2
        raise AssertionError("unreachable")

    def _explain(self, error: BaseException) -> str:
        hub, what, status = self.endpoint, self.repo, _status(error)
        if isinstance(error, GatedRepoError):
            return f"{what} is gated: ask for access at {hub}/{what}, then set HF_TOKEN to a token of yours."
        if isinstance(error, RevisionNotFoundError):
            return f"{what} on {hub} has no revision '{self.revision}': give a branch, tag or commit that it has."
        if status is not None:
            return self._explain_status(status, error)
        if isinstance(error, OfflineModeIsEnabled):
            return f"{what} cannot be fetched because HF_HUB_OFFLINE is set: unset it, or use a model in the cache."
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return f"no space left for {what}: free some, or name another cache (--cache, HF_HUB_CACHE)."
        if isinstance(error, (ClientError, ConnectionError, TimeoutError)) or "Consistency check" in str(error):
            return f"the connection to {hub} failed or broke off ({error}): check network and HF_ENDPOINT, run again."
        if isinstance(error, OSError):
            return f"{what} cannot be written to the cache ({error}): name another one (--cache, HF_HUB_CACHE)."
        said = f"{type(error).__name__}: {error}"
        return f"{hub} gave an answer for {what} that is not a hub's ({said}): check HF_ENDPOINT."

    def _explain_status(self, status: int, error: BaseException) -> str:
        hub, what = self.endpoint, self.repo
        if status == HTTPStatus.UNAUTHORIZED and self.token:
            return f"{hub} does not accept the token in HF_TOKEN for {what} (401): it may have expired, make a new one."
        if status == HTTPStatus.UNAUTHORIZED:
            return f"{hub} wants a token for {what} (401), which is private or does not exist: set HF_TOKEN."
        if status == HTTPStatus.FORBIDDEN:
            return f"{hub} forbids this for {what} (403): use a token (HF_TOKEN) whose owner and scope allow it."
        if status == HTTPStatus.NOT_FOUND:
            return f"{hub} has no {what}, or not this file of it (404): check the spelling; if private, set HF_TOKEN."
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            pause = _retry_after(error)
            when = f"in {pause:.0f} s" if pause else "later"
            return f"{hub} receives too many requests from here (429): run again {when}; with HF_TOKEN it allows more."
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return f"{hub} is failing ({status}) for {what}: run again later."
        said = getattr(error, "server_message", None) or "no reason given"
        return f"{hub} refused the request for {what} ({status}): {said.rstrip('.')}."

    def _blot(self, text: str) -> str:
        return " ".join((text.replace(self.token, "***") if self.token else text).split())


def _root(error: BaseException) -> BaseException:
    """The fault itself where the client library has wrapped it."""
    while isinstance(error, (LocalEntryNotFoundError, RuntimeError)) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _retry_after(error: BaseException) -> float | None:
    """Seconds that the hub asked to wait for."""
    response: Any = getattr(_root(error), "response", None)
    wished = response.headers.get("Retry-After", "") if response is not None else ""
    return float(wished) if wished.isdigit() else None


def _worth_another_try(error: BaseException) -> bool:
    """A busy hub or a broken connection; not what the client library has already tried several times."""
    if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
        return False
    status = _status(_root(error))
    if status is not None:
        return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(_root(error), (ClientError, ConnectionError, TimeoutError))
