"""Waiting for a word of memory that another thread changes."""

import threading

import numpy as np

from windtunnel.measure.channels import wait_for_change, wake


def test_a_thread_that_waits_goes_on_when_the_word_has_changed():
    words = np.zeros(1, np.int64)
    seen = []

    def wait():
        while not words[0]:
            wait_for_change(words.ctypes.data, 0)
        seen.append(int(words[0]))

    waiting = threading.Thread(target=wait)
    waiting.start()
    words[0] = 7
    wake(words.ctypes.data)
    waiting.join(10)

    assert [7] == seen


def test_a_word_that_has_changed_already_is_not_waited_for():
    words = np.full(1, 2**32 + 1, np.int64)

    wait_for_change(words.ctypes.data, 0)  # would wait for ever
