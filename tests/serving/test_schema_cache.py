"""The schema cache keeps within both bounds and drops what was used longest ago."""

from hypothesis import given
from hypothesis import strategies as st

from serving.schema_cache import SchemaCache

PUTS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 60)), max_size=60)


@given(PUTS, st.integers(0, 5), st.integers(0, 100))
def test_bounds_hold_after_every_put(puts: list[tuple[str, int]], entries: int, tokens: int) -> None:
    cache: SchemaCache[int] = SchemaCache(max_entries=entries, max_tokens=tokens)
    for key, weight in puts:
        cache.put(key, weight, tokens=weight)
        assert len(cache) <= entries
        assert cache.tokens <= tokens
        assert cache.get(key) == (weight if entries and weight + 1 <= tokens else None)  # its key weighs one token


def test_the_least_recently_used_goes_first() -> None:
    cache: SchemaCache[int] = SchemaCache(max_entries=2, max_tokens=100)
    cache.put("a", 1, tokens=1)
    cache.put("b", 2, tokens=1)
    assert cache.get("a") == 1
    cache.put("c", 3, tokens=1)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_a_put_again_does_not_count_twice() -> None:
    cache: SchemaCache[int] = SchemaCache(max_entries=2, max_tokens=100)
    for _ in range(10):
        cache.put("a", 1, tokens=20)
    assert (len(cache), cache.tokens) == (1, 21)  # the key's own text weighs one token


def test_one_that_is_too_large_alone_drops_nothing() -> None:
    cache: SchemaCache[int] = SchemaCache(max_entries=2, max_tokens=100)
    cache.put("a", 1, tokens=50)
    cache.put("b", 2, tokens=101)
    assert [cache.get(key) for key in "ab"] == [1, None]


def test_long_keys_weigh_too() -> None:
    cache: SchemaCache[int] = SchemaCache(max_entries=10, max_tokens=100)
    cache.put("k" * 36 * 101, 1, tokens=1)
    assert len(cache) == 0
