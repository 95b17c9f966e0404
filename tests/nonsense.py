"""What nobody should send, for hypothesis: JSON of any shape, and sound objects of which a part is replaced."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

EDGES: Final = (0, 1, -1, 2**31, -(2**31) - 1, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"))
"""Numbers at the ends of types, and beyond."""

LEAVES: Final = (
    st.none() | st.booleans() | st.sampled_from(EDGES) | st.integers() | st.floats() | st.text(max_size=8) | st.just("")
)

VALUES: Final = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
"""Any JSON value, and the numbers that JSON in Python knows besides."""


@st.composite
def spoilt(draw: st.DrawFn, sound: dict[str, Any]) -> dict[str, Any]:
    """The object with up to three keys replaced, removed or added; nested ones are objects of their own."""
    content = dict(sound)
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(sorted(content)) if content else st.text(max_size=8))
        if draw(st.booleans()) and isinstance(content.get(key), dict):
            content[key] = draw(spoilt(content[key]))
        elif draw(st.integers(0, 3)):
            content[key] = draw(VALUES)
        else:
            content.pop(key, None)
    return content


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes cut short, with some overwritten, moved or doubled."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        stop = draw(st.integers(start, min(len(content), start + 12)))
        how = draw(st.sampled_from(["cut", "overwrite", "move", "double"]))
        if how == "cut":
            del content[start:]
        elif how == "overwrite":
            content[start:stop] = draw(st.binary(min_size=stop - start, max_size=stop - start))
        elif how == "move":
            part = content[start:stop]
            del content[start:stop]
            content[:0] = part
        else:
            content[start:start] = content[start:stop]
    return bytes(content)
