"""What the workers on simulated hosts run in the kit's own tests."""

from __future__ import annotations

import os
import socket
import time

from multiworld.testing.worker import report

PORT = 5000
IDLE_S = 0.3
SAMPLE = 400


def send_datagrams(address: str) -> None:
    """Send numbered datagrams, some hundred a second, until killed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sequence = 0
        while True:
            try:
                sender.sendto(sequence.to_bytes(8, "big"), (address, PORT))
            except OSError as error:  # without a carrier there is no route; go on as the numbers show the loss
                report("send failed", error=error.strerror)
            sequence += 1
            time.sleep(0.002)


def count_datagrams(address: str) -> None:
    """Report when datagrams come, stay away for ``IDLE_S``, and come again; and the share lost among ``SAMPLE``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((address, PORT))
        report("listening")
        received: list[int] = []
        idle = False
        while True:
            receiver.settimeout(IDLE_S if received else None)
            try:
                sequence = int.from_bytes(receiver.recv(8), "big")
            except TimeoutError:
                if not idle:
                    report("idle")
                idle = True
                continue
            if idle:
                report("resumed")
            idle = False
            received.append(sequence)
            if len(received) == 20:
                report("counted", sequence=20)
            if len(received) == SAMPLE:
                span = received[-1] - received[0] + 1
                report("lost share", share=1 - SAMPLE / span)


def namespace() -> None:
    report("namespace", inode=os.stat("/proc/self/ns/net").st_ino)
