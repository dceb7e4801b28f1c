"""This process's link to the agent that launched it: one for all its managers, opened when it is first wanted."""

from __future__ import annotations

import atexit
import os
import threading

from .launched import Launch, launched
from .link import LaunchLink

_lock = threading.Lock()
_links: dict[Launch, LaunchLink] = {}
_num_holders: dict[Launch, int] = {}
_kept: LaunchLink | None = None
_fork_hook_set = False


def open_link(launch: Launch) -> LaunchLink:
    """Return the link, opened if need be, without waiting for the agent; give it back with ``release_link``."""
    global _fork_hook_set
    with _lock:
        if not _fork_hook_set:  # there is no way to take it back
            _fork_hook_set = True
            os.register_at_fork(after_in_child=_forked)
        if launch not in _links:
            _links[launch] = LaunchLink(launch)
        _num_holders[launch] = _num_holders.get(launch, 0) + 1
        return _links[launch]


def release_link(link: LaunchLink) -> None:
    """The last one closes it."""
    with _lock:
        if _links.get(link.launch) is not link:
            return
        _num_holders[link.launch] -= 1
        if _num_holders[link.launch]:
            return
        del _links[link.launch], _num_holders[link.launch]
    link.close()


def process_link() -> LaunchLink | None:
    """Return the link, and keep it for the rest of the process's life; None outside of the launcher."""
    global _kept
    if _kept is not None:
        return _kept
    launch = launched()
    if launch is None:
        return None
    link = open_link(launch)
    with _lock:
        is_first = _kept is None
        if is_first:
            _kept = link
    if is_first:
        atexit.register(close_links)
    else:
        release_link(link)
    return link


def close_links() -> None:
    """At the end of the process: give back what ``process_link`` keeps."""
    global _kept
    with _lock:
        link, _kept = _kept, None
    if link is not None:
        atexit.unregister(close_links)
        release_link(link)


def _forked() -> None:
    """This is a forked child, and the links are the parent's; it may open its own."""
    global _lock, _kept
    _lock = threading.Lock()  # another thread of the parent may have held it
    links = list(_links.values())
    _links.clear()
    _num_holders.clear()
    _kept = None
    for link in links:
        link.abandon_after_fork()
