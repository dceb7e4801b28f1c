"""A coordinator whose network is parted says that a host is out only on the side that goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multiworld.elastic.leadership.election import has_quorum, hosts_out
from multiworld.world.liveness import LivenessPolicy


@st.composite
def partitions(draw: st.DrawFn) -> tuple[LivenessPolicy, list[str], dict[str, tuple[float, float]]]:
    """Return the policy, all agents, and of those behind the cut, which is at 0: when heard last, and when lost."""
    policy = LivenessPolicy(lease_s=draw(st.sampled_from([0.3, 1.0, 2.0, 4.0, 60.0])))
    agents = [f"agent{number}" for number in range(draw(st.integers(2, 9)))]
    beyond = draw(st.lists(st.sampled_from(agents[1:]), min_size=1, unique=True))
    first_loss_s = min(policy.unreachable_s, policy.lease_s - policy.heartbeat_s)
    latest_s = min(policy.unreachable_s + policy.heartbeat_s, policy.lease_s) + 2 * policy.examine_every_s
    times = {
        each: (draw(st.floats(-policy.heartbeat_s, 0.0)), draw(st.floats(first_loss_s, latest_s))) for each in beyond
    }
    return policy, agents, times


@given(partitions(), st.data())
def test_a_side_without_a_quorum_never_says_that_others_are_out(
    partition: tuple[LivenessPolicy, list[str], dict[str, tuple[float, float]]], data: st.DataObject
) -> None:
    policy, agents, beyond = partition
    goes_on = has_quorum(agents, votes=set(agents) - set(beyond), dead=set(), coordinated=True)
    out: frozenset[str] | None = None
    for now in sorted(lost_at for _, lost_at in beyond.values()):
        linked = {each for each in agents if each not in beyond or beyond[each][1] > now}
        if not has_quorum(agents, votes=linked, dead=set(), coordinated=True):
            break  # it is cut off, and serves no store any more
        heard_at = {
            each: beyond[each][0] if each in beyond else now - data.draw(st.floats(0.0, policy.heartbeat_s))
            for each in linked - {agents[0]}
        }
        out = hosts_out(
            {f"host of {each}" for each in agents},
            host_of={each: f"host of {each}" for each in linked},
            electorates=[agents],
            heard={agents[0]} | {each for each, at in heard_at.items() if at > now - 2 * policy.heartbeat_s},
            leaving=set(),
        )
        assert out is None or goes_on
    assert not goes_on or out == frozenset(f"host of {each}" for each in beyond)
