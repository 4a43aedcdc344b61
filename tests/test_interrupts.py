"""Ctrl-C waits while modules are loaded, and is never lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from rollforge.runtime.held_interrupt import held_back


@pytest.fixture(autouse=True)
def as_python_begins() -> Iterator[None]:
    """An event loop of another test may have left its own listener behind."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_interrupts_where_loading_ends() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        press()
        done.append("loaded")
    assert done == ["loaded"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_goes_wrong_meanwhile_is_told_first() -> None:
    with pytest.raises(ImportError), held_back():
        press()
        raise ImportError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_one_does_not_wait() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        press()
        press()
        done.append("loaded")
    assert done == [] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_others_who_listen_are_left_alone() -> None:
    heard = []
    former = signal.signal(signal.SIGINT, lambda *_: heard.append("heard"))
    try:
        with held_back():
            press()
            assert heard == ["heard"]
    finally:
        signal.signal(signal.SIGINT, former)


def test_other_threads_hold_nothing_back() -> None:
    found = []

    def work() -> None:
        with held_back():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
