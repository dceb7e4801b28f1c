"""Which sample stands at which place of an epoch."""

from __future__ import annotations

from multiworld.training.data.orders import NumberedOrder, ShardedOrder


def test_an_unshuffled_order_is_that_of_the_dataset() -> None:
    order = NumberedOrder(5)
    assert [order.index(3, place) for place in range(5)] == [0, 1, 2, 3, 4]


def test_each_epoch_is_shuffled_anew_and_the_same_for_all() -> None:
    one, other = (NumberedOrder(50, seed=7, shuffle=True) for _ in range(2))
    epochs = [[one.index(epoch, place) for place in range(50)] for epoch in range(10)]
    assert [[other.index(epoch, place) for place in range(50)] for epoch in reversed(range(10))] == epochs[::-1]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 10


def test_shuffles_of_another_seed_have_other_settings() -> None:
    orders = [NumberedOrder(50), NumberedOrder(50, shuffle=True), NumberedOrder(50, seed=1, shuffle=True)]
    settings = [order.settings() for order in orders]
    assert all(settings.count(each) == 1 for each in settings)


def sharded(*, shuffle: bool = False) -> ShardedOrder:
    return ShardedOrder([5, 0, 9, 3], global_batch=6, micro_batch=2, shuffle=shuffle)


def test_each_sample_of_each_shard_comes_once_in_an_epoch() -> None:
    for shuffle in (False, True):
        order = sharded(shuffle=shuffle)
        for epoch in range(5):
            assert sorted(order.index(epoch, place) for place in range(17)) == list(range(17))


def test_a_micro_batch_goes_on_where_the_same_one_of_the_step_before_ended() -> None:
    order = sharded()
    steps = [[order.index(0, step * 6 + place) for place in range(6)] for step in range(2)]
    assert steps == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert [order.index(0, place) for place in range(12, 17)] == [12, 13, 14, 15, 16]  # what is no whole step


def test_shuffling_changes_the_order_of_shards() -> None:
    orders = {tuple(sharded(shuffle=True).index(epoch, place) for place in range(17)) for epoch in range(20)}
    assert len(orders) == 6  # of three shards with samples


def test_an_id_names_the_shard_and_the_position_in_it() -> None:
    order = sharded()
    assert [order.id_of(index) for index in (0, 4, 5, 13, 14)] == ["0:0", "0:4", "2:0", "2:8", "3:0"]
