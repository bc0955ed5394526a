"""Text as it comes back from machines that are not well: cut off, garbled, mixed up."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def mangled(draw: st.DrawFn, text: str) -> str:
    """Return `text` with a few cuts, insertions and changed places."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        to = draw(st.integers(at, min(len(text), at + 200)))
        how = draw(st.sampled_from(["cut", "drop", "insert", "double", "head"]))
        if how == "cut":
            text = text[:at]
        elif how == "head":
            text = text[at:]
        elif how == "drop":
            text = text[:at] + text[to:]
        elif how == "double":
            text = text[:to] + text[at:]
        else:
            some = st.text(alphabet=st.characters(codec="utf-8"), max_size=8)
            words = st.sampled_from(["\t", "\n", " X ", "N/A", "-1", "99999999999", "|", "\x1b[0m"])
            text = text[:at] + draw(some | words) + text[at:]
    return text
