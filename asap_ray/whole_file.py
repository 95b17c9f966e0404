"""Files of results: whole, or as they were before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from asap_ray.errors import ConfigError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """Write a text beside `path`; it takes its place once all of it is written. A pipe or device is written as it is.

    Raises:
        ConfigError: the disk is full, or the like; names the path and the reason. What was there is there still.
    """
    target = path.resolve()
    is_plain = target.is_file() or not target.exists()
    new = target.with_name(f"{target.name}.new") if is_plain else target
    try:
        with new.open("w", encoding="utf-8") as file:
            yield file
        if is_plain:
            new.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if is_plain:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """The same of a text that is there; raises as `whole_file` does."""
    with whole_file(path) as file:
        file.write(text)
