"""Ctrl-C while processes are started that work for this one."""

import signal
import threading

from hosim.study.new_processes import without_ctrl_c


def test_a_ctrl_c_that_reaches_another_thread_interrupts_at_the_end() -> None:
    """A thread that was there before blocks no signals: what comes through it waits as well."""
    came: list[str] = []
    begin = threading.Event()

    def of_a_library() -> None:
        begin.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda number, frame: came.append("Ctrl-C"))
    thread = threading.Thread(target=of_a_library)
    try:
        thread.start()
        with without_ctrl_c():
            begin.set()
            thread.join()
            came.append("the end")
    finally:
        begin.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert came == ["the end", "Ctrl-C"]
