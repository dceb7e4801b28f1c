"""What the kernel tells of this process and of others is read as it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

from multiworld.process import facts


def test_threads_of_this_process_are_counted() -> None:
    before, go_on = facts.count_threads(), threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    try:
        assert facts.count_threads() == before + 1
    finally:
        go_on.set()
        thread.join()


def test_open_descriptors_are_listed() -> None:
    read_fd, write_fd = os.pipe()
    assert {read_fd, write_fd} <= set(facts.open_descriptors())
    os.close(read_fd)
    os.close(write_fd)
    assert write_fd not in facts.open_descriptors()


def test_a_library_is_found_by_a_part_of_its_path() -> None:
    interpreter = os.path.realpath(sys.executable)
    assert interpreter in facts.libraries(os.path.basename(interpreter))
    assert facts.libraries("no file has such a name") == []


def test_a_handler_for_a_signal_is_seen() -> None:
    assert not facts.catches_signal(os.getpid(), signal.SIGRTMIN + 9)
    before = signal.signal(signal.SIGRTMIN + 9, lambda *_: None)
    try:
        assert facts.catches_signal(os.getpid(), signal.SIGRTMIN + 9)
    finally:
        signal.signal(signal.SIGRTMIN + 9, before)


def test_a_signal_is_pending_until_a_thread_takes_it() -> None:
    program = """
        import signal
        signum = signal.SIGRTMIN + 9
        signal.signal(signum, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signum})
        input("blocked\\n")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
        input("taken\\n")
    """
    command = [sys.executable, "-uc", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        signum = signal.SIGRTMIN + 9
        assert child.stdout.readline() == "blocked\n"
        assert (facts.is_pending(child.pid, signum), facts.threads_blocking(child.pid, signum)) == (False, {child.pid})
        child.send_signal(signum)
        assert facts.is_pending(child.pid, signum)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "taken\n"
        assert (facts.is_pending(child.pid, signum), facts.threads_blocking(child.pid, signum)) == (False, set())
        child.kill()


def test_a_process_that_is_gone_catches_nothing() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert not facts.catches_signal(child.pid, signal.SIGTERM)


def test_spaces_name_the_boot_and_the_namespace() -> None:
    assert facts.process_space().endswith(f" {os.readlink('/proc/self/ns/pid')}")
    assert facts.network_space().endswith(f" {os.readlink('/proc/self/ns/net')}")
    assert facts.process_space().split()[0] == facts.network_space().split()[0]
