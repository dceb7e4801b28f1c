"""Partners are on other hosts first, and the chosen step has all its shards, for any hosts and any deaths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.training.copies.plan import CopyFacts, Snapshot, choose, is_due, kept_for, partners, to_keep

HOSTS = st.lists(st.sampled_from("abcd"), min_size=2, max_size=12)


@given(HOSTS, st.integers(1, 4))
def test_partners_are_others_and_on_as_many_other_hosts_as_there_are(hosts: list[str], copies: int) -> None:
    for place, host in enumerate(hosts):
        chosen = partners(place, hosts, copies)
        assert place not in chosen
        assert len(set(chosen)) == len(chosen) == min(copies, len(hosts) - 1)
        elsewhere = {hosts[each] for each in chosen} - {host}
        assert len(elsewhere) == min(copies, len(set(hosts)) - 1)
        assert all(place in kept_for(each, hosts, copies) for each in chosen)


@given(HOSTS)
def test_one_copy_of_each_process_loads_no_process_more_than_host_sizes_demand(hosts: list[str]) -> None:
    names = list(dict.fromkeys(hosts))
    for number, name in enumerate(names):
        before = names[number - 1]
        most = -(-hosts.count(before) // hosts.count(name)) if before != name else 1
        assert all(len(kept_for(place, hosts, 1)) <= most for place, host in enumerate(hosts) if host == name)


@given(st.integers(2, 4), st.integers(1, 3), st.lists(st.sampled_from("abc"), min_size=12, max_size=12), st.data())
def test_when_one_of_several_hosts_is_lost_all_shards_are_still_served(
    num_shards: int, num_replicas: int, spread: list[str], data: st.DataObject
) -> None:
    hosts = spread[: num_shards * num_replicas]
    lost = data.draw(st.sampled_from(sorted(set(hosts)))) if len(set(hosts)) > 1 else None
    in_memory: dict[str, list[Snapshot]] = {host: [] for host in hosts}
    for place, host in enumerate(hosts):
        shard = place % num_shards
        in_memory[host].append(Snapshot(step=40, label="x", shard=shard))
        for keeper in partners(place, hosts, 1):
            in_memory[hosts[keeper]].append(Snapshot(step=40, label="x", shard=shard, is_copy=True))
    members = [f"m{place}" for place in range(len(hosts))]  # those of the lost host come back on an empty one
    held = {member: [] if host == lost else in_memory[host] for member, host in zip(members, hosts, strict=True)}
    plan = choose(members, held, num_shards, saved_step=30)
    assert plan is not None
    assert [each.shard for each in plan.servings] == list(range(num_shards))
    first = members.index(plan.sources[0])
    assert list(plan.sources) == members[first : first + num_shards]  # one replica
    for each in plan.servings:
        assert each.shard in {snapshot.shard for snapshot in held[each.holder]}


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([10, 20, 30]), st.sampled_from("xy"), st.integers(0, 2)),
        max_size=30,
    ),
    st.integers(-1, 30),
)
def test_what_is_chosen_is_the_newest_that_is_whole(found: list[tuple[int, int, str, int]], saved_step: int) -> None:
    members = ["m0", "m1", "m2"]
    held: dict[str, list[Snapshot]] = {member: [] for member in members}
    for number, step, label, shard in found:
        held[f"m{number % 3}"].append(Snapshot(step=step, label=label, shard=shard))
    there = {(step, label): {each[3] for each in found if each[1:3] == (step, label)} for _, step, label, _ in found}
    newest = max((step for (step, _), shards in there.items() if shards == {0, 1, 2}), default=-1)
    plan = choose(members, held, 3, saved_step)
    assert (plan.step if plan else -1) == (newest if newest > saved_step else -1)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=12), st.integers(0, 3))
def test_while_copies_fail_at_random_the_last_whole_step_is_never_written_over(
    succeeds: list[list[bool]], seed: int
) -> None:
    """Three shards with two files each, as the keeper uses them: the older one that is not to be kept is written."""
    files: list[list[int]] = [[-1, -1] for _ in range(3)]
    whole: list[tuple[int, ...]] = [() for _ in range(3)]
    last = -1
    for number, outcome in enumerate(succeeds):
        step = 10 * (number + 1) + seed
        facts = [CopyFacts(begun=step - 10 if number else -1, whole=each) for each in whole]
        assert is_due(step, 10, facts)
        keep = to_keep({shard: [each] for shard, each in enumerate(facts)})
        assert keep == last
        for shard, is_well in enumerate(outcome):
            which = min(range(2), key=lambda at: (files[shard][at] == keep != -1, files[shard][at]))
            files[shard][which] = step
            there = [each for each in whole[shard] if each in files[shard]]
            whole[shard] = (*there, step) if is_well else tuple(there)
        assert keep == -1 or all(keep in each for each in files)
        last = max(set.intersection(*(set(each) for each in whole)), default=-1)
        assert last >= keep
        assert last == step or not all(outcome)
