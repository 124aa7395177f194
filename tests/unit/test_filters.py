"""The index that finds the streams a job concerns."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.queue._filters import FilterIndex

names = st.sampled_from("abcd")
some = st.frozensets(names, max_size=3)
filters = st.lists(st.tuples(some, st.none() | st.frozensets(names, min_size=1, max_size=3)), max_size=8)


def filled(wanted: list[tuple[frozenset[str], frozenset[str] | None]]) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for number, (tags, types) in enumerate(wanted):
        index.add(number, tags, types)
    return index


@given(filters, names, some)
def test_a_job_finds_exactly_the_filters_it_passes(
    wanted: list[tuple[frozenset[str], frozenset[str] | None]], type_: str, tags: frozenset[str]
) -> None:
    """Q20: every filter whose tags the job has, all of them."""
    passed = {
        number
        for number, (all_of, any_of) in enumerate(wanted)
        if all_of <= tags and (any_of is None or type_ in any_of)
    }
    assert set(filled(wanted).matching(type_, tags)) == passed


@given(filters, st.lists(st.tuples(names, some), max_size=4))
def test_what_is_ready_finds_every_filter_that_one_of_the_jobs_passes(
    wanted: list[tuple[frozenset[str], frozenset[str] | None]], ready: list[tuple[str, frozenset[str]]]
) -> None:
    """Q34: given only the types and the tags of all ready jobs, no stream that waits for one is left out."""
    index = filled(wanted)
    needed = {number for type_, tags in ready for number in index.matching(type_, tags)}
    types = frozenset(type_ for type_, _ in ready)
    tags = frozenset(tag for _, each in ready for tag in each)
    assert needed <= set(index.matching_any(types, tags))


def test_nothing_is_found_while_nothing_is_ready() -> None:
    index = filled([(frozenset(), None), (frozenset("a"), None), (frozenset(), frozenset("b"))])
    assert not list(index.matching_any(frozenset(), frozenset()))
