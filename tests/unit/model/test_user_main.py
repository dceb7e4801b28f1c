"""The user's main module in another process."""

from __future__ import annotations

import os
import pickle
import sys

import pytest

from multiworld.model.user_main import dumps_for, is_replaying_main, prepare_main


class Mine:
    pass


def test_another_host_keeps_its_own_path_and_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/here", "/both"])
    monkeypatch.setattr(sys, "argv", ["before"])
    before = os.getcwd()
    main = {"dir": "/nowhere/at/all", "orig_dir": "/nowhere", "sys_path": ["/theirs", "/both"], "sys_argv": ["after"]}
    prepare_main(main, elsewhere=True)
    assert (sys.path, sys.argv, os.getcwd()) == (["/here", "/both", "/theirs"], ["after"], before)
    prepare_main({"sys_path": ["/theirs"]})
    assert sys.path == ["/theirs"]


def test_a_class_of_a_main_module_is_pickled_only_for_a_process_that_can_import_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Mine, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    assert pickle.loads(dumps_for({"init_main_from_path": "/my/program.py"}, Mine)) is Mine
    with pytest.raises(pickle.PicklingError, match="Mine is defined in a program that no other process can import"):
        dumps_for({"dir": "/"}, Mine)


def test_main_is_not_replayed_any_more_once_it_has_failed() -> None:
    with pytest.raises(FileNotFoundError):
        prepare_main({"init_main_from_path": "/nowhere/program.py"})
    assert not is_replaying_main()
