"""Pages of another process on this host: `Transport` over shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from asap_ray.errors import Unavailable
from asap_ray.kvcache.page_memory import PageMemory
from asap_ray.kvcache.storage import Storage
from asap_ray.kvcache.transport import copy_tokens
from asap_ray.messages import Pages


class SharedPages:
    """Maps the pages of every rank for as long as a pull lasts: what is mapped would outlive its owner."""

    def __init__(self, local: Storage) -> None:
        self._local = local

    def pull(self, source: Sequence[Pages], table: Sequence[int], into: Sequence[int], num_tokens: int) -> None:
        """See `Transport`; the processes of `source` must be of this host and user."""
        copy_tokens([_storage(pages) for pages in source], table, self._local, into, num_tokens)


def _storage(pages: Pages) -> Storage:
    """A rank's pages, mapped; unmapped with the last tensor that shows them."""
    try:
        memory = PageMemory.open(pages.pid, pages.fd, pages.num_bytes)
    except (OSError, ValueError) as error:
        raise Unavailable(f"cannot map the pages of process {pages.pid}: {error}") from None
    return Storage(pages.spec, pages.num_blocks, memory.bytes)
