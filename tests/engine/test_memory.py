"""Freed memory stays in the process."""

from vlplatform.engine.memory import keep_freed_memory


def test_asked_twice_it_answers_the_same():
    assert keep_freed_memory() == keep_freed_memory()
