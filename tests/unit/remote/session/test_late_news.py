"""Values may be here before the news of an earlier failure: neither the failure nor its line is lost."""

from __future__ import annotations

import threading

import pytest
import torch

from multiworld.remote import NodeDeadError, RemoteError, RemoteOperationError
from multiworld.remote.protocol import lanes

from ..fake_node import FakeNode, values

INDEX = torch.tensor([9])


def test_a_failure_whose_news_is_late_is_known_with_its_line(fake: FakeNode) -> None:
    right, index = fake.node.ones(2), fake.node.send(INDEX)
    fake.world.keep_back(lanes.NEWS)
    failed = fake.node.zeros(3).index_select(0, index)
    assert values(right).tolist() == [1, 1]  # confirms the failed operation
    with pytest.raises(
        RemoteOperationError, match=r"index_select.*failed on node 1(?s:.*)test_late_news\.py"
    ) as caught:
        values(failed)
    fake.world.deliver_late(lanes.NEWS)
    assert fake.session.stream.failures.total == 1
    assert fake.session.unseen_errors() == []
    with pytest.raises(RemoteOperationError) as again:
        values(failed + 1)
    assert again.value.line == caught.value.line


def test_a_failure_that_nobody_asks_for_is_told_though_its_news_is_late(fake: FakeNode) -> None:
    right, index = fake.node.ones(2), fake.node.send(INDEX)
    fake.world.keep_back(lanes.NEWS)
    fake.node.zeros(3).index_select(0, index)
    values(right)
    fake.world.deliver_late(lanes.NEWS)
    (error,) = fake.session.unseen_errors()
    assert "test_late_news.py" in str(error)


def test_a_wait_for_all_ends_when_it_is_known_what_failed(fake: FakeNode) -> None:
    fake.node.zeros(3).index_select(0, fake.node.send(INDEX))
    fake.world.keep_back(lanes.NEWS)
    unseen: list[RemoteError] = []

    def settle() -> None:
        fake.session.settle()
        unseen.extend(fake.session.unseen_errors())

    thread = threading.Thread(target=settle)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    fake.world.deliver_late(lanes.NEWS)
    thread.join(30)
    assert [type(each) for each in unseen] == [RemoteOperationError]


def test_a_wait_for_news_ends_with_the_node(fake: FakeNode) -> None:
    fake.node.zeros(3)
    fake.world.keep_back(lanes.NEWS)
    ended: list[Exception] = []

    def synchronize() -> None:
        try:
            fake.node.synchronize()
        except RemoteError as error:
            ended.append(error)

    thread = threading.Thread(target=synchronize)
    thread.start()
    fake.lose()
    thread.join(30)
    assert not thread.is_alive()
    assert [type(each) for each in ended] == [NodeDeadError]
