"""The bounded output of a job: whatever the pieces, its beginning and its end are kept, and never more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.isolation.output import Output


@given(limit=st.integers(0, 40), pieces=st.lists(st.binary(max_size=30), max_size=40))
def test_beginning_and_end_are_kept_whatever_the_pieces(limit, pieces):
    output = Output(limit)
    for piece in pieces:
        output.add(piece)
        assert len(output._head) + len(output._tail) <= 2 * limit, "what is held is bounded at every moment"
    whole = b"".join(pieces)
    head, tail = whole[: limit // 2], whole[limit // 2 :]
    left_out = max(0, len(tail) - (limit - limit // 2))
    gap = f"\n… {left_out} bytes left out …\n".encode() if left_out else b""
    assert output.text() == (head + gap + tail[left_out:]).decode("utf-8", "backslashreplace")
    assert output.total == len(whole)


@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_pieces_without_end_take_no_more_memory_than_the_limit(size):
    """F22: small pieces and large ones come to the same."""
    output = Output(10_000)
    for _ in range(20_000):
        output.add(b"x" * size)
        held = len(output._head) + len(output._tail)
        assert held <= 20_000
    output.add(b"the end")
    text = output.text()
    assert len(text) < 10_100
    assert text.endswith("the end")
