"""Spreads jobs over a Dask cluster.

Dask's own protocol trusts its peers: whoever can speak to a scheduler or a worker runs code there.
So the address must be this machine's own, or the connection TLS with certificates on both sides.
A learner's code never reaches the protocol: a submission travels as bytes, and is run on the worker
in the same sandbox as here, behind the same engine.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from autograder.grading import work
from autograder.grading.pool import Done
from autograder.grading.work import Job, Options
from autograder.i18n import _

# How long a scheduler may take to answer.
_PATIENCE = "20s"


class ClusterError(Exception):
    """The cluster cannot be used. Its text is one line."""


def check_address(address: str) -> None:
    """Refuse an address at which somebody else could listen in.

    Raises:
        ClusterError: it is neither TLS nor this machine.
    """
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme == "tls":
        return
    host = parts.hostname or ""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not (parts.scheme == "tcp" and local):
        raise ClusterError(
            _(
                "{address} is neither on this machine nor TLS; Dask would run what anybody on the "
                "way sends: use tls://… (see CONTRIBUTING.md)"
            ).format(address=address)
        )


class Cluster:
    """The workers of a Dask cluster; start them with ``--nthreads 1``, one a core.

    Raises:
        ClusterError: no connection, or not a safe one.
    """

    def __init__(self, options: Options, address: str) -> None:
        check_address(address)
        # Only this option needs it.
        from distributed import Client  # noqa: PLC0415

        self._options = options
        try:
            self._client = Client(address, timeout=_PATIENCE, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise ClusterError(
                _("no scheduler answers at {address} ({reason})").format(
                    address=address, reason=type(error).__name__
                )
            ) from None

    def map(self, jobs: Iterable[Job]) -> Iterator[Done]:
        """See :class:`autograder.grading.pool.Spread`."""
        from distributed import as_completed  # noqa: PLC0415

        waiting = iter(jobs)
        pending: dict[Any, Job] = {}
        finished = as_completed(loop=self._client.loop)
        while True:
            window = 2 * max(1, len(self._client.nthreads()))
            # A worker that died makes the window narrower than what is under way; its jobs go to
            # another one.
            for job in islice(waiting, max(0, window - len(pending))):
                future = self._client.submit(perform, job, self._options, pure=False)
                pending[future] = job
                finished.add(future)
            if not pending:
                return
            future = next(finished)
            job = pending.pop(future)
            yield job, _outcome(future)
            future.release()

    def close(self) -> None:
        """Leave the cluster; its workers stay."""
        self._client.close()


def _outcome(future: Any) -> dict[str, Any] | None:
    if future.status == "finished":
        result: dict[str, Any] = future.result()
        return result
    error = future.exception()
    if type(error).__name__ in ("KilledWorker", "CancelledError", "FutureCancelledError"):
        return None
    raise ClusterError(f"{type(error).__name__}: {str(error)[:200]}")


_one_at_a_time = threading.Lock()


def perform(job: Job, options: Options) -> dict[str, Any]:
    """Grade one submission on a worker. One at a time: times are measured, cores are shared."""
    with _one_at_a_time:
        return work.perform(job, options)
